// A client's session with two streams before a cluster that says anything. Pieces come without gaps, nothing
// follows an ending, and what the session sends opens.
//   script: { 0: sized message | 1: time | 2: take the events } ...
#include "client/cpp/session.h"
#include "tests/fuzz/input.h"

namespace ringmaster::client {
namespace {

struct Seen {
  uint32_t tokens = 0;
  bool accepted = false;
  bool ended = false;
};

struct Play {
  void run(fuzz::Input& input) {
    for (uint64_t n = 1; n <= 2; ++n) {
      Request request;
      request.prompt = std::string("Hi");
      FUZZ_CHECK(session.start({n, 2}, request, now).ok());
    }
    while (!input.empty()) {
      switch (input.byte() % 3) {
        case 0:
          session.receive(input.sized_bytes(), now);
          break;
        case 1:
          now += Nanos{1} << (input.byte() % 36);
          FUZZ_CHECK(session.keep_alive(now) > now);
          break;
        case 2:
          take();
          break;
      }
    }
    session.end_all(Code::kCancelled, "the end");
    take();
    FUZZ_CHECK(session.open_streams() == 0 && seen.size() == 2);
    for (const auto& [uid, stream] : seen) FUZZ_CHECK(stream.ended);
  }

  void take() {
    while (auto event = session.take_event()) {
      Seen& stream = seen[event->uid];
      FUZZ_CHECK(!stream.ended);
      if (const auto* piece = std::get_if<Piece>(&event->what)) {
        FUZZ_CHECK(stream.accepted && piece->first_token == stream.tokens);
        FUZZ_CHECK(piece->logprobs.empty() || piece->logprobs.size() == piece->ids.size());
        stream.tokens += static_cast<uint32_t>(piece->ids.size());
      } else if (std::holds_alternative<Accepted>(event->what)) {
        FUZZ_CHECK(!std::exchange(stream.accepted, true));
      } else {
        stream.ended = true;
      }
    }
  }

  Nanos now = 100 * kSecond;
  std::map<Uid, Seen> seen;
  Session session{{}, [](msg::Bytes bytes) {
                    FUZZ_CHECK(msg::open<msg::RouterMessage>(bytes));
                    return ok_status();
                  }};
};

}  // namespace
}  // namespace ringmaster::client

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ringmaster::fuzz::Input input(data, size);
  ringmaster::client::Play().run(input);
  return 0;
}
