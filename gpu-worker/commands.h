// The records of a tokenizer-worker as values: the door of the gpu-worker. What the bytes say about
// themselves (sizes, counts, pairing of start and prompt) is checked here, once; what they mean (ranges,
// vocabulary, context) is checked by Scheduler::submit(). The peer may change shared memory while we read, so
// everything is copied first and checked on the copy. Pure functions; any thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <variant>

#include "base/status.h"
#include "gpu-worker/schedule/sequence.h"
#include "shm/records.h"
#include "shm/ring.h"

namespace ringmaster::gpu_worker {

struct StartCommand {
  NewSequence sequence;  // `owner` is left to the caller
};
// A start that is refused at the door: its epoch ends with this error.
struct RefusedStart {
  Epoch epoch = 0;
  Error error;
};
using Command = std::variant<StartCommand, RefusedStart, shm::GrantRecord, shm::CancelRecord,
                             shm::StopAtRecord, shm::RebindRecord>;

// `command` is a record of the command ring; `prompt` the oldest of the prompt ring, if it is a start (its
// pair). Error: the record names no request, so that nobody could be told; the pairing with this peer is
// broken.
Result<Command> read_command(const shm::Record& command, const std::optional<shm::Record>& prompt);

}  // namespace ringmaster::gpu_worker
