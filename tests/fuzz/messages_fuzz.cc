// Any bytes at the four doors for messages; what opens is read to its last field. A Generate that the router
// lets through must not surprise the tokenizer-worker.
#include "router/admission.h"
#include "tests/fuzz/input.h"
#include "tests/tokenizer-worker/worker/tiny_tokenizer.h"
#include "tokenizer-worker/request_params.h"

namespace ringmaster::fuzz {
namespace {

// Reads every field.
template <typename Message>
const Message* read(const std::vector<std::byte>& bytes) {
  const auto opened = msg::open<Message>(bytes);
  if (!opened) {
    FUZZ_CHECK(!opened.error().message.empty());
    return nullptr;
  }
  typename Message::NativeTableType unpacked;
  (*opened)->UnPackTo(&unpacked);
  return *opened;
}

void generate(const msg::Generate& request) {
  static const tokenizer_worker::TinyTokenizer tokenizer;
  const bool allowed = router::check_request(request).ok() &&
                       router::check_against_model(request, {tokenizer.vocab_size(), 256}).ok();
  const auto params = tokenizer_worker::read_params(request, tokenizer);
  if (allowed) FUZZ_CHECK(params.ok());
}

}  // namespace
}  // namespace ringmaster::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ringmaster;
  fuzz::Input input(data, size);
  const int door = input.byte() % 4;
  const std::vector<std::byte> bytes = input.bytes(size);
  if (door == 0) {
    const auto* message = fuzz::read<msg::RouterMessage>(bytes);
    if (message == nullptr) return 0;
    if (const auto* request = message->body_as_Generate()) fuzz::generate(*request);
    if (const auto* query = message->body_as_Tokenize())
      (void)router::check_prompt(query->prompt_type(), query->prompt());
  }
  if (door == 1) fuzz::read<msg::ClientMessage>(bytes);
  if (door == 2) fuzz::read<msg::TokenizerWorkerMessage>(bytes);
  if (door == 3) fuzz::read<msg::GpuWorkerMessage>(bytes);
  return 0;
}
