#include "tests/shm/kill_run.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "shm/slot.h"
#include "tests/shm/process.h"
#include "tests/shm/traffic.h"

namespace ringmaster::shm {
namespace {

constexpr SlotSizes kSizes{4096, 8192, 4096};  // small: the rings wrap and are full all the time
constexpr uint32_t kSlots = 2;
constexpr Nanos kPatience = 20 * kSecond;
constexpr Nanos kNap = kMillisecond;  // a ring that its ringer died in must not cost more than this
constexpr uint64_t kBatch = 12;

// What writer and reader of one direction of one link say about themselves, in memory that outlives both.
struct Ledger {
  std::atomic<uint64_t> writer, reader;  // incarnations
  std::atomic<uint64_t> begun;           // records that may be published
  std::atomic<uint64_t> committed;       // records that are
  std::atomic<uint64_t> accepted;        // records read and found right
  std::atomic<uint32_t> claimed;         // a reader has seen its first record
};

struct Board {
  std::atomic<uint64_t> next_ledger;
  std::atomic<uint64_t> gpu;  // the incarnation that is up, or is coming up
  std::atomic<uint32_t> faulty;
  char fault[500];
  uint64_t capacity;
  Ledger ledgers[1];
};

// Memory for `count` ledgers that children share, and that stays.
class SharedBoard {
 public:
  explicit SharedBoard(uint64_t count) : bytes_(sizeof(Board) + count * sizeof(Ledger)) {
    void* at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) abort();
    board_ = new (at) Board{};
    board_->capacity = count;
  }
  ~SharedBoard() { munmap(board_, bytes_); }
  SharedBoard(const SharedBoard&) = delete;
  Board* operator->() const { return board_; }
  Board& operator*() const { return *board_; }

 private:
  size_t bytes_;
  Board* board_;
};

// Ends a child that saw something wrong; the first one to say so is heard.
[[noreturn]] void fail(Board& board, const std::string& what) {
  if (board.faulty.exchange(1) == 0) std::snprintf(board.fault, sizeof board.fault, "%s", what.c_str());
  _exit(9);
}

class Sender {
 public:
  Sender(Board& board, Producer& producer, uint64_t writer, uint64_t reader)
      : board_(board),
        producer_(producer),
        key_(board.next_ledger.fetch_add(1)),
        traffic_(key_, producer.largest_payload()) {
    if (key_ >= board.capacity) fail(board, "more links than there are ledgers");
    ledger().reader = reader;
    ledger().writer = writer;
  }
  // Writes a batch of random size; whether any of it found room.
  bool step(std::mt19937_64& random) {
    const uint64_t before = n_, end = n_ + 1 + random() % kBatch;
    while (n_ < end && traffic_.write(n_, producer_)) ++n_;
    if (producer_.broken()) fail(board_, "link " + std::to_string(key_) + ": " + producer_.fault());
    if (n_ == before) return false;
    ledger().begun = n_;
    producer_.commit();
    ledger().committed = n_;
    return true;
  }

 private:
  Ledger& ledger() { return board_.ledgers[key_]; }
  Board& board_;
  Producer& producer_;
  uint64_t key_;
  Traffic traffic_;
  uint64_t n_ = 0;
};

class Receiver {
 public:
  Receiver(Board& board, Consumer& consumer, size_t largest, uint64_t reader)
      : board_(board), consumer_(consumer), largest_(largest), reader_(reader) {}

  // Reads up to `limit` records; how many.
  uint64_t step(uint64_t limit) {
    uint64_t count = 0;
    for (; count < limit; ++count) {
      const auto record = consumer_.peek();
      if (!record) break;
      accept(*record);
      consumer_.pop();
    }
    if (consumer_.broken()) fail(board_, "after record " + std::to_string(n_) + ": " + consumer_.fault());
    return count;
  }

 private:
  void accept(const Record& record) {
    if (!key_) claim(Traffic::key_of(record));
    if (!Traffic(*key_, largest_).is(n_, record)) {
      fail(board_, "link " + std::to_string(*key_) + ": record " + std::to_string(n_) +
                       " is torn, repeated or another");
    }
    board_.ledgers[*key_].accepted = ++n_;
  }
  void claim(uint64_t key) {
    if (key >= board_.next_ledger.load()) fail(board_, "a first record without a key");
    Ledger& ledger = board_.ledgers[key];
    if (ledger.claimed.exchange(1) != 0 || ledger.reader.load() != reader_) {
      fail(board_, "link " + std::to_string(key) + " is read by somebody it was not written for");
    }
    key_ = key;
  }

  Board& board_;
  Consumer& consumer_;
  size_t largest_;
  uint64_t reader_;
  std::optional<uint64_t> key_;
  uint64_t n_ = 0;
};

size_t largest_of(uint64_t ring_bytes) {
  return ring_bytes / 2 - sizeof(RecordHeader);
}

bool readable(int fd) {
  pollfd item{fd, POLLIN, 0};
  return ::poll(&item, 1, 0) > 0;
}

// One link until the gpu-worker's death. Everything it had committed is read then.
void serve_link(Board& board, TokenizerEnd& end, Doorbell& own, uint64_t self, std::mt19937_64& random) {
  Sender commands(board, end.commands, self, end.gpu_instance);
  Sender prompts(board, end.prompts, self, end.gpu_instance);
  Receiver tokens(board, end.tokens, largest_of(kSizes.token_bytes), self);
  for (;;) {
    const uint32_t seen = own.sequence();
    const bool dead = readable(end.gpu_pidfd.get());
    bool moved = commands.step(random);
    moved |= prompts.step(random);
    if (moved) end.gpu_bell.ring();
    const bool read = tokens.step(dead ? UINT64_MAX : 1 + random() % 40) != 0;
    if (dead) return;
    if (read) end.gpu_bell.ring();  // there is room again
    if (!moved && !read) own.wait(seen, monotonic_now() + kNap);
  }
}

int tokenizer_process(Board& board, const std::string& path, uint64_t self, uint64_t seed) {
  std::mt19937_64 random(seed);
  auto own = Doorbell::create();
  if (!own) fail(board, own.error().message);
  for (;;) {
    auto end = attach_slot(path, board.gpu, "t." + std::to_string(self), *own, monotonic_now() + kPatience);
    if (end) {
      serve_link(board, *end, *own, self, random);
      continue;
    }
    switch (end.error().code) {
      case Code::kNotFound:           // no gpu-worker yet, or already its successor
      case Code::kUnavailable:        // it has just died
      case Code::kResourceExhausted:  // it has not yet noticed the deaths of our predecessors
        usleep(200);
        break;
      default:
        fail(board, "attach: " + end.error().message);
    }
  }
}

struct GpuLink {
  Receiver commands, prompts;
  Sender tokens;
  Doorbell& bell;
  bool step(std::mt19937_64& random) {
    const bool read = commands.step(1 + random() % 40) + prompts.step(1 + random() % 40) != 0;
    const bool wrote = tokens.step(random);
    if (read || wrote) bell.ring();
    return read || wrote;
  }
};

int gpu_process(Board& board, const std::string& path, uint64_t self, uint64_t seed) {
  std::mt19937_64 random(seed);
  auto bell = Doorbell::create();
  if (!bell) fail(board, bell.error().message);
  auto server = SlotServer::create(path, kSlots, kSizes, self, *bell);
  if (!server) fail(board, "slot server: " + server.error().message);
  std::array<std::unique_ptr<GpuLink>, kSlots> links;
  const auto attached = [&](GpuEnd& end) {
    const uint64_t peer = std::stoull(end.holder.substr(2));
    links[end.slot].reset(new GpuLink{{board, end.commands, largest_of(kSizes.command_bytes), self},
                                      {board, end.prompts, largest_of(kSizes.prompt_bytes), self},
                                      {board, end.tokens, self, peer},
                                      end.tokenizer_bell});
  };
  const auto lost = [&](uint32_t slot) {
    links[slot]->commands.step(UINT64_MAX);
    links[slot]->prompts.step(UINT64_MAX);
    links[slot].reset();
  };
  for (;;) {
    const uint32_t seen = bell->sequence();
    (*server)->poll(attached, lost);
    bool moved = false;
    for (auto& link : links)
      if (link) moved |= link->step(random);
    if (!moved) bell->wait(seen, monotonic_now() + kNap);
  }
}

// The supervisor: starts both, kills, starts anew, and reads the ledgers.
class Killer {
 public:
  Killer(uint64_t kills, uint64_t seed) : kills_(kills), random_(seed), board_(8 * kills + 64) {
    char name[] = "/tmp/rm-kill-run.XXXXXX";
    if (mkdtemp(name) == nullptr) abort();
    directory_ = name;
  }
  ~Killer() { std::filesystem::remove_all(directory_); }

  KillRun run() {
    const Nanos start = monotonic_now();
    start_side(kTokenizer);
    start_side(kGpu);
    while (run_.kills < kills_ && one_round()) {
    }
    for (auto& side : sides_) side.reset();
    check_books();
    run_.seconds = static_cast<double>(monotonic_now() - start) / 1e9;
    return run_;
  }

 private:
  enum Side { kTokenizer, kGpu };
  struct Process {
    uint64_t incarnation;
    Child child;
  };

  void start_side(Side side) {
    const uint64_t self = ++incarnations_, seed = random_();
    if (side == kGpu) board_->gpu = self;
    sides_[side].reset();
    sides_[side].reset(new Process{self, Child(
                                             [&, side] {
                                               const std::string path = directory_ + "/ring";
                                               return side == kGpu
                                                          ? gpu_process(*board_, path, self, seed)
                                                          : tokenizer_process(*board_, path, self, seed);
                                             },
                                             static_cast<unsigned>(120 + kills_))});
  }

  bool fault(const std::string& what) {
    if (run_.fault.empty()) {
      run_.fault = "kill " + std::to_string(run_.kills) + ": " + (board_->faulty != 0 ? board_->fault : what);
    }
    return false;
  }

  // Records that this incarnation has read.
  uint64_t read_by(Side side) const {
    uint64_t sum = 0;
    for_each_ledger([&](const Ledger& ledger) {
      if (ledger.reader == sides_[side]->incarnation) sum += ledger.accepted;
    });
    return sum;
  }
  template <typename F>
  void for_each_ledger(F f) const {
    const uint64_t end = board_->next_ledger;
    for (uint64_t i = 0; i < end; ++i) f(board_->ledgers[i]);
  }
  bool within_patience(const std::function<bool()>& done) {
    return eventually([&] { return board_->faulty != 0 || done(); }, kPatience) && board_->faulty == 0;
  }

  bool one_round() {
    // One in four dies at any moment after its start, mostly in the hand-over; the others in traffic.
    if (random_() % 4 != 0) {
      const uint64_t enough = 1 + random_() % 2000;
      const uint64_t tokenizer = read_by(kTokenizer), gpu = read_by(kGpu);
      if (!within_patience(
              [&] { return read_by(kTokenizer) >= tokenizer + enough && read_by(kGpu) >= gpu + enough; })) {
        return fault("traffic did not go on after a death");
      }
    }
    const Nanos until = monotonic_now() + static_cast<Nanos>(random_() % 700) * kMicrosecond;
    while (monotonic_now() < until) {
    }
    if (sides_[kTokenizer]->child.ended() || sides_[kGpu]->child.ended())
      return fault("a process ended by itself");
    const bool both = random_() % 16 == 0;
    const Side first = random_() % 2 == 0 ? kTokenizer : kGpu;
    if (!kill(first, both)) return false;
    return !both || kill(first == kGpu ? kTokenizer : kGpu, false);
  }

  bool kill(Side side, bool reader_dies_too) {
    const uint64_t victim = sides_[side]->incarnation;
    if (read_by(side) == 0) ++run_.idle_kills;
    sides_[side]->child.signal(SIGKILL);
    const Nanos killed_at = monotonic_now();
    if (sides_[side]->child.wait() != 128 + SIGKILL) return fault("a process ended by itself");
    ++run_.kills;
    ++(side == kGpu ? run_.gpus_killed : run_.tokenizers_killed);
    if (!reader_dies_too && !noticed(victim, killed_at)) return false;
    start_side(side);
    return true;
  }

  bool noticed(uint64_t victim, Nanos killed_at) {
    const uint64_t alive[] = {sides_[kTokenizer]->incarnation, sides_[kGpu]->incarnation};
    const bool all_read = within_patience([&] {
      bool done = true;
      for_each_ledger([&](const Ledger& ledger) {
        if (ledger.writer != victim || (ledger.reader != alive[0] && ledger.reader != alive[1])) return;
        done &= ledger.accepted >= ledger.committed;
      });
      return done;
    });
    run_.slowest_notice = std::max(run_.slowest_notice, monotonic_now() - killed_at);
    return all_read || fault("not all that the dead writer had committed was read");
  }

  void check_books() {
    for_each_ledger([&](const Ledger& ledger) {
      ++run_.links;
      run_.records += ledger.accepted;
      run_.lost_unpublished += ledger.begun - ledger.committed;
      if (ledger.accepted > ledger.begun) fault("a record was read that had not been begun");
    });
    if (board_->faulty != 0) fault("");
  }

  const uint64_t kills_;
  std::mt19937_64 random_;
  SharedBoard board_;
  std::string directory_;
  std::unique_ptr<Process> sides_[2];
  uint64_t incarnations_ = 0;
  KillRun run_;
};

}  // namespace

KillRun run_kills(uint64_t kills, uint64_t seed) {
  return Killer(kills, seed).run();
}

}  // namespace ringmaster::shm
