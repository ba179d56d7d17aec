// What the rings cost between two processes: records a second (64 bytes each, committed in batches), and the
// way of one record there and back when both sides poll, and when both sleep on their doorbells.
//   ring.records64 V records/s      ring.one_way_polling V us      ring.one_way_sleeping V us
// The throughput is the median of kRuns short runs. Needs two cores to itself. Usage: bench_ring [RECORDS
// [BATCH]]
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "shm/doorbell.h"
#include "shm/pause.h"
#include "shm/slot_memory.h"

namespace ringmaster::shm {
namespace {

constexpr size_t kPayload = 56;  // with its header one line
constexpr int kRuns = 9;

struct Pair {
  SlotPlaces places = place_rings({256 << 10, 4096, 256 << 10}).value();
  MemoryFile memory = MemoryFile::create("bench", places.size).value();
  Doorbell bells[2] = {Doorbell::create().value(), Doorbell::create().value()};

  Pair() { reset_slot(memory.bytes(), places, 0, 1); }
  RingView there() { return rings_of(memory.bytes(), places).command; }
  RingView back() { return rings_of(memory.bytes(), places).token; }
};

void in_child(const std::function<void()>& run, const std::function<void()>& meanwhile) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);
    run();
    _exit(0);
  }
  meanwhile();
  waitpid(child, nullptr, 0);
}

double throughput(uint64_t records, uint64_t batch) {
  Pair pair;
  Nanos took = 0;
  const auto produce = [&] {
    Producer producer(pair.there());
    for (uint64_t n = 0; n < records;) {
      const uint64_t end = std::min(n + batch, records);
      while (n < end) {
        const auto space = producer.try_reserve(1, kPayload);
        if (!space) break;
        for (size_t i = 0; i < kPayload; i += sizeof n) std::memcpy(space->data() + i, &n, sizeof n);
        ++n;
      }
      producer.commit();
    }
  };
  const auto consume = [&] {
    Consumer consumer(pair.there());
    while (!consumer.peek()) cpu_pause();
    const Nanos start = monotonic_now();
    uint64_t sum = 0;
    for (uint64_t n = 0; n < records;) {
      const auto record = consumer.peek();
      if (!record) continue;
      uint64_t value;
      for (size_t i = 0; i < kPayload; i += sizeof value) {
        std::memcpy(&value, record->payload.data() + i, sizeof value);
        sum += value;
      }
      consumer.pop();
      ++n;
    }
    took = monotonic_now() - start;
    if (sum != records * (records - 1) / 2 * (kPayload / 8)) {
      std::fprintf(stderr, "the records arrived damaged\n");
      std::exit(1);
    }
  };
  in_child(produce, consume);
  return static_cast<double>(records) / static_cast<double>(took) * 1e9;
}

double median_throughput(uint64_t records, uint64_t batch) {
  std::vector<double> runs;
  runs.reserve(kRuns);
  for (int i = 0; i < kRuns; ++i) runs.push_back(throughput(records, batch));
  std::nth_element(runs.begin(), runs.begin() + kRuns / 2, runs.end());
  return runs[kRuns / 2];
}

// Half the median of a round trip, in microseconds.
double one_way(int rounds, bool sleeping) {
  Pair pair;
  const auto put = [](Producer& producer, Doorbell& bell, bool ring) {
    producer.try_reserve(1, kPayload);
    producer.commit();
    if (ring) bell.ring();
  };
  const auto take = [](Consumer& consumer, Doorbell& bell, bool sleep) {
    for (;;) {
      const uint32_t seen = sleep ? bell.sequence() : 0;
      if (consumer.peek()) return consumer.pop();
      if (sleep) bell.wait(seen, monotonic_now() + kSecond);
    }
  };
  std::vector<Nanos> times;
  const auto answer = [&] {
    Consumer consumer(pair.there());
    Producer producer(pair.back());
    for (int i = 0; i < rounds; ++i) {
      take(consumer, pair.bells[1], sleeping);
      put(producer, pair.bells[0], sleeping);
    }
  };
  const auto ask = [&] {
    Producer producer(pair.there());
    Consumer consumer(pair.back());
    for (int i = 0; i < rounds; ++i) {
      const Nanos start = monotonic_now();
      put(producer, pair.bells[1], sleeping);
      take(consumer, pair.bells[0], sleeping);
      times.push_back(monotonic_now() - start);
    }
  };
  in_child(answer, ask);
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return static_cast<double>(times[rounds / 2]) / 2000;
}

}  // namespace
}  // namespace ringmaster::shm

int main(int argc, char** argv) {
  using namespace ringmaster::shm;
  const uint64_t records = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 10'000'000;
  const uint64_t batch = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 64;
  std::printf("ring.records64 %.0f records/s\n", median_throughput(records, std::max<uint64_t>(batch, 1)));
  std::printf("ring.one_way_polling %.3f us\n", one_way(300'000, false));
  std::printf("ring.one_way_sleeping %.3f us\n", one_way(30'000, true));
}
