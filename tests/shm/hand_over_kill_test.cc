// A slot changes hands, and one of the two is killed at every system call of it: what others can see of a
// process changes nowhere else. Whatever the moment, the other side ends up with a partner.
#include <gtest/gtest.h>

#include <optional>

#include "tests/shm/slot_fixture.h"
#include "tests/shm/stepped.h"

namespace ringmaster::shm {
namespace {

using KilledInHandOver = SlotSocket;

constexpr int kMostCalls = 2'000;  // beginnings and ends; a hand-over has about 100

// Runs marked() of a child up to its beginning or end of a system call number 0, 1, 2, ... and kills it
// there. `meanwhile` runs while the child waits; `after` once it is dead. Until a child gets through.
void kill_at_every_call(const std::function<std::function<void()>()>& setup,
                        const std::function<void()>& before, const std::function<void()>& meanwhile,
                        const std::function<void()>& after) {
  int calls = 0;
  for (bool through = false; !through; ++calls) {
    ASSERT_LT(calls, kMostCalls) << "no end";
    SCOPED_TRACE("killed at system call " + std::to_string(calls / 2) +
                 (calls % 2 == 0 ? ", beginning" : ", end"));
    before();
    SteppedChild child(setup);
    ASSERT_TRUE(child.ready()) << "ptrace is not allowed here";
    for (int i = 0; i <= calls && !through; ++i) through = !child.step_call(meanwhile);
    child.kill();
    after();
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(calls, 20);
  std::printf("             %d kills\n", calls);
}

// The one that asks. Its slot is free again in the end, and its successor gets it, empty.
TEST_F(KilledInHandOver, TokenizerWorkerThatAsks) {
  auto server = serve(1);
  ASSERT_TRUE(server);
  GpuEnd* end = nullptr;
  uint64_t stale = 0;
  std::optional<uint64_t> last_word;  // of the holder that died last
  int last_pid = 0;
  const auto poll = [&] {
    server->poll(
        [&](GpuEnd& got) {
          end = &got;
          put_word(got.tokens, 1000 + ++stale);  // for this holder alone
        },
        [&](uint32_t) {
          last_pid = end->holder_pid;
          last_word = take_word(end->commands);
        });
  };
  kill_at_every_call(
      [&]() -> std::function<void()> {
        return [&] {
          auto own = Doorbell::create().value();
          auto got = attach(1, own);
          if (got) put_word(got->commands, 7);
        };
      },
      [] {}, poll,
      [&] {
        Child successor([&] {
          auto own = Doorbell::create().value();
          std::optional<TokenizerEnd> mine;
          // The slot is refused until the server has seen the death.
          if (!eventually([&] {
                auto got = attach(1, own);
                if (got) mine = std::move(got).value();
                return mine.has_value();
              })) {
            return 1;
          }
          if (!put_word(mine->commands, 8)) return 2;
          std::optional<uint64_t> word;
          if (!eventually([&] { return (word = take_word(mine->tokens)).has_value(); })) return 3;
          return take_word(mine->tokens) ? 4 : 0;  // exactly its own
        });
        const pid_t pid = successor.pid();
        ASSERT_TRUE(eventually([&] { return poll(), successor.ended(); }));
        ASSERT_EQ(successor.wait(), 0);
        ASSERT_TRUE(eventually([&] { return poll(), server->held() == 0; }));
        ASSERT_EQ(last_pid, pid);
        ASSERT_EQ(last_word, std::optional<uint64_t>(8));
      });
}

// The one that gives: killed while it answers, sees its holder die, empties the slot. Whoever asks learns of
// it and gets a slot from its successor.
TEST_F(KilledInHandOver, GpuWorkerThatGives) {
  std::optional<Child> asker;
  kill_at_every_call(
      [&]() -> std::function<void()> {
        auto server = std::make_shared<std::unique_ptr<SlotServer>>(serve(1));
        return [this, server] {
          while ((*server)->counters().lost == 0) {
            readable((*server)->watch_fds()[0], 5000);
            (*server)->poll([](GpuEnd& got) { put_word(got.tokens, 5); }, [](uint32_t) {});
          }
        };
      },
      [&] { asker.reset(); },
      [&] {
        // From the first instance, once; whether that goes well is a matter of the moment.
        if (asker) return usleep(20), void();
        asker.emplace([&] {
          auto own = Doorbell::create().value();
          auto got = attach(1, own);
          if (!got) return got.error().code == Code::kDeadlineExceeded ? 1 : 0;
          const auto word = [&] { return take_word(got->tokens); };
          std::optional<uint64_t> first;
          if (!eventually([&] { return (first = word()).has_value() || readable(got->gpu_pidfd.get()); }))
            return 2;
          return first && *first != 5 ? 3 : 0;
        });
      },
      [&] {
        auto server = serve(2);  // in the place of the dead one
        ASSERT_TRUE(server);
        if (asker) {  // a late one asks the successor, which refuses: it is another instance
          ASSERT_TRUE(eventually([&] {
            server->poll([](GpuEnd&) {}, [](uint32_t) {});
            return asker->ended();
          })) << "left waiting for a dead gpu-worker";
          ASSERT_EQ(asker->wait(), 0);
        }
        Child successor([&] {
          auto own = Doorbell::create().value();
          auto got = attach(2, own);
          if (!got) return 1;
          return take_word(got->tokens) || !put_word(got->commands, 6) ? 2 : 0;
        });
        GpuEnd* end = nullptr;
        ASSERT_TRUE(eventually([&] {
          server->poll([&](GpuEnd& got) { end = &got; }, [](uint32_t) {});
          return server->counters().lost == 1 || successor.ended();
        }));
        ASSERT_EQ(successor.wait(), 0);
      });
}

}  // namespace
}  // namespace ringmaster::shm
