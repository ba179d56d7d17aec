// simulate --seed N [--trace]              one run; with every event
// simulate --seeds COUNT [--from N]        many; stops at the first that fails, and shows its last events
// Exit code 1: an invariant was broken. The same seed of the same build is the same run.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "base/log.h"
#include "tests/simulate/simulation.h"

namespace ringmaster::simulate {
namespace {

constexpr size_t kLastEvents = 60;

struct Arguments {
  std::optional<uint64_t> seed;
  uint64_t from = 1;
  uint64_t seeds = 1;
  double seconds = 0;  // 0: no limit
  bool trace = false;
  bool keep_going = false;
  Expectations expectations;
};

void print_line(std::string_view line) {
  std::printf("%.*s\n", static_cast<int>(line.size()), line.data());
}

// A failing run once more: the end of its trace, then what was wrong.
void show_failure(const Plan& plan, const Arguments& arguments) {
  std::deque<std::string> last;
  const Outcome outcome = run(plan, arguments.expectations, [&](std::string_view line) {
    last.emplace_back(line);
    if (last.size() > kLastEvents) last.pop_front();
  });
  print_line(describe(plan));
  for (const std::string& line : last) print_line(line);
  print_line(fmt::format("seed {} breaks an invariant after {:.6f} s and {} events: {}", plan.seed,
                         static_cast<double>(outcome.at) / kSecond, outcome.events, outcome.violation));
  print_line(fmt::format("again, from the beginning: simulate --seed {} --trace", plan.seed));
}

int run_one(uint64_t seed, const Arguments& arguments) {
  const Plan plan = make_plan(seed);
  if (!arguments.trace && !run(plan, arguments.expectations).ok()) {
    show_failure(plan, arguments);
    return 1;
  }
  const Outcome outcome = run(plan, arguments.expectations, arguments.trace ? print_line : TraceSink());
  print_line(describe(plan));
  for (const auto& [ending, count] : outcome.endings) print_line(fmt::format("{} x {}", count, ending));
  print_line(fmt::format("seed {}: {}; {} events, {} deaths, {:.1f} s, digest {:016x}", seed,
                         outcome.ok() ? "all invariants hold" : outcome.violation, outcome.events,
                         outcome.deaths, static_cast<double>(outcome.at) / kSecond, outcome.digest));
  return outcome.ok() ? 0 : 1;
}

int run_many(const Arguments& arguments) {
  const Nanos begin = monotonic_now();
  uint64_t events = 0, deaths = 0, busiest = 0, done = 0, failed = 0;
  std::map<std::string, uint64_t> endings;
  for (uint64_t seed = arguments.from; seed < arguments.from + arguments.seeds; ++seed, ++done) {
    if (arguments.seconds > 0 && monotonic_now() - begin > arguments.seconds * kSecond) break;
    const Plan plan = make_plan(seed);
    const Outcome outcome = run(plan, arguments.expectations);
    events += outcome.events;
    deaths += outcome.deaths;
    busiest = std::max(busiest, outcome.busiest_second);
    for (const auto& [ending, count] : outcome.endings) endings[ending] += count;
    if (outcome.ok()) continue;
    ++failed;
    if (!arguments.keep_going) {
      show_failure(plan, arguments);
      return 1;
    }
    print_line(fmt::format("seed {}: {}", seed, outcome.violation));
  }
  for (const auto& [ending, count] : endings) print_line(fmt::format("{:8} {}", count, ending));
  print_line(
      fmt::format("{} seeds from {}, {} failed; {} events ({} in the busiest second), {} deaths, {:.1f} s",
                  done, arguments.from, failed, events, busiest, deaths,
                  static_cast<double>(monotonic_now() - begin) / kSecond));
  return failed == 0 ? 0 : 1;
}

int main(int argc, char** argv) {
  CLI::App app{"Plays the whole cluster on a fake clock and checks its invariants after every event."};
  Arguments arguments;
  bool no_worker_lost = false;
  app.add_option("--seed", arguments.seed, "the one run to play");
  app.add_option("--seeds", arguments.seeds, "how many seeds to play");
  app.add_option("--from", arguments.from, "the first of them");
  app.add_option("--seconds", arguments.seconds, "start no further run after this time");
  app.add_flag("--trace", arguments.trace, "every event, and the processes' own log lines on stderr");
  app.add_flag("--keep-going", arguments.keep_going, "name all failing seeds, one a line");
  app.add_flag("--no-worker-lost", no_worker_lost, "the death of a worker must not end a request");
  CLI11_PARSE(app, argc, argv);
  arguments.expectations.worker_death_may_end_requests = !no_worker_lost;
  log::mute(!arguments.trace);
  return arguments.seed ? run_one(*arguments.seed, arguments) : run_many(arguments);
}

}  // namespace
}  // namespace ringmaster::simulate

int main(int argc, char** argv) {
  return ringmaster::simulate::main(argc, argv);
}
