// What becomes of an exception that nobody catches, on any thread: one line on stderr that says what happened
// and what helps, and the end of the process. Called once, first thing in main() of every program.
//
// Running out of memory or threads ends the process at the place of the throw, with exit code 1 and without
// unwinding: its state may be half-changed, and destructors would run on that. The kernel closes what it
// held, the supervisor starts it again, and others see a death like any other (docs/design.md section 5).
// Nothing between the throw and the end allocates. A std::logic_error is a bug: the line, then abort() for
// its core.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ringmaster {

void end_process_on_unhandled_exceptions();

}  // namespace ringmaster
