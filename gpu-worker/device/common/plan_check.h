// What every device checks of a plan before it runs it: a wrong number would reach into another sequence's
// memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "gpu-worker/device/device.h"

namespace ringmaster::gpu_worker {

// kInternal, naming the step and the number, when lanes, ids, blocks or rows of the plan are out of the
// device's range.
std::optional<Error> impossible(const StepPlan& plan, const DeviceInfo& info);

}  // namespace ringmaster::gpu_worker
