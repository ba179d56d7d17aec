// The shapes that are shipped, read, and what is refused.
#include "gpu-worker/model/shape.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace ringmaster::gpu_worker {
namespace {

Result<ModelDescription> shipped(const std::string& name) {
  return describe_shape(RINGMASTER_SOURCE_DIR "/gpu-worker/model/shapes/" + name + ".json");
}

std::string refusal(const std::string& json) {
  const std::string path = testing::TempDir() + "rm-shape-" + std::to_string(getpid()) + ".json";
  std::ofstream(path) << json;
  const auto description = describe_shape(path);
  unlink(path.c_str());
  if (description.ok()) return "accepted";
  return std::string(name(description.error().code)) + description.error().message.substr(path.size());
}

constexpr const char* kTiny = R"("hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
  "num_attention_heads": 2, "vocab_size": 40, "max_position_embeddings": 128)";

TEST(Shape, Gemma2HasItsCapsScalesAndAlternatingWindows) {
  const auto d = shipped("gemma-2-2b");
  ASSERT_TRUE(d.ok()) << d.error().message;
  EXPECT_EQ(d->architecture, "gemma2");
  EXPECT_EQ(d->layers, 26u);
  EXPECT_EQ(d->hidden, 2304u);
  EXPECT_EQ(d->feed_forward, 9216u);
  EXPECT_EQ(d->heads, 8u);
  EXPECT_EQ(d->kv_heads, 4u);
  EXPECT_EQ(d->head_dim, 256u);
  EXPECT_EQ(d->vocab_size, 256000u);
  EXPECT_EQ(d->context_length, 8192u);
  EXPECT_EQ(d->norm_weight_offset, 1);
  EXPECT_TRUE(d->norm_after);
  EXPECT_TRUE(d->tied_head);
  EXPECT_EQ(d->activation, Activation::kGeluTanh);
  EXPECT_EQ(d->attention_scale, 1.0f / 16);
  EXPECT_EQ(d->attention_soft_cap, 50);
  EXPECT_EQ(d->final_soft_cap, 30);
  EXPECT_EQ(d->embedding_scale, 48);  // the root of 2304
  EXPECT_FLOAT_EQ(d->norm_epsilon, 1e-6f);
  ASSERT_EQ(d->window.size(), 26u);
  for (uint32_t layer = 0; layer < 26; ++layer) EXPECT_EQ(d->window[layer], layer % 2 == 0 ? 4096u : 0u);
  ASSERT_EQ(d->rope.inverse_frequency.size(), 128u);
  EXPECT_EQ(d->rope.inverse_frequency[0], 1);
  EXPECT_FLOAT_EQ(d->rope.inverse_frequency[64], 0.01f);
}

TEST(Shape, LlamaAndPhiAreAsPublished) {
  const auto phi = shipped("phi-3-mini"), llama = shipped("llama-3-8b");
  ASSERT_TRUE(phi.ok()) << phi.error().message;
  ASSERT_TRUE(llama.ok()) << llama.error().message;
  EXPECT_EQ(phi->head_dim, 96u);
  EXPECT_EQ(llama->head_dim, 128u);
  EXPECT_EQ(llama->kv_heads, 8u);
  for (const auto& d : {*phi, *llama}) {
    EXPECT_EQ(d.norm_weight_offset, 0);
    EXPECT_FALSE(d.norm_after);
    EXPECT_EQ(d.embedding_scale, 1);
    EXPECT_EQ(d.attention_soft_cap, 0);
    EXPECT_EQ(d.activation, Activation::kSilu);
  }
}

TEST(Shape, RefusalsNameTheKey) {
  const std::string tiny = kTiny;
  EXPECT_EQ(refusal("{" + tiny + R"(, "model_type": "llama", "hidden_act": "silu"})"), "accepted");
  EXPECT_EQ(refusal("[]"), "malformed: is not a JSON object");
  EXPECT_EQ(refusal("{" + tiny + R"(, "model_type": "bert", "hidden_act": "silu"})"),
            "unsupported: model_type is \"bert\"; this build knows gemma2, llama, mistral and phi3");
  EXPECT_EQ(refusal("{" + tiny + R"(, "model_type": "gemma2", "hidden_act": "silu"})"),
            "unsupported: hidden_act is \"silu\"; this build knows gelu_pytorch_tanh for gemma2");
  EXPECT_EQ(refusal("{" + tiny + R"(, "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 0})"),
            "malformed: rms_norm_eps is 0; allowed: numbers above 0");
  EXPECT_EQ(refusal(R"({"model_type": "llama", "hidden_act": "silu"})"),
            "malformed: num_hidden_layers is missing");
}

TEST(Shape, QuantizationIsFourBitsInGroupsThatDivideTheRows) {
  const auto phi = shipped("phi-3-mini-4bit"), wide = shipped("phi-3-mini");
  ASSERT_TRUE(phi.ok()) << phi.error().message;
  EXPECT_EQ(phi->weight_group, 128u);
  EXPECT_EQ(phi->hidden, wide->hidden);
  EXPECT_EQ(wide->weight_group, 0u);
  const auto with = [](const std::string& quantization) {
    return refusal(R"({"model_type": "llama", "hidden_act": "silu", "quantization": )" + quantization + ", " +
                   kTiny + "}");
  };
  EXPECT_EQ(with(R"({"bits": 4, "group_size": 32})"), "accepted");
  EXPECT_NE(with(R"({"bits": 4, "group_size": 64})").find("groups of 64 does not divide rows of 96 values"),
            std::string::npos);
  EXPECT_NE(with(R"({"bits": 8, "group_size": 32})").find("knows bits 4"), std::string::npos);
  EXPECT_NE(with(R"({"bits": 4, "group_size": 48})").find("group_size 32, 64 or 128"), std::string::npos);
  EXPECT_NE(with(R"({"bits": 4})").find("knows bits 4"), std::string::npos);
  EXPECT_NE(with("4").find("knows bits 4"), std::string::npos);
}

}  // namespace
}  // namespace ringmaster::gpu_worker
