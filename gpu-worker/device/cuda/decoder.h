// The forward pass of a step, enqueued: embedding, layers, head, sampling. Takes the skinny kernels for a few
// rows and cuBLASLt for many; nothing here waits for the device. The loop thread owns it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "gpu-worker/device/cuda/matmul.h"
#include "gpu-worker/device/cuda/step_inputs.h"
#include "gpu-worker/device/cuda/weights.h"
#include "gpu-worker/kernels/cuda/skinny.h"
#include "gpu-worker/model/description.h"

namespace ringmaster::gpu_worker::cuda {

// Every array a step needs, with its largest shape, taken once at start.
struct StepBuffers {
  bf16* x = nullptr;          // [tokens, hidden], the residual stream
  bf16* normed = nullptr;     // [tokens, hidden]
  bf16* qkv = nullptr;        // [tokens, (heads + 2 * kv_heads) * head_dim]
  bf16* q = nullptr;          // [tokens, heads * head_dim]
  bf16* attended = nullptr;   // [tokens, heads * head_dim]
  bf16* gate_up = nullptr;    // [tokens, 2 * feed_forward]
  bf16* activated = nullptr;  // [tokens, feed_forward]
  float* logits = nullptr;    // [rows, padded_vocab]
  float* adjusted = nullptr;  // [rows, padded_vocab]
  DecodeScratch attention;

  static StepBuffers place(const ModelDescription& description, const StepLimits& limits, Layout& layout);
};

// Refuses by name what the forward pass does not execute.
Status check_executable(const ModelDescription& description);

class Decoder {
 public:
  struct Parts {
    const ModelDescription& description;
    const Weights& weights;
    const StepBuffers& buffers;
    KvView kv;
    LaneTables lanes;
    Matmul& matmul;
    int multiprocessors = 0;
  };
  explicit Decoder(const Parts& parts) : p_(parts) {}

  // in: in device memory. results: [shape.samples], pinned. The shape alone decides what is enqueued, so that
  // a graph captured with a shape serves every step of it.
  Status enqueue(cudaStream_t stream, const StepShape& shape, const StepInputs& in, SampledToken* results);

 private:
  struct Step;
  Status layer(const Step& step, uint32_t index);
  Status queries_keys_values(const Step& step, uint32_t index);
  Status attention(const Step& step, uint32_t index);
  Status gate_up(const Step& step, uint32_t index);
  bool is_wide(const Matrix& w, const Product& p) const;
  Status head(const Step& step);
  Status multiply(const Step& step, bf16* y, const bf16* x, const Matrix& weights, uint32_t rows, uint32_t n,
                  uint32_t k, bool add);
  Status add(const Step& step, bf16* y, const bf16* x, const Matrix& weights, uint32_t rows, uint32_t n,
             uint32_t k);

  Parts p_;
};

}  // namespace ringmaster::gpu_worker::cuda
