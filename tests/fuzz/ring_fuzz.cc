// Both roles of a ring whose other side writes anything anywhere at any time. Every span handed out lies in
// the ring and starts where a record may; a ring that broke stays broken.
//   script: { operation, operand } ...
#include "shm/ring.h"

#include "tests/fuzz/input.h"
#include "tests/shm/ring_fixture.h"

namespace ringmaster::shm {
namespace {

constexpr size_t kCapacity = 4096;

void check_span(const std::byte* ring, std::span<const std::byte> payload) {
  const auto offset = static_cast<size_t>(payload.data() - ring);
  FUZZ_CHECK(payload.data() >= ring && offset + payload.size() <= kCapacity);
  FUZZ_CHECK((offset - sizeof(RecordHeader)) % kRecordAlign == 0);
}

// Positions near the interesting ones are likelier than any.
uint64_t position(fuzz::Input& input) {
  const uint8_t shape = input.byte();
  return (shape & 1) != 0 ? input.number<uint64_t>() : input.byte() * kRecordAlign + (shape >> 4);
}

void play(fuzz::Input& input) {
  TestRing ring(kCapacity);
  ring.index().head = ring.index().tail = position(input);
  Consumer consumer(ring.view());
  Producer producer(ring.view());
  uint64_t sum = 0;
  while (!input.empty()) {
    const bool consumer_broken = consumer.broken(), producer_broken = producer.broken();
    switch (input.byte() % 8) {
      case 0:
        ring.index().head = position(input);
        break;
      case 1:
        ring.index().tail = position(input);
        break;
      case 2: {
        const size_t offset = input.byte() * size_t{16};
        const auto bytes = input.bytes(std::min<size_t>(input.byte(), kCapacity - offset));
        if (!bytes.empty()) std::memcpy(ring.data() + offset, bytes.data(), bytes.size());
        break;
      }
      case 3:
        if (const auto record = consumer.peek()) {
          FUZZ_CHECK(record->type != kPadRecord && !consumer.broken());
          check_span(ring.data(), record->payload);
          for (const std::byte b : record->payload) sum += std::to_integer<int>(b);
        }
        break;
      case 4:
        consumer.pop();
        break;
      case 5:
        if (const auto space = producer.try_reserve(1 + input.byte(), input.number<uint16_t>() % kCapacity)) {
          check_span(ring.data(), *space);
          std::memset(space->data(), 7, space->size());
        }
        break;
      case 6:
        producer.commit();
        break;
      case 7:
        FUZZ_CHECK(producer.free_bytes() <= kCapacity);
        break;
    }
    FUZZ_CHECK(consumer.broken() || !consumer_broken);
    FUZZ_CHECK(producer.broken() || !producer_broken);
  }
  volatile uint64_t kept = sum;
  (void)kept;
}

}  // namespace
}  // namespace ringmaster::shm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ringmaster::fuzz::Input input(data, size);
  ringmaster::shm::play(input);
  return 0;
}
