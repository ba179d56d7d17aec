// Where a key and a value lie inside the piece of one block, layer and key-value head.
//
// A block has 16 tokens. One order serves two readers, so that nothing is ever turned around:
//   keys:   [token / 8][dim / 32][token % 8][chunk of 8 dims, at place chunk ^ token % 8 / 2][dim % 8]
//   values: [dim / 8][dim % 8][chunk of 8 tokens, at place chunk ^ dim % 8 / 4][token % 8]
//
// The tensor cores of a warpgroup (wgmma) take B from shared memory: k lies in neighbouring bytes of a row,
// eight rows make an atom, and 16-byte chunks of rows are swapped so that eight rows of one chunk meet all
// banks. In the form with 64-byte rows, bits 4-5 of an address are xored with bits 7-8; with 32-byte rows,
// bit 4 with bit 7 (PTX ISA, "Swizzling modes"). For q k^T, k is the dims: a row of 64 bytes is 32 dims of a
// token, and eight tokens are an atom of 512 bytes. For p v, k is the tokens: a row of 32 bytes is the 16
// tokens of a dim, one product deep, and eight dims are an atom of 256 bytes. The pieces are stored swapped,
// so plain copies of whole pieces will do: keys of neighbouring blocks behind one another are one operand.
//
// The tensor cores of a warp (mma m16n8k16, decode) take B from registers: lane 4 g + j has column g and the
// same four (q k^T: two times four) k as the other lanes j. For q k^T a lane takes chunk j of a key, wherever
// it lies; the 32 lanes still read whole lines. For p v a lane takes tokens 4 j to 4 j + 3 of a dim, eight
// bytes. Its weights have to be those of the same tokens, so column g of the first score tile is the token
// score_token(0, g), and that of the second score_token(1, g).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace ringmaster::gpu_worker::cuda {

constexpr int kBlockTokens = 16;

__host__ __device__ constexpr int key_offset(int token, int dim, int head_dim) {
  const int row = token % 8, chunk = dim % 32 / 8;
  return ((token / 8 * (head_dim / 32) + dim / 32) * 8 + row) * 32 + (chunk ^ row / 2) * 8 + dim % 8;
}
__host__ __device__ constexpr int value_offset(int token, int dim, int head_dim) {
  return kBlockTokens * head_dim + dim * kBlockTokens + (token / 8 ^ dim % 8 / 4) * 8 + token % 8;
}

// Of decode's two tiles of eight scores: lane j's columns 2 j and 2 j + 1 of both are tokens 4 j to 4 j + 3.
__host__ __device__ constexpr int score_token(int tile, int column) {
  return column / 2 * 4 + tile * 2 + column % 2;
}

}  // namespace ringmaster::gpu_worker::cuda
