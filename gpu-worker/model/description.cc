#include "gpu-worker/model/description.h"

#include <cmath>
#include <cstring>

namespace ringmaster::gpu_worker {
namespace {

constexpr uint64_t kMaxSize = 1 << 20;  // of any one dimension: the largest vocabularies have 2^18 entries

Error malformed(const Gguf& file, const std::string& what) {
  return {Code::kMalformed, file.path() + ": " + what};
}

Error unsupported(const Gguf& file, const std::string& what) {
  return {Code::kUnsupported, file.path() + ": " + what};
}

// A required whole number within [1, most].
Result<uint32_t> size(const Gguf& file, const std::string& key, uint64_t most = kMaxSize) {
  Result<uint64_t> value = file.integer(key);
  if (!value) return value.error();
  if (*value < 1 || *value > most)
    return malformed(file, key + " is " + std::to_string(*value) + "; allowed: 1 to " + std::to_string(most));
  return static_cast<uint32_t>(*value);
}

Result<uint32_t> size_or(const Gguf& file, const std::string& key, uint32_t otherwise) {
  if (file.find(key) == nullptr) return otherwise;
  return size(file, key);
}

// A number within (low, high], `otherwise` when the key is absent.
Result<float> number_or(const Gguf& file, const std::string& key, double otherwise, double low, double high) {
  if (file.find(key) == nullptr) return static_cast<float>(otherwise);
  Result<double> value = file.number(key);
  if (!value) return value.error();
  if (!(*value > low && *value <= high))
    return malformed(file, key + " is " + std::to_string(*value) + "; allowed: above " + std::to_string(low) +
                               ", at most " + std::to_string(high));
  return static_cast<float>(*value);
}

// Frequencies of the pairs: base^(-2i / dims), as float32 like the reference implementations, divided by the
// linear scaling factor and by rope_freqs.weight (Llama 3.1's table, one divisor a pair) where the file has
// them.
Result<std::vector<float>> frequencies(const Gguf& file, uint32_t dims) {
  Result<float> base = number_or(file, "llama.rope.freq_base", 10000, 0, 1e12);
  if (!base) return base.error();
  float linear = 1;
  if (file.find("llama.rope.scaling.type") != nullptr) {
    Result<std::string_view> type = file.text("llama.rope.scaling.type");
    if (!type) return type.error();
    if (*type == "linear") {
      Result<float> factor = number_or(file, "llama.rope.scaling.factor", 1, 0, 1e6);
      if (!factor) return factor.error();
      linear = *factor;
    } else if (*type != "none") {
      return unsupported(file, "llama.rope.scaling.type is \"" + std::string(*type) +
                                   "\"; this build knows \"none\" and \"linear\"");
    }
  }
  const GgufTensor* divisors = file.tensor("rope_freqs.weight");
  if (divisors != nullptr && (divisors->type != TensorType::kF32 || divisors->data.size() != dims / 2 * 4))
    return malformed(file, "rope_freqs.weight must be F32 with " + std::to_string(dims / 2) + " values");
  std::vector<float> result(dims / 2);
  for (uint32_t i = 0; i < dims / 2; ++i) {
    float divisor = linear;
    if (divisors != nullptr) {
      float value;
      std::memcpy(&value, divisors->data.data() + 4 * i, 4);
      if (!(value > 0 && std::isfinite(value)))
        return malformed(file, "rope_freqs.weight[" + std::to_string(i) + "] is " + std::to_string(value) +
                                   "; allowed: positive numbers");
      divisor *= value;
    }
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dims);
    result[i] = 1.0f / std::pow(*base, exponent) / divisor;
  }
  return result;
}

Status read_sizes(const Gguf& file, ModelDescription& d) {
  struct Field {
    const char* key;
    uint32_t* value;
  };
  for (const Field& field :
       {Field{"llama.block_count", &d.layers}, Field{"llama.embedding_length", &d.hidden},
        Field{"llama.feed_forward_length", &d.feed_forward}, Field{"llama.attention.head_count", &d.heads},
        Field{"llama.context_length", &d.context_length}}) {
    Result<uint32_t> value = size(file, field.key, field.value == &d.context_length ? 1 << 27 : kMaxSize);
    if (!value) return value.error();
    *field.value = *value;
  }
  Result<uint32_t> kv_heads = size_or(file, "llama.attention.head_count_kv", d.heads);
  if (!kv_heads) return kv_heads.error();
  d.kv_heads = *kv_heads;
  if (d.heads % d.kv_heads != 0)
    return malformed(file, "llama.attention.head_count " + std::to_string(d.heads) +
                               " is not a multiple of head_count_kv " + std::to_string(d.kv_heads));
  if (d.hidden % d.heads != 0 && file.find("llama.attention.key_length") == nullptr)
    return malformed(file, "llama.embedding_length " + std::to_string(d.hidden) +
                               " is not a multiple of llama.attention.head_count " + std::to_string(d.heads));
  Result<uint32_t> head_dim = size_or(file, "llama.attention.key_length", d.hidden / d.heads);
  if (!head_dim) return head_dim.error();
  d.head_dim = *head_dim;
  if (uint64_t{d.heads} * d.head_dim > kMaxSize)
    return malformed(file, "llama.attention.head_count " + std::to_string(d.heads) + " times head size " +
                               std::to_string(d.head_dim) + " is above " + std::to_string(kMaxSize));
  Result<uint32_t> value_dim = size_or(file, "llama.attention.value_length", d.head_dim);
  if (!value_dim) return value_dim.error();
  if (*value_dim != d.head_dim)
    return unsupported(file, "llama.attention.value_length " + std::to_string(*value_dim) +
                                 " differs from key_length " + std::to_string(d.head_dim));
  const GgufTensor* embedding = file.tensor("token_embd.weight");
  if (embedding == nullptr) return malformed(file, "tensor token_embd.weight is missing");
  if (embedding->shape.size() != 2 || embedding->shape[0] != d.hidden || embedding->shape[1] < 1 ||
      embedding->shape[1] > kMaxSize)
    return malformed(file, "tensor token_embd.weight must have the shape [" + std::to_string(d.hidden) +
                               ", vocabulary of 1 to " + std::to_string(kMaxSize) + "]");
  d.vocab_size = static_cast<uint32_t>(embedding->shape[1]);
  return ok_status();
}

Result<ModelDescription> describe_llama(const Gguf& file) {
  ModelDescription d;
  d.architecture = "llama";
  if (Result<std::string_view> name = file.text("general.name"); name) d.name = *name;
  if (Status sizes = read_sizes(file, d); !sizes) return sizes.error();
  if (file.find("llama.expert_count") != nullptr) {
    Result<uint64_t> experts = file.integer("llama.expert_count");
    if (!experts) return experts.error();
    if (*experts != 0) return unsupported(file, "mixture of experts (llama.expert_count) is not supported");
  }
  Result<float> epsilon = number_or(file, "llama.attention.layer_norm_rms_epsilon", 1e-5, 0, 1);
  if (!epsilon) return epsilon.error();
  d.norm_epsilon = *epsilon;
  Result<uint32_t> dims = size_or(file, "llama.rope.dimension_count", d.head_dim);
  if (!dims) return dims.error();
  if (*dims > d.head_dim || *dims % 2 != 0)
    return malformed(file, "llama.rope.dimension_count is " + std::to_string(*dims) +
                               "; allowed: even, at most the head's " + std::to_string(d.head_dim));
  d.rope.dims = *dims;
  Result<std::vector<float>> inverse_frequency = frequencies(file, d.rope.dims);
  if (!inverse_frequency) return inverse_frequency.error();
  d.rope.inverse_frequency = std::move(*inverse_frequency);
  d.attention_scale = 1.0f / std::sqrt(static_cast<float>(d.head_dim));
  Result<uint32_t> window = size_or(file, "llama.attention.sliding_window", 0);
  if (!window) return window.error();
  d.window.assign(d.layers, *window);
  d.qkv_bias = file.tensor("blk.0.attn_q.bias") != nullptr;
  d.tied_head = file.tensor("output.weight") == nullptr;
  return d;
}

}  // namespace

Result<ModelDescription> describe(const Gguf& file) {
  Result<std::string_view> architecture = file.text("general.architecture");
  if (!architecture) return architecture.error();
  if (*architecture == "llama") return describe_llama(file);
  return unsupported(file, "general.architecture is \"" + std::string(*architecture) +
                               "\"; this build runs \"llama\" (Llama and Mistral files)");
}

}  // namespace ringmaster::gpu_worker
