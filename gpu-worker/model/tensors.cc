#include "gpu-worker/model/tensors.h"

#include <optional>
#include <unordered_set>
#include <vector>

namespace ringmaster::gpu_worker {
namespace {

using kernels::SourceForm;

std::optional<SourceForm> source_form(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return SourceForm::kF32;
    case TensorType::kF16:
      return SourceForm::kF16;
    case TensorType::kBF16:
      return SourceForm::kBF16;
    case TensorType::kQ4_0:
      return SourceForm::kQ4_0;
    case TensorType::kQ4_1:
      return SourceForm::kQ4_1;
    case TensorType::kQ8_0:
      return SourceForm::kQ8_0;
    default:
      return std::nullopt;
  }
}

std::string shape_text(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (const uint64_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

}  // namespace

Status check_all_known(const Gguf& file, uint32_t layers) {
  std::unordered_set<std::string> known = {"token_embd.weight", "output_norm.weight", "output.weight",
                                           "rope_freqs.weight"};
  for (uint32_t i = 0; i < layers; ++i)
    for (const char* part : {"attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate",
                             "ffn_up", "ffn_down"})
      known.insert("blk." + std::to_string(i) + "." + part + ".weight");
  for (const GgufTensor& tensor : file.tensors())
    if (!known.contains(std::string(tensor.name)))
      return Error{Code::kUnsupported, file.path() + ": tensor " + std::string(tensor.name) +
                                           " is not part of the architecture as this build knows it"};
  return ok_status();
}

Result<SourceTensor> find_tensor(const Gguf& file, const std::string& name, uint32_t rows, uint32_t columns,
                                 bool vector, std::string_view device) {
  const GgufTensor* tensor = file.tensor(name);
  if (tensor == nullptr) return Error{Code::kMalformed, file.path() + ": tensor " + name + " is missing"};
  const std::vector<uint64_t> expected =
      vector ? std::vector<uint64_t>{columns} : std::vector<uint64_t>{columns, rows};
  if (tensor->shape != expected)
    return Error{Code::kMalformed, file.path() + ": tensor " + name + " has the shape " +
                                       shape_text(tensor->shape) + "; expected " + shape_text(expected)};
  const std::optional<SourceForm> form = source_form(tensor->type);
  if (!form || (vector && kernels::input_form(kernels::packed_form(*form)) != kernels::InputForm::kFloat))
    return Error{Code::kUnsupported,
                 file.path() + ": tensor " + name + " has the type " +
                     std::string(ringmaster::name(tensor->type)) + "; " + std::string(device) + " reads " +
                     (vector ? "F32, F16 and BF16 here" : "F32, F16, BF16, Q4_0, Q4_1 and Q8_0")};
  const size_t bytes = kernels::source_row_bytes(*form, columns) * rows;
  if (tensor->data.size() != bytes)
    return Error{Code::kMalformed, file.path() + ": tensor " + name + " has " +
                                       std::to_string(tensor->data.size()) + " bytes; expected " +
                                       std::to_string(bytes)};
  return SourceTensor{tensor->data, *form};
}

}  // namespace ringmaster::gpu_worker
