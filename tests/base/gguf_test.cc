#include "base/gguf.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/clock.h"

namespace ringmaster {
namespace {

using ::testing::HasSubstr;

enum Type : uint32_t { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 };

// Writes what a test dictates, right or wrong.
class Bytes {
 public:
  template <typename T>
  Bytes& put(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& text(std::string_view text) {
    put<uint64_t>(text.size());
    out_ += text;
    return *this;
  }
  Bytes& head(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
    out_ += "GGUF";
    return put<uint32_t>(version).put<uint64_t>(tensors).put<uint64_t>(keys);
  }
  Bytes& key(std::string_view name, uint32_t type) { return text(name).put<uint32_t>(type); }
  Bytes& tensor(std::string_view name, std::vector<uint64_t> shape, uint32_t type, uint64_t offset) {
    text(name).put<uint32_t>(static_cast<uint32_t>(shape.size()));
    for (const uint64_t size : shape) put(size);
    return put<uint32_t>(type).put<uint64_t>(offset);
  }
  Bytes& data(size_t bytes, size_t alignment = 32) {
    out_.resize((out_.size() + alignment - 1) / alignment * alignment);
    out_.append(bytes, '\x5A');
    return *this;
  }
  const std::string& str() const { return out_; }

 private:
  std::string out_;
};

class GgufTest : public ::testing::Test {
 protected:
  GgufTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "gguf_test.XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~GgufTest() override { std::filesystem::remove_all(folder_); }

  std::string write(std::string_view bytes) {
    const std::string path = folder_ + "/model.gguf";
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path;
  }
  Result<Gguf> open(const Bytes& bytes) { return Gguf::open(write(bytes.str())); }

  void expect_refused(const Bytes& bytes, Code code, const std::string& words) {
    const Result<Gguf> file = open(bytes);
    ASSERT_FALSE(file.ok()) << words;
    EXPECT_EQ(name(file.error().code), name(code)) << file.error().message;
    EXPECT_THAT(file.error().message, HasSubstr(words));
    EXPECT_THAT(file.error().message, HasSubstr(folder_));
  }

  std::string folder_;
};

std::string golden(const std::string& name) {
  return std::string(RINGMASTER_SOURCE_DIR) + "/tests/data/gguf/" + name + "/model.gguf";
}

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(GgufTest, ReadsEveryValueType) {
  Bytes b;
  b.head(0, 14);
  b.key("u8", U8).put<uint8_t>(200);
  b.key("i8", I8).put<int8_t>(-5);
  b.key("u16", U16).put<uint16_t>(65535);
  b.key("i16", I16).put<int16_t>(-300);
  b.key("u32", U32).put<uint32_t>(4'000'000'000);
  b.key("i32", I32).put<int32_t>(7);
  b.key("f32", F32).put<float>(0.5f);
  b.key("yes", BOOL).put<uint8_t>(1);
  b.key("text", STRING).text("na\xC3\xAFve");
  b.key("u64", U64).put<uint64_t>(UINT64_MAX);
  b.key("i64", I64).put<int64_t>(INT64_MIN);
  b.key("f64", F64).put<double>(1e-5);
  b.key("texts", ARRAY).put<uint32_t>(STRING).put<uint64_t>(2).text("a").text("");
  b.key("i32s", ARRAY).put<uint32_t>(I32).put<uint64_t>(3).put<int32_t>(1).put<int32_t>(-1).put<int32_t>(9);
  Result<Gguf> file = open(b);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->integer("u8").value(), 200u);
  EXPECT_EQ(file->integer("u16").value(), 65535u);
  EXPECT_EQ(file->integer("u32").value(), 4'000'000'000u);
  EXPECT_EQ(file->integer("i32").value(), 7u);
  EXPECT_EQ(file->integer("u64").value(), UINT64_MAX);
  EXPECT_FALSE(file->integer("i8").ok());  // negative
  EXPECT_EQ(file->number("i8").value(), -5.0);
  EXPECT_EQ(file->number("i16").value(), -300.0);
  EXPECT_EQ(file->number("f32").value(), 0.5);
  EXPECT_EQ(file->number("f64").value(), 1e-5);
  EXPECT_EQ(file->text("text").value(), "na\xC3\xAFve");
  EXPECT_EQ(std::get<bool>(*file->find("yes")), true);
  EXPECT_EQ(std::get<int64_t>(*file->find("i64")), INT64_MIN);
  EXPECT_THAT(file->texts("texts").value(), ::testing::ElementsAre("a", ""));
  EXPECT_THAT(file->integers("i32s").value(), ::testing::ElementsAre(1, -1, 9));
  EXPECT_EQ(file->find("u"), nullptr);

  const auto wrong = file->text("u8");
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(wrong.error().message, HasSubstr("the key 'u8' is an integer; expected: text"));
  EXPECT_EQ(file->integer("absent").error().code, Code::kNotFound);
  EXPECT_THAT(file->integer("absent").error().message, HasSubstr("'absent'"));
}

TEST_F(GgufTest, ReadsNumberArraysOfEveryType) {
  Bytes b;
  b.head(0, 6);
  b.key("u8", ARRAY).put<uint32_t>(U8).put<uint64_t>(1).put<uint8_t>(255);
  b.key("u64", ARRAY).put<uint32_t>(U64).put<uint64_t>(1).put<uint64_t>(INT64_MAX);
  b.key("bool", ARRAY).put<uint32_t>(BOOL).put<uint64_t>(2).put<uint8_t>(0).put<uint8_t>(1);
  b.key("f32", ARRAY).put<uint32_t>(F32).put<uint64_t>(2).put<float>(1.5f).put<float>(-2.f);
  b.key("f64", ARRAY).put<uint32_t>(F64).put<uint64_t>(1).put<double>(0.1);
  b.key("none", ARRAY).put<uint32_t>(F32).put<uint64_t>(0);
  Result<Gguf> file = open(b);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_THAT(file->integers("u8").value(), ::testing::ElementsAre(255));
  EXPECT_THAT(file->integers("u64").value(), ::testing::ElementsAre(INT64_MAX));
  EXPECT_THAT(file->integers("bool").value(), ::testing::ElementsAre(0, 1));
  EXPECT_THAT(file->numbers("f32").value(), ::testing::ElementsAre(1.5, -2));
  EXPECT_THAT(file->numbers("f64").value(), ::testing::ElementsAre(0.1));
  EXPECT_TRUE(file->numbers("none").value().empty());
}

TEST_F(GgufTest, ReadsTensorsOfTheGoldenFiles) {
  struct Expected {
    const char* folder;
    TensorType type;
    size_t q_bytes;  // of blk.0.attn_q.weight, 256 x 256
  };
  for (const auto& [folder, type, q_bytes] : {Expected{"q4_1", TensorType::kQ4_1, 256 * 256 / 32 * 20},
                                              Expected{"q8_0", TensorType::kQ8_0, 256 * 256 / 32 * 34},
                                              Expected{"f16", TensorType::kF16, 256 * 256 * 2}}) {
    Result<Gguf> file = Gguf::open(golden(folder));
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(file->text("general.architecture").value(), "llama");
    EXPECT_EQ(file->tensors().size(), 12u);
    const GgufTensor* q = file->tensor("blk.0.attn_q.weight");
    ASSERT_NE(q, nullptr);
    EXPECT_EQ(name(q->type), name(type));
    EXPECT_THAT(q->shape, ::testing::ElementsAre(256, 256));
    EXPECT_EQ(q->data.size(), q_bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(q->data.data()) % 32, 0u);
    EXPECT_EQ(file->tensor("blk.0.attn_q"), nullptr);
  }
}

TEST_F(GgufTest, MovesKeepEverythingHandedOut) {
  Result<Gguf> opened = Gguf::open(golden("q4_1"));
  ASSERT_TRUE(opened.ok());
  const std::string_view architecture = opened->text("general.architecture").value();
  Gguf file = std::move(opened).value();
  Gguf other = std::move(file);
  EXPECT_EQ(architecture, "llama");
  EXPECT_EQ(other.tensor("output_norm.weight")->shape.size(), 1u);
}

TEST_F(GgufTest, HeaderHashTellsFilesApart) {
  const std::string bytes = slurp(golden("q4_1"));
  const uint64_t original = Gguf::open(golden("q4_1"))->header_hash();
  EXPECT_EQ(Gguf::open(write(bytes))->header_hash(), original);
  EXPECT_NE(Gguf::open(write(bytes + std::string(32, '\0')))->header_hash(), original);
  std::string renamed = bytes;
  renamed[renamed.find("output_norm") + 1] = 'U';
  EXPECT_NE(Gguf::open(write(renamed))->header_hash(), original);
}

TEST_F(GgufTest, RefusesWhatIsNotAFile) {
  EXPECT_EQ(Gguf::open(folder_ + "/absent.gguf").error().code, Code::kNotFound);
  EXPECT_EQ(Gguf::open(folder_).error().code, Code::kMalformed);
  EXPECT_THAT(Gguf::open(folder_).error().message, HasSubstr("not a regular file"));
  const std::string fifo = folder_ + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(Gguf::open(fifo).error().code, Code::kMalformed);  // and does not wait for a writer
  EXPECT_THAT(Gguf::open(write("")).error().message, HasSubstr("empty"));
  EXPECT_THAT(Gguf::open(write("PK\x03\x04 a zip file, really")).error().message,
              HasSubstr("not a GGUF file"));
}

TEST_F(GgufTest, RefusesOtherVersions) {
  expect_refused(Bytes().head(0, 0, 1), Code::kUnsupportedVersion, "GGUF version 1; allowed: 2, 3");
  expect_refused(Bytes().head(0, 0, 4), Code::kUnsupportedVersion, "GGUF version 4");
  expect_refused(Bytes().head(0, 0, 0x03000000), Code::kUnsupportedVersion, "big-endian");
  EXPECT_TRUE(open(Bytes().head(0, 0, 2)).ok());
}

TEST_F(GgufTest, RefusesCountsThatTheFileCannotHold) {
  expect_refused(Bytes().head(UINT64_MAX, 0), Code::kMalformed, "18446744073709551615 tensors");
  expect_refused(Bytes().head(0, 1ull << 40), Code::kMalformed, "1099511627776 keys");
  Bytes array;
  array.head(0, 1).key("a", ARRAY).put<uint32_t>(F64).put<uint64_t>(1ull << 61).put<double>(0);
  expect_refused(array, Code::kMalformed, "at most 1");
  Bytes texts;
  texts.head(0, 1).key("a", ARRAY).put<uint32_t>(STRING).put<uint64_t>(2).text("x").put<uint64_t>(UINT64_MAX);
  expect_refused(texts, Code::kMalformed, "element 1 of the array of key 'a'");
  Bytes text;
  text.head(0, 1).key("a", STRING).put<uint64_t>(UINT64_MAX - 7).put<uint64_t>(0);
  expect_refused(text, Code::kMalformed, "the text of key 'a'");
}

TEST_F(GgufTest, RefusesTypesByName) {
  expect_refused(Bytes().head(0, 1).key("odd", 13).put<uint64_t>(0), Code::kUnsupported,
                 "key 'odd' has value type 13");
  expect_refused(Bytes().head(0, 1).key("nest", ARRAY).put<uint32_t>(ARRAY).put<uint64_t>(0).put<uint64_t>(0),
                 Code::kUnsupported, "key 'nest' is an array of arrays");
  expect_refused(Bytes().head(0, 1).key("odd", ARRAY).put<uint32_t>(99).put<uint64_t>(0), Code::kUnsupported,
                 "key 'odd' is an array of value type 99");
  expect_refused(Bytes().head(1, 0).tensor("w", {256}, 16, 0).data(256), Code::kUnsupported,
                 "tensor 'w' has type IQ2_XXS (16), which this build cannot read");
  expect_refused(Bytes().head(1, 0).tensor("w", {256}, 77, 0).data(256), Code::kUnsupported,
                 "type unknown (77)");
}

TEST_F(GgufTest, RefusesDuplicates) {
  Bytes keys;
  keys.head(0, 3).key("a", U8).put<uint8_t>(1).key("b", U8).put<uint8_t>(1).key("a", U32).put<uint32_t>(1);
  expect_refused(keys, Code::kMalformed, "key 'a' is there twice");
  expect_refused(Bytes().head(2, 0).tensor("w", {8}, 0, 0).tensor("w", {8}, 0, 32).data(64), Code::kMalformed,
                 "tensor 'w' is there twice");
}

TEST_F(GgufTest, RefusesValuesOutOfRange) {
  expect_refused(Bytes().head(0, 1).key("flag", BOOL).put<uint8_t>(2).put<uint64_t>(0), Code::kMalformed,
                 "the bool of key 'flag' is 2");
  expect_refused(
      Bytes().head(0, 1).key("big", ARRAY).put<uint32_t>(U64).put<uint64_t>(1).put<uint64_t>(1ull << 63),
      Code::kMalformed, "9223372036854775808");
  expect_refused(Bytes().head(0, 1).key("", U8).put<uint64_t>(0), Code::kMalformed, "allowed: 1 to 65535");
  expect_refused(Bytes().head(1, 0).tensor(std::string(65, 'n'), {8}, 0, 0).data(32), Code::kMalformed,
                 "allowed: 1 to 64");
}

TEST_F(GgufTest, RefusesTensorsThatDoNotFit) {
  const auto one = [](std::vector<uint64_t> shape, uint32_t type, uint64_t offset, size_t bytes) {
    return Bytes().head(1, 0).tensor("w", std::move(shape), type, offset).data(bytes);
  };
  EXPECT_TRUE(open(one({32, 3}, 3, 0, 60)).ok());
  expect_refused(one({32, 3}, 3, 0, 59), Code::kMalformed, "tensor 'w' needs 60 bytes at offset 0");
  expect_refused(one({8}, 0, 64, 64), Code::kMalformed, "needs 32 bytes at offset 64");
  expect_refused(one({8}, 0, UINT64_MAX - 31, 64), Code::kMalformed, "needs 32 bytes");
  expect_refused(one({8}, 0, 8, 64), Code::kMalformed, "not a multiple of 32");
  expect_refused(one({33}, 3, 0, 64), Code::kMalformed, "needs a multiple of 32");
  expect_refused(one({}, 0, 0, 64), Code::kMalformed, "0 dimensions");
  expect_refused(one({1, 1, 1, 1, 1}, 0, 0, 64), Code::kMalformed, "5 dimensions");
  expect_refused(one({4, 0}, 0, 0, 64), Code::kMalformed, "dimension of size 0");
  expect_refused(one({1ull << 32, 1ull << 32}, 0, 0, 64), Code::kMalformed, "does not fit 64 bits");
  expect_refused(one({1ull << 62}, 0, 0, 64), Code::kMalformed, "does not fit 64 bits");
  expect_refused(Bytes().head(2, 0).tensor("a", {9}, 0, 0).tensor("b", {8}, 0, 32).data(64), Code::kMalformed,
                 "'a' and 'b' overlap");
}

TEST_F(GgufTest, HonoursTheAlignmentKey) {
  const auto aligned = [](uint32_t alignment, uint64_t offset) {
    return Bytes()
        .head(1, 1)
        .key("general.alignment", U32)
        .put(alignment)
        .tensor("w", {8}, 0, offset)
        .data(256, 128);
  };
  EXPECT_TRUE(open(aligned(128, 128)).ok());
  expect_refused(aligned(128, 32), Code::kMalformed, "not a multiple of 128");
  expect_refused(aligned(0, 0), Code::kMalformed, "general.alignment is 0");
  expect_refused(aligned(96, 0), Code::kMalformed, "general.alignment is 96");
  expect_refused(aligned(1u << 31, 0), Code::kMalformed, "general.alignment is 2147483648");
}

TEST_F(GgufTest, NamesFromTheFileAreSafeToPrint) {
  const std::string key = "\x1B[31m\n" + std::string(500, 'k');
  const Result<Gguf> file = open(Bytes().head(0, 1).key(key, 13).put<uint64_t>(0));
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().message.find('\x1B'), std::string::npos);
  EXPECT_EQ(file.error().message.find('\n'), std::string::npos);
  EXPECT_LT(file.error().message.size(), 400u);
}

// Every way to cut the header, and cuts through the data, is refused and says so.
TEST_F(GgufTest, RefusesTruncationAtEveryByte) {
  const std::string bytes = slurp(golden("q4_1"));
  const std::string path = write(bytes);
  size_t cuts = 0;
  for (size_t size = bytes.size() - 1; size > 0; size = size > 8'192 ? size - 509 : size - 1) {
    ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(size)), 0);
    const Result<Gguf> file = Gguf::open(path);
    ASSERT_FALSE(file.ok()) << "cut to " << size << " bytes";
    ASSERT_EQ(file.error().code, Code::kMalformed) << file.error().message;
    ++cuts;
  }
  EXPECT_GT(cuts, 7'600u);
}

// Whatever one flipped bit in the header does, nothing handed out leaves the mapping (ASan watches the
// reads).
TEST_F(GgufTest, SurvivesEveryBitFlipInTheHeader) {
  const std::string bytes = slurp(golden("q4_1"));
  const size_t header = bytes.rfind("blk.0.") + 64;
  ASSERT_LT(header, 16'384u);
  const std::string path = write(bytes);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  size_t refused = 0;
  uint64_t sum = 0;
  for (size_t bit = 0; bit < header * 8; ++bit) {
    const auto at = static_cast<off_t>(bit / 8);
    const auto flipped = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_EQ(pwrite(fd, &flipped, 1, at), 1);
    const Result<Gguf> file = Gguf::open(path);
    if (!file.ok()) ++refused;
    if (file.ok())
      for (const GgufTensor& tensor : file.value().tensors())
        sum += static_cast<uint64_t>(tensor.data.front()) + static_cast<uint64_t>(tensor.data.back());
    ASSERT_EQ(pwrite(fd, &bytes[bit / 8], 1, at), 1);
  }
  close(fd);
  EXPECT_GT(sum, 0u);
  EXPECT_GT(refused, header);  // lengths, counts, types and offsets; flips inside texts are other texts
}

// 40 MB of metadata: 0.2 s measured; a quadratic check would need hours.
TEST_F(GgufTest, SEC_05_TimeGrowsLinearlyWithTheHeader) {
  constexpr uint64_t kTexts = 2'000'000;
  constexpr uint64_t kKeys = 100'000;
  Bytes b;
  b.head(0, kKeys + 1).key("texts", ARRAY).put<uint32_t>(STRING).put(kTexts);
  for (uint64_t i = 0; i < kTexts; ++i) b.text("token" + std::to_string(i));
  for (uint64_t i = 0; i < kKeys; ++i) b.key("key" + std::to_string(i), U32).put<uint32_t>(1);
  const std::string path = write(b.str());
  const Nanos start = monotonic_now();
  const Result<Gguf> file = Gguf::open(path);
  const Nanos took = monotonic_now() - start;
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file.value().texts("texts").value().size(), kTexts);
  EXPECT_EQ(file.value().integer("key99999").value(), 1u);
  EXPECT_LT(took, 5 * kSecond);
}

}  // namespace
}  // namespace ringmaster
