#include "gpu-worker/device/cpu/team.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <numeric>

#include "gpu-worker/device/cpu/host.h"

namespace ringmaster::gpu_worker {
namespace {

class Teams : public testing::TestWithParam<unsigned> {};

// Phase by phase, every item adds what the phase before left: wrong if an item is lost, doubled or early.
TEST_P(Teams, EveryItemOfEveryPhaseIsDoneOnceAndInOrder) {
  Team team(GetParam());
  for (int run = 0; run < 200; ++run) {
    std::vector<uint64_t> a(97, 1), b(97);
    team.run(
        [&](Team::Member& member) {
          ASSERT_LT(member.index(), team.size());
          for (int phase = 0; phase < 10; ++phase) {
            const std::vector<uint64_t>& from = phase % 2 == 0 ? a : b;
            std::vector<uint64_t>& to = phase % 2 == 0 ? b : a;
            member.for_each(97, 1 + static_cast<size_t>(phase), [&](size_t begin, size_t end) {
              for (size_t i = begin; i < end; ++i) to[i] = from[(i + 1) % 97] + from[(i + 96) % 97];
            });
          }
        },
        10);
    EXPECT_EQ(a, std::vector<uint64_t>(97, 1024)) << "run " << run;
  }
}

TEST_P(Teams, PhasesWithoutItemsAndRunsOfDifferentLength) {
  Team team(GetParam());
  for (size_t phases : {0, 3, 50, 1}) {
    std::atomic<size_t> items{0};
    team.run(
        [&](Team::Member& member) {
          for (size_t p = 0; p < phases; ++p)
            member.for_each(p % 3, 1, [&](size_t begin, size_t end) { items += end - begin; });
        },
        phases);
    size_t expected = 0;
    for (size_t p = 0; p < phases; ++p) expected += p % 3;
    EXPECT_EQ(items.load(), expected);
  }
}

// A member that is held up in one item holds up that item alone: the others take everything else.
TEST_P(Teams, ASlowItemDoesNotHoldBackTheOthers) {
  Team team(GetParam());
  std::atomic<uint32_t> done{0};
  team.run(
      [&](Team::Member& member) {
        member.for_each(64, 1, [&](size_t begin, size_t end) {
          for (size_t i = begin; i < end; ++i) {
            if (i == 0) std::this_thread::sleep_for(std::chrono::milliseconds(30));
            ++done;
          }
        });
      },
      1);
  EXPECT_EQ(done.load(), 64u);
}

TEST_P(Teams, OPS_09_IdleTeamsUseNoCpu) {
  Team team(GetParam());
  team.run([](Team::Member& member) { member.for_each(8, 1, [](size_t, size_t) {}); }, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto cpu = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec * 1'000'000 + usage.ru_utime.tv_usec + usage.ru_stime.tv_sec * 1'000'000 +
           usage.ru_stime.tv_usec;
  };
  const auto before = cpu();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(cpu() - before, 3000) << "microseconds of 300 ms";
}

INSTANTIATE_TEST_SUITE_P(Sizes, Teams, testing::Values(1, 2, 5));

TEST(Host, ThreadsAndMemoryAreSensible) {
  EXPECT_GE(usable_threads(), 1u);
  EXPECT_LE(usable_threads(), std::thread::hardware_concurrency());
  EXPECT_GT(available_memory(), 1u << 20);
}

TEST(Host, RegionsAreZeroedAndAligned) {
  Result<Region> region = Region::create(3 << 20, "test");
  ASSERT_TRUE(region.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(region->data()) % (2 << 20), 0u);
  EXPECT_EQ(std::accumulate(region->data(), region->data() + region->bytes(), 0,
                            [](int sum, std::byte b) { return sum + static_cast<int>(b); }),
            0);
  const Result<Region> huge = Region::create(size_t{1} << 60, "test");
  ASSERT_FALSE(huge.ok());
  EXPECT_EQ(huge.error().code, Code::kResourceExhausted);
}

}  // namespace
}  // namespace ringmaster::gpu_worker
