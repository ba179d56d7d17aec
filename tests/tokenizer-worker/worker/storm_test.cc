// Random operations on many requests at once, against a slow and simple reference: every stream that a client
// puts together is exactly what the gpu-worker said, decoded at once and cut at its first stop string; every
// request ends once; the books balance.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tests/tokenizer-worker/worker/world.h"

namespace ringmaster::tokenizer_worker {
namespace {

using msg::FinishReason;
using shm::RecordType;

constexpr uint32_t kCredit = 8;

// A request as the gpu-worker has it.
struct GpuSide {
  uint32_t said = 0, granted = 0, max_tokens = 0, stop_at = UINT32_MAX, end_at = 0;
  bool over = false;
};

// A request as its client has it.
struct ClientSide {
  std::string address;
  std::vector<std::string> stop;
  uint32_t length = 0;  // the gpu-worker ends it there
  std::vector<TokenId> ids;
  std::string text;
  uint32_t acked = 0;
  uint64_t acked_text = 0;
  bool cancelled = false, forgotten = false;
  std::vector<msg::DoneT> dones;
};

// Token k of a request: few symbols, so that stop strings happen.
TokenId token_of(Epoch epoch, uint32_t number) {
  static const std::vector<TokenId> kSymbols = {byte_id('a'),    byte_id('b'),    byte_id('c'),
                                                piece_id("Obs"), piece_id(": x"), byte_id('\n')};
  std::mt19937 random(static_cast<uint32_t>(epoch * 7919 + number));
  return kSymbols[random() % kSymbols.size()];
}

class Storm {
 public:
  explicit Storm(uint32_t seed)
      : random_(seed),
        w_({.limits = {.context_length = 256, .max_live = 64, .credit = kCredit, .linger = 5 * kSecond},
            .encode_queue = 16,
            .ring_sizes = {4096, 8192, 64 << 10}}) {}

  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      step();
      w_.pass(static_cast<Nanos>(random_() % (20 * kMillisecond)));
      read_client();
      w_.expect_balanced();
    }
    settle();
  }

 private:
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }

  void step() {
    switch (below(10)) {
      case 0:
      case 1:
        return begin();
      case 2:
        return w_.encode();
      case 3:
        return with_random([&](Epoch e, ClientSide& c) {
          if (below(4) == 0 && c.dones.empty()) {
            w_.end(e, FinishReason::cancelled, msg::Code::cancelled);
            c.cancelled = true;
          }
        });
      case 4:
        return with_random([&](Epoch e, ClientSide& c) {
          if (below(8) == 0) {
            w_.requests.forget(e);
            c.forgotten = true;
          }
        });
      case 5:
        return with_random([&](Epoch e, ClientSide& c) { resend(e, c); });
      default:
        gpu_steps();
        return ack();
    }
  }

  void begin() {
    const Epoch epoch = next_++;
    ClientSide client;
    client.address = address();
    client.length = 1 + below(60);
    auto request = World::text_request("hello");
    if (below(2) == 0) request.stop = client.stop = {"ab", "xO", "\nc"};
    request.max_tokens = client.length;
    w_.assign(epoch, request, client.address);
    clients_.emplace(epoch, std::move(client));
  }

  std::string address() { return std::string(1, static_cast<char>('A' + below(5))); }

  // The gpu-worker: takes some commands, says some tokens of each request within its limits.
  void gpu_steps() {
    for (uint32_t i = below(40); i > 0; --i) {
      const auto command = w_.gpu.next_command();
      if (!command) break;
      GpuSide& side = gpu_[command->epoch];
      switch (command->type) {
        case RecordType::kStart:
          side = {0, command->start.granted, command->start.max_tokens, UINT32_MAX, 0, false};
          break;
        case RecordType::kGrant:
          side.granted = std::max(side.granted, command->value);
          break;
        case RecordType::kStopAt:
          side.stop_at = command->value;
          break;
        default:
          if (!side.over) w_.gpu.ended(command->epoch, FinishReason::cancelled, side.said);
          side.over = true;
      }
    }
    for (auto& [epoch, side] : gpu_) {
      for (uint32_t i = below(6); i > 0 && !side.over; --i) {
        if (side.said >= side.stop_at || side.said >= side.max_tokens) {
          const bool stopped = side.said >= side.stop_at;
          w_.gpu.ended(epoch, stopped ? FinishReason::stop : FinishReason::length,
                       std::min(side.said, side.stop_at));
          side.over = true;
        } else if (side.said < side.granted) {
          w_.gpu.tokens({{epoch, side.said, token_of(epoch, side.said), 0, {}}});
          ++side.said;
        }
      }
    }
  }

  void ack() {
    with_random([&](Epoch e, ClientSide& c) {
      c.acked = static_cast<uint32_t>(c.ids.size());
      c.acked_text = c.text.size();
      w_.ack(e, c.acked, c.acked_text);
    });
  }

  // Back under another address, having lost what it had not acknowledged, or nothing.
  void resend(Epoch e, ClientSide& c) {
    if (c.forgotten) return;
    const bool lost_some = below(2) == 0;
    const uint32_t token = lost_some ? c.acked : static_cast<uint32_t>(c.ids.size());
    const uint64_t text = lost_some ? c.acked_text : c.text.size();
    c.address = address();
    c.ids.resize(token);
    c.text.resize(text);
    c.acked = token;
    c.acked_text = text;
    if (w_.requests.table().find(e) != nullptr) c.dones.clear();  // it will come again
    w_.resend(e, token, text, c.address);
  }

  void read_client() {
    for (const auto& piece : w_.outbox.pieces) {
      ClientSide& c = clients_.at(piece.chunk.epoch);
      ASSERT_FALSE(c.forgotten);
      ASSERT_EQ(piece.client, c.address);
      ASSERT_EQ(piece.chunk.first_token, c.ids.size()) << "no gap, no repeat";
      ASSERT_EQ(piece.chunk.text_offset, c.text.size());
      c.ids.insert(c.ids.end(), piece.chunk.ids.begin(), piece.chunk.ids.end());
      c.text += piece.chunk.text;
      ASSERT_LE(c.ids.size(), c.acked + kCredit) << "never more than the credit under way";
    }
    for (const auto& end : w_.outbox.ends) {
      ClientSide& c = clients_.at(end.done.epoch);
      ASSERT_EQ(end.client, c.address);
      c.dones.push_back(end.done);
      ASSERT_EQ(c.dones.size(), 1u) << "exactly one ending";
      check_whole(end.done.epoch, c);
    }
    w_.outbox.clear();
  }

  // The reference: the whole text, cut where the first stop string is complete.
  static std::string reference(const std::string& all, const std::vector<std::string>& stops, bool& stopped) {
    for (size_t end = 1; end <= all.size(); ++end)
      for (const std::string& stop : stops)
        if (std::string_view(all).substr(0, end).ends_with(stop)) {
          stopped = true;
          return all.substr(0, end - stop.size());
        }
    stopped = false;
    return all;
  }

  void check_whole(Epoch epoch, const ClientSide& c) {
    const msg::DoneT& done = c.dones.front();
    ASSERT_EQ(done.usage->output_tokens, c.ids.size());
    std::string all;
    for (uint32_t k = 0; k < c.ids.size(); ++k) {
      ASSERT_EQ(c.ids[k], token_of(epoch, k));
      all += w_.tokenizer.bytes(c.ids[k]);
    }
    bool stopped = false;
    ASSERT_EQ(c.text, reference(all, c.stop, stopped));
    ASSERT_EQ(stopped, done.reason == FinishReason::stop);
    ASSERT_EQ(stopped, !done.stop.empty());
    if (done.reason == FinishReason::length) {
      ASSERT_EQ(c.ids.size(), c.length);
    }
    ++endings_[done.reason];
  }

  template <typename Do>
  void with_random(Do act) {
    if (clients_.empty()) return;
    auto chosen = clients_.begin();
    std::advance(chosen, below(static_cast<uint32_t>(clients_.size())));
    if (w_.requests.table().find(chosen->first) != nullptr) act(chosen->first, chosen->second);
    // A request that is gone everywhere is of no further interest.
    else if (!chosen->second.dones.empty() || chosen->second.forgotten)
      clients_.erase(chosen);
  }

  // Everything runs to its end; then nothing is left.
  void settle() {
    for (int i = 0; i < 2000 && w_.requests.live() > 0 && !::testing::Test::HasFailure(); ++i) {
      w_.encode();
      gpu_steps();
      for (auto& [epoch, c] : clients_) {
        c.acked = static_cast<uint32_t>(c.ids.size());
        c.acked_text = c.text.size();
        w_.ack(epoch, c.acked, c.acked_text);
      }
      w_.pass(kMillisecond);
      read_client();
    }
    EXPECT_EQ(w_.requests.live(), 0u);
    w_.pass(5 * kSecond);
    EXPECT_EQ(w_.requests.table().size(), 0u);
    EXPECT_EQ(w_.requests.table().clients(), 0u);
    EXPECT_EQ(w_.pool.in_flight(), 0u);
    EXPECT_EQ(w_.counters[Counter::kProtocolErrors], 0u);
    EXPECT_EQ(w_.counters[Counter::kAcksIgnored], 0u);
    EXPECT_TRUE(w_.lost_links.empty());
    w_.expect_balanced();
    // The storm has seen every kind of ending, or it proves little.
    EXPECT_GT(endings_[FinishReason::stop], 5);
    EXPECT_GT(endings_[FinishReason::length], 5);
    EXPECT_GT(endings_[FinishReason::cancelled], 1);
  }

  std::mt19937 random_;
  World w_;
  Epoch next_ = 1;
  std::map<Epoch, ClientSide> clients_;
  std::map<Epoch, GpuSide> gpu_;
  std::map<FinishReason, int> endings_;
};

class StormTest : public ::testing::TestWithParam<uint32_t> {};
TEST_P(StormTest, EveryStreamIsWhole) {
  Storm(GetParam()).run(4000);
}
INSTANTIATE_TEST_SUITE_P(Seeds, StormTest, ::testing::Values(1, 2, 3, 4, 5, 6));

}  // namespace
}  // namespace ringmaster::tokenizer_worker
