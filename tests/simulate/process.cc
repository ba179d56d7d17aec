#include "tests/simulate/process.h"

#include <utility>

#include "actor/loop.h"

namespace ringmaster::simulate {

void Process::receive(actor::Channel channel, std::string_view peer, actor::Bytes message, Nanos now) {
  world_.digest(life_);
  world_.digest(message);
  if (world_.tracing())
    world_.trace("{} <- {}: {}", name_, peer.empty() ? "router" : peer, describe_message(name_, message));
  as_process([&] { take(channel, peer, message, now); });
  ++received_;
}

Nanos Process::run_timers(Nanos now) {
  // A turn of the loop takes all messages there are, up to LoopOptions::budget, before anything else; and one
  // that comes an instant later may still be of the same turn.
  if (!std::exchange(interrupted, false) && received_ > 0 && received_ < actor::LoopOptions{}.budget) {
    if (world_.net.message_waits(node())) return now;
    if (world_.random.percent(10)) return world_.soon();
  }
  received_ = 0;
  // Before looking at anything, as Loop::run() does: what arrives during the turn makes another one.
  if (bell_) seen_ = bell_->sequence();
  wake_planned = false;
  world_.digest(static_cast<uint64_t>(now));
  const Nanos next = as_process([&] { return turn(now); });
  if (const auto books = check(); !books) world_.fail(name_ + ": " + books.error().message);
  return next;
}

void Process::make_bell() {
  bell_.emplace(must(shm::Doorbell::create()));
}

Status expect(bool holds, const std::string& what) {
  if (holds) return ok_status();
  return Error{Code::kInternal, what};
}

}  // namespace ringmaster::simulate
