#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <utility>

#include "shm/handshake.h"
#include "shm/slot.h"
#include "shm/slot_memory.h"
#include "shm/system_error.h"
#include "shm/unix_socket.h"

namespace ringmaster::shm {
namespace {

constexpr size_t kMaxHandshakes = 16;  // waiting for their hello; one more closes the longest waiting
// A hello is sent right after connect: this is for a stopped process.
constexpr Nanos kHandshakeTime = kSecond;
constexpr int kBacklog = 64;
constexpr int kEventsPerPoll = 64;               // bounds one poll(): the gpu-worker's loop must go on
constexpr Nanos kRetry = kMillisecond;           // after a bounded poll() that left work
constexpr Nanos kOutOfFds = 100 * kMillisecond;  // after accept failed: descriptors come back slowly

struct Handshake {
  UniqueFd socket;
  Nanos deadline;
};

struct Slot {
  MemoryFile memory;
  UniqueFd pidfd;  // of the holder; none: the slot is free
  std::optional<GpuEnd> end;
};

class SlotServerImpl final : public SlotServer {
 public:
  SlotServerImpl(std::string path, SlotSizes sizes, SlotPlaces places, uint64_t gpu_instance,
                 const Doorbell& bell)
      : path_(std::move(path)), sizes_(sizes), places_(places), gpu_instance_(gpu_instance), bell_(bell) {}
  ~SlotServerImpl() override {
    if (listener_) unlink(path_.c_str());
  }

  Status open(uint32_t count);

  std::vector<int> watch_fds() const override { return {epoll_.get()}; }
  void poll(const std::function<void(GpuEnd&)>& attached, const std::function<void(uint32_t)>& lost) override;
  uint32_t held() const override { return held_; }
  const SlotCounters& counters() const override { return counters_; }
  std::vector<std::span<std::byte>> memory() const override;

 private:
  using Attached = std::function<void(GpuEnd&)>;
  using Lost = std::function<void(uint32_t)>;
  // What an epoll event is about: a kind in the high half, a descriptor or slot in the low half.
  enum Kind : uint64_t { kListener, kTimer, kHandshake, kHolder };

  Status watch(int fd, Kind kind, uint32_t detail);
  bool accept_one();
  void hear_hello(int socket, const Attached& attached);
  Code take_slot(int socket, const std::string& name, UniqueFd bell_fd, const Attached& attached);
  Slot* free_slot(uint32_t& index);
  Status give(int socket, uint32_t slot);
  void refuse(int socket, Code code);
  void free_if_dead(uint32_t slot, const Lost& lost);
  void discard_late(Nanos now);
  void set_timer(Nanos at);

  const std::string path_;
  const SlotSizes sizes_;
  const SlotPlaces places_;
  const uint64_t gpu_instance_;
  const Doorbell& bell_;
  UniqueFd epoll_, timer_, listener_;
  std::vector<Slot> slots_;
  std::list<Handshake> handshakes_;  // oldest first
  uint32_t held_ = 0;
  SlotCounters counters_;
};

Status SlotServerImpl::watch(int fd, Kind kind, uint32_t detail) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = static_cast<uint64_t>(kind) << 32 | detail;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return ok_status();
  return system_error("watch a descriptor of the slot server", errno);
}

Status SlotServerImpl::open(uint32_t count) {
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  timer_ = UniqueFd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll_ || !timer_) return system_error("make the slot server's epoll and timer", errno);
  slots_.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    auto memory = MemoryFile::create("ringmaster.slot." + std::to_string(i), places_.size);
    if (!memory) return std::move(memory).error();
    reset_slot(memory->bytes(), places_, i, gpu_instance_);
    slots_.push_back({std::move(memory).value(), UniqueFd(), std::nullopt});
  }
  auto listener = listen_seqpacket(path_, kBacklog);
  if (!listener) return std::move(listener).error();
  listener_ = std::move(listener).value();
  if (auto ok = watch(timer_.get(), kTimer, 0); !ok) return ok;
  return watch(listener_.get(), kListener, 0);
}

void SlotServerImpl::poll(const Attached& attached, const Lost& lost) {
  epoll_event events[kEventsPerPoll];
  int budget = kEventsPerPoll;
  bool stalled = false;
  while (budget > 0 && !stalled) {
    const int count = epoll_wait(epoll_.get(), events, budget, 0);
    if (count <= 0) break;
    budget -= count;
    for (int i = 0; i < count; ++i) {
      const auto detail = static_cast<uint32_t>(events[i].data.u64);
      switch (static_cast<Kind>(events[i].data.u64 >> 32)) {
        case kListener:
          stalled = !accept_one();
          break;
        case kTimer: {
          uint64_t expirations;
          if (read(timer_.get(), &expirations, sizeof expirations) < 0)
            continue;  // set anew since: nothing to do
          break;
        }
        case kHandshake:
          hear_hello(static_cast<int>(detail), attached);
          break;
        case kHolder:
          free_if_dead(detail, lost);
          break;
      }
    }
  }
  const Nanos now = monotonic_now();
  discard_late(now);
  Nanos wake = handshakes_.empty() ? kNever : handshakes_.front().deadline;
  if (budget <= 0 || stalled) wake = std::min(wake, now + (stalled ? kOutOfFds : kRetry));
  set_timer(wake);
}

// False when accepting cannot go on now; what waits in the (bounded) backlog waits a little longer.
bool SlotServerImpl::accept_one() {
  UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return errno == EAGAIN || errno == ECONNABORTED || errno == EINTR;
  if (handshakes_.size() >= kMaxHandshakes) {
    handshakes_.pop_front();
    ++counters_.discarded;
  }
  if (!watch(socket.get(), kHandshake, static_cast<uint32_t>(socket.get())).ok()) return false;
  handshakes_.push_back({std::move(socket), monotonic_now() + kHandshakeTime});
  return true;
}

void SlotServerImpl::hear_hello(int socket, const Attached& attached) {
  const auto handshake = std::find_if(handshakes_.begin(), handshakes_.end(),
                                      [&](const Handshake& h) { return h.socket.get() == socket; });
  if (handshake == handshakes_.end()) return;  // closed earlier in this round
  std::byte buffer[sizeof(Hello) + 1];
  Message message;
  const Received got = receive_with_fds(socket, buffer, 1, message);
  if (got == Received::kNothingYet) return;
  Hello hello{};
  const bool known = got == Received::kMessage && message.size >= offsetof(Hello, name_size);
  if (known) std::memcpy(&hello, buffer, std::min(message.size, sizeof hello));
  if (!known || hello.magic != kHandshakeMagic) {
    ++counters_.discarded;
  } else if (hello.version != kLayoutVersion) {
    refuse(socket, Code::kUnsupportedVersion);
  } else if (message.size != sizeof hello || message.fds.size() != 1 || message.too_many_fds) {
    refuse(socket, Code::kMalformed);
  } else if (hello.name_size > kMaxHolderName || !valid_holder_name({hello.name, hello.name_size})) {
    refuse(socket, Code::kInvalidArgument);
  } else if (hello.gpu_instance != gpu_instance_) {
    refuse(socket, Code::kNotFound);
  } else {
    const Code code =
        take_slot(socket, std::string(hello.name, hello.name_size), std::move(message.fds[0]), attached);
    if (code != Code::kOk) refuse(socket, code);
  }
  handshakes_.erase(handshake);
}

Slot* SlotServerImpl::free_slot(uint32_t& index) {
  for (index = 0; index < slots_.size(); ++index) {
    if (!slots_[index].pidfd) return &slots_[index];
  }
  return nullptr;
}

// From the moment the descriptors are sent the slot is held, until its holder's death is reported.
Code SlotServerImpl::take_slot(int socket, const std::string& name, UniqueFd bell_fd,
                               const Attached& attached) {
  uint32_t index = 0;
  Slot* slot = free_slot(index);
  if (slot == nullptr) return Code::kResourceExhausted;
  auto bell = Doorbell::attach(std::move(bell_fd));
  if (!bell) return bell.error().code;
  const pid_t pid = peer_pid(socket);
  if (pid <= 0) return Code::kPermissionDenied;  // another pid namespace: its death could not be noticed
  auto pidfd = open_pidfd(pid);
  if (!pidfd) return Code::kUnavailable;
  if (!watch(pidfd->get(), kHolder, index).ok()) return Code::kResourceExhausted;
  // The pid is the peer's as long as the peer holds its end of the connection; afterwards it may be
  // anybody's. That the reply can be sent proves that the connection is still up now, after the pidfd was
  // opened.
  if (!give(socket, index).ok()) return Code::kUnavailable;
  const SlotRings rings = rings_of(slot->memory.bytes(), places_);
  slot->pidfd = std::move(pidfd).value();
  slot->end.emplace(GpuEnd{index, name, pid, Consumer(rings.command), Consumer(rings.prompt),
                           Producer(rings.token), std::move(bell).value()});
  ++held_;
  ++counters_.attached;
  attached(*slot->end);
  return Code::kOk;
}

Status SlotServerImpl::give(int socket, uint32_t slot) {
  Reply reply{};
  reply.magic = kHandshakeMagic;
  reply.version = kLayoutVersion;
  reply.code = static_cast<uint32_t>(Code::kOk);
  reply.slot = slot;
  reply.gpu_instance = gpu_instance_;
  reply.command_bytes = sizes_.command_bytes;
  reply.prompt_bytes = sizes_.prompt_bytes;
  reply.token_bytes = sizes_.token_bytes;
  const int fds[] = {slots_[slot].memory.fd(), bell_.fd()};
  return send_with_fds(socket, std::as_bytes(std::span(&reply, 1)), fds);
}

void SlotServerImpl::refuse(int socket, Code code) {
  ++counters_.refused;
  Reply reply{};
  reply.magic = kHandshakeMagic;
  reply.version = kLayoutVersion;
  reply.code = static_cast<uint32_t>(code);
  // A peer that is gone already needs no answer.
  static_cast<void>(send_with_fds(socket, std::as_bytes(std::span(&reply, 1)), {}).ok());
}

void SlotServerImpl::free_if_dead(uint32_t index, const Lost& lost) {
  Slot& slot = slots_[index];
  pollfd item{slot.pidfd.get(), POLLIN, 0};
  if (!slot.pidfd || ::poll(&item, 1, 0) <= 0) return;
  lost(index);
  slot.end.reset();
  slot.pidfd.reset();
  // Only now can nobody write there any more.
  reset_slot(slot.memory.bytes(), places_, index, gpu_instance_);
  --held_;
  ++counters_.lost;
}

void SlotServerImpl::discard_late(Nanos now) {
  while (!handshakes_.empty() && handshakes_.front().deadline <= now) {
    handshakes_.pop_front();
    ++counters_.discarded;
  }
}

void SlotServerImpl::set_timer(Nanos at) {
  const Nanos value = at == kNever ? 0 : std::max<Nanos>(at, 1);  // 0 disarms
  itimerspec spec{};
  spec.it_value = {static_cast<time_t>(value / kSecond), static_cast<long>(value % kSecond)};
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
}

std::vector<std::span<std::byte>> SlotServerImpl::memory() const {
  std::vector<std::span<std::byte>> all;
  all.reserve(slots_.size());
  for (const Slot& slot : slots_) all.push_back(slot.memory.bytes());
  return all;
}

}  // namespace

Result<std::unique_ptr<SlotServer>> SlotServer::create(const std::string& socket_path, uint32_t count,
                                                       SlotSizes sizes, uint64_t gpu_instance,
                                                       const Doorbell& own_bell) {
  const auto places = place_rings(sizes);
  if (!places) return places.error();
  auto server = std::make_unique<SlotServerImpl>(socket_path, sizes, *places, gpu_instance, own_bell);
  if (auto ok = server->open(count); !ok) return std::move(ok).error();
  return std::unique_ptr<SlotServer>(std::move(server));
}

}  // namespace ringmaster::shm
