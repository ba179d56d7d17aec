#include "tests/shm/record_run.h"

#include <random>

#include "shm/doorbell.h"
#include "shm/slot_memory.h"
#include "tests/shm/process.h"
#include "tests/shm/traffic.h"

namespace ringmaster::shm {
namespace {

constexpr Nanos kPatience = 30 * kSecond;
constexpr Nanos kSpin = 20 * kMicrosecond;  // a few times what a futex wake costs
constexpr uint64_t kRingEvery = 64;         // records popped between two rings of the producer's bell

struct Pair {
  SlotPlaces places = place_rings({kMinRingBytes, kMinRingBytes, 64 << 10}).value();
  MemoryFile memory = MemoryFile::create("record-run", places.size).value();
  Doorbell consumer_bell = Doorbell::create().value();
  Doorbell producer_bell = Doorbell::create().value();
  Pair() { reset_slot(memory.bytes(), places, 0, 1); }
  RingView ring() { return rings_of(memory.bytes(), places).token; }
};

// 0; 2: no room for too long; 3: broken.
int produce(Pair& pair, uint64_t count) {
  Producer producer(pair.ring());
  const Traffic traffic(1, producer.largest_payload());
  std::mt19937 random(3);
  uint64_t n = 0;
  while (n < count) {
    const uint32_t seen = pair.producer_bell.sequence();
    const uint64_t batch_end = std::min(count, n + 1 + random() % 16);
    while (n < batch_end && traffic.write(n, producer)) ++n;
    producer.commit();
    pair.consumer_bell.ring();
    if (n == batch_end) continue;
    if (producer.broken()) return 3;
    if (!pair.producer_bell.wait(seen, monotonic_now() + kPatience, kSpin)) return 2;
  }
  return 0;
}

std::string consume(Pair& pair, uint64_t count, RecordRun& run) {
  Consumer consumer(pair.ring());
  const Traffic traffic(1, Producer(pair.ring()).largest_payload());
  while (run.records < count) {
    const uint32_t seen = pair.consumer_bell.sequence();
    const uint64_t before = run.records;
    for (auto record = consumer.peek(); record; record = consumer.peek()) {
      if (!traffic.is(run.records, *record))
        return "record " + std::to_string(run.records) + " is another or torn";
      run.bytes += record->payload.size();
      consumer.pop();
      if (++run.records % kRingEvery == 0) pair.producer_bell.ring();
    }
    pair.producer_bell.ring();
    if (consumer.broken()) return "after record " + std::to_string(run.records) + ": " + consumer.fault();
    if (run.records == before && !pair.consumer_bell.wait(seen, monotonic_now() + kPatience, kSpin)) {
      return "nothing came for 30 s after record " + std::to_string(run.records);
    }
  }
  return consumer.peek() ? "more records than were written" : "";
}

}  // namespace

RecordRun run_records(uint64_t count) {
  RecordRun run;
  Pair pair;
  const Nanos start = monotonic_now();
  // 3 us a record would be slow under every sanitizer.
  Child producer([&] { return produce(pair, count); }, static_cast<unsigned>(60 + count / 300'000));
  run.fault = consume(pair, count, run);
  if (run.fault.empty()) {
    if (const int code = producer.wait(); code != 0)
      run.fault = "the producer ended with " + std::to_string(code);
  }
  run.seconds = static_cast<double>(monotonic_now() - start) / 1e9;
  return run;
}

}  // namespace ringmaster::shm
