// The door of the tokenizer-worker for what a gpu-worker writes: any record in a sound ring, then any ring.
// Spans handed out must be readable; a link that broke its contract ends once and for good.
//   script: { type 1..254, sized record | 0: the rest overwrites the ring, its positions first }
#include "base/log.h"
#include "tests/fuzz/input.h"
#include "tests/tokenizer-worker/worker/fake_gpu.h"

namespace ringmaster::tokenizer_worker {
namespace {

struct Reader final : TokenSink {
  void on_token(LinkId, const shm::TokenRow& row, std::span<const TokenLogprob> top) override {
    FUZZ_CHECK(row.top_count == top.size());
    for (const TokenLogprob& t : top) sum += t.id;
  }
  void on_ended(LinkId, const shm::EndedRecord& record, std::string_view message) override {
    FUZZ_CHECK(record.message_size == message.size());
    for (const char c : message) sum += static_cast<unsigned char>(c);
  }
  uint64_t sum = 0;
};

void play(fuzz::Input& input) {
  constexpr shm::SlotSizes kSizes{4096, 4096, 64 << 10};
  FakeGpu gpu(7, kSizes);
  RingLinks links;
  auto end = gpu.take_end();
  const std::span<std::byte> memory = end.memory.bytes();
  const LinkId link = links.add("gpu-worker.0", 7, std::move(end));
  Reader reader;
  bool lost = false;
  while (!input.empty()) {
    if (const uint8_t type = input.byte(); type != 0) {
      const std::string record = input.sized_text();
      if (!lost && record.size() < kSizes.token_bytes / 2 - 8)
        gpu.raw(static_cast<shm::RecordType>(type), record);
    } else if (!lost) {
      gpu.token_index->head.store(input.number<uint64_t>());
      const auto bytes = input.bytes(kSizes.token_bytes);
      if (!bytes.empty())
        std::memcpy(memory.data() + memory.size() - kSizes.token_bytes, bytes.data(), bytes.size());
    }
    for (int i = 0; i < 100 && links.poll(reader); ++i) {
    }
    const auto gone = links.take_lost();
    FUZZ_CHECK(gone.size() <= (lost ? 0u : 1u));
    if (!gone.empty()) FUZZ_CHECK(gone[0].link.id == link && !gone[0].why.empty());
    lost |= !gone.empty();
  }
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  ringmaster::log::mute(true);
  GTEST_FLAG_SET(break_on_failure, true);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ringmaster::fuzz::Input input(data, size);
  ringmaster::tokenizer_worker::play(input);
  return 0;
}
