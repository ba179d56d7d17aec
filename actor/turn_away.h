// What happens to a new connection when this process has no descriptor left for it: it is accepted on a spare
// one and closed at once, so that the peer knows and tries again later, and what is connected goes on.
// ZeroMQ by itself would end the process there (its ipc listener takes EMFILE of accept() for a bug: libzmq
// issue 1306, so in 4.3.4) or spin (tcp: the connection stays in the listener's queue).
//
// It works by defining accept4(), which libzmq then calls instead of libc's: a program that links this file
// has that for all its listeners. Any thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/status.h"

namespace ringmaster::actor {

// Sets the spare descriptor aside. Once, before the first listener; further calls change nothing.
Status keep_spare_descriptor();

// Connections closed for want of a descriptor, so far.
uint64_t connections_turned_away();

}  // namespace ringmaster::actor
