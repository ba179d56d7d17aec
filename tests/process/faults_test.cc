// What goes wrong around a cluster that serves: it is asked to end, floods of connections, aborted requests,
// processes that stand still. On the fake device in hash mode, so a stream that goes on must go on rightly.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <random>

#include "base/unique_fd.h"
#include "tests/process/support/cluster.h"

namespace ringmaster {
namespace {

constexpr const char* kFakeCluster = R"(model: smollm2
gpu-worker:
  device: fake
  kv_memory: 1GiB
  max_running: 128
)";

client::Request request(TokenId first, uint32_t max_tokens) {
  client::Request out;
  out.prompt = std::vector<TokenId>{first, 2000, 3000};
  out.max_tokens = max_tokens;
  return out;
}

struct Outcome {
  size_t tokens = 0;
  int endings = 0;
  client::Ending ending;
};

// Reads until `done` holds or the limit is over.
void read_streams(client::Client& client, std::map<Uid, Outcome>& streams, const std::function<bool()>& done,
                  Nanos limit) {
  const Nanos deadline = monotonic_now() + limit;
  while (!done() && monotonic_now() < deadline) {
    const auto event = client.next(std::min(deadline, monotonic_now() + 20 * kMillisecond));
    if (!event || !event->has_value()) continue;
    Outcome& stream = streams[(*event)->uid];
    if (const auto* piece = std::get_if<client::Piece>(&(*event)->what)) stream.tokens += piece->ids.size();
    if (const auto* ending = std::get_if<client::Ending>(&(*event)->what)) {
      ++stream.endings;
      stream.ending = *ending;
    }
  }
}

void expect_serves(const test::Cluster& cluster, int requests = 10) {
  auto client = cluster.connect();
  for (int i = 0; i < requests; ++i) {
    const auto answer = client.generate(request(static_cast<TokenId>(100 + i), 20), nullptr, 10 * kSecond);
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    EXPECT_EQ(answer->ending.reason, client::FinishReason::kLength) << answer->ending.message;
    EXPECT_EQ(answer->ids.size(), 20u);
  }
}

TEST(Faults, OPS_11_AskedToEndRunningStreamsFinishAndNewOnesAreRefused) {
  test::Cluster cluster(kFakeCluster);
  ASSERT_TRUE(cluster.up());
  auto client = cluster.connect();
  auto late = cluster.connect();
  ASSERT_TRUE(late.status(5 * kSecond).ok());
  std::map<Uid, Outcome> streams;
  for (TokenId i = 0; i < 20; ++i) streams[*client.start(request(i, 500))] = {};  // a second at 2 ms a step
  const auto begun = [&] {
    return std::all_of(streams.begin(), streams.end(), [](const auto& s) { return s.second.tokens > 0; });
  };
  read_streams(client, streams, begun, 5 * kSecond);
  ASSERT_TRUE(begun());

  kill(cluster.supervisor(), SIGTERM);
  const Nanos deadline = monotonic_now() + 500 * kMillisecond;
  bool ready = true;
  while (ready && monotonic_now() < deadline) {
    const auto status = late.status(kSecond);
    ASSERT_TRUE(status.ok()) << "a draining cluster tells its status";
    ready = status->ready;
  }
  EXPECT_FALSE(ready);
  const auto refused = late.generate(request(7, 5), nullptr, 5 * kSecond);
  ASSERT_TRUE(refused.ok());
  EXPECT_EQ(refused->ending.reason, client::FinishReason::kRefused) << refused->ending.message;
  EXPECT_EQ(refused->ending.code, Code::kUnavailable);

  read_streams(
      client, streams, [&] { return client.open_streams() == 0; }, 10 * kSecond);
  for (const auto& [uid, stream] : streams) {
    EXPECT_EQ(stream.endings, 1);
    EXPECT_EQ(stream.ending.reason, client::FinishReason::kLength) << stream.ending.message;
    EXPECT_EQ(stream.tokens, 500u);
  }
  EXPECT_EQ(cluster.wait(10 * kSecond), 0);
}

// What the device does: fails at a step, or never ends one. The cluster stays, the request ends with a typed
// error soon, the worker is replaced and the log names its fault.
TEST(Faults, ADeviceThatFailsOrHangsEndsItsWorkerAloneAndSoon) {
  struct Fault {
    std::string key, ended;
  };
  for (const Fault& fault : {Fault{"fail_at_step: 30", "exited with status 20 (its device failed)"},
                             Fault{"stall_at_step: 30", "exited with status 22 (its device hung)"}}) {
    SCOPED_TRACE(fault.key);
    test::Cluster cluster(std::string(kFakeCluster) + "  step_timeout: 500ms\n  fake: {" + fault.key + "}\n");
    ASSERT_TRUE(cluster.up());
    auto client = cluster.connect();
    const Nanos begun = monotonic_now();
    const auto answer = client.generate(request(7, 100), nullptr, 10 * kSecond);
    const Nanos took = monotonic_now() - begun;
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    EXPECT_EQ(answer->ids.size(), 29u);
    EXPECT_EQ(answer->ending.reason, client::FinishReason::kError);
    EXPECT_EQ(answer->ending.code, Code::kWorkerLost) << answer->ending.message;
    EXPECT_LT(took, 5 * kSecond);
    const std::string ended = "gpu-worker.0 " + fault.ended;
    const Nanos deadline = monotonic_now() + 10 * kSecond;
    while (cluster.log().find(ended) == std::string::npos && monotonic_now() < deadline)
      test::sleep_for(10 * kMillisecond);
    EXPECT_NE(cluster.log().find(ended), std::string::npos) << cluster.log();
    ASSERT_TRUE(cluster.eventually([](const auto& status) { return status.ready; }, 20 * kSecond));
    const auto again = client.generate(request(7, 20), nullptr, 10 * kSecond);
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(again->ids.size(), 20u) << again->ending.message;
    EXPECT_EQ(cluster.down(), 0);
  }
}

TEST(Faults, ACrowdOfConnectionsIsTurnedAwayAndTheRouterGoesOn) {
  test::Cluster cluster(kFakeCluster);
  ASSERT_TRUE(cluster.up());
  pid_t router = 0;
  for (const test::Child& child : cluster.children())
    if (child.name == "router") router = child.pid;
  ASSERT_GT(router, 0);
  auto client = cluster.connect();
  ASSERT_TRUE(client.status(5 * kSecond).ok());
  const rlimit few{cluster.open_descriptors(router) + 8, 4096};
  rlimit before{};
  ASSERT_EQ(prlimit(router, RLIMIT_NOFILE, &few, &before), 0);
  EXPECT_EQ(before.rlim_cur, before.rlim_max) << "the router takes what descriptors it may have";

  std::vector<UniqueFd> crowd;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, cluster.endpoint().c_str() + 6, sizeof address.sun_path - 1);
  for (int i = 0; i < 100; ++i) {
    crowd.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(crowd.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  const auto answer = client.generate(request(7, 20), nullptr, 10 * kSecond);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->ids.size(), 20u);
  EXPECT_TRUE(test::alive(router));
  crowd.clear();
  expect_serves(cluster);
  EXPECT_TRUE(test::alive(router)) << "still the same process";
  EXPECT_NE(cluster.log().find("connections were turned away"), std::string::npos);
  cluster.expect_balanced();
  EXPECT_EQ(cluster.down(), 0);
}

TEST(Faults, LIF_05_TwoThousandAbortedRequestsLeaveNothingBehind) {
  test::Cluster cluster(kFakeCluster);
  ASSERT_TRUE(cluster.up());
  std::map<pid_t, size_t> descriptors;
  for (const test::Child& child : cluster.children())
    descriptors[child.pid] = cluster.open_descriptors(child.pid);
  std::mt19937 random(5);
  // Half are cancelled, half lose their client, each after a while of its own.
  for (int round = 0; round < 20; ++round) {
    auto staying = cluster.connect();
    auto vanishing = cluster.connect();
    std::map<Uid, Outcome> streams;
    std::map<Uid, size_t> limits;
    for (TokenId i = 0; i < 50; ++i) {
      auto wanted = request(random() % 40'000, 5'000);
      wanted.prompt = std::vector<TokenId>(1 + random() % 300, random() % 40'000);
      wanted.resume_grace_ms = 0;
      ASSERT_TRUE(vanishing.start(wanted).ok());
      const auto uid = staying.start(wanted);
      ASSERT_TRUE(uid.ok());
      limits[*uid] = random() % 40;
    }
    const Nanos start = monotonic_now();
    const auto cancel_due = [&] {
      for (auto it = limits.begin(); it != limits.end();) {
        if (streams[it->first].tokens < it->second) {
          ++it;
        } else {
          EXPECT_TRUE(staying.cancel(it->first).ok());
          it = limits.erase(it);
        }
      }
      return staying.open_streams() == 0;
    };
    read_streams(staying, streams, cancel_due, 10 * kSecond);
    ASSERT_EQ(staying.open_streams(), 0u) << "after " << (monotonic_now() - start) / kMillisecond << " ms";
    for (const auto& [uid, stream] : streams) {
      EXPECT_EQ(stream.endings, 1);
      EXPECT_EQ(stream.ending.reason, client::FinishReason::kCancelled);
    }
  }
  expect_serves(cluster);
  cluster.expect_balanced();
  for (const auto& [pid, count] : descriptors) {
    const Nanos deadline = monotonic_now() + 2 * kSecond;
    while (cluster.open_descriptors(pid) > count && monotonic_now() < deadline) usleep(10'000);
    EXPECT_LE(cluster.open_descriptors(pid), count) << pid;
  }
  EXPECT_EQ(cluster.down(), 0);
}

// A worker that stood still longer than worker_timeout has lost its requests; what it sends when it wakes up
// reaches nobody, and it takes part again.
TEST(Faults, AWorkerThatStoodStillIsReplacedByTheOthersAndComesBack) {
  test::Cluster cluster(std::string(kFakeCluster) + "router:\n  worker_timeout: 600ms\n");
  ASSERT_TRUE(cluster.up());
  pid_t stopped = 0;
  for (const test::Child& child : cluster.children())
    if (child.name == "tokenizer-worker.0") stopped = child.pid;
  auto client = cluster.connect();
  std::map<Uid, Outcome> streams;
  for (TokenId i = 0; i < 20; ++i) streams[*client.start(request(i, 700))] = {};
  read_streams(
      client, streams, [] { return false; }, 200 * kMillisecond);
  kill(stopped, SIGSTOP);
  read_streams(
      client, streams, [&] { return client.open_streams() == 0; }, 10 * kSecond);
  int lost = 0, whole = 0;
  for (const auto& [uid, stream] : streams) {
    EXPECT_EQ(stream.endings, 1);
    lost += stream.ending.code == Code::kWorkerLost;
    whole += stream.ending.reason == client::FinishReason::kLength && stream.tokens == 700;
  }
  EXPECT_EQ(lost, 10);
  EXPECT_EQ(whole, 10);
  expect_serves(cluster);
  kill(stopped, SIGCONT);
  const auto event = client.next(monotonic_now() + 300 * kMillisecond);
  ASSERT_TRUE(event.ok());
  EXPECT_FALSE(event->has_value()) << "a stale piece or a second ending";
  EXPECT_TRUE(cluster.eventually(
      [](const client::ClusterStatus& status) {
        bool all = true;
        for (const auto& worker : status.workers) all = all && worker.state == "ready";
        return all;
      },
      5 * kSecond));
  EXPECT_TRUE(test::alive(stopped));
  cluster.expect_balanced();
  EXPECT_EQ(cluster.down(), 0);
}

// A real imbalance, and one that no waiting mends: who is stopped cannot say what it holds, and what was
// given to it lies unread.
TEST(Faults, TheAuditNamesAProcessThatStandsStill) {
  // So long that the router does not give it up meanwhile.
  test::Cluster cluster(std::string(kFakeCluster) + "router:\n  worker_timeout: 60s\n");
  ASSERT_TRUE(cluster.up());
  cluster.expect_balanced();
  for (const char* victim : {"gpu-worker.0", "tokenizer-worker.1", "router", "supervisor"}) {
    SCOPED_TRACE(victim);
    const bool asked = victim != std::string_view("supervisor");  // it takes no part in an audit
    pid_t pid = asked ? 0 : cluster.supervisor();
    for (const test::Child& child : cluster.children())
      if (child.name == victim) pid = child.pid;
    ASSERT_GT(pid, 0);
    kill(pid, SIGSTOP);
    const Nanos start = monotonic_now();
    const test::Ended audit = cluster.command({"audit", "--json"});
    EXPECT_LT(monotonic_now() - start, 10 * kSecond) << "two rounds with a limit each";
    kill(pid, SIGCONT);
    EXPECT_EQ(audit.exit_code, 1) << audit.out;
    const auto report = nlohmann::json::parse(audit.out, nullptr, false);
    ASSERT_TRUE(report.is_object()) << audit.out << audit.err;
    EXPECT_FALSE(report["balanced"]);
    bool named = false;
    for (const auto& finding : report["findings"])
      named = named || (finding["rule"] == (asked ? "answer" : "process") && finding["process"] == victim);
    EXPECT_TRUE(named) << audit.out;
  }
  cluster.expect_balanced();
  EXPECT_EQ(cluster.down(), 0);
  EXPECT_EQ(cluster.command({"audit"}).exit_code, 3);
}

// A worker hears of a new router with its next heartbeat; until then it is no finding that it is unknown
// there, nor what it still holds for the former router.
TEST(Faults, TheAuditLeavesTheWorkersTimeToMeetANewRouter) {
  // Heartbeats 5 s apart: an audit takes place between two of them.
  test::Cluster cluster(std::string(kFakeCluster) + "router:\n  worker_timeout: 20s\n");
  ASSERT_TRUE(cluster.up());
  const auto router = [&] {
    const auto record = cluster.record();
    for (const auto& child : record["children"])
      if (child["name"] == "router" && child["state"] == "ready") return child["pid"].get<pid_t>();
    return pid_t{0};
  };
  const pid_t former = router();
  ASSERT_GT(former, 0);
  {  // one who does not come back for its streams
    auto client = cluster.connect();
    std::map<Uid, Outcome> streams;
    for (TokenId i = 0; i < 20; ++i) streams[*client.start(request(i, 3'000))] = {};
    read_streams(
        client, streams, [] { return false; }, 200 * kMillisecond);
    kill(former, SIGKILL);
  }
  const Nanos deadline = monotonic_now() + 20 * kSecond;
  while ((router() == former || router() == 0) && monotonic_now() < deadline) usleep(5'000);
  const test::Ended audit = cluster.command({"audit"});
  EXPECT_EQ(audit.exit_code, 0) << audit.out << audit.err;
  cluster.expect_balanced(30 * kSecond);
  EXPECT_EQ(cluster.command({"audit"}).out.find("not registered"), std::string::npos);
  EXPECT_EQ(cluster.down(), 0);
}

// While requests run the books balance too, with everything in use.
TEST(Faults, TheBooksBalanceUnderLoad) {
  test::Cluster cluster(kFakeCluster);
  ASSERT_TRUE(cluster.up());
  auto client = cluster.connect();
  std::map<Uid, Outcome> streams;
  for (TokenId i = 0; i < 60; ++i) streams[*client.start(request(i, 3'000))] = {};
  read_streams(
      client, streams, [] { return false; }, 300 * kMillisecond);
  const test::Ended audit = cluster.command({"audit", "--json"});
  EXPECT_EQ(audit.exit_code, 0) << audit.out;
  const auto report = nlohmann::json::parse(audit.out, nullptr, false);
  ASSERT_TRUE(report.is_object()) << audit.out << audit.err;
  EXPECT_EQ(report["books"]["router"]["live"], 60);
  EXPECT_EQ(report["books"]["workers"]["gpu-worker.0"]["sequences"], 60);
  // Whoever does not wait for them to end is told that they are live.
  EXPECT_EQ(cluster.command({"audit", "--wait-idle", "0"}).exit_code, 1);
  for (const auto& [uid, stream] : streams) EXPECT_TRUE(client.cancel(uid).ok());
  read_streams(
      client, streams, [&] { return client.open_streams() == 0; }, 10 * kSecond);
  cluster.expect_balanced();
  EXPECT_EQ(cluster.down(), 0);
}

}  // namespace
}  // namespace ringmaster
