#include "tests/failures/sweep.h"

#include <algorithm>
#include <regex>
#include <sstream>

namespace ringmaster::failures {

std::string_view name(Outcome outcome) {
  constexpr std::string_view kNames[] = {"not reached", "as usual", "refused", "ended"};
  return kNames[static_cast<int>(outcome)];
}

Swept sweep(Trials& trials, const std::string& family, const Selection& selection,
            const std::function<void(long n, const Judged&)>& each) {
  Swept swept;
  const Judged undisturbed = trials.run(family, 0);
  swept.calls = undisturbed.calls;
  const auto take = [&](long n, const Judged& judged) {
    swept.wrong += !judged.violation.empty();
    each(n, judged);
  };
  if (!undisturbed.violation.empty() || swept.calls < 0) {
    Judged judged = undisturbed;
    if (judged.violation.empty()) judged.violation = "the calls could not be counted";
    take(0, judged);
    return swept;
  }
  const long first = selection.first > 0 ? selection.first : std::max(1L, swept.calls + 1 + selection.first);
  const long count = swept.calls - first + 1;
  const long trials_wanted = selection.most == 0 ? count : std::min(selection.most, count);
  for (long i = 0; i < trials_wanted; ++i) {
    const long n = first + i * count / trials_wanted;
    const Judged judged = trials.run(family, n);
    ++swept.tried;
    ++swept.outcomes[judged.outcome];
    take(n, judged);
    std::istringstream lines(judged.said);
    static const std::regex kDiffers("[0-9][0-9a-f:.]*|rmfail[-_A-Za-z]*");
    for (std::string line; std::getline(lines, line);) ++swept.said[std::regex_replace(line, kDiffers, "#")];
  }
  return swept;
}

}  // namespace ringmaster::failures
