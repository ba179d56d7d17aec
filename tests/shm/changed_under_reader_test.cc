// A record's header changes after every single instruction of peek(): between the check and the use of a
// value there is no moment in which another value gets through.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <memory>

#include "shm/ring.h"
#include "tests/shm/stepped.h"

namespace ringmaster::shm {
namespace {

constexpr size_t kCapacity = kMinRingBytes;

struct Shared {
  RingIndex index;
  alignas(kCacheLine) std::byte data[kCapacity];
  uint64_t found, offset, size;
};

void peek_while_it_changes(RecordHeader before, RecordHeader after) {
  void* const at = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  Shared& shared = *static_cast<Shared*>(at);
  RecordHeader& header = *reinterpret_cast<RecordHeader*>(shared.data + 64);
  int steps = 0;
  for (bool through = false; !through; steps += kEvery) {
    ASSERT_LT(steps, 200'000) << "no end";
    shared.index.tail = 64;
    shared.index.head = 512;
    header = before;
    shared.found = shared.size = 0;
    SteppedChild child([&]() -> std::function<void()> {
      const RingView view{&shared.index, {shared.data, kCapacity}};
      Consumer(view).peek();
      return [&shared, consumer = std::make_shared<Consumer>(view)] {
        const auto record = consumer->peek();
        if (!record) return;
        shared.offset = static_cast<uint64_t>(record->payload.data() - shared.data);
        shared.size = record->payload.size();
        shared.found = 1 + record->type;
      };
    });
    ASSERT_TRUE(child.ready());
    for (int i = 0; i < steps && !through; ++i) through = !child.step();
    header = after;
    while (child.step()) {
    }
    if (shared.found == 0) continue;  // refused
    ASSERT_NE(shared.found, 1 + kPadRecord) << "changed after " << steps << " instructions";
    ASSERT_EQ(shared.offset, 72u);
    ASSERT_LE(shared.size, 512u - 72) << "changed after " << steps << " instructions";
  }
  EXPECT_GT(steps, 20);
  munmap(at, sizeof(Shared));
}

TEST(ChangedUnderReader, SizeGrowsBeyondTheRing) {
  peek_while_it_changes({100, 1}, {UINT32_MAX, 1});
}
TEST(ChangedUnderReader, SizeFallsBelowTheHeader) {
  peek_while_it_changes({100, 1}, {3, 1});
}
TEST(ChangedUnderReader, RecordBecomesAPad) {
  peek_while_it_changes({100, 1}, {kCapacity - 64, kPadRecord});
}

}  // namespace
}  // namespace ringmaster::shm
