// A router between peers that say anything in any order. What it sends must open, and when it has drained its
// books must balance.
//   script: { peer, 0..63: seconds/16 to pass | else: sized message } ...
#include "base/log.h"
#include "tests/fuzz/input.h"
#include "tests/router/support.h"

namespace ringmaster::router {
namespace {

constexpr const char* kPeers[] = {"client-a", "client-b", kTok, kTok1, kGpu, kGpu1, "stranger"};

class Fuzz : public RouterTest {
 public:
  void TestBody() override {}
  void play(fuzz::Input& input) {
    start_pair();
    while (!input.empty()) {
      const uint8_t op = input.byte();
      if (op < 64) {
        advance(op * (kSecond / 16));
      } else {
        const std::string peer = kPeers[op % std::size(kPeers)];
        const bool to_clients_door = (op & 0x80) != 0;
        raw(to_clients_door ? kClientChannel : kWorkerChannel, peer, input.sized_bytes());
      }
      open_all_sent();
    }
    finish();
  }

 private:
  void open_all_sent() {
    for (auto& [box, messages] : net.boxes) {
      for (const Message& bytes : std::exchange(messages, {})) {
        const bool opens = box.first == kClientChannel ? msg::open<msg::ClientMessage>(bytes).ok()
                                                       : msg::open<msg::TokenizerWorkerMessage>(bytes).ok() ||
                                                             msg::open<msg::GpuWorkerMessage>(bytes).ok();
        FUZZ_CHECK(opens);
      }
    }
  }
  void finish() {
    expect_books_balance();
    router->drain(now + kSecond);
    advance(60 * kSecond);
    FUZZ_CHECK(router->drained());
    open_all_sent();
    expect_books_balance();
  }
};

}  // namespace
}  // namespace ringmaster::router

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  ringmaster::log::mute(true);
  GTEST_FLAG_SET(break_on_failure, true);  // an EXPECT that fails ends the process
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ringmaster::fuzz::Input input(data, size);
  ringmaster::router::Fuzz().play(input);
  return 0;
}
