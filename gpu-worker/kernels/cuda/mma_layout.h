// Where a key and a value lie inside the piece of one block, layer and key-value head.
//
// A block has 16 tokens. The piece is in the order in which lanes read fragments, so that a warp reads 512
// bytes in a row and no kernel has to turn anything around:
//   keys:   [token / 8][dim / 32][lane = 4 * (token % 8) + dim % 32 / 8][dim % 8]
//   values: [dim / 16][lane = 4 * (dim % 8) + token % 8 / 2][dim % 16 / 8][2 * (token / 8) + token % 2]
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace ringmaster::gpu_worker::cuda {

constexpr int kBlockTokens = 16;

__host__ __device__ constexpr int key_offset(int token, int dim, int head_dim) {
  return ((token / 8 * (head_dim / 32) + dim / 32) * 32 + token % 8 * 4 + dim % 32 / 8) * 8 + dim % 8;
}
__host__ __device__ constexpr int value_offset(int token, int dim, int head_dim) {
  return kBlockTokens * head_dim + (dim / 16 * 32 + dim % 8 * 4 + token % 8 / 2) * 8 + dim % 16 / 8 * 4 +
         token / 8 * 2 + token % 2;
}

}  // namespace ringmaster::gpu_worker::cuda
