// Both roles of a ring in two threads of one process, so that the thread sanitizer sees every access of both.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "shm/doorbell.h"
#include "tests/shm/ring_fixture.h"
#include "tests/shm/traffic.h"

namespace ringmaster::shm {
namespace {

constexpr uint64_t kRecords = 100'000;
constexpr Nanos kPatience = 20 * kSecond;

TEST(Threads, ProducerAndConsumerSleepForEachOther) {
  TestRing ring(kMinRingBytes);
  Doorbell full = Doorbell::create().value(), empty = Doorbell::create().value();
  bool produced = false;
  std::thread writer([&] {
    Producer producer(ring.view());
    const Traffic traffic(9, producer.largest_payload());
    std::mt19937 random(5);
    for (uint64_t n = 0; n < kRecords;) {
      const uint32_t seen = full.sequence();
      const uint64_t batch_end = std::min(kRecords, n + 1 + random() % 8);
      while (n < batch_end && traffic.write(n, producer)) ++n;
      producer.commit();
      empty.ring();
      if (n < batch_end && !full.wait(seen, monotonic_now() + kPatience)) return;
    }
    produced = !producer.broken();
  });
  Consumer consumer(ring.view());
  const Traffic traffic(9, kMinRingBytes / 2 - sizeof(RecordHeader));
  uint64_t n = 0;
  for (bool going = true; going && n < kRecords;) {
    const uint32_t seen = empty.sequence();
    const uint64_t before = n;
    for (auto record = consumer.peek(); record && going; record = consumer.peek()) {
      going = traffic.is(n, *record);
      consumer.pop();
      n += going ? 1 : 0;
    }
    full.ring();
    if (n == before) going = going && empty.wait(seen, monotonic_now() + kPatience);
  }
  EXPECT_EQ(n, kRecords);
  EXPECT_FALSE(consumer.broken()) << consumer.fault();
  full.ring();
  writer.join();
  EXPECT_TRUE(produced);
}

}  // namespace
}  // namespace ringmaster::shm
