// The stage timings of a request from the moments at which it passed from one stage to the next. Pure; any
// thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/clock.h"
#include "schemas/codec.h"

namespace ringmaster::tokenizer_worker {

// CLOCK_MONOTONIC ns; 0: not reached, or not known.
struct StageMarks {
  Nanos received = 0;     // router
  Nanos assigned = 0;     // router
  Nanos started = 0;      // tokenizer-worker: start command given to the link
  Nanos first_step = 0;   // gpu-worker
  Nanos first_token = 0;  // gpu-worker; arrival here when its account did not come
  Nanos last_token = 0;   // the same
};

// Never negative, and their sum is `total`, whatever the marks say. A stage that was not finished lasts until
// the next known moment.
msg::Timings stage_timings(const StageMarks& marks, Nanos end);

}  // namespace ringmaster::tokenizer_worker
