// The fake device beside a model file: vocabulary, context and silent ids come from the GGUF.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "base/context_hash.h"
#include "base/gguf.h"
#include "gpu-worker/device/fake/fake_device.h"

namespace ringmaster::gpu_worker {
namespace {

// A GGUF version 3 with metadata only.
class Metadata {
 public:
  void text(const std::string& key, const std::string& value) {
    head(key, 8);
    string(value);
  }
  void integer(const std::string& key, uint32_t value) {
    head(key, 4);
    raw(value);
  }
  void texts(const std::string& key, const std::vector<std::string>& values) {
    head(key, 9);
    raw(uint32_t{8});
    raw(uint64_t{values.size()});
    for (const auto& value : values) string(value);
  }
  void integers(const std::string& key, const std::vector<int32_t>& values) {
    head(key, 9);
    raw(uint32_t{5});
    raw(uint64_t{values.size()});
    for (const int32_t value : values) raw(value);
  }
  std::string file() const {
    std::string out = "GGUF";
    const auto add = [&out](auto value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); };
    add(uint32_t{3});
    add(uint64_t{0});
    add(count_);
    return out + body_;
  }

 private:
  template <typename T>
  void raw(T value) {
    body_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void string(const std::string& s) {
    raw(uint64_t{s.size()});
    body_ += s;
  }
  void head(const std::string& key, uint32_t type) {
    string(key);
    raw(type);
    ++count_;
  }
  std::string body_;
  uint64_t count_ = 0;
};

class FakeModelTest : public ::testing::Test {
 protected:
  FakeModelTest() {
    char name[] = "/tmp/rm-fake-model-XXXXXX";
    const int fd = mkstemp(name);
    close(fd);
    path_ = name;
    config_.fake.context_length = 8192;
    config_.fake.step_time = 0;
  }
  ~FakeModelTest() override { unlink(path_.c_str()); }

  // Ten tokens: 0 unknown, 1 control, 5 unused, 6 a byte, 9 the end of turn (typed as a normal one).
  void write(std::vector<int32_t> types = {2, 3, 1, 1, 1, 5, 6, 1, 1, 1}, uint32_t eos = 9) {
    Metadata m;
    m.text("general.architecture", "llama");
    m.text("general.name", "Ten");
    m.integer("llama.context_length", 128);
    m.texts("tokenizer.ggml.tokens", {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"});
    m.integers("tokenizer.ggml.token_type", types);
    m.integer("tokenizer.ggml.eos_token_id", eos);
    std::ofstream(path_, std::ios::binary) << m.file();
  }

  std::string path_;
  GpuWorkerConfig config_;
};

TEST_F(FakeModelTest, SilentIdsAreControlUnknownUnusedAndEnds) {
  write();
  auto gguf = Gguf::open(path_);
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  auto ids = context_hash::silent_ids(*gguf);
  ASSERT_TRUE(ids.ok()) << ids.error().message;
  EXPECT_EQ(*ids, (std::vector<TokenId>{0, 1, 5, 9}));
}

TEST_F(FakeModelTest, TheModelGivesVocabularyContextAndName) {
  write();
  auto device = make_fake_device(config_, path_);
  ASSERT_TRUE(device.ok()) << device.error().message;
  EXPECT_EQ((*device)->info().vocab_size, 10u);
  EXPECT_EQ((*device)->info().context_length, 128u);
  EXPECT_EQ((*device)->info().model, "Ten");
  EXPECT_NE((*device)->info().weights_hash, 0u);
}

TEST_F(FakeModelTest, ASilentIdIsNeverSaidButMayBeForced) {
  write();
  for (const bool forced : {false, true}) {
    auto device = make_fake_device(config_, path_);
    ASSERT_TRUE(device.ok()) << device.error().message;
    std::vector<TokenId> context = {2};
    for (uint64_t step = 1; step <= 50; ++step) {
      StepPlan plan;
      plan.step = step;
      plan.ids = context;
      plan.blocks = {0, 1, 2, 3};
      LaneOpen open;
      open.context = context;
      if (forced) open.sampling.logit_bias = {{9, 100}};
      plan.opens = {open};
      plan.rows = {{0, 0, static_cast<uint32_t>(context.size()), 0, 0, 4, true, 0}};
      (*device)->submit(std::move(plan));
      auto result = (*device)->retire(kNever - 1);
      ASSERT_TRUE(result && !result->error);
      const TokenId id = result->rows.at(0).id;
      if (forced) {
        EXPECT_EQ(id, 9u);
      } else {
        EXPECT_TRUE(id != 0 && id != 1 && id != 5 && id != 9) << id;
      }
      context.push_back(id);
    }
  }
}

TEST_F(FakeModelTest, ABadVocabularyIsRefused) {
  write({2, 3, 1});
  auto device = make_fake_device(config_, path_);
  ASSERT_FALSE(device.ok());
  EXPECT_NE(device.error().message.find("token_type"), std::string::npos) << device.error().message;
  write({2, 3, 1, 1, 1, 5, 6, 1, 1, 1}, 10);
  EXPECT_FALSE(make_fake_device(config_, path_).ok()) << "an end id beyond the vocabulary";
  write();
  config_.fake.vocab_size = 11;
  device = make_fake_device(config_, path_);
  ASSERT_FALSE(device.ok());
  EXPECT_NE(device.error().message.find("at most the 10"), std::string::npos) << device.error().message;
}

}  // namespace
}  // namespace ringmaster::gpu_worker
