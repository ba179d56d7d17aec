// `device: fake`: a device that plays a script, so that everything around a model can be tested and measured.
// It holds no weights; its time is a timer (submit() notes when the step is due), so that the machine's cores
// are free for what is measured. Only the last 50 us of a step are spun: a sleeping core is fetched that
// late.
//
// Mode hash: the KV memory is real (blocks, offsets), and holds at each position the hash of the context up
// to there (base/context_hash.h). A row reads it THROUGH its block table and checks every position it attends
// to, as attention would read them; a table that names a wrong, reused or unwritten block changes every token
// from there on, for good.
// Mode text: token k is the k-th configured id, then the first of the lane's stop ids; without stop ids it
// starts again.
//
// The winner leads by a geometric row of probabilities, so log-probabilities add up, logit_bias moves
// winners, and suppressed ids are never said. Temperature, top-k, top-p, min-p, penalties and seed do not
// change what a fake says.
//
// It trusts no plan: one that breaks the contract of device.h is answered with an error, as a lost device.
// Thread: the worker's loop thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/config.h"
#include "gpu-worker/device/device.h"

namespace ringmaster::gpu_worker {

// What a position costs of `kv_memory`: SmolLM2-135M in f16 (30 layers x 2 x 3 heads x 64 x 2 bytes), so that
// a fake has about as many blocks as the cpu device of the default model. The fake itself keeps 12 bytes of
// them.
inline constexpr uint64_t kFakeKvBytesPerToken = 23'040;

// With `model_path` the vocabulary, its silent ids and the context come from that GGUF (context: the smaller
// of it and fake.context_length); without, fake.vocab_size must be set. config.context_length lowers the
// context further, and so does a kv_memory that holds less. Errors: kInvalidArgument, kResourceExhausted (not
// one block fits kv_memory), those of Gguf::open. A clock of the caller's is never spun on.
Result<std::unique_ptr<Device>> make_fake_device(const GpuWorkerConfig& config, const std::string& model_path,
                                                 std::function<Nanos()> clock = nullptr);

}  // namespace ringmaster::gpu_worker
