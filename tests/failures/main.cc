// failures [PROGRAM...]: lets the n-th call fail, for every n, and prints what came of it. The exit code is 1
// if any trial had an outcome that is not allowed. See README.md.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <utility>

#include "tests/failures/sweep.h"

namespace ringmaster::failures {
namespace {

struct Options {
  std::vector<std::string> programs = kPrograms, families = kFamilies;
  Selection selection;
  bool verbose = false;
};

void print(const std::string& what, const Swept& swept) {
  std::printf("%-29s %6ld calls, %6d tried: %5d as usual, %5d refused, %5d ended, %d not reached, %d wrong\n",
              what.c_str(), swept.calls, swept.tried, swept.outcomes.at(Outcome::kAsUsual),
              swept.outcomes.at(Outcome::kRefused), swept.outcomes.at(Outcome::kEnded),
              swept.outcomes.at(Outcome::kNotReached), swept.wrong);
  for (const auto& [line, count] : swept.said) std::printf("    %5d x %s\n", count, line.c_str());
}

bool run(Trials& trials, const std::string& program, const std::string& family, const Options& options) {
  const std::string what = program + " " + family;
  Nanos began = monotonic_now();
  const Swept swept = sweep(trials, family, options.selection, [&](long n, const Judged& judged) {
    const Nanos now = monotonic_now();
    const double seconds = static_cast<double>(now - std::exchange(began, now)) / kSecond;
    if (!options.verbose && judged.violation.empty()) return;
    std::printf("%s %s, n %ld, %.2f s: %s\n%s%s", judged.violation.empty() ? "--" : "VIOLATION", what.c_str(),
                n, seconds, judged.violation.empty() ? name(judged.outcome).data() : judged.violation.c_str(),
                judged.what.c_str(), judged.said.c_str());
  });
  print(what, swept);
  return swept.wrong == 0;
}

}  // namespace
}  // namespace ringmaster::failures

int main(int argc, char** argv) {
  using namespace ringmaster::failures;
  CLI::App app{"The n-th call of each family fails, in each program, for every n."};
  Options options;
  app.add_option("programs", options.programs)->check(CLI::IsMember(kPrograms));
  app.add_option("--families", options.families)->check(CLI::IsMember(kFamilies));
  app.add_option("--first", options.selection.first, "the least n; negative: the last so many");
  app.add_option("--most", options.selection.most, "at most so many n of a family, evenly spread; 0: all");
  app.add_flag("--verbose", options.verbose, "each trial in full");
  CLI11_PARSE(app, argc, argv);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);

  bool good = true;
  for (const std::string& program : options.programs) {
    const auto trials = make_trials(program);
    for (const std::string& family : options.families) good &= run(*trials, program, family, options);
  }
  return good ? 0 : 1;
}
