#include "tests/simulate/simulation.h"

#include <algorithm>
#include <exception>

#include "tests/simulate/cluster.h"

namespace ringmaster::simulate {
namespace {

// From the calm on: a worker given up after a second, a place waited for up to 5 s, asking again after 16 s
// of silence, and the tokens themselves at 20 ms a step. A slow reader needs his own time beside that.
constexpr Nanos kEndWithin = 120 * kSecond;
constexpr uint32_t kMostEventsOfARequest = 170;  // a token each, in a context of 160
// All lingers and graces (at most 3 s each, one behind the other), leases, and the retries of attaching.
constexpr Nanos kBaselineAfter = 12 * kSecond;
// Well above the busiest second of 100,000 runs (steps of 1 ms that tell three clients of each token): a
// message that causes itself, or a timer that does not move on, is beyond this at once.
constexpr uint64_t kMostEventsInASecond = 60'000;

class Run {
 public:
  Run(const Plan& plan, const Expectations& expectations, TraceSink trace)
      : world_(plan, std::move(trace)), cluster_(world_, expectations) {}

  Outcome result() {
    try {
      play();
    } catch (const std::exception& e) {  // the transport refuses an actor that would stop the clock
      world_.fail(e.what());
    }
    outcome_.violation = world_.violation();
    outcome_.at = world_.now() - kStart;
    outcome_.digest = world_.digest();
    outcome_.deaths = cluster_.deaths();
    outcome_.endings = cluster_.endings();
    return outcome_;
  }

 private:
  void play() {
    const Nanos calm = world_.plan.calm_from;
    if (!play_until(calm, [] { return false; })) return;
    const Nanos limit = kEndWithin + reading_time();
    if (!play_until(calm + limit, [this] { return cluster_.all_ended(); })) return;
    if (!cluster_.all_ended())
      return world_.fail(
          fmt::format("no ending {} s after the last fault:{}", limit / kSecond, cluster_.missing()));
    if (!play_until(world_.now() + kBaselineAfter, [] { return false; })) return;
    if (const auto left = cluster_.check_baseline(); !left)
      world_.fail("not at its baseline when idle: " + left.error().message);
  }

  // Of the reader who takes longest for all that he may get.
  Nanos reading_time() const {
    std::vector<Nanos> times(world_.plan.num_clients, 0);
    for (const PlannedRequest& p : world_.plan.requests)
      times[p.client] += kMostEventsOfARequest * world_.plan.read_pause[p.client];
    return *std::max_element(times.begin(), times.end());
  }

  template <typename Done>
  bool play_until(Nanos end, Done done) {
    while (!world_.failed() && !done() && cluster_.step(end)) count();
    return !world_.failed();
  }

  void count() {
    ++outcome_.events;
    const Nanos second = world_.now() / kSecond;
    in_this_second_ = second == second_ ? in_this_second_ + 1 : 1;
    second_ = second;
    outcome_.busiest_second = std::max(outcome_.busiest_second, in_this_second_);
    if (in_this_second_ > kMostEventsInASecond)
      world_.fail(fmt::format("event storm: more than {} events in one second", kMostEventsInASecond));
  }

  World world_;
  Cluster cluster_;
  Outcome outcome_;
  Nanos second_ = 0;
  uint64_t in_this_second_ = 0;
};

}  // namespace

Outcome run(const Plan& plan, const Expectations& expectations, TraceSink trace) {
  return Run(plan, expectations, std::move(trace)).result();
}

}  // namespace ringmaster::simulate
