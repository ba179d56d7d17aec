// A router whose process has no descriptor left for another connection. libzmq without turn_away.cc ends the
// process here: "Too many open files (src/ipc_listener.cpp:325)".
#include "actor/turn_away.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>

#include "actor/zmq_transport.h"
#include "tests/actor/recorder.h"

namespace ringmaster::actor {
namespace {

constexpr int kCrowd = 60;

int connect_to(const std::string& endpoint) {
  if (endpoint.rfind("ipc://", 0) == 0) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, endpoint.c_str() + 6);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    return connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ? fd : -1;
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  return connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ? fd : -1;
}

// In the child: connects kCrowd times to the endpoint it is told, says so, holds them until it is told to go.
[[noreturn]] void crowd(int orders, int done) {
  char endpoint[128] = {};
  if (read(orders, endpoint, sizeof endpoint - 1) <= 0) _exit(1);
  for (int i = 0; i < kCrowd; ++i)
    if (connect_to(endpoint) < 0) _exit(2);
  if (write(done, "x", 1) != 1) _exit(3);
  char go;
  _exit(read(orders, &go, 1) == 1 ? 0 : 4);
}

size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

class TurnAway : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_EQ(pipe(orders_), 0);
    ASSERT_EQ(pipe(done_), 0);
    child_ = fork();  // before there are threads here
    if (child_ == 0) {
      close(orders_[1]);  // so that it ends with this process, however that ends
      close(done_[0]);
      crowd(orders_[0], done_[1]);
    }
    char name[] = "/tmp/rm-turn-away.XXXXXX";
    directory_ = mkdtemp(name);
    getrlimit(RLIMIT_NOFILE, &limit_);
  }
  void TearDown() override {
    setrlimit(RLIMIT_NOFILE, &limit_);
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    for (const int fd : {orders_[0], orders_[1], done_[0], done_[1]}) close(fd);
    std::filesystem::remove_all(directory_);
  }
  static bool until(const std::function<bool()>& done) {
    const Nanos deadline = monotonic_now() + 10 * kSecond;
    while (!done()) {
      if (monotonic_now() > deadline) return false;
      usleep(1'000);
    }
    return true;
  }

  std::string directory_;
  int orders_[2], done_[2];
  pid_t child_ = 0;
  rlimit limit_{};
};

TEST_P(TurnAway, NewOnesGoWhoIsConnectedStays) {
  const bool ipc = std::string(GetParam()) == "ipc";
  auto made = ZmqTransport::router({{ipc ? "ipc://" + directory_ + "/s" : "tcp://127.0.0.1:*", true}});
  ASSERT_TRUE(made.ok()) << made.error().message;
  ZmqTransport& router = **made;
  const std::string endpoint = router.endpoint(0);
  auto early = ZmqTransport::worker(endpoint, "early");
  ASSERT_TRUE(early.ok());
  Recorder got;
  const auto hears = [&](size_t count) {
    return until([&] { return router.poll(got, monotonic_now(), 100), got.got.size() >= count; });
  };
  (void)(*early)->send(0, "", bytes_of("before"));
  ASSERT_TRUE(hears(1));

  const uint64_t turned_away = connections_turned_away();
  const rlimit few{open_descriptors() + 10, limit_.rlim_max};  // the iterator's own is closed again
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  ASSERT_GT(write(orders_[1], endpoint.c_str(), endpoint.size()), 0);
  char done;
  ASSERT_EQ(read(done_[0], &done, 1), 1);
  EXPECT_TRUE(until([&] { return connections_turned_away() >= turned_away + kCrowd - 12; }))
      << connections_turned_away() - turned_away;
  (void)(*early)->send(0, "", bytes_of("during"));
  EXPECT_TRUE(hears(2));

  // Nothing is left waiting that would keep the listener busy.
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  usleep(200'000);
  getrusage(RUSAGE_SELF, &after);
  const auto micros = [](const rusage& use) {
    return (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1'000'000 + use.ru_utime.tv_usec +
           use.ru_stime.tv_usec;
  };
  EXPECT_LT(micros(after) - micros(before), 50'000);

  // The crowd leaves: there is room again.
  ASSERT_EQ(write(orders_[1], "g", 1), 1);
  int status = -1;
  ASSERT_EQ(waitpid(child_, &status, 0), child_);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit_), 0);
  auto next = ZmqTransport::worker(endpoint, "next");
  ASSERT_TRUE(next.ok());
  (void)(*next)->send(0, "", bytes_of("after"));
  EXPECT_TRUE(hears(3));
  EXPECT_EQ(got.got.back(), "0 next after");
  (*early)->close(0);
}

INSTANTIATE_TEST_SUITE_P(Transports, TurnAway, testing::Values("ipc", "tcp"),
                         [](const auto& transport) { return std::string(transport.param); });

}  // namespace
}  // namespace ringmaster::actor
