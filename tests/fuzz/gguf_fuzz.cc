// Any bytes as a model file: opened, every look-up tried, then read as a tokenizer and as the weights of a
// decoder.
#include <sys/mman.h>
#include <unistd.h>

#include "gpu-worker/model/description.h"
#include "gpu-worker/model/weights.h"
#include "tests/fuzz/input.h"
#include "tokenizer-worker/text/detokenizer.h"

namespace ringmaster::fuzz {
namespace {

// A file without a name, rewritten for every input.
std::string file_of(const uint8_t* data, size_t size) {
  static const int fd = memfd_create("fuzz.gguf", MFD_CLOEXEC);
  FUZZ_CHECK(ftruncate(fd, static_cast<off_t>(size)) == 0);
  FUZZ_CHECK(pwrite(fd, data, size, 0) == static_cast<ssize_t>(size));
  return "/proc/self/fd/" + std::to_string(fd);
}

void read_all(const Gguf& file) {
  uint64_t sum = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    FUZZ_CHECK(file.tensor(tensor.name) == &tensor);
    if (!tensor.data.empty())
      sum += std::to_integer<int>(tensor.data.front()) + std::to_integer<int>(tensor.data.back());
  }
  for (const char* key :
       {"general.name", "general.architecture", "general.alignment", "tokenizer.chat_template"}) {
    if (const auto text = file.text(key))
      for (const char c : *text) sum += static_cast<unsigned char>(c);
    (void)file.integer(key);
    (void)file.number(key);
    (void)file.texts(key);
    (void)file.integers(key);
    (void)file.numbers(key);
  }
  volatile uint64_t kept = sum;
  (void)kept;
}

void use_tokenizer(const Gguf& file) {
  const auto loaded = tokenizer_worker::load_tokenizer(file);
  if (!loaded) return;
  const tokenizer_worker::Tokenizer& tokenizer = **loaded;
  std::vector<TokenId> ids;
  tokenizer.encode(
      "Hi ab  12\n<|im_end|> \xC3\xA9 abababababababababababababababababababababababababababababababababab",
      true, ids);
  tokenizer_worker::Detokenizer detokenizer(tokenizer, {});
  for (const TokenId id : ids) {
    FUZZ_CHECK(id < tokenizer.vocab_size());
    detokenizer.push(id);
  }
  detokenizer.finish();
  for (const TokenId id : tokenizer.end_ids()) FUZZ_CHECK(id < tokenizer.vocab_size());
}

void use_weights(const Gguf& file) {
  const auto description = gpu_worker::describe(file);
  if (!description) return;
  const auto plan = gpu_worker::WeightPlan::make(file, *description);
  if (!plan || plan->bytes() > 1 << 20) return;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(64, (plan->bytes() + 63) / 64 * 64));
  (void)plan->load(memory, 1);
  std::free(memory);
}

}  // namespace
}  // namespace ringmaster::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ringmaster;
  const auto file = Gguf::open(fuzz::file_of(data, size));
  if (!file) {
    FUZZ_CHECK(!file.error().message.empty());
    return 0;
  }
  fuzz::read_all(*file);
  fuzz::use_tokenizer(*file);
  fuzz::use_weights(*file);
  return 0;
}
