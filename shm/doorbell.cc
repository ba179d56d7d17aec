#include "shm/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <new>
#include <utility>

#include "shm/pause.h"

namespace ringmaster::shm {
namespace {

// Not the private kind: the word lies in memory that several processes map.
void futex_wake(std::atomic<uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Sleeps while `word` is `expected`, at most until `deadline` (CLOCK_MONOTONIC). May return early.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, Nanos deadline) noexcept {
  deadline = std::max<Nanos>(deadline, 0);
  const timespec until{static_cast<time_t>(deadline / kSecond), static_cast<long>(deadline % kSecond)};
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

}  // namespace

Result<Doorbell> Doorbell::create() {
  auto file = MemoryFile::create("ringmaster.bell", kPage);
  if (!file) return std::move(file).error();
  auto* page = new (file->bytes().data()) BellPage{};
  page->magic = kBellMagic;
  page->version = kLayoutVersion;
  return Doorbell(std::move(file).value());
}

Result<Doorbell> Doorbell::attach(UniqueFd fd) {
  auto file = MemoryFile::attach(std::move(fd), kPage);
  if (!file) return std::move(file).error();
  Doorbell bell(std::move(file).value());
  if (bell.page().magic != kBellMagic) {
    return Error{Code::kMalformed, "the received memory file is not a doorbell: its magic is " +
                                       std::to_string(bell.page().magic)};
  }
  if (bell.page().version != kLayoutVersion) {
    return Error{Code::kUnsupportedVersion, "the received doorbell has layout version " +
                                                std::to_string(bell.page().version) + ", this build has " +
                                                std::to_string(kLayoutVersion)};
  }
  return bell;
}

// ring() and wait() meet as in Dekker's algorithm: each first writes its own word, then reads the other's.
// Both pairs are sequentially consistent, so at least one side sees the other: the ringer sees `sleeping` and
// wakes, or the owner sees the new sequence and does not sleep. The kernel compares the word once more before
// it puts the owner to sleep.
void Doorbell::ring() noexcept {
  BellPage& bell = page();
  bell.sequence.fetch_add(1, std::memory_order_seq_cst);
  if (bell.sleeping.load(std::memory_order_seq_cst) != 0) futex_wake(bell.sequence);
}

uint32_t Doorbell::sequence() const noexcept {
  return page().sequence.load(std::memory_order_acquire);  // pairs with: fetch_add in ring()
}

bool Doorbell::wait(uint32_t seen, Nanos deadline, Nanos spin) noexcept {
  if (sequence() != seen) return true;
  if (spin > 0) {
    const Nanos now = monotonic_now();
    const Nanos until = std::min(deadline, spin < kNever - now ? now + spin : kNever);
    do {
      for (int i = 0; i < 32;
           ++i) {  // reading the clock costs about as much as 32 looks at an unchanged line
        if (sequence() != seen) return true;
        cpu_pause();
      }
    } while (monotonic_now() < until);
  }
  BellPage& bell = page();
  for (;;) {
    // Set anew every time round: whoever shares the page may have written it.
    bell.sleeping.store(1, std::memory_order_seq_cst);
    const bool rung =
        bell.sequence.load(std::memory_order_seq_cst) != seen;  // pairs with: fetch_add in ring()
    if (rung || monotonic_now() >= deadline) {
      bell.sleeping.store(0, std::memory_order_relaxed);
      return rung;
    }
    futex_wait(bell.sequence, seen, deadline);
  }
}

}  // namespace ringmaster::shm
