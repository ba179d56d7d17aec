#include "gpu-worker/model/description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "gpu-worker/model/weights.h"
#include "tests/gpu-worker/model/gguf_builder.h"

namespace ringmaster::gpu_worker {
namespace {

using testing::HasSubstr;

// What describe() and then WeightPlan::make() say of a file; the code and the message's part that names the
// culprit.
void expect_refused(const GgufBuilder& builder, Code code, const std::string& part) {
  const Result<Gguf> file = Gguf::open(builder.write());
  ASSERT_TRUE(file.ok()) << file.error().message;
  const Result<ModelDescription> description = describe(*file);
  if (!description) {
    EXPECT_EQ(description.error().code, code) << description.error().message;
    EXPECT_THAT(description.error().message, HasSubstr(part));
    EXPECT_THAT(description.error().message, HasSubstr("model.gguf"));
    return;
  }
  const Result<WeightPlan> plan = WeightPlan::make(*file, *description);
  ASSERT_FALSE(plan.ok()) << "accepted although " << part;
  EXPECT_EQ(plan.error().code, code) << plan.error().message;
  EXPECT_THAT(plan.error().message, HasSubstr(part));
  EXPECT_THAT(plan.error().message, HasSubstr("model.gguf"));
}

TEST(Description, ReadsALlama) {
  GgufBuilder b = GgufBuilder::llama();
  const Result<Gguf> file = Gguf::open(b.write());
  ASSERT_TRUE(file.ok()) << file.error().message;
  const Result<ModelDescription> d = describe(*file);
  ASSERT_TRUE(d.ok()) << d.error().message;
  EXPECT_EQ(d->name, "tiny");
  EXPECT_EQ(d->head_dim, 32u);
  EXPECT_EQ(d->kv_heads, 1u);
  EXPECT_EQ(d->vocab_size, 40u);
  EXPECT_TRUE(d->tied_head);
  EXPECT_FALSE(d->qkv_bias);
  EXPECT_FLOAT_EQ(d->attention_scale, 1 / std::sqrt(32.0f));
  ASSERT_EQ(d->rope.inverse_frequency.size(), 16u);
  EXPECT_FLOAT_EQ(d->rope.inverse_frequency[0], 1);
  EXPECT_FLOAT_EQ(d->rope.inverse_frequency[4], 0.1f);
  EXPECT_TRUE(WeightPlan::make(*file, *d).ok());
}

TEST(Description, SMP_09_FrequencyTablesAndLinearScalingAreApplied) {
  GgufBuilder b = GgufBuilder::llama();
  b.texts["llama.rope.scaling.type"] = "linear";
  b.floats["llama.rope.scaling.factor"] = 4;
  Result<Gguf> file = Gguf::open(b.write());
  ASSERT_TRUE(file.ok());
  Result<ModelDescription> d = describe(*file);
  ASSERT_TRUE(d.ok()) << d.error().message;
  EXPECT_FLOAT_EQ(d->rope.inverse_frequency[4], 0.025f);

  b.texts.erase("llama.rope.scaling.type");
  b.tensors["rope_freqs.weight"] = {TensorType::kF32, {16}};
  expect_refused(b, Code::kMalformed, "rope_freqs.weight[");  // the builder's values are not all positive
  b.tensors["rope_freqs.weight"] = {TensorType::kF32, {8}};
  expect_refused(b, Code::kMalformed, "rope_freqs.weight");
  b.tensors.erase("rope_freqs.weight");
  b.texts["llama.rope.scaling.type"] = "yarn";
  expect_refused(b, Code::kUnsupported, "yarn");
}

TEST(Description, RefusesByName) {
  GgufBuilder b = GgufBuilder::llama();
  b.texts["general.architecture"] = "mamba";
  expect_refused(b, Code::kUnsupported, "mamba");
  b = GgufBuilder::llama();
  b.integers["llama.expert_count"] = 8;
  expect_refused(b, Code::kUnsupported, "expert_count");
  b = GgufBuilder::llama();
  b.tensors["blk.0.attn_q.weight"].type = TensorType::kQ5_0;
  expect_refused(b, Code::kUnsupported, "blk.0.attn_q.weight has the type Q5_0");
  b = GgufBuilder::llama();
  b.tensors["blk.0.attn_norm.weight"].type = TensorType::kQ8_0;
  expect_refused(b, Code::kUnsupported, "blk.0.attn_norm.weight has the type Q8_0");
  b = GgufBuilder::llama();
  b.tensors["blk.0.attn_q.bias"] = {TensorType::kF32, {64}};
  expect_refused(b, Code::kUnsupported, "blk.0.attn_q.bias");
  b = GgufBuilder::llama();
  b.tensors["blk.1.attn_q.weight"] = {TensorType::kF32, {64, 64}};
  expect_refused(b, Code::kUnsupported, "blk.1.attn_q.weight");
}

TEST(Description, RefusesSizesThatContradict) {
  const auto with = [](const std::string& key, uint32_t value) {
    GgufBuilder b = GgufBuilder::llama();
    b.integers[key] = value;
    return b;
  };
  expect_refused(with("llama.block_count", 0), Code::kMalformed, "llama.block_count is 0");
  expect_refused(with("llama.block_count", 0xFFFFFFFF), Code::kMalformed, "llama.block_count is 4294967295");
  expect_refused(with("llama.block_count", 1 << 20), Code::kMalformed, "layers need");
  expect_refused(with("llama.block_count", 2), Code::kMalformed, "layers need");
  expect_refused(with("llama.attention.head_count", 3), Code::kMalformed, "head_count 3");
  expect_refused(with("llama.attention.head_count_kv", 0), Code::kMalformed, "head_count_kv");
  expect_refused(with("llama.attention.key_length", 1 << 20), Code::kMalformed, "head_count");
  expect_refused(with("llama.attention.value_length", 16), Code::kUnsupported, "value_length");
  expect_refused(with("llama.feed_forward_length", 64), Code::kMalformed, "ffn_gate.weight");
  expect_refused(with("llama.rope.dimension_count", 33), Code::kMalformed, "dimension_count");
  expect_refused(with("llama.embedding_length", 32), Code::kMalformed, "token_embd.weight");
  GgufBuilder b = GgufBuilder::llama();
  b.floats["llama.rope.freq_base"] = NAN;
  expect_refused(b, Code::kMalformed, "freq_base");
  b = GgufBuilder::llama();
  b.floats["llama.attention.layer_norm_rms_epsilon"] = -1;
  expect_refused(b, Code::kMalformed, "epsilon");
}

TEST(Description, RefusesMissingKeysAndTensors) {
  for (const char* key : {"llama.block_count", "llama.embedding_length", "llama.feed_forward_length",
                          "llama.attention.head_count", "llama.context_length"}) {
    GgufBuilder b = GgufBuilder::llama();
    b.integers.erase(key);
    const Result<Gguf> file = Gguf::open(b.write());
    ASSERT_TRUE(file.ok());
    const Result<ModelDescription> d = describe(*file);
    ASSERT_FALSE(d.ok());
    EXPECT_THAT(d.error().message, HasSubstr(key));
  }
  for (const char* tensor : {"token_embd.weight", "output_norm.weight", "blk.0.ffn_down.weight"}) {
    GgufBuilder b = GgufBuilder::llama();
    b.tensors.erase(tensor);
    b.tensors["output.weight"] = {TensorType::kF32,
                                  {64, 40}};  // so that the count of tensors is not what fails
    expect_refused(b, Code::kMalformed, tensor);
  }
}

TEST(Weights, MatricesThatShareAnInputAgreeInIt) {
  GgufBuilder b = GgufBuilder::llama();
  b.tensors["blk.0.attn_k.weight"].type = TensorType::kQ8_0;  // beside q and v in F32
  b.tensors["blk.0.ffn_down.weight"].type = TensorType::kQ4_1;
  const Result<Gguf> file = Gguf::open(b.write());
  ASSERT_TRUE(file.ok());
  const Result<ModelDescription> d = describe(*file);
  const Result<WeightPlan> plan = WeightPlan::make(*file, *d);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  std::vector<std::byte> storage(plan->bytes() + 64);
  std::byte* memory = storage.data() + (64 - reinterpret_cast<uintptr_t>(storage.data()) % 64) % 64;
  const Weights weights = plan->load(memory, 1).weights;
  EXPECT_EQ(weights.layers[0].k.form, kernels::WeightForm::kF32);
  EXPECT_EQ(weights.layers[0].down.form, kernels::WeightForm::kU4);
}

}  // namespace
}  // namespace ringmaster::gpu_worker
