// A second process writes anything into every word that this one reads, while it reads: values change between
// two looks. A ring breaks with a reason, and nobody steps outside (the memory lies between pages that cannot
// be touched) or waits beyond a deadline.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <string>

#include "shm/doorbell.h"
#include "shm/slot_memory.h"
#include "tests/shm/process.h"

namespace ringmaster::shm {
namespace {

constexpr size_t kCapacity = kMinRingBytes;
constexpr Nanos kLimit = 40 * kSecond;  // these take well below a second on an idle core

// Shared pages with untouchable ones on both sides.
class Fenced {
 public:
  explicit Fenced(size_t bytes) : bytes_(bytes) {
    all_ = mmap(nullptr, bytes + 2 * kFence, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all_ == MAP_FAILED || mprotect(data(), bytes, PROT_READ | PROT_WRITE) != 0) abort();
  }
  ~Fenced() { munmap(all_, bytes_ + 2 * kFence); }
  Fenced(const Fenced&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(all_) + kFence; }

 private:
  static constexpr size_t kFence = 64 << 10;
  size_t bytes_;
  void* all_;
};

struct Scribbled : testing::Test {
  Fenced index_page{kPage}, ring_pages{kCapacity};

  RingView ring() { return {&index(), {ring_pages.data(), kCapacity}}; }
  RingIndex& index() { return *reinterpret_cast<RingIndex*>(index_page.data()); }

  // A position: often a plausible one near the other, at times anything.
  static uint64_t position(std::mt19937_64& random, uint64_t near) {
    switch (random() % 8) {
      case 0:
        return random();
      case 1:
        return near + random() % 256;
      case 2:
        return near - kRecordAlign * (random() % 80);
      default:
        return near + kRecordAlign * (random() % 66);
    }
  }
  // For ever: `words` says which of the index it owns; every record's header and payload is its own too.
  [[noreturn]] void scribble(bool head, bool tail) {
    std::mt19937_64 random(17);
    for (;;) {
      const uint64_t x = random();
      if (head && x % 4 == 0) index().head.store(position(random, index().tail.load()));
      if (tail && x % 4 == 1) index().tail.store(position(random, index().head.load()));
      // Half of all where the reader looks right now: between its check and its use.
      const uint64_t place =
          x % 2 == 0 ? index().tail.load(std::memory_order_relaxed) : random() * kRecordAlign;
      std::byte* const line = ring_pages.data() + (place & (kCapacity - 1)) / kRecordAlign * kRecordAlign;
      const uint32_t size = x % 4 == 2    ? static_cast<uint32_t>(random())
                            : x % 16 == 3 ? static_cast<uint32_t>(kCapacity - (line - ring_pages.data()))
                                          : 8 + static_cast<uint32_t>(random() % 400);
      const uint32_t type = x % 32 < 4 ? kPadRecord : static_cast<uint32_t>(random());
      // Relaxed stores of single words, as a peer's stores would be seen.
      std::atomic_ref(*reinterpret_cast<uint32_t*>(line)).store(size, std::memory_order_relaxed);
      std::atomic_ref(*reinterpret_cast<uint32_t*>(line + 4)).store(type, std::memory_order_relaxed);
      std::atomic_ref(*reinterpret_cast<uint64_t*>(line + 8 * (1 + random() % 7)))
          .store(x, std::memory_order_relaxed);
    }
  }
  bool inside(std::span<const std::byte> payload) {
    return payload.data() >= ring_pages.data() + sizeof(RecordHeader) &&
           payload.data() + payload.size() <= ring_pages.data() + kCapacity;
  }
};

// What the ring says of itself, without its numbers.
std::string kind(const std::string& fault) {
  return fault.substr(0, fault.find(" is "));
}

TEST_F(Scribbled, AReaderBreaksWithAReasonAndStaysInside) {
  Child peer([&]() -> int { scribble(true, false); });
  std::map<std::string, int> reasons;
  uint64_t records = 0, sum = 0;
  int broken = 0;
  const auto enough = [&] { return broken >= 20'000 && reasons.size() >= 5; };
  for (const Nanos end = monotonic_now() + kLimit; !enough() && monotonic_now() < end;) {
    index().tail = static_cast<uint64_t>(broken) * kRecordAlign;
    Consumer consumer(ring());
    // An honest lap has at most kCapacity / kRecordAlign records; the peer may publish a new lap at any time.
    for (int i = 0; i < 1000 && !consumer.broken(); ++i) {
      const auto record = consumer.peek();
      if (!record) continue;
      ASSERT_TRUE(inside(record->payload));
      ASSERT_NE(record->type, kPadRecord);
      for (const std::byte b : record->payload) sum += std::to_integer<unsigned>(b);
      consumer.pop();
      ++records;
    }
    if (!consumer.broken()) continue;
    ++broken;
    ASSERT_NE(consumer.fault().find("; allowed are "), std::string::npos) << consumer.fault();
    ++reasons[kind(consumer.fault())];
    ASSERT_FALSE(consumer.peek());
  }
  EXPECT_TRUE(enough()) << broken << " broken, for " << reasons.size() << " reasons";
  for (const char* reason : {"head", "the distance of head from tail", "the size of a record",
                             "the size of a pad", "the place of a pad"}) {
    EXPECT_GT(reasons[reason], 0) << reason;
  }
  EXPECT_GT(records, 1000u);
  EXPECT_GT(sum, 0u);
}

TEST_F(Scribbled, AWriterBreaksWithAReasonAndStaysInside) {
  Child peer([&]() -> int { scribble(false, true); });
  std::map<std::string, int> reasons;
  std::mt19937_64 random(23);
  uint64_t written = 0;
  int broken = 0;
  const auto enough = [&] { return broken >= 20'000 && reasons.size() >= 3; };
  for (const Nanos end = monotonic_now() + kLimit; !enough() && monotonic_now() < end;) {
    index().head = static_cast<uint64_t>(broken) * kRecordAlign;
    Producer producer(ring());
    for (int i = 0; i < 1000 && !producer.broken(); ++i) {
      ASSERT_LE(producer.free_bytes(), kCapacity);
      const auto space = producer.try_reserve(1, random() % 300);
      if (space) {
        ASSERT_TRUE(inside(*space));
        std::memset(space->data(), 1, space->size());
        ++written;
      }
      producer.commit();
    }
    if (!producer.broken()) continue;
    ++broken;
    ASSERT_NE(producer.fault().find("; allowed are "), std::string::npos) << producer.fault();
    ++reasons[kind(producer.fault())];
    ASSERT_FALSE(producer.try_reserve(1, 8));
  }
  EXPECT_TRUE(enough()) << broken << " broken, for " << reasons.size() << " reasons";
  for (const char* reason : {"tail", "the distance of head from tail", "what tail has gone on by"}) {
    EXPECT_GT(reasons[reason], 0) << reason;
  }
  EXPECT_GT(written, 1000u);
}

// Whatever a peer makes of the bell's words, a wait ends by its deadline.
TEST(ScribbledBell, AWaitEndsByItsDeadline) {
  Doorbell bell = Doorbell::create().value();
  void* const page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, bell.fd(), 0);
  ASSERT_NE(page, MAP_FAILED);
  BellPage& words = *static_cast<BellPage*>(page);
  Child peer([&]() -> int {
    std::mt19937 random(3);
    for (;;) {
      words.sleeping = static_cast<uint32_t>(random());
      if (random() % 64 == 0) words.sequence = static_cast<uint32_t>(random() % 2);
      words.magic = words.version = static_cast<uint32_t>(random());
    }
  });
  int rung = 0, late = 0;
  for (int i = 0; i < 300; ++i) {
    const Nanos deadline = monotonic_now() + kMillisecond;
    rung += bell.wait(bell.sequence(), deadline) ? 1 : 0;
    late += monotonic_now() > deadline + 5 * kSecond ? 1 : 0;
  }
  EXPECT_EQ(late, 0);
  EXPECT_GT(rung, 0);
  // The other direction: a hostile owner's word costs a ringer a system call at most.
  for (int i = 0; i < 1000; ++i) bell.ring();
  munmap(page, kPage);
}

// Every word of a slot's header that means something is compared at attach, and the error names it.
TEST(ScribbledHeader, EveryWordIsCheckedAtAttach) {
  const SlotPlaces places = place_rings({4096, 8192, 4096}).value();
  MemoryFile memory = MemoryFile::create("test", places.size).value();
  reset_slot(memory.bytes(), places, 3, 99);
  ASSERT_TRUE(check_slot(memory.bytes(), places, 3, 99).ok());
  for (size_t offset = 0; offset < offsetof(SlotHeader, pad); ++offset) {
    for (const int bit : {0, 7}) {
      memory.bytes()[offset] ^= std::byte{1} << bit;
      const auto checked = check_slot(memory.bytes(), places, 3, 99);
      ASSERT_FALSE(checked.ok()) << "byte " << offset;
      EXPECT_EQ(checked.error().message.find("slot header: "), 0u) << checked.error().message;
      memory.bytes()[offset] ^= std::byte{1} << bit;
    }
  }
  EXPECT_TRUE(check_slot(memory.bytes(), places, 3, 99).ok());
}

}  // namespace
}  // namespace ringmaster::shm
