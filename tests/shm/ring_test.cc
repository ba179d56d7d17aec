#include "shm/ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/shm/ring_fixture.h"

namespace ringmaster::shm {
namespace {

constexpr size_t kCapacity = 4096;

bool put(Producer& producer, uint32_t type, const std::string& text) {
  const auto space = producer.try_reserve(type, text.size());
  if (!space) return false;
  std::memcpy(space->data(), text.data(), text.size());
  return true;
}

std::string text_of(const Record& record) {
  return {reinterpret_cast<const char*>(record.payload.data()), record.payload.size()};
}

// The next record as "type:payload", popped; "none" when there is none.
std::string take(Consumer& consumer) {
  const auto record = consumer.peek();
  if (!record) return "none";
  std::string text = std::to_string(record->type) + ":" + text_of(*record);
  consumer.pop();
  return text;
}

TEST(Ring, RecordsComeOutInOrder) {
  TestRing ring(kCapacity);
  Producer producer(ring.view());
  Consumer consumer(ring.view());
  EXPECT_EQ(take(consumer), "none");
  ASSERT_TRUE(put(producer, 1, "one"));
  ASSERT_TRUE(put(producer, 2, ""));
  ASSERT_TRUE(put(producer, 3, std::string(200, 'x')));
  producer.commit();
  EXPECT_EQ(take(consumer), "1:one");
  EXPECT_EQ(take(consumer), "2:");
  EXPECT_EQ(take(consumer), "3:" + std::string(200, 'x'));
  EXPECT_EQ(take(consumer), "none");
}

TEST(Ring, NothingIsVisibleBeforeCommit) {
  TestRing ring(kCapacity);
  Producer producer(ring.view());
  Consumer consumer(ring.view());
  ASSERT_TRUE(put(producer, 1, "a"));
  ASSERT_TRUE(put(producer, 1, "b"));
  EXPECT_EQ(take(consumer), "none");
  EXPECT_EQ(ring.index().head.load(), 0u);
  producer.commit();
  EXPECT_EQ(ring.index().head.load(), 128u);
  ASSERT_TRUE(put(producer, 1, "c"));
  EXPECT_EQ(take(consumer), "1:a");
  EXPECT_EQ(take(consumer), "1:b");
  EXPECT_EQ(take(consumer), "none");
  producer.commit();
  EXPECT_EQ(take(consumer), "1:c");
}

TEST(Ring, PeekDoesNotFree) {
  TestRing ring(kCapacity);
  Producer producer(ring.view());
  Consumer consumer(ring.view());
  ASSERT_TRUE(put(producer, 1, "a"));
  producer.commit();
  ASSERT_TRUE(consumer.peek());
  EXPECT_EQ(text_of(*consumer.peek()), "a");
  EXPECT_EQ(ring.index().tail.load(), 0u);
  consumer.pop();
  EXPECT_EQ(ring.index().tail.load(), 64u);
  consumer.pop();  // without a peek: nothing
  EXPECT_EQ(ring.index().tail.load(), 64u);
}

// The worked example of shm/LAYOUT.md: a capacity of 4096, 3968 bytes gone by, a record of 136 bytes.
TEST(Ring, WorkedExampleOfAWrap) {
  TestRing ring(kCapacity);
  Producer producer(ring.view());
  Consumer consumer(ring.view());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(producer.try_reserve(1, 1984 - 8));
    producer.commit();
    ASSERT_TRUE(consumer.peek());
    consumer.pop();
  }
  ASSERT_EQ(ring.index().head.load(), 3968u);
  ASSERT_TRUE(put(producer, 7, std::string(128, 'w')));
  producer.commit();
  EXPECT_EQ(ring.header_at(3968).size, 128u);  // the pad: the two lines to the end
  EXPECT_EQ(ring.header_at(3968).type, kPadRecord);
  EXPECT_EQ(ring.header_at(0).size, 136u);
  EXPECT_EQ(ring.header_at(0).type, 7u);
  EXPECT_EQ(ring.index().head.load(), 3968u + 128 + 192);
  EXPECT_EQ(take(consumer), "7:" + std::string(128, 'w'));
  EXPECT_EQ(ring.index().tail.load(), 4288u);
  EXPECT_EQ(take(consumer), "none");
}

TEST(Ring, RecordThatEndsAtTheEndNeedsNoPad) {
  TestRing ring(kCapacity);
  Producer producer(ring.view());
  Consumer consumer(ring.view());
  ASSERT_TRUE(producer.try_reserve(1, 2048 - 8));
  ASSERT_TRUE(producer.try_reserve(2, 2048 - 8));
  producer.commit();
  EXPECT_EQ(ring.index().head.load(), 4096u);
  EXPECT_EQ(producer.free_bytes(), 0u);
  EXPECT_FALSE(producer.try_reserve(3, 0));
  EXPECT_EQ(consumer.peek()->type, 1u);
  consumer.pop();
  ASSERT_TRUE(put(producer, 3, "at the start"));
  producer.commit();
  EXPECT_EQ(consumer.peek()->type, 2u);
  consumer.pop();
  EXPECT_EQ(take(consumer), "3:at the start");
}

TEST(Ring, FullUntilTheConsumerPops) {
  TestRing ring(kCapacity);
  Producer producer(ring.view());
  Consumer consumer(ring.view());
  int written = 0;
  while (put(producer, 1, std::to_string(written))) ++written;
  EXPECT_EQ(written, 64);
  EXPECT_FALSE(producer.broken());
  producer.commit();
  EXPECT_EQ(take(consumer), "1:0");
  EXPECT_EQ(producer.free_bytes(), 64u);
  EXPECT_TRUE(put(producer, 1, "64"));
  EXPECT_FALSE(put(producer, 1, "65"));
  producer.commit();
  for (int i = 1; i <= 64; ++i) EXPECT_EQ(take(consumer), "1:" + std::to_string(i));
  EXPECT_EQ(take(consumer), "none");
  EXPECT_EQ(producer.free_bytes(), kCapacity);
}

TEST(Ring, UncommittedBatchCanFillTheRing) {
  TestRing ring(kCapacity);
  Producer producer(ring.view());
  Consumer consumer(ring.view());
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(producer.try_reserve(1, 56));
  EXPECT_FALSE(
      producer.try_reserve(1, 56));  // the tail cannot move for what nobody has seen: full, not broken
  EXPECT_FALSE(producer.broken());
  producer.commit();
  int seen = 0;
  for (; consumer.peek(); consumer.pop()) ++seen;
  EXPECT_EQ(seen, 64);
}

TEST(Ring, OversizedNeverFitsLargestFitsAtAnyPosition) {
  TestRing ring(kCapacity);
  Producer producer(ring.view());
  Consumer consumer(ring.view());
  EXPECT_EQ(producer.largest_payload(), 2040u);
  EXPECT_FALSE(producer.try_reserve(1, 2041));
  EXPECT_FALSE(producer.try_reserve(1, SIZE_MAX));
  EXPECT_FALSE(producer.try_reserve(1, SIZE_MAX - 7));
  EXPECT_FALSE(producer.broken());
  for (size_t position = 0; position < kCapacity; position += 64) {
    ASSERT_TRUE(producer.try_reserve(1, 2040)) << "at " << (ring.index().head.load() % kCapacity);
    producer.commit();
    ASSERT_EQ(consumer.peek()->payload.size(), 2040u);
    consumer.pop();
    while (ring.index().head.load() % kCapacity !=
           (position + 64) % kCapacity) {  // one line further next time
      ASSERT_TRUE(producer.try_reserve(1, 0));
      producer.commit();
      ASSERT_TRUE(consumer.peek());
      consumer.pop();
    }
  }
}

TEST(Ring, RolesMoveAndTheOldOneIsOfNoRing) {
  TestRing ring(kCapacity);
  Producer first(ring.view());
  ASSERT_TRUE(put(first, 1, "a"));
  Producer second(std::move(first));
  EXPECT_FALSE(first.try_reserve(1, 8));  // NOLINT(bugprone-use-after-move): this is the point
  EXPECT_EQ(first.free_bytes(), 0u);
  first.commit();
  EXPECT_EQ(ring.index().head.load(), 0u);
  second.commit();
  Consumer old(ring.view());
  Consumer consumer;
  EXPECT_FALSE(consumer.peek());
  consumer = std::move(old);
  EXPECT_FALSE(old.peek());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(take(consumer), "1:a");
}

TEST(Ring, RolesContinueAtThePositionsInTheIndex) {
  TestRing ring(kCapacity);
  ring.index().head = ring.index().tail = 1'000'000 * 64ull;
  Producer producer(ring.view());
  Consumer consumer(ring.view());
  ASSERT_TRUE(put(producer, 1, "a"));
  producer.commit();
  EXPECT_EQ(take(consumer), "1:a");
}

// Positions are 64-bit and wrap at 2^64 without notice.
TEST(Ring, PositionsMayWrapAround) {
  TestRing ring(kCapacity);
  ring.index().head = ring.index().tail = uint64_t{0} - 640;
  Producer producer(ring.view());
  Consumer consumer(ring.view());
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(put(producer, 1, std::to_string(i)));
    producer.commit();
    ASSERT_EQ(take(consumer), "1:" + std::to_string(i));
  }
  EXPECT_FALSE(producer.broken() || consumer.broken());
}

// Against a plain queue: random sizes, batches and pops.
TEST(Ring, AgreesWithAQueue) {
  TestRing ring(kCapacity);
  Producer producer(ring.view());
  Consumer consumer(ring.view());
  std::deque<std::string> reserved, published;
  std::mt19937 random(7);
  uint64_t count = 0;
  for (int round = 0; round < 200'000; ++round) {
    switch (random() % 4) {
      case 0:
      case 1: {
        std::string text(random() % (random() % 8 == 0 ? 2040 : 100), static_cast<char>('a' + count % 26));
        if (put(producer, static_cast<uint32_t>(1 + count % 5), text)) {
          reserved.push_back(std::to_string(1 + count % 5) + ":" + text);
          ++count;
        }
        break;
      }
      case 2:
        producer.commit();
        while (!reserved.empty()) {
          published.push_back(std::move(reserved.front()));
          reserved.pop_front();
        }
        break;
      default:
        ASSERT_EQ(take(consumer), published.empty() ? "none" : published.front());
        if (!published.empty()) published.pop_front();
    }
  }
  EXPECT_GT(count, 50'000u);
  EXPECT_FALSE(producer.broken() || consumer.broken());
}

}  // namespace
}  // namespace ringmaster::shm
