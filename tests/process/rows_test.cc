// Rows of what hurts users of such servers (tests/README.md lists them), through real processes: what a
// client sees of the life of a request, of its parameters and of its text. On the fake device; every limit
// holds on a machine that is several times slower.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "base/utf8.h"
#include "tests/process/support/cluster.h"

namespace ringmaster {
namespace {

using client::FinishReason;
using ::testing::HasSubstr;

constexpr const char* kFake = R"(model: smollm2
gpu-worker:
  device: fake
  kv_memory: 1GiB
)";
constexpr Nanos kPatience = 30 * kSecond;

client::Request ids_request(std::vector<TokenId> ids, std::optional<uint32_t> max_tokens) {
  client::Request out;
  out.prompt = std::move(ids);
  out.max_tokens = max_tokens;
  return out;
}

bool at_baseline(const client::ClusterStatus& status) {
  return status.live_requests == 0 &&
         std::all_of(status.workers.begin(), status.workers.end(), [](const auto& w) {
           return w.live + w.running + w.waiting == 0 && w.blocks_free == w.blocks_total;
         });
}

uint64_t counter(const client::ClusterStatus& status, std::string_view name) {
  for (const auto& [key, value] : status.counters)
    if (key == name) return value;
  ADD_FAILURE() << "no counter " << name;
  return 0;
}

uint64_t steps(const client::ClusterStatus& status) {
  uint64_t sum = 0;
  for (const auto& worker : status.workers) sum += worker.steps;
  return sum;
}

client::Answer ask(client::Client& client, const client::Request& request,
                   const std::function<void(const client::Piece&)>& on_piece = nullptr) {
  auto answer = client.generate(request, on_piece, kPatience);
  EXPECT_TRUE(answer.ok()) << answer.error().message;
  return answer.ok() ? *answer : client::Answer{};
}

pid_t pid_of(const test::Cluster& cluster, const std::string& name) {
  for (const test::Child& child : cluster.children())
    if (child.name == name) return child.pid;
  return 0;
}

// Takes events until `done`, or the patience is over.
void take(client::Client& client, const std::function<void(const client::Event&)>& on_event,
          const std::function<bool()>& done, Nanos limit = kPatience) {
  const Nanos deadline = monotonic_now() + limit;
  while (!done() && monotonic_now() < deadline) {
    const auto event = client.next(std::min(deadline, monotonic_now() + 10 * kMillisecond));
    if (event.ok() && event->has_value()) on_event(**event);
  }
}

// ---- life of a request ----

TEST(Rows, LIF_01_WorkStopsWhenTheClientIsGone) {
  test::Cluster cluster(kFake);
  ASSERT_TRUE(cluster.up());
  for (const bool after_a_piece : {false, true}) {
    SCOPED_TRACE(after_a_piece ? "after the first piece" : "before the first piece");
    const uint64_t cancelled = counter(cluster.status(), "ended_cancelled");
    {
      auto client = cluster.connect();
      auto request = ids_request({1000, 2000}, 5000);
      request.resume_grace_ms = 0;
      ASSERT_TRUE(client.start(request).ok());
      bool seen = false;
      const auto on_event = [&](const client::Event& event) {
        seen |= std::holds_alternative<client::Piece>(event.what);
        seen |= !after_a_piece && std::holds_alternative<client::Accepted>(event.what);
      };
      take(client, on_event, [&] { return seen; });
      ASSERT_TRUE(seen);
    }  // the connection is gone
    ASSERT_TRUE(cluster.eventually(at_baseline, kPatience));
    EXPECT_EQ(counter(cluster.status(), "ended_cancelled"), cancelled + 1);
  }
  usleep(2'000'000);  // `steps` is what the last heartbeat said
  const uint64_t before = steps(cluster.status());
  usleep(2'000'000);
  EXPECT_EQ(steps(cluster.status()), before) << "nothing runs any more";
  EXPECT_LT(before, 2000u) << "5,000 steps each were asked for";
  EXPECT_EQ(cluster.down(), 0);
}

TEST(Rows, LIF_03_AQueuedRequestWhoseClientLeftNeverStarts) {
  test::Cluster cluster(std::string(kFake) + "  max_running: 1\n");
  ASSERT_TRUE(cluster.up());
  auto staying = cluster.connect();
  auto first = ids_request({1, 2, 3}, 400);
  ASSERT_TRUE(staying.start(first).ok());
  size_t tokens = 0;
  const auto count = [&](const client::Event& event) {
    if (const auto* piece = std::get_if<client::Piece>(&event.what)) tokens += piece->ids.size();
  };
  take(staying, count, [&] { return tokens > 0; });
  {
    auto leaving = cluster.connect();
    for (TokenId i = 0; i < 19; ++i) {
      auto request = ids_request({i, 5}, 400);
      request.resume_grace_ms = 0;
      ASSERT_TRUE(leaving.start(request).ok());
    }
    ASSERT_TRUE(cluster.eventually([](const auto& status) { return status.live_requests == 20; }, kPatience));
  }
  take(staying, count, [&] { return staying.open_streams() == 0; });
  EXPECT_EQ(tokens, 400u);
  ASSERT_TRUE(cluster.eventually(at_baseline, kPatience));
  EXPECT_LE(steps(cluster.status()), 410u) << "only the steps of the one that stayed";
  EXPECT_EQ(cluster.down(), 0);
}

TEST(Rows, LIF_07_CancelWithLogprobsAtEveryStep) {
  test::Cluster cluster(kFake);
  ASSERT_TRUE(cluster.up());
  std::map<std::string, pid_t> before;
  for (const test::Child& child : cluster.children()) before[child.name] = child.pid;
  auto client = cluster.connect();
  std::map<Uid, size_t> cancel_at, tokens;
  size_t endings = 0;
  for (size_t i = 0; i < 40; ++i) {
    auto request = ids_request({static_cast<TokenId>(i), 7}, 60);
    request.logprobs = static_cast<uint8_t>(i % 21);  // 0 to the most allowed
    const auto uid = client.start(request);
    ASSERT_TRUE(uid.ok());
    cancel_at[*uid] = i;
  }
  const auto on_event = [&](const client::Event& event) {
    if (const auto* piece = std::get_if<client::Piece>(&event.what)) {
      EXPECT_EQ(piece->logprobs.size(), piece->ids.size());
      tokens[event.uid] += piece->ids.size();
    }
    if (std::holds_alternative<client::Ending>(event.what)) {
      ++endings;
    } else if (tokens[event.uid] >= cancel_at[event.uid]) {
      EXPECT_TRUE(client.cancel(event.uid).ok());
    }
  };
  take(client, on_event, [&] { return client.open_streams() == 0; });
  EXPECT_EQ(endings, 40u);
  EXPECT_TRUE(cluster.eventually(at_baseline, kPatience));
  for (const test::Child& child : cluster.children()) EXPECT_EQ(child.pid, before[child.name]) << child.name;
  EXPECT_EQ(cluster.down(), 0);
}

// The documented trade: a broken connection is noticed when something is to be sent over it, so of a stream
// that is paused only at the lease. Nothing runs until then.
TEST(Rows, LIF_01_APausedStreamWhoseClientIsGoneEndsAtItsLease) {
  test::Cluster cluster(std::string(kFake) + "  fake:\n    step_time: 100us\nrouter:\n  client_lease: 4s\n");
  ASSERT_TRUE(cluster.up());
  {
    auto client = cluster.connect({.ack_every = 1u << 30});
    auto request = ids_request({1, 2}, 5000);
    request.resume_grace_ms = 0;
    ASSERT_TRUE(client.start(request).ok());
    ASSERT_TRUE(cluster.eventually([](const auto& status) { return steps(status) >= 1024; }, kPatience));
  }
  EXPECT_TRUE(cluster.eventually(at_baseline, kPatience));
  EXPECT_LE(steps(cluster.status()), 1030u);
  EXPECT_EQ(cluster.down(), 0);
}

// ---- parameters ----

TEST(Rows, PRM_03_WithoutMaxTokensTheContextIsTheLimit) {
  test::Cluster cluster(std::string(kFake) + "  context_length: 64\n");
  ASSERT_TRUE(cluster.up());
  auto client = cluster.connect();
  client::Request text, chat;
  text.prompt = std::string("Hello");
  chat.prompt = std::vector<client::ChatMessage>{{"user", "Hello"}};
  for (client::Request request : {ids_request({1, 2, 3, 4}, std::nullopt), text, chat}) {
    request.ignore_eos = true;
    const client::Answer answer = ask(client, request);
    EXPECT_EQ(answer.ending.reason, FinishReason::kLength) << answer.ending.message;
    EXPECT_EQ(answer.ending.usage.prompt_tokens + answer.ids.size(), 64u);
    EXPECT_EQ(answer.ending.usage.output_tokens, answer.ids.size());  // TXT-19: usage is always there
  }
  EXPECT_EQ(cluster.down(), 0);
}

// Blocks for 20 x 16 tokens, a model of 8,192: one limit in `status`, at the door for ids and for text, and
// for what leaving max_tokens out means.
TEST(Rows, PRM_05_OneContextLimitEverywhereWhenMemoryIsShort) {
  constexpr uint32_t kLimit = 320;
  test::Cluster cluster("model: smollm2\ngpu-worker:\n  device: fake\n  kv_memory: " +
                        std::to_string(20 * 16 * 23'040) + "B\n  fake:\n    step_time: 100us\n");
  ASSERT_TRUE(cluster.up());
  EXPECT_EQ(cluster.status().context_length, kLimit);
  auto client = cluster.connect();
  client::Request between;
  for (int i = 0; i < 400; ++i) between.prompt = std::get<std::string>(between.prompt) + " word";
  for (const client::Request& request : {between, ids_request(std::vector<TokenId>(400, 5), 10)}) {
    const client::Answer answer = ask(client, request);
    EXPECT_EQ(answer.ending.reason, FinishReason::kRefused);
    EXPECT_EQ(answer.ending.code, Code::kContextLengthExceeded) << answer.ending.message;
    EXPECT_THAT(answer.ending.message, HasSubstr("320"));
    EXPECT_THAT(answer.ending.message, HasSubstr("400"));
  }
  client::Request open_end;
  open_end.prompt = std::string("Hello");
  open_end.ignore_eos = true;
  const client::Answer answer = ask(client, open_end);
  EXPECT_EQ(answer.ending.reason, FinishReason::kLength) << answer.ending.message;
  EXPECT_EQ(answer.ending.usage.prompt_tokens + answer.ids.size(), kLimit);
  EXPECT_EQ(cluster.down(), 0);
}

TEST(Rows, PRM_11_ABannedWinnerNeverAppears) {
  test::Cluster cluster(kFake);
  ASSERT_TRUE(cluster.up());
  auto client = cluster.connect();
  auto request = ids_request({10, 20, 30}, 1);
  std::vector<TokenId> banned;
  for (int i = 0; i < 5; ++i) {
    request.sampling.logit_bias.clear();
    for (const TokenId id : banned) request.sampling.logit_bias.push_back({id, -100});
    const client::Answer answer = ask(client, request);
    ASSERT_EQ(answer.ids.size(), 1u) << answer.ending.message;
    EXPECT_EQ(std::count(banned.begin(), banned.end(), answer.ids[0]), 0);
    banned.push_back(answer.ids[0]);
  }
  EXPECT_EQ(cluster.down(), 0);
}

// RTE-01 as well: twenty refusals do not take the cluster away.
TEST(Rows, PRM_09_13_17_WhatIsRefusedNamesItAndTheClusterServesOn) {
  test::Cluster cluster(kFake);
  ASSERT_TRUE(cluster.up());
  auto client = cluster.connect();
  std::vector<client::Request> bad(4, ids_request({1, 2}, 5));
  bad[0].sampling.logit_bias = {{191'222, 1}};
  bad[1].stop_ids = {151'645};
  bad[1].min_tokens = 2;
  bad[2].sampling.temperature = -1;
  bad[3].logprobs = 21;
  const std::vector<const char*> says = {"191222", "151645", "temperature", "21"};
  for (int round = 0; round < 5; ++round)
    for (size_t i = 0; i < bad.size(); ++i) {
      const client::Answer answer = ask(client, bad[i]);
      EXPECT_EQ(answer.ending.reason, FinishReason::kRefused);
      EXPECT_EQ(answer.ending.code, Code::kInvalidArgument) << answer.ending.message;
      EXPECT_THAT(answer.ending.message, HasSubstr(says[i]));
    }
  EXPECT_EQ(ask(client, ids_request({1, 2}, 5)).ids.size(), 5u);
  EXPECT_EQ(cluster.down(), 0);
}

// ---- text: a script of the model's own tokens ----

std::string script(const std::vector<TokenId>& ids) {
  std::string out;
  for (const TokenId id : ids) out += (out.empty() ? "" : ", ") + std::to_string(id);
  return std::string(kFake) + "  fake:\n    mode: text\n    step_time: 200us\n    ids: [" + out + "]\n";
}

std::vector<TokenId> tokens_of(const std::string& text) {
  test::Cluster cluster(kFake);
  client::Request request;
  if (!cluster.up()) return {};
  request.prompt = text;
  const auto ids = cluster.connect().tokenize(request, kPatience);
  EXPECT_TRUE(ids.ok()) << ids.error().message;
  EXPECT_EQ(cluster.down(), 0);
  return ids.ok() ? *ids : std::vector<TokenId>{};
}

TEST(Rows, TXT_01_03_EveryPieceIsWholeCharactersAndNothingIsLost) {
  const std::string text = "\xF0\x9F\xAB\xA0 \xC4\x8F\xC4\x8E \xF0\xAA\x9B\x94\xE3\x90\x80 ok";
  const std::vector<TokenId> ids = tokens_of(text);
  ASSERT_GT(ids.size(), 8u) << "characters of several tokens each";
  test::Cluster cluster(script(ids));
  ASSERT_TRUE(cluster.up());
  auto client = cluster.connect();
  std::string streamed;
  const client::Answer answer =
      ask(client, ids_request({1}, static_cast<uint32_t>(ids.size())), [&](const auto& piece) {
        EXPECT_TRUE(is_valid_utf8(piece.text)) << testing::PrintToString(piece.text);
        EXPECT_THAT(piece.text, testing::Not(HasSubstr("\xEF\xBF\xBD")));
        streamed += piece.text;
      });
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(answer.text, text);
  EXPECT_EQ(answer.ids, ids);
  EXPECT_EQ(answer.ending.usage.output_tokens, ids.size());
  // Cut in the middle of the first character: shown as one mark, in pieces and as a whole, every token
  // counted.
  streamed.clear();
  const client::Answer cut =
      ask(client, ids_request({1}, 1), [&](const auto& piece) { streamed += piece.text; });
  EXPECT_EQ(cut.text, "\xEF\xBF\xBD");
  EXPECT_EQ(streamed, cut.text);
  EXPECT_EQ(cut.ending.usage.output_tokens, 1u);
  EXPECT_EQ(cluster.down(), 0);
}

// The same request as text, as a chat and as ids, read in pieces and as a whole.
TEST(Rows, TXT_05_07_09_AStopStringActsTheSameOnEveryWay) {
  const std::string text = "Thought: x\nObservation: y\"} z";
  const std::vector<TokenId> ids = tokens_of(text);
  test::Cluster cluster(script(ids));
  ASSERT_TRUE(cluster.up());
  auto client = cluster.connect();
  client::Request as_text, as_chat, as_ids = ids_request({1}, std::nullopt);
  as_text.prompt = std::string("Hello");
  as_chat.prompt = std::vector<client::ChatMessage>{{"user", "Hello"}};
  struct Case {
    std::string stop, rest;
  };
  for (const Case& c : {Case{"\nObservation:", "Thought: x"}, Case{"\"}", "Thought: x\nObservation: y"},
                        Case{"\n", "Thought: x"}, Case{"servation", "Thought: x\nOb"}})
    for (const bool keep : {false, true})
      for (client::Request request : {as_text, as_chat, as_ids}) {
        request.max_tokens = 100;
        request.stop = {"never", c.stop};
        request.include_stop = keep;
        std::string streamed;
        const client::Answer answer =
            ask(client, request, [&](const auto& piece) { streamed += piece.text; });
        EXPECT_EQ(answer.text, keep ? c.rest + c.stop : c.rest);
        EXPECT_EQ(streamed, answer.text);
        EXPECT_EQ(answer.ending.reason, FinishReason::kStop) << answer.ending.message;
        EXPECT_EQ(answer.ending.stop, c.stop);
      }
  EXPECT_EQ(cluster.down(), 0);
}

// ---- scheduling ----

// A prompt of 6,000 tokens at 100 us each is 600 ms of work. In chunks of 64 it takes 94 steps, and every
// running stream gets a token in each of them: counted in tokens, which a slow machine does not change.
TEST(Rows, SCH_01_ALongPromptDoesNotStopRunningStreams) {
  constexpr uint32_t kLong = 6000, kChunk = 64;
  test::Cluster cluster(
      std::string(kFake) +
      "  prefill_chunk: 64\n  fake:\n    step_time: 1ms\n    prefill_time_per_token: 100us\n");
  ASSERT_TRUE(cluster.up());
  auto client = cluster.connect();
  std::map<Uid, size_t> tokens;
  for (TokenId i = 0; i < 4; ++i) tokens[*client.start(ids_request({i, 9}, 3000))] = 0;
  Nanos last = 0, longest_gap = 0;
  const auto on_event = [&](const client::Event& event) {
    const auto* piece = std::get_if<client::Piece>(&event.what);
    if (piece == nullptr) return;
    tokens[event.uid] += piece->ids.size();
    if (event.uid != tokens.begin()->first) return;
    const Nanos now = monotonic_now();
    if (last != 0) longest_gap = std::max(longest_gap, now - last);
    last = now;
  };
  take(client, on_event,
       [&] { return std::all_of(tokens.begin(), tokens.end(), [](const auto& s) { return s.second > 5; }); });
  const std::map<Uid, size_t> before = tokens;
  const auto uid = client.start(ids_request(std::vector<TokenId>(kLong, 3), 2));
  ASSERT_TRUE(uid.ok());
  last = longest_gap = 0;
  take(client, on_event, [&] { return tokens[*uid] > 0; });
  ASSERT_GT(tokens[*uid], 0u);
  for (const auto& [stream, count] : before)
    EXPECT_GE(tokens[stream] - count, kLong / kChunk - 5) << "a token in every step";
  EXPECT_LT(longest_gap, 300 * kMillisecond) << "half of the whole prompt at once; 7.4 ms on a quiet machine";
  for (const auto& stream : before) EXPECT_TRUE(client.cancel(stream.first).ok());
  take(
      client, [](const client::Event&) {}, [&] { return client.open_streams() == 0; });
  EXPECT_EQ(cluster.down(), 0);
}

// ---- operations ----

// Killed: seen within a second. Stopped: seen within worker_timeout, and then killed and replaced by the
// supervisor.
TEST(Rows, OPS_01_AStoppedWorkerIsSeenKilledAndReplaced) {
  test::Cluster cluster(std::string(kFake) +
                        "router:\n  worker_timeout: 500ms\nsupervisor:\n  hang_timeout: 3s\n");
  ASSERT_TRUE(cluster.up());
  auto client = cluster.connect();
  for (const char* name : {"gpu-worker.0", "router", "tokenizer-worker.1"}) {
    SCOPED_TRACE(name);
    const pid_t stopped = pid_of(cluster, name);
    ASSERT_GT(stopped, 0);
    const auto running = client.start(ids_request({1, 2}, 5'000));
    ASSERT_TRUE(running.ok());
    kill(stopped, SIGSTOP);
    if (std::string(name) == "gpu-worker.0") {
      const Nanos since = monotonic_now();
      ASSERT_TRUE(cluster.eventually([](const auto& status) { return !status.ready; }, kPatience));
      EXPECT_LT(monotonic_now() - since, 3 * kSecond) << "worker_timeout is 500 ms";
      const test::Ended status = cluster.command({"status"});
      EXPECT_EQ(status.exit_code, 4);
      EXPECT_THAT(status.out, HasSubstr("NOT READY"));
      EXPECT_THAT(status.out, HasSubstr("no gpu-worker is ready: gpu-worker.0 is dead"));
    }
    const Nanos deadline = monotonic_now() + kPatience;
    while (pid_of(cluster, name) == stopped && monotonic_now() < deadline) usleep(20'000);
    EXPECT_NE(pid_of(cluster, name), stopped) << "not replaced:\n" << cluster.log();
    EXPECT_FALSE(test::alive(stopped));
    ASSERT_TRUE(cluster.eventually(
        [](const auto& status) {
          return status.ready && std::all_of(status.workers.begin(), status.workers.end(),
                                             [](const auto& worker) { return worker.state == "ready"; });
        },
        kPatience));
    // A new request is served, the running one has one ending: its own, by worker_lost, or by this cancel.
    EXPECT_EQ(ask(client, ids_request({5, 6}, 10)).ids.size(), 10u);
    EXPECT_TRUE(client.cancel(*running).ok());
    int endings = 0;
    const auto on_event = [&](const client::Event& event) {
      endings += std::holds_alternative<client::Ending>(event.what);
    };
    take(client, on_event, [&] { return client.open_streams() == 0; });
    EXPECT_EQ(endings, 1);
  }
  EXPECT_THAT(cluster.log(), HasSubstr("gpu-worker.0 hangs, no sign of life for 3000 ms"));
  EXPECT_EQ(cluster.down(), 0);
}

// Status goes through the router, which neither tokenises nor waits. 50 ms at the 99th percentile on a quiet
// machine with cores of its own; the bounds here are what a busy one still keeps.
TEST(Rows, OPS_03_StatusAnswersWhileTheTokenizersAreSaturated) {
  test::Cluster cluster(kFake);
  ASSERT_TRUE(cluster.up());
  auto load = cluster.connect();
  client::Request big;
  std::string text;
  while (text.size() < 1'000'000)
    text += "Some words of a long text, number " + std::to_string(text.size()) + ". ";
  big.prompt = text;
  auto probe = cluster.connect();
  ASSERT_TRUE(probe.status(kPatience).ok());
  std::vector<Nanos> times;
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(load.start(big).ok());  // too long for the context: tokenised, then refused
    const Nanos asked = monotonic_now();
    ASSERT_TRUE(probe.status(kPatience).ok());
    times.push_back(monotonic_now() - asked);
    take(
        load, [](const client::Event&) {}, [] { return false; }, 25 * kMillisecond);
  }
  std::sort(times.begin(), times.end());
  EXPECT_LT(times[times.size() / 2], 50 * kMillisecond);
  EXPECT_LT(times.back(), 500 * kMillisecond);
  take(
      load, [](const client::Event&) {}, [&] { return load.open_streams() == 0; });
  EXPECT_EQ(load.open_streams(), 0u);
  EXPECT_EQ(cluster.down(), 0);
}

// One tokenizer-worker stands still with full credit under way; the streams of the other go on as if alone.
// That the gpu-worker names a reader whose ring is full: tests/gpu-worker/worker/serving_test.cc.
TEST(Rows, OPS_15_AStoppedReaderDelaysNobodyElse) {
  test::Cluster cluster(std::string(kFake) +
                        "router:\n  worker_timeout: 1min\nsupervisor:\n  hang_timeout: 1h\n");
  ASSERT_TRUE(cluster.up());
  const pid_t stopped = pid_of(cluster, "tokenizer-worker.0");
  auto client = cluster.connect();
  std::map<Uid, size_t> tokens;
  for (TokenId i = 0; i < 20; ++i) tokens[*client.start(ids_request({i, 9}, 500))] = 0;
  const auto on_event = [&](const client::Event& event) {
    if (const auto* piece = std::get_if<client::Piece>(&event.what)) tokens[event.uid] += piece->ids.size();
  };
  take(client, on_event,
       [&] { return std::all_of(tokens.begin(), tokens.end(), [](const auto& s) { return s.second > 5; }); });
  kill(stopped, SIGSTOP);
  const auto whole = [&] {
    return std::count_if(tokens.begin(), tokens.end(), [](const auto& s) { return s.second == 500; });
  };
  take(client, on_event, [&] { return whole() == 10; });
  EXPECT_EQ(whole(), 10) << "the other tokenizer-worker's streams";
  kill(stopped, SIGCONT);
  take(client, on_event, [&] { return client.open_streams() == 0; });
  EXPECT_EQ(whole(), 20) << "and all of the stopped one's, late";
  EXPECT_EQ(cluster.down(), 0);
}

}  // namespace
}  // namespace ringmaster
