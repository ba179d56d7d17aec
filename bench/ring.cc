// What the rings cost between two processes on two cores.
//   ring.rate         64-byte records a second, published in batches
//   ring.oneway_p50   one record to a reader that polls (half the median of a round trip)
//   ring.wake_ratio   a record to a reader that sleeps on its doorbell, against a bare futex wake
// Then what the machine itself takes, to judge these by: the time a cache line needs from core to core
// decides the first two, and it differs threefold between two cores of one host.
//   ring.line_p50     a bare 8-byte word to a core that polls
//   ring.oneway_ratio ring.oneway_p50 / ring.line_p50
//   ring.wake_p50, ring.futex_p50
// Each figure is the median of kRuns runs, and what is compared alternates, run by run. Needs two cores to
// itself. Usage: bench_ring [RECORDS [BATCH]], the records of one run
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <vector>

#include "shm/doorbell.h"
#include "shm/pause.h"
#include "shm/slot_memory.h"

namespace ringmaster::shm {
namespace {

constexpr size_t kPayload = 56;  // with its header one line
constexpr int kRuns = 15;
constexpr int kPollRounds = 20'000;
constexpr int kSleepRounds = 3'000;
constexpr int kLimit = 120;  // seconds: a run that hangs ends

struct Pair {
  SlotPlaces places = place_rings({256 << 10, 4096, 256 << 10}).value();
  MemoryFile memory = MemoryFile::create("bench", places.size).value();
  MemoryFile words = MemoryFile::create("bench", kPage).value();
  Doorbell bells[2] = {Doorbell::create().value(), Doorbell::create().value()};

  Pair() { reset_slot(memory.bytes(), places, 0, 1); }
  RingView there() { return rings_of(memory.bytes(), places).command; }
  RingView back() { return rings_of(memory.bytes(), places).token; }
  std::atomic<uint32_t>& word(int side) {  // on lines that share nothing
    return *reinterpret_cast<std::atomic<uint32_t>*>(words.bytes().data() + 256 * side);
  }
};

// The `index`-th core that this process may use.
void pin(const cpu_set_t& allowed, int index) {
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || index-- != 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

// Both on cores of their own, where there are two.
void in_two_processes(const std::function<void()>& child_part, const std::function<void()>& parent_part) {
  cpu_set_t allowed;
  sched_getaffinity(0, sizeof allowed, &allowed);
  const pid_t child = fork();
  if (child == 0) {
    alarm(kLimit);
    pin(allowed, 1);
    child_part();
    _exit(0);
  }
  pin(allowed, 0);
  parent_part();
  waitpid(child, nullptr, 0);
  sched_setaffinity(0, sizeof allowed, &allowed);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

double records_a_second(uint64_t records, uint64_t batch) {
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
      if (n < end) cpu_pause();  // full
    }
  };
  const auto consume = [&] {
    Consumer consumer(pair.there());
    while (!consumer.peek()) cpu_pause();
    const Nanos start = monotonic_now();
    uint64_t sum = 0;
    for (uint64_t n = 0; n < records;) {
      const auto record = consumer.peek();
      if (!record) {
        cpu_pause();
        continue;
      }
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
  in_two_processes(produce, consume);
  return static_cast<double>(records) / static_cast<double>(took) * 1e9;
}

// Half the median of a round trip, in microseconds. `put` and `take` get a side: 0 asks, 1 answers.
double one_way(int rounds, const std::function<void(int side)>& put,
               const std::function<void(int side)>& take) {
  std::vector<double> times;
  times.reserve(static_cast<size_t>(rounds));
  const auto answer = [&] {
    for (int i = 0; i < rounds; ++i) {
      take(1);
      put(1);
    }
  };
  const auto ask = [&] {
    for (int i = 0; i < rounds; ++i) {
      const Nanos start = monotonic_now();
      put(0);
      take(0);
      times.push_back(static_cast<double>(monotonic_now() - start));
    }
  };
  in_two_processes(answer, ask);
  return median(times) / 2000;
}

double ring_one_way(int rounds, bool sleeping) {
  Pair pair;
  Producer producers[2] = {Producer(pair.there()), Producer(pair.back())};
  Consumer consumers[2] = {Consumer(pair.back()), Consumer(pair.there())};
  const auto put = [&](int side) {
    producers[side].try_reserve(1, kPayload);
    producers[side].commit();
    if (sleeping) pair.bells[1 - side].ring();
  };
  const auto take = [&](int side) {
    Consumer& consumer = consumers[side];
    for (;;) {
      const uint32_t seen = sleeping ? pair.bells[side].sequence() : 0;
      if (consumer.peek()) return consumer.pop();
      if (sleeping) pair.bells[side].wait(seen, monotonic_now() + kSecond);
    }
  };
  return one_way(rounds, put, take);
}

// The least that telling another core can cost: one word, nothing else.
double line_one_way(int rounds) {
  Pair pair;
  uint32_t sent[2] = {0, 0}, seen[2] = {0, 0};
  return one_way(
      rounds, [&](int side) { pair.word(1 - side).store(++sent[side], std::memory_order_release); },
      [&](int side) {
        while (pair.word(side).load(std::memory_order_acquire) == seen[side]) {
        }
        ++seen[side];
      });
}

// The least that waking another process can cost: a word, FUTEX_WAKE, FUTEX_WAIT.
double futex_one_way(int rounds) {
  Pair pair;
  uint32_t sent[2] = {0, 0}, seen[2] = {0, 0};
  return one_way(
      rounds,
      [&](int side) {
        pair.word(1 - side).store(++sent[side], std::memory_order_release);
        syscall(SYS_futex, &pair.word(1 - side), FUTEX_WAKE, 1, nullptr, nullptr, 0);
      },
      [&](int side) {
        while (pair.word(side).load(std::memory_order_acquire) == seen[side]) {
          syscall(SYS_futex, &pair.word(side), FUTEX_WAIT, seen[side], nullptr, nullptr, 0);
        }
        ++seen[side];
      });
}

void run(uint64_t records, uint64_t batch) {
  std::vector<double> rate, polling, line, polling_ratio, wake, futex, wake_ratio;
  for (int i = 0; i < kRuns; ++i) {
    rate.push_back(records_a_second(records, batch));
    line.push_back(line_one_way(kPollRounds));
    polling.push_back(ring_one_way(kPollRounds, false));
    polling_ratio.push_back(polling.back() / line.back());
    futex.push_back(futex_one_way(kSleepRounds));
    wake.push_back(ring_one_way(kSleepRounds, true));
    wake_ratio.push_back(wake.back() / futex.back());
  }
  std::printf("ring.rate %.0f records/s\n", median(rate));
  std::printf("ring.oneway_p50 %.3f us\n", median(polling));
  std::printf("ring.wake_ratio %.3f x\n", median(wake_ratio));
  std::printf("ring.line_p50 %.3f us\n", median(line));
  std::printf("ring.oneway_ratio %.3f x\n", median(polling_ratio));
  std::printf("ring.wake_p50 %.3f us\n", median(wake));
  std::printf("ring.futex_p50 %.3f us\n", median(futex));
}

}  // namespace
}  // namespace ringmaster::shm

int main(int argc, char** argv) {
  const uint64_t records = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 2'000'000;
  const uint64_t batch = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 64;
  if (records == 0 || batch == 0) {
    std::fprintf(stderr, "usage: bench_ring [RECORDS [BATCH]], both at least 1\n");
    return 2;
  }
  alarm(ringmaster::shm::kLimit);
  const sched_param lowest{sched_get_priority_min(SCHED_RR)};
  if (sched_setscheduler(0, SCHED_RR, &lowest) != 0)
    std::fprintf(stderr,
                 "no real-time scheduling here: what else runs on these cores is part of the figures\n");
  ringmaster::shm::run(records, batch);
}
