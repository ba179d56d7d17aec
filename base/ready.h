// Tells the parent that this process serves: sockets bound, model loaded, files open. Once, by the thread
// that finished the start-up. The line is "READY\n" on the descriptor given as `--ready-fd N`, which is
// closed afterwards; a parent that is gone or a negative descriptor is no error.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ringmaster {

void announce_ready(int ready_fd);

}  // namespace ringmaster
