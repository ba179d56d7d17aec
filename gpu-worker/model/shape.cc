#include "gpu-worker/model/shape.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

namespace ringmaster::gpu_worker {
namespace {

using Json = nlohmann::json;

class Reader {
 public:
  Reader(const std::string& path, const Json& json) : path_(path), json_(json) {}

  // A required whole number within [1, most].
  uint32_t size(const char* key, uint32_t most = 1 << 20) {
    if (!present(key)) {
      fail(Code::kMalformed, std::string(key) + " is missing");
      return 1;
    }
    return size_or(key, 0, most);
  }
  uint32_t size_or(const char* key, uint32_t otherwise, uint32_t most = 1 << 20) {
    if (!present(key)) return otherwise;
    const Json& value = json_[key];
    if (!value.is_number_unsigned() || value.get<uint64_t>() < 1 || value.get<uint64_t>() > most) {
      fail(Code::kMalformed,
           std::string(key) + " is " + value.dump() + "; allowed: 1 to " + std::to_string(most));
      return 1;
    }
    return value.get<uint32_t>();
  }
  float number_or(const char* key, double otherwise) {
    if (!present(key)) return static_cast<float>(otherwise);
    const Json& value = json_[key];
    if (!value.is_number() || !(value.get<double>() > 0) || !std::isfinite(value.get<double>())) {
      fail(Code::kMalformed, std::string(key) + " is " + value.dump() + "; allowed: numbers above 0");
      return 1;
    }
    return static_cast<float>(value.get<double>());
  }
  bool flag(const char* key) { return present(key) && json_[key].is_boolean() && json_[key].get<bool>(); }
  std::string text(const char* key) {
    return present(key) && json_[key].is_string() ? json_[key].get<std::string>() : "";
  }
  // Columns of a group of four-bit weights; 0 without the key.
  uint32_t weight_group() {
    if (!present("quantization")) return 0;
    const Json& q = json_["quantization"];
    const auto is = [&](const char* key, auto... allowed) {
      return q.is_object() && q.contains(key) && q[key].is_number_unsigned() &&
             ((q[key].template get<uint64_t>() == allowed) || ...);
    };
    if (!is("bits", 4u) || !is("group_size", 32u, 64u, 128u)) {
      fail(Code::kUnsupported,
           "quantization is " + q.dump() + "; this build knows bits 4 with group_size 32, 64 or 128");
      return 0;
    }
    return q["group_size"].get<uint32_t>();
  }
  bool present(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }

  void fail(Code code, const std::string& what) {
    if (status_) status_ = Error{code, path_ + ": " + what};
  }
  const Status& status() const { return status_; }

 private:
  const std::string& path_;
  const Json& json_;
  Status status_ = ok_status();
};

// What sets Gemma 2 apart (transformers' modeling_gemma2.py): scales, caps, norms on both sides, and every
// second layer, from the first on, sees a window.
void add_gemma2(Reader& r, ModelDescription& d) {
  d.activation = Activation::kGeluTanh;
  d.norm_weight_offset = 1;
  d.norm_after = true;
  d.embedding_scale = std::sqrt(static_cast<float>(d.hidden));
  d.attention_scale = 1 / std::sqrt(r.number_or("query_pre_attn_scalar", 256));
  d.attention_soft_cap = r.number_or("attn_logit_softcapping", 50);
  d.final_soft_cap = r.number_or("final_logit_softcapping", 30);
  for (uint32_t layer = 1; layer < d.layers; layer += 2) d.window[layer] = 0;
  if (!r.present("tie_word_embeddings")) d.tied_head = true;
}

ModelDescription read(Reader& r) {
  ModelDescription d;
  d.architecture = r.text("model_type");
  const bool gemma2 = d.architecture == "gemma2";
  if (d.architecture != "llama" && d.architecture != "mistral" && d.architecture != "phi3" && !gemma2)
    r.fail(Code::kUnsupported,
           "model_type is \"" + d.architecture + "\"; this build knows gemma2, llama, mistral and phi3");
  d.name = r.text("_name_or_path");
  d.layers = r.size("num_hidden_layers");
  d.hidden = r.size("hidden_size");
  d.feed_forward = r.size("intermediate_size");
  d.heads = r.size("num_attention_heads");
  d.kv_heads = r.size_or("num_key_value_heads", d.heads);
  d.vocab_size = r.size("vocab_size");
  d.context_length = r.size("max_position_embeddings", 1 << 27);
  if (d.heads % d.kv_heads != 0)
    r.fail(Code::kMalformed, "num_attention_heads " + std::to_string(d.heads) +
                                 " is not a multiple of num_key_value_heads " + std::to_string(d.kv_heads));
  d.head_dim = r.size_or("head_dim", d.hidden / d.heads);
  d.norm_epsilon = r.number_or("rms_norm_eps", 1e-5);
  if (r.present("rope_scaling")) r.fail(Code::kUnsupported, "rope_scaling is not read from shapes");
  const std::string activation = r.text("hidden_act"), expected = gemma2 ? "gelu_pytorch_tanh" : "silu";
  if (activation != expected)
    r.fail(Code::kUnsupported,
           "hidden_act is \"" + activation + "\"; this build knows " + expected + " for " + d.architecture);
  d.attention_scale = 1 / std::sqrt(static_cast<float>(d.head_dim));
  d.window.assign(d.layers, r.size_or("sliding_window", 0, 1 << 27));
  d.tied_head = r.flag("tie_word_embeddings");
  if (gemma2) add_gemma2(r, d);
  d.weight_group = r.weight_group();
  for (const uint32_t columns : {d.hidden, d.feed_forward, d.heads * d.head_dim})
    if (d.weight_group != 0 && columns % d.weight_group != 0)
      r.fail(Code::kUnsupported, "quantization in groups of " + std::to_string(d.weight_group) +
                                     " does not divide rows of " + std::to_string(columns) + " values");
  d.rope.pairs = Rope::Pairs::kHalves;
  d.rope.dims = d.head_dim;
  const float base = r.number_or("rope_theta", 10000);
  for (uint32_t i = 0; i < d.rope.dims / 2; ++i)
    d.rope.inverse_frequency.push_back(
        1 / std::pow(base, static_cast<float>(2 * i) / static_cast<float>(d.rope.dims)));
  return d;
}

}  // namespace

Result<ModelDescription> describe_shape(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Error{Code::kNotFound, path + ": cannot be opened"};
  const Json json = Json::parse(file, nullptr, false);
  if (!json.is_object()) return Error{Code::kMalformed, path + ": is not a JSON object"};
  Reader reader(path, json);
  ModelDescription description = read(reader);
  if (!reader.status()) return reader.status().error();
  return description;
}

}  // namespace ringmaster::gpu_worker
