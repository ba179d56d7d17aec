// A step as the kernels want it: the plan flattened into arrays that are copied to the device in one piece,
// the keys of decoding rows divided into pieces of even work, the queries of prefilling rows into tiles. Pure
// CPU code, tested by worked example without a GPU.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "gpu-worker/device/cuda/memory.h"
#include "gpu-worker/kernels/cuda/attention.h"
#include "gpu-worker/kernels/cuda/sampler.h"
#include "gpu-worker/schedule/step_plan.h"

namespace ringmaster::gpu_worker::cuda {

struct StepLimits {
  uint32_t tokens = 0;         // of a step
  uint32_t rows = 0;           // of a step: the lanes
  uint32_t blocks = 0;         // entries of the block list
  uint32_t scratch_block = 0;  // where padding writes its keys and values
  uint32_t scratch_lane = 0;
  uint32_t kv_heads = 0;
  uint32_t decode_warps = 0;  // of decode attention that the device runs at once
};

// A piece of decode attention has a multiple of a block's keys; fewer than these are not worth the joining.
inline constexpr uint32_t kFewestPieceKeys = 32;

// The same addresses on both sides: the host's copy is filled and copied over the device's. What a step uses
// of an array comes first in it.
struct StepInputs {
  uint32_t* piece_count = nullptr;   // [1]
  uint32_t* ids = nullptr;           // [tokens]
  uint32_t* lane = nullptr;          // [tokens]
  uint32_t* position = nullptr;      // [tokens]
  uint32_t* kv_slot = nullptr;       // [tokens]
  uint32_t* sample_token = nullptr;  // [rows]: after which token of the step
  SampleRow* samples = nullptr;      // [rows]
  DecodePiece* pieces = nullptr;     // [max_pieces]
  PrefillTile* tiles = nullptr;      // [max_tiles]
  BlockTokens* groups = nullptr;     // [max_groups], of all tokens; filled when there are tiles
  uint32_t* block_table = nullptr;   // [blocks], last: its length differs most
  size_t bytes = 0;                  // of all
  size_t table_offset = 0;           // of block_table

  static uint32_t max_pieces(const StepLimits&);
  static uint32_t max_tiles(const StepLimits&);
  static uint32_t max_groups(const StepLimits&);
  static StepInputs place(const StepLimits&, std::byte* base);
};

struct StepShape {
  uint32_t tokens = 0;   // with padding
  uint32_t samples = 0;  // with padding
  uint32_t real_samples = 0;
  uint32_t tiles = 0;
  uint32_t groups = 0;
  uint32_t pieces = 0;
  uint32_t blocks = 0;
  bool decode_only = false;  // every row has one token and samples it: a graph can run it
};

// Fills `host`. Padding: a decode-only step is filled up to `pad_to` tokens (0: not). Errors: kInternal: a
// plan beyond the limits.
Result<StepShape> fill_inputs(const StepPlan& plan, const StepLimits& limits, uint32_t pad_to,
                              const StepInputs& host);

bool decode_only(const StepPlan& plan);

}  // namespace ringmaster::gpu_worker::cuda
