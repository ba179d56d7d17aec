// A ring between two real processes: order and content, and what is left when one of them is killed in the
// middle.
#include <gtest/gtest.h>
#include <sched.h>

#include <cstring>
#include <random>
#include <utility>

#include "shm/doorbell.h"
#include "shm/slot_memory.h"
#include "tests/shm/process.h"

namespace ringmaster::shm {
namespace {

// Record number n: its size, type and bytes all follow from n, so that the reader needs no copy of what was
// sent.
struct Expected {
  explicit Expected(uint64_t n) {
    uint64_t x = (n + 1) * 0x9E3779B97F4A7C15ull;
    x ^= x >> 29;
    size = 8 + x % (x % 61 == 0 ? 2000 : 120);
    type = 1 + static_cast<uint32_t>(x >> 40) % 1000;
    fill = static_cast<unsigned char>(x >> 32);
  }
  size_t size;
  uint32_t type;
  unsigned char fill;
};

void write_record(std::span<std::byte> space, uint64_t n, const Expected& e) {
  std::memcpy(space.data(), &n, sizeof n);
  std::memset(space.data() + sizeof n, e.fill, space.size() - sizeof n);
}

bool is_record(const Record& record, uint64_t n) {
  const Expected e(n);
  uint64_t number;
  if (record.type != e.type || record.payload.size() != e.size) return false;
  std::memcpy(&number, record.payload.data(), sizeof number);
  if (number != n) return false;
  for (const std::byte b : record.payload.subspan(sizeof n)) {
    if (std::to_integer<unsigned char>(b) != e.fill) return false;
  }
  return true;
}

struct TwoProcesses : testing::Test {
  TwoProcesses()
      : places(place_rings({4096, 4096, 64 << 10}).value()),
        memory(MemoryFile::create("test", places.size).value()),
        consumer_bell(Doorbell::create().value()),
        producer_bell(Doorbell::create().value()) {
    reset_slot(memory.bytes(), places, 0, 1);
  }
  RingView ring() { return rings_of(memory.bytes(), places).token; }

  // Writes records until `count`; 0, or 2 when it waited too long for space.
  int produce(uint64_t count) {
    Producer producer(ring());
    std::mt19937 random(3);
    for (uint64_t n = 0; n < count;) {
      const uint32_t seen = producer_bell.sequence();
      const Expected e(n);
      if (auto space = producer.try_reserve(e.type, e.size)) {
        write_record(*space, n, e);
        ++n;
        if (random() % 8 != 0) continue;  // batches of 8 on average
      }
      producer.commit();
      consumer_bell.ring();
      if (producer.free_bytes() < 4096 && !producer_bell.wait(seen, monotonic_now() + 10 * kSecond)) return 2;
    }
    producer.commit();
    consumer_bell.ring();
    return producer.broken() ? 3 : 0;
  }

  SlotPlaces places;
  MemoryFile memory;
  Doorbell consumer_bell, producer_bell;
};

TEST_F(TwoProcesses, AMillionRecordsOfRandomSizeInOrder) {
  constexpr uint64_t kCount = 1'200'000;
  Child producer([&] { return produce(kCount); });
  Consumer consumer(ring());
  uint64_t n = 0;
  while (n < kCount) {
    const uint32_t seen = consumer_bell.sequence();
    int batch = 0;
    for (auto record = consumer.peek(); record; record = consumer.peek(), ++batch) {
      ASSERT_TRUE(is_record(*record, n)) << "record " << n;
      consumer.pop();
      ++n;
      if (n % 64 == 0) producer_bell.ring();
    }
    producer_bell.ring();
    ASSERT_FALSE(consumer.broken());
    if (batch == 0) {
      ASSERT_TRUE(consumer_bell.wait(seen, monotonic_now() + 10 * kSecond)) << "after " << n;
    }
  }
  EXPECT_FALSE(consumer.peek());
  EXPECT_EQ(producer.wait(), 0);
}

TEST_F(TwoProcesses, KilledProducerLeavesAPrefix) {
  uint64_t total = 0;
  for (int round = 0; round < 40; ++round) {
    reset_slot(memory.bytes(), places, 0, 1);
    Child producer([&] { return produce(UINT64_MAX); });
    Consumer consumer(ring());
    uint64_t n = 0;
    const Nanos kill_at = monotonic_now() + (1 + round % 8) * 300 * kMicrosecond;
    bool killed = false;
    for (;;) {
      if (auto record = consumer.peek()) {
        ASSERT_TRUE(is_record(*record, n)) << "round " << round << " record " << n;
        consumer.pop();
        producer_bell.ring();
        ++n;
      } else if (killed) {
        break;  // all that was published before it died
      } else {
        sched_yield();
      }
      if (!killed && n > 0 && monotonic_now() >= kill_at) {
        producer.signal(SIGKILL);
        ASSERT_EQ(producer.wait(), 128 + SIGKILL);
        killed = true;
      }
    }
    ASSERT_FALSE(consumer.broken()) << "round " << round;
    total += n;
  }
  EXPECT_GT(total, 40u);
}

TEST_F(TwoProcesses, KilledConsumerLeavesTheProducerWhole) {
  for (int round = 0; round < 40; ++round) {
    reset_slot(memory.bytes(), places, 0, 1);
    Child reader([&] {
      Consumer consumer(ring());
      for (uint64_t n = 0;; sched_yield()) {
        for (auto record = consumer.peek(); record; record = consumer.peek()) {
          if (!is_record(*record, n++)) return 4;
          consumer.pop();
        }
        if (consumer.broken()) return 5;
      }
    });
    Producer producer(ring());
    const Nanos kill_at = monotonic_now() + (1 + round % 8) * 300 * kMicrosecond;
    bool killed = false;
    uint64_t n = 0;
    for (int refused_after_kill = 0; refused_after_kill < 3;) {
      const Expected e(n);
      if (auto space = producer.try_reserve(e.type, e.size)) {
        write_record(*space, n, e);
        producer.commit();
        ++n;
      } else if (killed) {
        ++refused_after_kill;  // full for good, and it says so instead of waiting
      } else {
        sched_yield();
      }
      if (!killed && n > 1000 && monotonic_now() >= kill_at) {
        reader.signal(SIGKILL);
        ASSERT_EQ(reader.wait(), 128 + SIGKILL) << "round " << round;
        killed = true;
      }
    }
    ASSERT_FALSE(producer.broken());
    // What was not consumed is all there for whoever reads next.
    Consumer rest(ring());
    uint64_t left = 0;
    auto record = rest.peek();
    ASSERT_TRUE(record);
    uint64_t first;
    std::memcpy(&first, record->payload.data(), sizeof first);
    for (; record; record = rest.peek(), ++left) {
      ASSERT_TRUE(is_record(*record, first + left));
      rest.pop();
    }
    EXPECT_EQ(first + left, n);
  }
}

}  // namespace
}  // namespace ringmaster::shm
