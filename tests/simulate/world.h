// What all parts of a simulated run share: the network and its fake clock, an agenda of what is to happen
// when, chance, and the first invariant that was found broken. Everything happens in one thread, one event at
// a time, in an order that follows from the seed alone. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "actor/memory_transport.h"
#include "tests/simulate/plan.h"

namespace ringmaster::simulate {

using TraceSink = std::function<void(std::string_view line)>;

class World {
 public:
  World(const Plan& the_plan, TraceSink sink)
      : plan(the_plan), random(the_plan.run), net(the_plan.seed, kStart), sink_(std::move(sink)) {
    net.keep_trace(false);
  }

  Nanos now() const { return net.now(); }

  // ---- the agenda ----
  void at(Nanos when, std::function<void()> what) {
    agenda_.emplace(std::pair{std::max(when, now()), ++agenda_count_}, std::move(what));
  }
  // When a process that was rung gets the processor: mostly at once, now and then late.
  Nanos soon() {
    return now() + (random.percent(2) ? random.between(0, 3000) : random.between(1, 50)) * kMicrosecond;
  }
  Nanos next_on_agenda() const { return agenda_.empty() ? kNever : agenda_.begin()->first.first; }
  std::function<void()> take_from_agenda() {
    auto first = agenda_.extract(agenda_.begin());
    return std::move(first.mapped());
  }

  // ---- what clients have told the cluster ----
  struct Told {
    uint32_t tokens = 0;  // are here
    Nanos at = 0;
  };
  void tell(Uid uid, uint32_t tokens) {
    if (Told& told = told_[uid]; tokens > told.tokens) told = {tokens, now()};
  }
  Told told(Uid uid) const {
    const auto found = told_.find(uid);
    return found == told_.end() ? Told{} : found->second;
  }

  // ---- what was found ----
  void fail(std::string what) {
    if (violation_.empty()) violation_ = std::move(what);
  }
  bool failed() const { return !violation_.empty(); }
  const std::string& violation() const { return violation_; }

  bool tracing() const { return static_cast<bool>(sink_); }
  template <typename... Args>
  void trace(fmt::format_string<Args...> format, Args&&... args) {
    if (!sink_) return;
    sink_(fmt::format("{:12.6f} {}", static_cast<double>(now() - kStart) / kSecond,
                      fmt::format(format, std::forward<Args>(args)...)));
  }
  // Every event changes the digest: two runs of a seed are the same run if it is the same at the end.
  void digest(uint64_t value) { digest_ = Random(digest_ ^ value).next(); }
  void digest(actor::Bytes bytes);
  uint64_t digest() const { return digest_; }

  const Plan& plan;
  Random random;
  actor::MemoryTransport net;

 private:
  std::map<std::pair<Nanos, uint64_t>, std::function<void()>> agenda_;
  uint64_t agenda_count_ = 0;
  std::map<Uid, Told> told_;
  TraceSink sink_;
  std::string violation_;
  uint64_t digest_ = 0;
};

}  // namespace ringmaster::simulate
