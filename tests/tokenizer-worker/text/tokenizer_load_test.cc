// What the loader accepts and refuses, on small GGUF files.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "tests/tokenizer-worker/text/test_data.h"

namespace ringmaster::tokenizer_worker {
namespace {

using test::encode;
using test::GgufWriter;
using testing::HasSubstr;
using Ids = std::vector<TokenId>;

// A whole small vocabulary; each test spoils one thing.
struct Spec {
  std::string model = "gpt2";
  std::optional<std::string> pre = "smollm";
  GgufWriter::Texts tokens = {"<|endoftext|>", "<|im_end|>", "a", "b", "\u0120", "ab", "\u0120ab", "<tool>"};
  std::optional<GgufWriter::Numbers> kinds = GgufWriter::Numbers{3, 3, 1, 1, 1, 1, 1, 4};
  std::optional<GgufWriter::Texts> merges = GgufWriter::Texts{"a b", "\u0120 ab"};
  std::optional<uint32_t> bos, eos = 1, eot;
  std::optional<bool> add_bos;
};

Result<std::unique_ptr<Tokenizer>> load(const Spec& spec) {
  GgufWriter file;
  file.text("general.architecture", "llama").text("tokenizer.ggml.model", spec.model);
  if (spec.pre) file.text("tokenizer.ggml.pre", *spec.pre);
  file.texts("tokenizer.ggml.tokens", spec.tokens);
  if (spec.kinds) file.numbers("tokenizer.ggml.token_type", *spec.kinds);
  if (spec.merges) file.texts("tokenizer.ggml.merges", *spec.merges);
  if (spec.bos) file.number("tokenizer.ggml.bos_token_id", *spec.bos);
  if (spec.eos) file.number("tokenizer.ggml.eos_token_id", *spec.eos);
  if (spec.eot) file.number("tokenizer.ggml.eot_token_id", *spec.eot);
  if (spec.add_bos) file.boolean("tokenizer.ggml.add_bos_token", *spec.add_bos);
  const std::string path =
      (std::filesystem::temp_directory_path() / ("rm-vocabulary-" + std::to_string(getpid()) + ".gguf"))
          .string();
  file.write(path);
  auto gguf = Gguf::open(path);
  std::filesystem::remove(path);
  if (!gguf) return std::move(gguf).error();
  return load_tokenizer(*gguf);
}

void expect_refused(const Spec& spec, Code code, const std::vector<std::string>& says) {
  auto loaded = load(spec);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, code) << loaded.error().message;
  EXPECT_THAT(loaded.error().message, HasSubstr("rm-vocabulary-"));
  for (const std::string& part : says) EXPECT_THAT(loaded.error().message, HasSubstr(part));
}

TEST(LoadTokenizer, SmallVocabulary) {
  auto loaded = load({});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const Tokenizer& t = **loaded;  // outlives the file and its mapping
  EXPECT_EQ(encode(t, "ab ab b"), (Ids{5, 6, 4, 3}));
  EXPECT_EQ(encode(t, "a<|im_end|>ab", true), (Ids{2, 1, 5}));
  EXPECT_EQ(encode(t, "a<|im_end|>ab", false), (Ids{2, 5}));  // bytes without a token vanish
  EXPECT_EQ(encode(t, "a<tool>b", false), (Ids{2, 7, 3}));    // user-defined tokens are found in every text
  EXPECT_EQ(t.bytes(6), " ab");
  EXPECT_EQ(t.bytes(1), "<|im_end|>");
  EXPECT_TRUE(t.is_control(0));
  EXPECT_FALSE(t.is_control(7));
  EXPECT_EQ(t.vocab_size(), 8u);
  EXPECT_EQ(t.end_ids(), (Ids{0, 1}));
  EXPECT_EQ(t.bos(), kNoTokenId);
  EXPECT_FALSE(t.adds_bos());
}

TEST(LoadTokenizer, EndTokensComeFromMetadataAndFromKnownNames) {
  Spec spec;
  spec.tokens.push_back("<turn>");
  spec.kinds->push_back(3);
  spec.eot = 8;
  spec.bos = 0;
  spec.add_bos = true;
  auto loaded = load(spec);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ((*loaded)->end_ids(), (Ids{0, 1, 8}));
  EXPECT_TRUE((*loaded)->adds_bos());
  EXPECT_EQ((*loaded)->bos(), 0u);
}

TEST(LoadTokenizer, ATokenOutsideTheByteAlphabetStandsForItsOwnText) {
  Spec spec;
  spec.tokens.push_back("\u4E2D");
  spec.kinds->push_back(1);
  auto loaded = load(spec);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ((*loaded)->bytes(8), "\u4E2D");
}

TEST(LoadTokenizer, TOK_03_WithoutAPreTokenizerTheFileIsRefused) {
  Spec spec;
  spec.pre.reset();
  expect_refused(spec, Code::kUnsupported, {"tokenizer.ggml.pre is missing", "convert the model again"});
}

TEST(LoadTokenizer, UnknownKindsAreRefusedByName) {
  Spec pre;
  pre.pre = "llama-bpe";
  expect_refused(pre, Code::kUnsupported, {"'llama-bpe'", "gpt-2, smollm"});
  Spec model;
  model.model = "llama";
  expect_refused(model, Code::kUnsupported, {"tokenizer.ggml.model", "'llama'"});
}

TEST(LoadTokenizer, MissingTablesAreNamed) {
  Spec kinds;
  kinds.kinds.reset();
  expect_refused(kinds, Code::kNotFound, {"tokenizer.ggml.token_type"});
  Spec merges;
  merges.merges.reset();
  expect_refused(merges, Code::kNotFound, {"tokenizer.ggml.merges"});
  Spec eos;
  eos.eos.reset();
  expect_refused(eos, Code::kMalformed, {"tokenizer.ggml.eos_token_id is missing"});
}

TEST(LoadTokenizer, CountsMustAgree) {
  Spec spec;
  spec.kinds->pop_back();
  expect_refused(spec, Code::kMalformed, {"7 entries", "8"});
  Spec empty;
  empty.tokens.clear();
  empty.kinds->clear();
  expect_refused(empty, Code::kMalformed, {"0 entries"});
}

TEST(LoadTokenizer, TokensMustBeSound) {
  Spec duplicate;
  duplicate.tokens[3] = "a";
  expect_refused(duplicate, Code::kMalformed, {"tokens 2 and 3", "'a'"});
  Spec empty;
  empty.tokens[7] = "";
  expect_refused(empty, Code::kMalformed, {"token 7 has 0 bytes"});
  Spec huge;
  huge.tokens[7] = std::string(5000, 'x');
  expect_refused(huge, Code::kMalformed, {"token 7 has 5000 bytes", "4096"});
  for (const int kind : {0, 7, -1}) {
    Spec type;
    (*type.kinds)[2] = kind;
    expect_refused(type, Code::kMalformed, {"token 2", "type " + std::to_string(kind), "1 to 6"});
  }
  Spec no_bytes;
  no_bytes.tokens = {"<|im_end|>", "<x>"};
  no_bytes.kinds = {3, 3};
  no_bytes.merges = GgufWriter::Texts{};
  expect_refused(no_bytes, Code::kMalformed, {"not a byte-level vocabulary"});
}

TEST(LoadTokenizer, MergesMustBeSound) {
  for (const char* line : {"ab", "a  b", " ab", "ab ", "a b b", ""}) {
    Spec spec;
    (*spec.merges)[0] = line;
    expect_refused(spec, Code::kMalformed, {"merge 0 '" + std::string(line) + "'", "one blank between"});
  }
  Spec unknown;
  (*unknown.merges)[1] = "a c";
  expect_refused(unknown, Code::kMalformed, {"merge 1", "'c'", "not a token"});
  Spec unknown_whole;
  (*unknown_whole.merges)[1] = "b a";
  expect_refused(unknown_whole, Code::kMalformed, {"merge 1", "'ba'"});
  Spec twice;
  (*twice.merges)[1] = "a b";
  expect_refused(twice, Code::kMalformed, {"merge 1", "merge 0 again"});
}

TEST(LoadTokenizer, IdsMustBeInRange) {
  Spec eos;
  eos.eos = 8;
  expect_refused(eos, Code::kMalformed, {"eos_token_id is 8", "0 to 7"});
  Spec eot;
  eot.eot = 0xFFFFFFFF;
  expect_refused(eot, Code::kMalformed, {"eot_token_id is 4294967295"});
  Spec bos;
  bos.add_bos = true;
  expect_refused(bos, Code::kMalformed, {"add_bos_token is set", "bos_token_id is missing"});
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker
