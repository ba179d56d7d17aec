// The hand-over of slots: between real processes, against hostile and dead ones.
#include "shm/slot.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "shm/handshake.h"
#include "shm/unix_socket.h"
#include "tests/shm/process.h"

namespace ringmaster::shm {
namespace {

constexpr uint64_t kInstance = 0xABCDEF0123;
constexpr SlotSizes kSmall{4096, 8192, 4096};

size_t open_fds() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

void send_text(Producer& producer, uint32_t type, const std::string& text) {
  auto space = producer.try_reserve(type, text.size());
  ASSERT_TRUE(space);
  std::memcpy(space->data(), text.data(), text.size());
  producer.commit();
}

std::string text_of(const Record& record) {
  return {reinterpret_cast<const char*>(record.payload.data()), record.payload.size()};
}

struct Slots : testing::Test {
  Slots() {
    char name[] = "/tmp/rm-slot-test.XXXXXX";
    directory = mkdtemp(name);
    path = directory + "/gpu-worker.0.ring";
  }
  ~Slots() override { std::filesystem::remove_all(directory); }

  void serve(uint32_t count) {
    auto made = SlotServer::create(path, count, kSmall, kInstance, bell);
    ASSERT_TRUE(made.ok()) << made.error().message;
    server = std::move(made).value();
  }
  void poll() {
    server->poll(
        [&](GpuEnd& end) {
          EXPECT_EQ(ends.count(end.slot), 0u);
          ends[end.slot] = &end;
        },
        [&](uint32_t slot) {
          EXPECT_EQ(ends.count(slot), 1u);
          if (on_lost) on_lost(*ends[slot]);
          ends.erase(slot);
        });
  }
  bool until(const std::function<bool()>& done) {
    return eventually([&] {
      poll();
      return done();
    });
  }
  // A process that attaches and then does what `run` says; its exit code is 100 + the error's code on
  // failure.
  std::unique_ptr<Child> attach(const std::string& name, std::function<int(TokenizerEnd&, Doorbell&)> run) {
    return std::make_unique<Child>([&, run] {
      auto own = Doorbell::create();
      auto end = attach_slot(path, kInstance, name, *own, monotonic_now() + 10 * kSecond);
      if (!end) return 100 + static_cast<int>(end.error().code);
      return run(*end, *own);
    });
  }
  static int sleep_forever(TokenizerEnd&, Doorbell&) {
    for (;;) pause();
  }

  std::string directory, path;
  Doorbell bell = Doorbell::create().value();
  std::unique_ptr<SlotServer> server;
  std::map<uint32_t, GpuEnd*> ends;
  std::function<void(GpuEnd&)> on_lost;
};

TEST_F(Slots, RecordsTravelBothWays) {
  serve(2);
  auto child = attach("tokenizer-worker.0", [](TokenizerEnd& end, Doorbell& own) {
    if (end.gpu_instance != kInstance || end.slot != 0) return 1;
    send_text(end.prompts, 16, "prompt");
    send_text(end.commands, 1, "start");
    end.gpu_bell.ring();
    for (;;) {
      const uint32_t seen = own.sequence();
      if (auto record = end.tokens.peek()) return text_of(*record) == "tokens" && record->type == 32 ? 0 : 2;
      if (!own.wait(seen, monotonic_now() + 10 * kSecond)) return 3;
    }
  });
  ASSERT_TRUE(until([&] { return ends.count(0) == 1; }));
  GpuEnd& end = *ends[0];
  EXPECT_EQ(end.holder, "tokenizer-worker.0");
  EXPECT_EQ(end.holder_pid, child->pid());
  EXPECT_EQ(server->held(), 1u);
  std::optional<Record> command;
  ASSERT_TRUE(eventually([&] {
    const uint32_t seen = bell.sequence();
    command = end.commands.peek();
    return command || (bell.wait(seen, monotonic_now() + 10 * kSecond), command = end.commands.peek());
  }));
  EXPECT_EQ(text_of(*command), "start");
  ASSERT_TRUE(end.prompts.peek());
  EXPECT_EQ(text_of(*end.prompts.peek()), "prompt");
  send_text(end.tokens, 32, "tokens");
  end.tokenizer_bell.ring();
  EXPECT_EQ(child->wait(), 0);
  EXPECT_TRUE(until([&] { return server->held() == 0; }));
}

TEST_F(Slots, WhatADeadHolderCommittedCanBeReadInLost) {
  serve(1);
  auto child = attach("w", [](TokenizerEnd& end, Doorbell&) {
    send_text(end.commands, 3, "last words");
    return 0;
  });
  std::string last;
  on_lost = [&](GpuEnd& end) {
    if (auto record = end.commands.peek()) last = text_of(*record);
  };
  EXPECT_TRUE(until([&] { return server->counters().lost == 1; }));
  EXPECT_EQ(last, "last words");
}

TEST_F(Slots, NoSlotFreeIsRefusedUntilTheHolderDies) {
  serve(1);
  auto first = attach("first", sleep_forever);
  ASSERT_TRUE(until([&] { return server->held() == 1; }));
  auto second = attach("second", sleep_forever);
  ASSERT_TRUE(until([&] { return server->counters().refused == 1; }));
  EXPECT_EQ(second->wait(), 100 + static_cast<int>(Code::kResourceExhausted));
  first->signal(SIGKILL);
  ASSERT_TRUE(until([&] { return server->held() == 0; }));
  auto third = attach("third", sleep_forever);
  ASSERT_TRUE(until([&] { return server->held() == 1; }));
  EXPECT_EQ(ends[0]->holder, "third");
}

TEST_F(Slots, AStoppedHolderKeepsItsSlot) {
  serve(1);
  auto holder = attach("holder", [](TokenizerEnd& end, Doorbell&) {
    for (;;) {
      if (auto space = end.commands.try_reserve(2, 8)) end.commands.commit();
      usleep(100);
    }
    return 0;
  });
  ASSERT_TRUE(until([&] { return server->held() == 1; }));
  holder->signal(SIGSTOP);
  auto other = attach("other", sleep_forever);
  ASSERT_TRUE(until([&] { return server->counters().refused == 1; }));
  const Nanos end = monotonic_now() + 300 * kMillisecond;
  while (monotonic_now() < end) poll();
  EXPECT_EQ(server->held(), 1u);
  EXPECT_EQ(server->counters().lost, 0u);
  // It wakes up again and is still the one and only producer.
  for (auto& consumer = ends[0]->commands; consumer.peek();) consumer.pop();
  holder->signal(SIGCONT);
  EXPECT_TRUE(until([&] { return ends[0]->commands.peek().has_value(); }));
  EXPECT_FALSE(ends[0]->commands.broken());
}

TEST_F(Slots, AReusedSlotStartsEmpty) {
  serve(1);
  for (int round = 0; round < 30; ++round) {
    auto child = attach("w", [](TokenizerEnd& end, Doorbell&) {
      if (end.tokens.peek()) return 1;  // of the former holder
      for (int i = 0;;) {
        if (!end.commands.try_reserve(2, 1 + i % 100)) continue;
        end.commands.commit();
        ++i;
      }
    });
    ASSERT_TRUE(until([&] { return server->held() == 1; }));
    GpuEnd& end = *ends[0];
    ASSERT_TRUE(eventually([&] { return end.commands.peek().has_value(); }));
    for (int i = 0; i < round * 3 && end.commands.peek(); ++i) {
      ASSERT_EQ(end.commands.peek()->payload.size(), 1u + i % 100) << "not from its beginning";
      end.commands.pop();
    }
    send_text(end.tokens, 32, "for the former holder");
    child->signal(SIGKILL);
    ASSERT_EQ(child->wait(), 128 + SIGKILL);
    ASSERT_TRUE(until([&] { return server->held() == 0; }));
  }
  EXPECT_EQ(server->counters().attached, 30u);
  EXPECT_EQ(server->counters().lost, 30u);
}

TEST_F(Slots, TheSameProcessGetsAnotherSlotAndBothEndWithIt) {
  serve(3);
  auto child = attach("w", [&](TokenizerEnd& first, Doorbell& own) {
    auto second = attach_slot(path, kInstance, "w", own, monotonic_now() + 10 * kSecond);
    if (!second || second->slot == first.slot) return 1;
    return sleep_forever(first, own);
  });
  ASSERT_TRUE(until([&] { return server->held() == 2; }));
  EXPECT_EQ(ends.count(0) + ends.count(1), 2u);
  child->signal(SIGKILL);
  EXPECT_TRUE(until([&] { return server->held() == 0; }));
}

TEST_F(Slots, TheTokenizerSideLearnsOfTheGpuWorkersDeath) {
  Child gpu([&] {
    auto made = SlotServer::create(path, 1, kSmall, kInstance, bell);
    if (!made) return 1;
    for (;;) {
      (*made)->poll([](GpuEnd&) {}, [](uint32_t) {});
      usleep(100);
    }
  });
  auto own = Doorbell::create();
  std::optional<TokenizerEnd> end;
  ASSERT_TRUE(eventually([&] {
    auto attached = attach_slot(path, kInstance, "w", *own, monotonic_now() + kSecond);
    if (attached) end = std::move(attached).value();
    return end.has_value();
  }));
  pollfd item{end->gpu_pidfd.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&item, 1, 20), 0);
  gpu.signal(SIGKILL);
  EXPECT_EQ(::poll(&item, 1, 5000), 1);
  // The rings stay mapped: writing into the void is harmless.
  EXPECT_TRUE(end->commands.try_reserve(1, 8));
  end->commands.commit();
}

TEST_F(Slots, NobodyListens) {
  auto missing = attach_slot(path, kInstance, "w", bell, monotonic_now() + kSecond);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  { UniqueFd stale = listen_seqpacket(path, 1).value(); }
  auto refused = attach_slot(path, kInstance, "w", bell, monotonic_now() + kSecond);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kUnavailable);
}

// A restarted gpu-worker listens where its predecessor did.
TEST_F(Slots, ASuccessorIsNotMistakenForTheOneThatWasWanted) {
  serve(1);
  Child child([&] {
    auto end = attach_slot(path, kInstance - 1, "w", bell, monotonic_now() + 10 * kSecond);
    if (end) return 1;
    if (end.error().message.find("another instance") == std::string::npos) return 2;
    return end.error().code == Code::kNotFound ? 0 : 3;
  });
  EXPECT_TRUE(until([&] { return server->counters().refused == 1; }));
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(server->held(), 0u);
  auto wanted = attach("w", sleep_forever);
  EXPECT_TRUE(until([&] { return server->held() == 1; })) << "the one slot is free";
}

TEST_F(Slots, AServerThatDoesNotAnswerRunsIntoTheDeadline) {
  UniqueFd silent = listen_seqpacket(path, 1).value();
  const Nanos start = monotonic_now();
  auto end = attach_slot(path, kInstance, "w", bell, start + 50 * kMillisecond);
  ASSERT_FALSE(end.ok());
  EXPECT_EQ(end.error().code, Code::kDeadlineExceeded);
  EXPECT_GE(monotonic_now() - start, 50 * kMillisecond);
  EXPECT_LT(monotonic_now() - start, 2 * kSecond);
}

TEST_F(Slots, BadNamesAreRefusedOnBothSides) {
  serve(1);
  for (const std::string& name :
       {std::string(), std::string("a b"), std::string("x/../y"), std::string(64, 'a')}) {
    auto end = attach_slot(path, kInstance, name, bell, monotonic_now() + kSecond);
    ASSERT_FALSE(end.ok());
    EXPECT_EQ(end.error().code, Code::kInvalidArgument);
  }
}

// ---- hostile handshakes ----

struct Raw : Slots {
  Reply ask(const Hello& hello, size_t bytes, const std::vector<int>& fds) {
    UniqueFd socket = connect_seqpacket(path).value();
    EXPECT_TRUE(send_with_fds(socket.get(), std::as_bytes(std::span(&hello, 1)).first(bytes), fds).ok());
    Reply reply{};
    Message message;
    Received got = Received::kNothingYet;
    EXPECT_TRUE(until([&] {
      got = receive_with_fds(socket.get(), std::as_writable_bytes(std::span(&reply, 1)), 2, message);
      return got != Received::kNothingYet;
    }));
    EXPECT_EQ(message.fds.size(), 0u);
    if (got == Received::kClosed) reply.code = kNoAnswer;
    return reply;
  }
  Hello good() {
    Hello hello{kHandshakeMagic, kLayoutVersion, 1, kInstance, "w"};
    return hello;
  }
  static constexpr uint32_t kNoAnswer = 999;
};

TEST_F(Raw, HellosThatAreWrongInOneThing) {
  serve(1);
  const auto code = [](Code c) { return static_cast<uint32_t>(c); };
  Hello hello = good();
  hello.magic ^= 1;
  EXPECT_EQ(ask(hello, sizeof hello, {bell.fd()}).code, kNoAnswer);
  EXPECT_EQ(ask(good(), 8, {bell.fd()}).code, kNoAnswer);
  hello = good();
  hello.version = 2;
  const Reply refusal = ask(hello, sizeof hello, {bell.fd()});
  EXPECT_EQ(refusal.code, code(Code::kUnsupportedVersion));
  EXPECT_EQ(refusal.version, kLayoutVersion);
  EXPECT_EQ(ask(hello, 12, {}).code, code(Code::kUnsupportedVersion));  // another version may be shorter
  EXPECT_EQ(ask(good(), sizeof hello - 1, {bell.fd()}).code, code(Code::kMalformed));
  EXPECT_EQ(ask(good(), sizeof hello, {}).code, code(Code::kMalformed));
  EXPECT_EQ(ask(good(), sizeof hello, {bell.fd(), bell.fd()}).code, code(Code::kMalformed));
  hello = good();
  hello.name_size = 64;
  EXPECT_EQ(ask(hello, sizeof hello, {bell.fd()}).code, code(Code::kInvalidArgument));
  hello.name_size = UINT32_MAX;
  EXPECT_EQ(ask(hello, sizeof hello, {bell.fd()}).code, code(Code::kInvalidArgument));
  hello.name_size = 2;  // with a zero byte in it
  EXPECT_EQ(ask(hello, sizeof hello, {bell.fd()}).code, code(Code::kInvalidArgument));
  hello = good();
  hello.gpu_instance ^= 1;
  EXPECT_EQ(ask(hello, sizeof hello, {bell.fd()}).code, code(Code::kNotFound));
  UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(ask(good(), sizeof hello, {null.get()}).code, code(Code::kMalformed));
  EXPECT_EQ(server->held(), 0u);
  EXPECT_EQ(server->counters().attached, 0u);
  EXPECT_EQ(server->counters().refused, 10u);
  EXPECT_EQ(server->counters().discarded, 2u);
}

TEST_F(Raw, SilentAndManyConnectionsDoNotKeepOthersOut) {
  serve(1);
  const size_t before = open_fds();
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 40; ++i) {
    silent.push_back(connect_seqpacket(path).value());
    poll();
  }
  EXPECT_EQ(server->counters().discarded, 24u);  // 16 may wait
  EXPECT_LE(open_fds(), before + 40 + 16);
  auto child = attach("w", sleep_forever);
  EXPECT_TRUE(until([&] { return server->held() == 1; }));
  // The rest goes at its deadline of a second, though none of them says anything.
  EXPECT_TRUE(until([&] { return server->counters().discarded == 40u; }));
}

TEST_F(Raw, DeadlineOfAHandshakeShowsOnTheWatchedDescriptor) {
  serve(1);
  UniqueFd watch(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{EPOLLIN | EPOLLET, {}};
  ASSERT_EQ(server->watch_fds().size(), 1u);
  ASSERT_EQ(epoll_ctl(watch.get(), EPOLL_CTL_ADD, server->watch_fds()[0], &event), 0);
  UniqueFd silent = connect_seqpacket(path).value();
  const Nanos start = monotonic_now();
  int edges = 0;
  while (server->counters().discarded == 0) {
    ASSERT_EQ(epoll_wait(watch.get(), &event, 1, 5000), 1) << "polled only when told to";
    ++edges;
    poll();
  }
  EXPECT_GE(monotonic_now() - start, kSecond);
  EXPECT_LE(edges, 4);
}

TEST_F(Raw, AHelloThatIsTooLongIsMalformed) {
  serve(1);
  UniqueFd socket = connect_seqpacket(path).value();
  std::vector<std::byte> bytes(1000);
  const Hello hello = good();
  std::memcpy(bytes.data(), &hello, sizeof hello);
  const int fd = bell.fd();
  ASSERT_TRUE(send_with_fds(socket.get(), bytes, {&fd, 1}).ok());
  EXPECT_TRUE(until([&] { return server->counters().refused == 1; }));
  EXPECT_EQ(server->held(), 0u);
}

TEST_F(Raw, APeerThatIsGoneAfterItsHelloGetsNoSlotOrLosesItAtOnce) {
  serve(1);
  Child child([&] {
    UniqueFd socket = connect_seqpacket(path).value();
    const Hello hello = good();
    const int fd = bell.fd();
    return send_with_fds(socket.get(), std::as_bytes(std::span(&hello, 1)), {&fd, 1}).ok() ? 0 : 1;
  });
  ASSERT_EQ(child.wait(), 0);
  EXPECT_TRUE(until([&] { return server->counters().refused == 1; }));
  EXPECT_EQ(server->held(), 0u);
}

TEST_F(Raw, DescriptorsReturnToTheirNumber) {
  serve(2);
  const size_t before = open_fds();
  for (int round = 0; round < 20; ++round) {
    auto a = attach("a", [](TokenizerEnd&, Doorbell&) { return 0; });
    auto b = attach("b", sleep_forever);
    ASSERT_TRUE(until([&] { return server->counters().attached == 2u * (round + 1); }));
    b->signal(SIGKILL);
    ask(good(), sizeof(Hello), {bell.fd(), bell.fd(), bell.fd(), bell.fd(), bell.fd(), bell.fd(), bell.fd()});
    ASSERT_TRUE(until([&] { return server->held() == 0; }));
  }
  EXPECT_EQ(open_fds(), before);
  server.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

// A gpu-worker that answers nonsense is refused by name, and its descriptors are closed.
TEST_F(Raw, RepliesThatAreWrong) {
  UniqueFd listener = listen_seqpacket(path, 8).value();
  MemoryFile memory = MemoryFile::create("test", 4096 + 4096 + 8192 + 4096).value();
  MemoryFile small = MemoryFile::create("test", 4096).value();
  const size_t before = open_fds();
  const auto attempt = [&](const Reply& reply, size_t bytes, std::vector<int> fds) {
    Child child([&] {
      pollfd item{listener.get(), POLLIN, 0};
      ::poll(&item, 1, 5000);
      UniqueFd socket(accept(listener.get(), nullptr, nullptr));
      static_cast<void>(
          send_with_fds(socket.get(), std::as_bytes(std::span(&reply, 1)).first(bytes), fds).ok());
      usleep(50'000);
      return 0;
    });
    auto end = attach_slot(path, kInstance, "w", bell, monotonic_now() + 5 * kSecond);
    EXPECT_EQ(open_fds(), before);
    return end.ok() ? Code::kOk : end.error().code;
  };
  Reply reply{kHandshakeMagic, kLayoutVersion, 0, 0, 0, kInstance, 4096, 8192, 4096};
  EXPECT_EQ(attempt(reply, sizeof reply, {memory.fd(), bell.fd()}), Code::kMalformed);  // the header is zero
  EXPECT_EQ(attempt(reply, sizeof reply - 1, {memory.fd(), bell.fd()}), Code::kMalformed);
  EXPECT_EQ(attempt(reply, sizeof reply, {memory.fd()}), Code::kMalformed);
  EXPECT_EQ(attempt(reply, sizeof reply, {}), Code::kMalformed);
  EXPECT_EQ(attempt(reply, sizeof reply, {memory.fd(), bell.fd(), bell.fd()}), Code::kMalformed);
  EXPECT_EQ(attempt(reply, sizeof reply, {small.fd(), bell.fd()}), Code::kMalformed);
  reply.gpu_instance = kInstance + 1;
  EXPECT_EQ(attempt(reply, sizeof reply, {memory.fd(), bell.fd()}), Code::kMalformed);
  reply.gpu_instance = kInstance;
  reply.prompt_bytes = 8191;
  EXPECT_EQ(attempt(reply, sizeof reply, {memory.fd(), bell.fd()}), Code::kInvalidArgument);
  reply.code = 77;
  EXPECT_EQ(attempt(reply, sizeof reply, {}), Code::kMalformed);
  reply.magic = 0;
  EXPECT_EQ(attempt(reply, sizeof reply, {}), Code::kMalformed);
  reply = {kHandshakeMagic, 9, static_cast<uint32_t>(Code::kUnsupportedVersion), 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(attempt(reply, sizeof reply, {}), Code::kUnsupportedVersion);
}

}  // namespace
}  // namespace ringmaster::shm
