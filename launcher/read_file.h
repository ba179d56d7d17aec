// A small file as text: state, /proc, control groups. What cannot be opened, or read to its end, is empty and
// no error: a process or control group may be gone at any moment, which read() reports, not open(), and a
// stream would throw then. Any thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace ringmaster::launcher {

std::string read_file(const std::string& path);

}  // namespace ringmaster::launcher
