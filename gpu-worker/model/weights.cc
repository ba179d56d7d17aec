#include "gpu-worker/model/weights.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>

#include "gpu-worker/model/tensors.h"
namespace ringmaster::gpu_worker {
namespace {

using kernels::SourceForm;

constexpr size_t kSourcesPerLayer = 9;

}  // namespace

Status WeightPlan::add(const Gguf& file, const std::string& name, uint32_t rows, uint32_t columns,
                       bool vector) {
  const Result<SourceTensor> tensor = find_tensor(file, name, rows, columns, vector, "the cpu device");
  if (!tensor) return tensor.error();
  if (columns % kernels::kBlock != 0)
    return Error{Code::kUnsupported, file.path() + ": tensor " + name + " has " + std::to_string(columns) +
                                         " columns; the cpu device needs a multiple of " +
                                         std::to_string(kernels::kBlock)};
  sources_.push_back(
      {.data = tensor->data,
       .form = tensor->form,
       .matrix = {.form = kernels::packed_form(tensor->form), .rows = rows, .columns = columns},
       .vector = vector});
  return ok_status();
}

Status WeightPlan::add_layer(const Gguf& file, const ModelDescription& d, uint32_t layer) {
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  const uint32_t q_rows = d.heads * d.head_dim, kv_rows = d.kv_heads * d.head_dim;
  struct Part {
    const char* name;
    uint32_t rows, columns;
    bool vector;
  };
  for (const Part& part :
       {Part{"attn_norm", 1, d.hidden, true}, Part{"attn_q", q_rows, d.hidden, false},
        Part{"attn_k", kv_rows, d.hidden, false}, Part{"attn_v", kv_rows, d.hidden, false},
        Part{"attn_output", d.hidden, q_rows, false}, Part{"ffn_norm", 1, d.hidden, true},
        Part{"ffn_gate", d.feed_forward, d.hidden, false}, Part{"ffn_up", d.feed_forward, d.hidden, false},
        Part{"ffn_down", d.hidden, d.feed_forward, false}})
    if (Status s = add(file, prefix + part.name + ".weight", part.rows, part.columns, part.vector); !s)
      return s;
  const size_t first = sources_.size() - kSourcesPerLayer;
  agree(first + 1, first + 3);
  agree(first + 6, first + 7);
  return ok_status();
}

// Matrices [first, last] share one prepared input; if one of them wants floats, all do.
void WeightPlan::agree(size_t first, size_t last) {
  bool any_float = false;
  for (size_t i = first; i <= last; ++i)
    any_float |= sources_[i].matrix.input() == kernels::InputForm::kFloat;
  for (size_t i = first; any_float && i <= last; ++i)
    if (sources_[i].matrix.input() != kernels::InputForm::kFloat) {
      sources_[i].as_float = true;
      sources_[i].matrix.form = kernels::WeightForm::kF32;
    }
}

size_t WeightPlan::source_bytes(const Source& source) const {
  const size_t bytes = source.vector ? source.matrix.columns * sizeof(float)
                                     : source.matrix.groups() * source.matrix.group_bytes();
  return (bytes + 63) / 64 * 64;
}

void WeightPlan::place() {
  for (Source& source : sources_) {
    source.offset = bytes_;
    bytes_ += source_bytes(source);
  }
}

Result<WeightPlan> WeightPlan::make(const Gguf& file, const ModelDescription& d) {
  WeightPlan plan;
  plan.layers_ = d.layers;
  plan.tied_ = d.tied_head;
  plan.header_hash_ = file.header_hash();
  if (file.tensors().size() < size_t{d.layers} * kSourcesPerLayer)
    return Error{Code::kMalformed, file.path() + ": " + std::to_string(d.layers) + " layers need " +
                                       std::to_string(size_t{d.layers} * kSourcesPerLayer) +
                                       " tensors; the file has " + std::to_string(file.tensors().size())};
  if (Status s = check_all_known(file, d.layers); !s) return s.error();
  if (Status s = plan.add(file, "token_embd.weight", d.vocab_size, d.hidden, false); !s) return s.error();
  for (uint32_t layer = 0; layer < d.layers; ++layer)
    if (Status s = plan.add_layer(file, d, layer); !s) return s.error();
  if (Status s = plan.add(file, "output_norm.weight", 1, d.hidden, true); !s) return s.error();
  if (!d.tied_head)
    if (Status s = plan.add(file, "output.weight", d.vocab_size, d.hidden, false); !s) return s.error();
  plan.place();
  return plan;
}

// Groups [first, last) of one tensor; a vector is one group.
void WeightPlan::pack(const Source& source, size_t first, size_t last, std::byte* memory) const {
  const Matrix& m = source.matrix;
  const size_t row_bytes = kernels::source_row_bytes(source.form, m.columns);
  for (size_t g = first; g < last; ++g) {
    const std::byte* rows = source.data.data() + g * kernels::kGroup * row_bytes;
    const size_t num_rows = std::min<size_t>(kernels::kGroup, m.rows - g * kernels::kGroup);
    std::byte* out = memory + source.offset + (source.vector ? 0 : g * m.group_bytes());
    if (source.vector) {
      kernels::dequantize_row(reinterpret_cast<float*>(out), rows, m.columns, source.form);
    } else if (source.as_float) {
      kernels::pack_group_float(out, rows, num_rows, m.columns, source.form);
    } else {
      kernels::pack_group(out, rows, num_rows, m.columns, source.form);
    }
  }
}

WeightPlan::Loaded WeightPlan::load(std::byte* memory, unsigned threads) const {
  struct Job {
    const Source* source;
    size_t first, last;  // groups
  };
  constexpr size_t kJobBytes =
      1 << 20;  // small enough to share out evenly, large enough to be worth claiming
  std::vector<Job> jobs;
  for (const Source& source : sources_) {
    const size_t groups = source.vector ? 1 : source.matrix.groups();
    const size_t step = source.vector ? 1 : std::max<size_t>(1, kJobBytes / source.matrix.group_bytes());
    for (size_t g = 0; g < groups; g += step) jobs.push_back({&source, g, std::min(g + step, groups)});
  }
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t j; (j = next.fetch_add(1, std::memory_order_relaxed)) < jobs.size();)
      pack(*jobs[j].source, jobs[j].first, jobs[j].last, memory);
  };
  std::vector<std::thread> helpers;
  for (unsigned i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  return {.weights = laid_out(memory), .hash = header_hash_};
}

Weights WeightPlan::laid_out(const std::byte* memory) const {
  size_t i = 0;
  const auto matrix = [&] {
    Matrix m = sources_[i].matrix;
    m.data = memory + sources_[i++].offset;
    return m;
  };
  const auto vector = [&] { return reinterpret_cast<const float*>(memory + sources_[i++].offset); };
  Weights w;
  w.embedding = matrix();
  for (uint32_t layer = 0; layer < layers_; ++layer) {
    LayerWeights l;
    l.attention_norm = vector();
    l.q = matrix();
    l.k = matrix();
    l.v = matrix();
    l.attention_output = matrix();
    l.feed_forward_norm = vector();
    l.gate = matrix();
    l.up = matrix();
    l.down = matrix();
    w.layers.push_back(l);
  }
  w.output_norm = vector();
  w.head = tied_ ? w.embedding : matrix();
  return w;
}

}  // namespace ringmaster::gpu_worker
