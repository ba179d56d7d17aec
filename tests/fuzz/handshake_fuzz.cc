// How a slot changes hands, both sides before peers that send anything: a slot server that hears hellos, and
// attach_slot that gets replies. A slot is given for a hello that is whole and to nobody twice; what
// attach_slot accepts can be used; and no descriptor stays open whatever came.
//   script: { 0: number and kinds of descriptors, sized hello | 1: number and kinds of descriptors, sized
//   reply,
//             { sized offset and bytes to write over the slot's header } (2) | 2: a peer that says nothing }
//             ...
#include "shm/handshake.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "shm/slot.h"
#include "shm/slot_memory.h"
#include "shm/unix_socket.h"
#include "tests/fuzz/handshake_seeds.h"
#include "tests/fuzz/input.h"

namespace ringmaster::shm {
namespace {

using fuzz::kHandshakeInstance;
using fuzz::kHandshakeSizes;

constexpr uint32_t kSlots = 2;

const std::string& folder() {
  static const std::string path = [] {
    std::string pattern = "/tmp/rm-fuzz-slots.XXXXXX";
    FUZZ_CHECK(mkdtemp(pattern.data()) != nullptr);
    static const std::string made = pattern;
    std::atexit([] {
      unlink((made + "/gpu").c_str());
      rmdir(made.c_str());
    });
    return pattern;
  }();
  return path;
}

struct Answer {
  std::vector<std::byte> bytes;
  std::vector<UniqueFd> fds;
};

// A gpu-worker that answers every hello with the message it was given. The thread ends with the process.
class Gpu {
 public:
  Gpu() : listener_(listen_seqpacket(folder() + "/gpu", 4).value()) {
    std::thread([this] { serve(); }).detach();
  }
  void answer_with(Answer message) {
    const std::lock_guard lock(mutex_);
    answer_ = std::move(message);
    answered_ = false;
  }
  void wait_until_answered() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return answered_; });
  }

 private:
  void serve() {
    for (;;) {
      pollfd item{listener_.get(), POLLIN, 0};
      poll(&item, 1, -1);
      UniqueFd peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!peer) continue;
      std::byte hello[sizeof(Hello)];
      Message heard;
      (void)receive_with_fds(peer.get(), hello, 2, heard);
      heard.fds.clear();
      const std::lock_guard lock(mutex_);
      std::vector<int> fds;
      for (const UniqueFd& fd : answer_.fds) fds.push_back(fd.get());
      (void)send_with_fds(peer.get(), answer_.bytes, fds);
      peer.reset();
      answer_ = {};
      answered_ = true;
      changed_.notify_one();
    }
  }
  UniqueFd listener_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Answer answer_;
  bool answered_ = false;
};

struct Play {
  void run(fuzz::Input& input) {
    while (!input.empty() && peers < 64) {
      ++peers;
      switch (input.byte() % 3) {
        case 0:
          say_hello(input);
          break;
        case 1:
          attach(input);
          break;
        case 2:
          silent.push_back(connect_seqpacket(path).value());
          poll();
          break;
      }
    }
  }

  UniqueFd descriptor(uint8_t kind, const MemoryFile& slot) {
    switch (kind % 5) {
      case 0:
        return UniqueFd(fcntl(bell.fd(), F_DUPFD_CLOEXEC, 0));
      case 1:
        return UniqueFd(fcntl(slot.fd(), F_DUPFD_CLOEXEC, 0));
      case 2: {
        UniqueFd unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
        FUZZ_CHECK(ftruncate(unsealed.get(), kPage) == 0);
        return unsealed;
      }
      case 3:
        return UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC));
      default:
        return UniqueFd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    }
  }
  std::vector<UniqueFd> descriptors(fuzz::Input& input, const MemoryFile& slot) {
    std::vector<UniqueFd> fds(input.byte() % 5);
    for (UniqueFd& fd : fds) fd = descriptor(input.byte(), slot);
    return fds;
  }

  void poll() {
    server->poll(
        [&](GpuEnd& end) {
          FUZZ_CHECK(end.slot < kSlots && !std::exchange(held[end.slot], true));
          FUZZ_CHECK(valid_holder_name(end.holder) && end.holder_pid == getpid());
          FUZZ_CHECK(!end.commands.peek() && !end.prompts.peek());
          FUZZ_CHECK(end.tokens.try_reserve(1, 8).has_value());
          end.tokens.commit();
          end.tokenizer_bell.ring();
        },
        [](uint32_t) { FUZZ_CHECK(false); });  // this process holds them and lives
    const SlotCounters& c = server->counters();
    FUZZ_CHECK(server->held() == c.attached && c.attached <= kSlots);
    FUZZ_CHECK(c.attached + c.refused + c.discarded <= peers);
  }

  void say_hello(fuzz::Input& input) {
    const std::vector<UniqueFd> owned = descriptors(input, memory);
    std::vector<int> fds;
    for (const UniqueFd& fd : owned) fds.push_back(fd.get());
    const auto hello = input.sized_bytes();
    const auto socket = connect_seqpacket(path);
    FUZZ_CHECK(socket.ok());
    const uint64_t attached = server->counters().attached;
    (void)send_with_fds(socket->get(), hello, fds);  // too long a message is not sent
    poll();
    std::byte buffer[sizeof(Reply) + 1];
    Message message;
    Reply reply{};
    const Received got = receive_with_fds(socket->get(), buffer, 3, message);
    const bool given = server->counters().attached > attached;
    if (got != Received::kMessage) {
      FUZZ_CHECK(!given);
      return;
    }
    FUZZ_CHECK(message.size == sizeof reply);
    std::memcpy(&reply, buffer, sizeof reply);
    FUZZ_CHECK(reply.magic == kHandshakeMagic && reply.version == kLayoutVersion);
    FUZZ_CHECK(given == (reply.code == 0) && message.fds.size() == (given ? 2u : 0u));
    if (given) FUZZ_CHECK(hello.size() == sizeof(Hello) && reply.gpu_instance == kHandshakeInstance);
  }

  void attach(fuzz::Input& input) {
    static Gpu gpu;
    const auto places = place_rings(kHandshakeSizes).value();
    const MemoryFile slot = MemoryFile::create("fuzz-slot", places.size).value();
    reset_slot(slot.bytes(), places, 0, kHandshakeInstance);
    Answer reply;
    reply.fds = descriptors(input, slot);
    reply.bytes = input.sized_bytes();
    for (int i = 0; i < 2; ++i) {
      const size_t offset = input.number<uint16_t>() % slot.bytes().size();
      const auto bytes = input.bytes(std::min<size_t>(input.byte(), slot.bytes().size() - offset));
      if (!bytes.empty()) std::memcpy(slot.bytes().data() + offset, bytes.data(), bytes.size());
    }
    gpu.answer_with(std::move(reply));
    auto end = attach_slot(folder() + "/gpu", kHandshakeInstance, "w", bell, monotonic_now() + 10 * kSecond);
    gpu.wait_until_answered();
    if (end) {
      use(*end);
    } else {
      FUZZ_CHECK(!end.error().message.empty() && end.error().code != Code::kDeadlineExceeded);
    }
  }
  static void use(TokenizerEnd& end) {
    const auto inside = [&](std::span<const std::byte> payload) {
      const std::span<std::byte> all = end.memory.bytes();
      return payload.data() >= all.data() && payload.data() + payload.size() <= all.data() + all.size();
    };
    FUZZ_CHECK(end.gpu_instance == kHandshakeInstance);
    for (Producer* ring : {&end.commands, &end.prompts})
      if (const auto space = ring->try_reserve(1, 8)) {
        FUZZ_CHECK(inside(*space));
        std::memset(space->data(), 7, space->size());
        ring->commit();
      }
    for (int i = 0; i < 4; ++i) {
      const auto record = end.tokens.peek();
      if (!record) break;
      FUZZ_CHECK(inside(record->payload));
      end.tokens.pop();
    }
    end.gpu_bell.ring();
  }

  Doorbell bell = Doorbell::create().value();
  MemoryFile memory = MemoryFile::create("other-slot", place_rings(kHandshakeSizes).value().size).value();
  std::string path = folder() + "/server";
  std::unique_ptr<SlotServer> server =
      SlotServer::create(path, kSlots, kHandshakeSizes, kHandshakeInstance, bell).value();
  std::vector<UniqueFd> silent;
  bool held[kSlots] = {};
  uint64_t peers = 0;
};

// Where the next descriptor would be.
int lowest_free() {
  const int fd = dup(STDERR_FILENO);
  close(fd);
  return fd;
}

}  // namespace
}  // namespace ringmaster::shm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ringmaster;
  static const bool warm = [] {  // the answering thread has its socket from here on
    const uint8_t attach[] = {1};
    fuzz::Input input(attach, sizeof attach);
    shm::Play().run(input);
    return true;
  }();
  (void)warm;
  const int before = shm::lowest_free();
  fuzz::Input input(data, size);
  shm::Play().run(input);
  FUZZ_CHECK(shm::lowest_free() == before);
  return 0;
}
