// The tensors of a model in the form the kernels read: first planned (every tensor found, its shape and type
// checked, bytes counted, nothing allocated), then packed into memory the device provides, on several
// threads. After that the file is not needed any more. Weights point into that memory and are immutable; any
// thread may read them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/gguf.h"
#include "base/status.h"
#include "gpu-worker/kernels/kernels.h"
#include "gpu-worker/kernels/packing.h"
#include "gpu-worker/model/description.h"

namespace ringmaster::gpu_worker {

// A packed matrix (kernels/packing.h): `rows` outputs of `columns` inputs.
struct Matrix {
  kernels::WeightForm form = kernels::WeightForm::kF32;
  uint32_t rows = 0;
  uint32_t columns = 0;
  const std::byte* data = nullptr;

  size_t groups() const { return kernels::groups_of(rows); }
  size_t group_bytes() const { return kernels::group_bytes(form, columns); }
  const std::byte* group(size_t index) const { return data + index * group_bytes(); }
  kernels::InputForm input() const { return kernels::input_form(form); }
};

struct LayerWeights {
  const float* attention_norm = nullptr;  // [hidden]
  Matrix q, k, v;                         // share their input, so agree in input()
  Matrix attention_output;
  const float* feed_forward_norm = nullptr;  // [hidden]
  Matrix gate, up;                           // agree in input()
  Matrix down;
};

struct Weights {
  Matrix embedding;
  std::vector<LayerWeights> layers;
  const float* output_norm = nullptr;  // [hidden]
  Matrix head;                         // the embedding itself when tied
};

class WeightPlan {
 public:
  // Errors: kUnsupported (names the tensor and its type), kMalformed (missing tensor, wrong shape). `file`
  // outlives it.
  static Result<WeightPlan> make(const Gguf& file, const ModelDescription& description);

  size_t bytes() const { return bytes_; }  // of memory to provide, aligned to 64

  struct Loaded {
    Weights weights;
    uint64_t hash = 0;  // Gguf::header_hash() of the file, as every worker of the model reports it
  };
  // memory: [bytes()], aligned to 64.
  Loaded load(std::byte* memory, unsigned threads) const;

 private:
  struct Source {
    std::span<const std::byte> data;
    kernels::SourceForm form;
    bool as_float = false;  // a quantised matrix beside one that is not: packed as float32
    Matrix matrix;          // data is null; a vector of n is 1 row of n, kept as plain float32
    bool vector = false;
    size_t offset = 0;  // into the memory
  };
  size_t source_bytes(const Source& source) const;
  Status add(const Gguf& file, const std::string& name, uint32_t rows, uint32_t columns, bool vector);
  Status add_layer(const Gguf& file, const ModelDescription& d, uint32_t layer);
  void agree(size_t first, size_t last);
  void place();
  void pack(const Source& source, size_t first, size_t last, std::byte* memory) const;
  Weights laid_out(const std::byte* memory) const;

  std::vector<Source>
      sources_;  // embedding, layers (nine each, in the order of LayerWeights), norm, head if not tied
  uint32_t layers_ = 0;
  bool tied_ = false;
  size_t bytes_ = 0;
  uint64_t header_hash_ = 0;
};

}  // namespace ringmaster::gpu_worker
