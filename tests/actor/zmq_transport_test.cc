#include "actor/zmq_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "actor/turn_away.h"
#include "tests/actor/recorder.h"

namespace ringmaster::actor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Zmq : testing::Test {
  Zmq() {
    char name[] = "/tmp/rm-zmq-test.XXXXXX";
    directory = mkdtemp(name);
    endpoint = "ipc://" + directory + "/workers.sock";
  }
  ~Zmq() override { std::filesystem::remove_all(directory); }

  std::unique_ptr<ZmqTransport> make_router(std::vector<ZmqDoor> doors, const ZmqOptions& options = {}) {
    auto made = ZmqTransport::router(doors, options);
    EXPECT_TRUE(made.ok()) << made.error().message;
    return std::move(made).value();
  }
  std::unique_ptr<ZmqTransport> make_worker(const std::string& id, const ZmqOptions& options = {}) {
    auto made = ZmqTransport::worker(endpoint, id, options);
    EXPECT_TRUE(made.ok()) << made.error().message;
    return std::move(made).value();
  }
  static Sent send(Transport& from, Channel channel, const std::string& peer, const std::string& text) {
    return from.send(channel, peer, bytes_of(text));
  }
  static bool until(const std::function<bool()>& done, Nanos limit = 10 * kSecond) {
    const Nanos deadline = monotonic_now() + limit;
    while (!done()) {
      if (monotonic_now() > deadline) return false;
      usleep(200);
    }
    return true;
  }
  // Polls `transport` until `actor` has `count` messages.
  static bool receive(Transport& transport, Recorder& actor, size_t count, Nanos limit = 10 * kSecond) {
    return until(
        [&] {
          transport.poll(actor, monotonic_now(), 1000);
          return actor.got.size() >= count;
        },
        limit);
  }

  std::string directory, endpoint;
  Recorder router_actor, worker_actor;
};

TEST_F(Zmq, MessagesTravelBothWays) {
  auto router = make_router({{endpoint, true}});
  auto worker = make_worker("w0");
  EXPECT_EQ(send(*worker, 0, "", "hello"), Sent::kOk);
  ASSERT_TRUE(receive(*router, router_actor, 1));
  EXPECT_EQ(send(*router, 0, "w0", "welcome"), Sent::kOk);
  EXPECT_EQ(send(*router, 0, "w0", ""), Sent::kOk);
  ASSERT_TRUE(receive(*worker, worker_actor, 2));
  EXPECT_THAT(router_actor.got, ElementsAre("0 w0 hello"));
  EXPECT_THAT(worker_actor.got, ElementsAre("0  welcome", "0  "));
  EXPECT_EQ(router->counters().received, 1u);
  EXPECT_EQ(router->counters().sent, 2u);
}

TEST_F(Zmq, TcpOnLoopbackWithAFreePort) {
  auto router = make_router({{"tcp://127.0.0.1:*"}});
  endpoint = router->endpoint(0);
  EXPECT_THAT(endpoint, testing::MatchesRegex("tcp://127.0.0.1:[0-9]+"));
  auto worker = make_worker("w0");
  send(*worker, 0, "", "hello");
  ASSERT_TRUE(receive(*router, router_actor, 1));
  EXPECT_THAT(router_actor.got, ElementsAre("0 w0 hello"));
}

TEST_F(Zmq, TwoDoorsTakeTurns) {
  const std::string clients = "ipc://" + directory + "/clients.sock";
  auto router = make_router({{clients}, {endpoint, true}});
  auto worker = make_worker("w0");
  endpoint = clients;
  auto client = make_worker("c");
  for (int i = 0; i < 100; ++i) send(*client, 0, "", "flood");
  send(*worker, 0, "", "heartbeat");
  usleep(200'000);  // all of it has arrived
  EXPECT_EQ(router->poll(router_actor, 0, 10), 10u) << "the budget";
  EXPECT_THAT(router_actor.got, testing::Contains("1 w0 heartbeat"));
  EXPECT_EQ(router->poll(router_actor, 0, 1000), 91u);
  EXPECT_EQ(router->poll(router_actor, 0, 1000), 0u);
  EXPECT_EQ(send(*router, 1, "c", "x"), Sent::kUnreachable) << "peers belong to their door";
}

TEST_F(Zmq, AWorkerMayComeBeforeItsRouter) {
  auto worker = make_worker("w0");
  EXPECT_EQ(send(*worker, 0, "", "early"), Sent::kOk);
  usleep(50'000);
  auto router = make_router({{endpoint, true}});
  const Nanos start = monotonic_now();
  ASSERT_TRUE(receive(*router, router_actor, 1));
  EXPECT_LT(monotonic_now() - start, kSecond);
  EXPECT_THAT(router_actor.got, ElementsAre("0 w0 early"));
}

TEST_F(Zmq, WorkersFindARestartedRouterAndBringWhatTheyKept) {
  auto router = make_router({{endpoint, true}});
  auto worker = make_worker("w0");
  send(*worker, 0, "", "first");
  ASSERT_TRUE(receive(*router, router_actor, 1));
  router.reset();
  usleep(20'000);
  EXPECT_EQ(send(*worker, 0, "", "kept"), Sent::kOk);
  router = make_router({{endpoint, true}});
  EXPECT_EQ(send(*router, 0, "w0", "too early"), Sent::kUnreachable);
  const Nanos start = monotonic_now();
  ASSERT_TRUE(receive(*router, router_actor, 2));
  EXPECT_LT(monotonic_now() - start, kSecond);
  EXPECT_EQ(router_actor.got[1], "0 w0 kept");
  EXPECT_EQ(send(*router, 0, "w0", "welcome back"), Sent::kOk);
  ASSERT_TRUE(receive(*worker, worker_actor, 1));
}

TEST_F(Zmq, UnknownAndVanishedPeersAreUnreachable) {
  auto router = make_router({{endpoint, true}});
  EXPECT_EQ(send(*router, 0, "nobody", "x"), Sent::kUnreachable);
  EXPECT_EQ(send(*router, 0, "", "x"), Sent::kUnreachable);
  auto worker = make_worker("w0");
  send(*worker, 0, "", "hello");
  ASSERT_TRUE(receive(*router, router_actor, 1));
  worker.reset();
  ASSERT_TRUE(until([&] { return send(*router, 0, "w0", "x") == Sent::kUnreachable; }));
  EXPECT_EQ(router->counters().unreachable, 3u);
  // The refusal leaves the socket usable.
  auto again = make_worker("w1");
  send(*again, 0, "", "hello");
  ASSERT_TRUE(receive(*router, router_actor, 2));
  EXPECT_EQ(send(*router, 0, "w1", "x"), Sent::kOk);
}

TEST_F(Zmq, AKilledWorkersSuccessorTakesOverItsName) {
  const pid_t child = fork();  // before there are threads here
  if (child == 0) {
    alarm(30);
    auto worker = ZmqTransport::worker(endpoint, "w0").value();
    send(*worker, 0, "", "old");
    for (;;) pause();
  }
  auto router = make_router({{endpoint, true}});
  ASSERT_TRUE(receive(*router, router_actor, 1));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  auto successor = make_worker("w0");
  send(*successor, 0, "", "new");
  ASSERT_TRUE(receive(*router, router_actor, 2));
  EXPECT_EQ(send(*router, 0, "w0", "for the new one"), Sent::kOk);
  ASSERT_TRUE(receive(*successor, worker_actor, 1));
}

TEST_F(Zmq, WithHandoverTheNewestHolderOfANameWinsWithoutItTheOldest) {
  auto router = make_router({{endpoint, true}});
  auto first = make_worker("w0");
  send(*first, 0, "", "1");
  ASSERT_TRUE(receive(*router, router_actor, 1));
  auto second = make_worker("w0");
  send(*second, 0, "", "2");
  ASSERT_TRUE(receive(*router, router_actor, 2));
  EXPECT_EQ(send(*router, 0, "w0", "x"), Sent::kOk);
  ASSERT_TRUE(receive(*second, worker_actor, 1));

  endpoint = "ipc://" + directory + "/clients.sock";
  auto strict = make_router({{endpoint, false}});
  Recorder strict_actor, second_actor;
  auto owner = make_worker("c");
  send(*owner, 0, "", "1");
  ASSERT_TRUE(receive(*strict, strict_actor, 1));
  auto thief = make_worker("c");
  send(*thief, 0, "", "2");
  EXPECT_FALSE(receive(*strict, strict_actor, 2, 100 * kMillisecond));
  EXPECT_EQ(send(*strict, 0, "c", "secret"), Sent::kOk);
  Recorder owner_actor;
  ASSERT_TRUE(receive(*owner, owner_actor, 1));
  EXPECT_EQ(thief->poll(second_actor, 0, 10), 0u);
}

TEST_F(Zmq, AtTheHighWaterMarkSendsAreRefusedAndCounted) {
  ZmqOptions options;
  options.high_water_mark = 8;
  auto router = make_router({{endpoint, true}}, options);
  auto worker = make_worker("w0", options);
  send(*worker, 0, "", "hello");
  ASSERT_TRUE(receive(*router, router_actor, 1));
  const std::string large(256 << 10, 'x');
  int sent = 0;
  Sent last = Sent::kOk;
  ASSERT_TRUE(until([&] {
    while ((last = send(*router, 0, "w0", large)) == Sent::kOk && sent < 1000) ++sent;
    return last == Sent::kFull;
  }));
  EXPECT_LT(sent, 100);
  EXPECT_GT(router->counters().full, 0u);
  ASSERT_TRUE(receive(*worker, worker_actor, static_cast<size_t>(sent)))
      << "accepted " << sent << ", arrived " << worker_actor.got.size();
  EXPECT_EQ(worker_actor.got.size(), static_cast<size_t>(sent));
  EXPECT_TRUE(until([&] { return send(*router, 0, "w0", "x") == Sent::kOk; }));
}

// ---- hostile peers ----

TEST_F(Zmq, SeveralFramesBecomeAnEmptyMessage) {
  auto router = make_router({{endpoint, false}});
  zmq::context_t context;
  zmq::socket_t raw(context, zmq::socket_type::dealer);
  raw.set(zmq::sockopt::linger, 0);
  raw.set(zmq::sockopt::routing_id, "raw");
  raw.connect(endpoint);
  for (int i = 0; i < 300; ++i) raw.send(zmq::str_buffer("part"), zmq::send_flags::sndmore);
  raw.send(zmq::str_buffer("end"), zmq::send_flags::none);
  raw.send(zmq::str_buffer(""), zmq::send_flags::sndmore);  // what a REQ socket sends
  raw.send(zmq::str_buffer("body"), zmq::send_flags::none);
  raw.send(zmq::str_buffer("whole"), zmq::send_flags::none);
  ASSERT_TRUE(receive(*router, router_actor, 3));
  EXPECT_THAT(router_actor.got, ElementsAre("0 raw ", "0 raw ", "0 raw whole"));
  EXPECT_EQ(router->counters().multipart, 2u);
}

TEST_F(Zmq, TooLargeArrivesToBeRefusedFarTooLargeClosesTheConnection) {
  auto router = make_router({{endpoint, true}});
  auto worker = make_worker("w0");
  router_actor.on_receive = [&](Channel, std::string_view, Bytes message, Nanos) {
    router_actor.got.back() = std::to_string(message.size());
  };
  send(*worker, 0, "", std::string(msg::kMaxMessageBytes + 1, 'x'));
  ASSERT_TRUE(receive(*router, router_actor, 1));
  EXPECT_EQ(router_actor.got[0], std::to_string(msg::kMaxMessageBytes + 1));
  send(*worker, 0, "", std::string(ZmqOptions{}.max_message_bytes + 1, 'x'));
  send(*worker, 0, "", "behind it");
  // The connection ends with the too large message; the worker connects again and goes on behind it.
  ASSERT_TRUE(receive(*router, router_actor, 2));
  EXPECT_EQ(router_actor.got[1], "9");
}

TEST_F(Zmq, GarbageOnTheSocketHarmsNobody) {
  auto router = make_router({{"tcp://127.0.0.1:*"}});
  endpoint = router->endpoint(0);
  auto worker = make_worker("w0");
  send(*worker, 0, "", "hello");
  ASSERT_TRUE(receive(*router, router_actor, 1));
  zmq::context_t context;
  zmq::socket_t raw(context, zmq::socket_type::stream);
  raw.set(zmq::sockopt::linger, 0);
  raw.connect(endpoint);
  zmq::message_t id, empty;
  ASSERT_TRUE(raw.recv(id));
  ASSERT_TRUE(raw.recv(empty));
  raw.send(id, zmq::send_flags::sndmore);
  raw.send(zmq::buffer(std::string(10'000, '\x7f')), zmq::send_flags::none);
  usleep(50'000);
  send(*worker, 0, "", "still here");
  ASSERT_TRUE(receive(*router, router_actor, 2));
  EXPECT_EQ(router_actor.got[1], "0 w0 still here");
}

// ---- endpoints ----

TEST_F(Zmq, ALiveEndpointIsRefused) {
  auto router = make_router({{endpoint, true}});
  auto second = ZmqTransport::router({{endpoint, true}});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kAlreadyExists);
  EXPECT_THAT(second.error().message, HasSubstr("another live process listens on " + directory));
  // The probe has not disturbed the first one.
  auto worker = make_worker("w0");
  send(*worker, 0, "", "hello");
  ASSERT_TRUE(receive(*router, router_actor, 1));
}

TEST_F(Zmq, TheSocketOfADeadRouterIsReplaced) {
  const pid_t child = fork();  // before there are threads here
  if (child == 0) {
    auto doomed = ZmqTransport::router({{endpoint, true}});
    _exit(doomed.ok() ? 0 : 1);  // without clean-up: the socket file stays
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_EQ(WEXITSTATUS(status), 0);
  ASSERT_TRUE(std::filesystem::exists(directory + "/workers.sock"));
  auto router = make_router({{endpoint, true}});
  auto worker = make_worker("w0");
  send(*worker, 0, "", "hello");
  ASSERT_TRUE(receive(*router, router_actor, 1));
}

TEST_F(Zmq, SocketFilesAreForTheirOwnerAndGoWithTheRouter) {
  const std::string path = directory + "/workers.sock";
  auto router = make_router({{endpoint, true}});
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  router.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(Zmq, AFileInTheWayIsLeftAlone) {
  std::ofstream(directory + "/workers.sock") << "precious";
  auto made = ZmqTransport::router({{endpoint, true}});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, Code::kAlreadyExists);
  EXPECT_TRUE(std::filesystem::is_regular_file(directory + "/workers.sock"));
}

TEST_F(Zmq, PortInUse) {
  auto router = make_router({{"tcp://127.0.0.1:*"}});
  auto second = ZmqTransport::router({{router->endpoint(0)}});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kAlreadyExists);
  EXPECT_THAT(second.error().message, HasSubstr(router->endpoint(0)));
}

TEST_F(Zmq, OPS_07_PathTooLongIsNamed) {
  const std::string path = "/tmp/" + std::string(150, 'x') + "/workers.sock";
  for (const auto& made :
       {ZmqTransport::router({{"ipc://" + path}}).ok(), ZmqTransport::worker("ipc://" + path, "w").ok()}) {
    EXPECT_FALSE(made);
  }
  const auto made = ZmqTransport::router({{"ipc://" + path}});
  EXPECT_EQ(made.error().code, Code::kInvalidArgument);
  EXPECT_THAT(made.error().message, HasSubstr("168 bytes; allowed are up to 107"));
}

TEST_F(Zmq, SEC_03_OnlyLoopback) {
  for (const std::string bad :
       {"tcp://*:5555", "tcp://0.0.0.0:5555", "tcp://192.168.1.2:5555", "tcp://[::]:5555",
        "tcp://127.0.0.1.example.com:5555", "tcp://eth0:5555", "inproc://x", "ipc://relative",
        "ipc://@abstract", "ipc://*", "ipc://", "", "/tmp/x"}) {
    const auto made = ZmqTransport::router({{bad}});
    ASSERT_FALSE(made.ok()) << bad;
    EXPECT_EQ(made.error().code, Code::kInvalidArgument) << bad;
    EXPECT_FALSE(ZmqTransport::worker(bad, "w").ok()) << bad;
  }
}

TEST_F(Zmq, RoutingIdsAreChecked) {
  EXPECT_FALSE(ZmqTransport::worker(endpoint, "").ok());
  EXPECT_FALSE(ZmqTransport::worker(endpoint, std::string(256, 'x')).ok());
  EXPECT_FALSE(ZmqTransport::worker(endpoint, std::string("\0x", 2)).ok());
  EXPECT_TRUE(ZmqTransport::worker(endpoint, std::string(255, 'x')).ok());
}

// ---- the end ----

TEST_F(Zmq, CloseWritesTheLastWords) {
  auto router = make_router({{endpoint, true}});
  auto worker = make_worker("w0");
  for (int i = 0; i < 1000; ++i) send(*worker, 0, "", "word");
  worker->close(5 * kSecond);
  worker.reset();
  ASSERT_TRUE(receive(*router, router_actor, 1000));
  EXPECT_EQ(router_actor.got.size(), 1000u);
}

TEST_F(Zmq, CloseHasADeadlineAndDescriptorsReturn) {
  ASSERT_TRUE(keep_spare_descriptor().ok());  // stays open for good
  const auto count = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  const auto before = count();
  for (int i = 0; i < 5; ++i) {
    auto worker = make_worker("w0");
    send(*worker, 0, "", "to nobody");
    const Nanos start = monotonic_now();
    worker->close(50 * kMillisecond);
    EXPECT_LT(monotonic_now() - start, 2 * kSecond);
    auto router = make_router({{endpoint, true}});
    auto other = make_worker("w1");
    send(*other, 0, "", "x");
  }
  EXPECT_EQ(count(), before);
}

}  // namespace
}  // namespace ringmaster::actor
