#include "tokenizer-worker/stage_timings.h"

#include <algorithm>
#include <array>

namespace ringmaster::tokenizer_worker {

msg::Timings stage_timings(const StageMarks& marks, Nanos end) {
  std::array<Nanos, 7> at = {marks.received,
                             marks.assigned,
                             marks.started,
                             marks.first_step,
                             marks.first_token,
                             marks.last_token,
                             end};
  for (size_t i = at.size() - 1; i-- > 0;)
    if (at[i] == 0) at[i] = at[i + 1];
  // Marks come from three processes: one clock, but nothing here depends on their order being right.
  for (size_t i = 1; i < at.size(); ++i) at[i] = std::max(at[i], at[i - 1]);
  for (Nanos& moment : at) moment = std::min(moment, std::max(end, at[0]));
  const auto lasted = [&](size_t stage) { return static_cast<uint64_t>(at[stage + 1] - at[stage]); };
  return msg::Timings(lasted(0), lasted(1), lasted(2), lasted(3), lasted(4), lasted(5),
                      static_cast<uint64_t>(at[6] - at[0]));
}

}  // namespace ringmaster::tokenizer_worker
