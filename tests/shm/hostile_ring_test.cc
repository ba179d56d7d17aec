// A peer that writes anything anywhere: the ring breaks for good, and nothing outside its data is touched
// (ASan).
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "shm/ring.h"
#include "tests/shm/ring_fixture.h"

namespace ringmaster::shm {
namespace {

constexpr size_t kCapacity = 4096;

// A ring whose head says 1024, with two honest records of 64 bytes at the start.
struct HostileProducer : testing::Test {
  HostileProducer() : ring(kCapacity), consumer(ring.view()) {
    for (size_t offset = 0; offset < 1024; offset += 64) ring.header_at(offset) = {64, 1};
    ring.index().head = 1024;
  }
  void expect_broken() {
    EXPECT_FALSE(consumer.peek());
    EXPECT_TRUE(consumer.broken());
    // For good: also once the words are right again.
    ring.header_at(0) = {64, 1};
    ring.index().head = 1024;
    EXPECT_FALSE(consumer.peek());
    EXPECT_TRUE(consumer.broken());
    const uint64_t tail = ring.index().tail;
    consumer.pop();
    EXPECT_EQ(ring.index().tail, tail);
  }
  TestRing ring;
  Consumer consumer;
};

TEST_F(HostileProducer, HonestBaseline) {
  ASSERT_TRUE(consumer.peek());
  EXPECT_FALSE(consumer.broken());
}
TEST_F(HostileProducer, HeadBeyondTheCapacity) {
  ring.index().head = kCapacity + 64;
  expect_broken();
}
TEST_F(HostileProducer, HeadNotAligned) {
  ring.index().head = 1000;
  expect_broken();
}
TEST_F(HostileProducer, HeadAtTheEndOfTheNumbers) {
  ring.index().head = ~uint64_t{63};
  expect_broken();
}
TEST_F(HostileProducer, HeadGoesBack) {
  for (int i = 0; i < 16; ++i) {
    ASSERT_TRUE(consumer.peek());
    consumer.pop();
  }
  ring.index().head = 512;
  expect_broken();
}
TEST_F(HostileProducer, SizeBelowTheHeader) {
  ring.header_at(0).size = 7;
  expect_broken();
}
TEST_F(HostileProducer, SizeZero) {
  ring.header_at(0).size = 0;
  expect_broken();
}
TEST_F(HostileProducer, SizeBeyondWhatIsPublished) {
  ring.header_at(0).size = 1025;
  expect_broken();
}
TEST_F(HostileProducer, SizeAtTheEndOfTheNumbers) {
  ring.header_at(0).size = UINT32_MAX;
  expect_broken();
}
TEST_F(HostileProducer, SizeBeyondTheEndOfTheRing) {
  for (size_t offset = 0; offset < kCapacity; offset += 64) ring.header_at(offset) = {64, 1};
  ring.index().head = kCapacity;
  for (int i = 0; i < 63; ++i) {
    ASSERT_TRUE(consumer.peek());
    consumer.pop();
  }
  ring.index().head = kCapacity + 1024;
  ASSERT_TRUE(consumer.peek());
  consumer.pop();  // all that was known is read: now the new head counts
  ring.header_at(0).size = 64;
  ASSERT_TRUE(consumer.peek());
}
TEST_F(HostileProducer, RecordAcrossTheEnd) {
  for (size_t offset = 0; offset < kCapacity; offset += 64) ring.header_at(offset) = {64, 1};
  for (int i = 0; i < 16; ++i) {
    ASSERT_TRUE(consumer.peek());
    consumer.pop();
  }
  ring.index().head = 1024 + kCapacity;  // published around the end
  for (int i = 0; i < 47; ++i) {
    ASSERT_TRUE(consumer.peek());
    consumer.pop();
  }
  ring.header_at(kCapacity - 64).size = 128;  // within what is published, but not contiguous
  expect_broken();
}
TEST_F(HostileProducer, PadAtTheStart) {
  ring.index().head = kCapacity;
  ring.header_at(0) = {kCapacity, kPadRecord};
  expect_broken();
}
TEST_F(HostileProducer, PadThatIsNotTheRest) {
  ASSERT_TRUE(consumer.peek());
  consumer.pop();
  ring.header_at(64) = {64, kPadRecord};
  expect_broken();
}
TEST_F(HostileProducer, PadBeyondWhatIsPublished) {
  ASSERT_TRUE(consumer.peek());
  consumer.pop();
  ring.header_at(64) = {kCapacity - 64, kPadRecord};
  expect_broken();
}

struct HostileConsumer : testing::Test {
  HostileConsumer() : ring(kCapacity), producer(ring.view()) {
    for (int i = 0; i < 16; ++i) EXPECT_TRUE(producer.try_reserve(1, 56));
    producer.commit();
    ring.index().tail = 512;
    EXPECT_EQ(producer.free_bytes(), kCapacity - 512);
  }
  void expect_broken() {
    EXPECT_EQ(producer.free_bytes(), 0u);
    EXPECT_TRUE(producer.broken());
    ring.index().tail = 1024;
    EXPECT_FALSE(producer.try_reserve(1, 8));
    EXPECT_TRUE(producer.broken());
  }
  TestRing ring;
  Producer producer;
};

TEST_F(HostileConsumer, TailBeyondHead) {
  ring.index().tail = 1088;
  expect_broken();
}
TEST_F(HostileConsumer, TailGoesBack) {
  ring.index().tail = 448;
  expect_broken();
}
TEST_F(HostileConsumer, TailNotAligned) {
  ring.index().tail = 513;
  expect_broken();
}
TEST_F(HostileConsumer, TailIntoWhatIsReservedButNotPublished) {
  EXPECT_TRUE(producer.try_reserve(1, 56));
  ring.index().tail = 1088;
  expect_broken();
}
TEST_F(HostileConsumer, TailIsNotTrustedWhenFullEither) {
  while (producer.try_reserve(1, 56)) {
  }
  producer.commit();
  EXPECT_FALSE(producer.broken());
  ring.index().tail = ~uint64_t{63};
  EXPECT_FALSE(producer.try_reserve(1, 56));
  EXPECT_TRUE(producer.broken());
}

TEST(HostileIndex, ImpossiblePositionsAtAttachBreakBothRoles) {
  TestRing ring(kCapacity);
  ring.index().head = 64;
  ring.index().tail = 128;
  EXPECT_TRUE(Producer(ring.view()).broken());
  Consumer consumer(ring.view());
  EXPECT_FALSE(consumer.peek());
  EXPECT_TRUE(consumer.broken());
  ring.index().tail = 3;
  EXPECT_TRUE(Producer(ring.view()).broken());
  EXPECT_TRUE(Consumer(ring.view()).broken());
}

// Whatever stands in the ring, the consumer ends and stays inside (checked by ASan through the reads of the
// payload).
TEST(HostileIndex, RandomBytesEverywhere) {
  std::mt19937_64 random(11);
  uint64_t records = 0, broken = 0;
  for (int round = 0; round < 20'000; ++round) {
    TestRing ring(kCapacity);
    for (size_t offset = 0; offset < kCapacity; offset += 64) {
      const uint64_t bits = random();
      // Mostly near the truth, so that the walk gets somewhere before it breaks.
      ring.header_at(offset) = {static_cast<uint32_t>(bits % 8 == 0 ? bits >> 32 : 8 + (bits >> 32) % 240),
                                static_cast<uint32_t>(bits % 20)};
    }
    const uint64_t tail = (random() % 64) * 64;
    ring.index().tail = tail;
    ring.index().head = random() % 4 == 0 ? random() : tail + (random() % 65) * 64;
    Consumer consumer(ring.view());
    unsigned sum = 0;
    int steps = 0;
    for (; auto record = consumer.peek(); consumer.pop()) {
      for (const std::byte b : record->payload) sum += std::to_integer<unsigned>(b);
      ASSERT_LE(++steps, 64);
      ++records;
    }
    EXPECT_GE(sum + 1, 1u);
    if (consumer.broken()) ++broken;
  }
  EXPECT_GT(records, 20'000u);
  EXPECT_GT(broken, 5'000u);
  EXPECT_LT(broken, 20'000u);
}

}  // namespace
}  // namespace ringmaster::shm
