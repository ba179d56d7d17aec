// An errno as an Error: the code that fits and the system's own words after `what`, with the
// remedy where descriptors have run out. Any thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/status.h"

namespace ringmaster::shm {

// `what` names the action and its object ("bind /run/x.sock"); the result reads "bind /run/x.sock: Permission
// denied".
Error system_error(const std::string& what, int error_number);

}  // namespace ringmaster::shm
