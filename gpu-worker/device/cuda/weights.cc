#include "gpu-worker/device/cuda/weights.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "gpu-worker/device/cuda/cuda_error.h"
#include "gpu-worker/device/cuda/four_bit_packing.h"
#include "gpu-worker/kernels/cuda/fill.h"
#include "gpu-worker/kernels/packing.h"
#include "gpu-worker/model/tensors.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

constexpr size_t kChunkBytes = 8 << 20;  // converted and copied at a time by a thread

// One tensor of the file among the rows of a matrix.
struct Section {
  SourceTensor from;
  uint32_t rows = 0;
  uint32_t first = 0, stride = 1;  // row r of the tensor is row first + stride * r of the matrix
  uint32_t head_dim = 0;           // not 0: rows of a head are reordered so that rotary pairs are neighbours
  uint32_t rope_dims = 0;
};

// A matrix and all that goes into it.
struct Target {
  Matrix to;
  uint32_t rows = 0, columns = 0;
  std::vector<Section> sections;

  size_t row_bytes() const {
    return to.is_four_bit() ? to.four_bit.shape.bytes() / to.four_bit.shape.n : columns * sizeof(bf16);
  }
  std::byte* data() const {
    return to.is_four_bit() ? to.four_bit.data : reinterpret_cast<std::byte*>(to.wide);
  }
};

// All tensors of the model with their places.
Result<std::vector<Target>> targets(const Gguf& file, const ModelDescription& d, const Weights& w) {
  std::vector<Target> all;
  Status status = check_all_known(file, d.layers);
  const auto matrix = [&](const Matrix& to, uint32_t rows, uint32_t columns) {
    all.push_back({.to = to, .rows = rows, .columns = columns, .sections = {}});
  };
  // Of the matrix last begun.
  const auto add = [&](const std::string& name, uint32_t rows, uint32_t first = 0, uint32_t stride = 1,
                       bool rotary = false) {
    if (!status) return;
    const uint32_t columns = all.back().columns;
    const Result<SourceTensor> tensor = find_tensor(file, name, rows, columns, rows == 1, "the cuda device");
    if (!tensor) {
      status = tensor.error();
      return;
    }
    Section section{.from = *tensor, .rows = rows, .first = first, .stride = stride};
    if (rotary && d.rope.pairs == Rope::Pairs::kHalves) {
      section.head_dim = d.head_dim;
      section.rope_dims = d.rope.dims;
    }
    all.back().sections.push_back(section);
  };
  const auto whole = [&](const std::string& name, const Matrix& to, uint32_t rows, uint32_t columns) {
    matrix(to, rows, columns);
    add(name, rows);
  };
  const uint32_t q_rows = d.heads * d.head_dim, kv_rows = d.kv_heads * d.head_dim;
  whole("token_embd.weight", {w.embedding, {}}, d.vocab_size, d.hidden);
  for (uint32_t i = 0; i < d.layers; ++i) {
    const std::string prefix = "blk." + std::to_string(i) + ".";
    const LayerWeights& l = w.layers[i];
    whole(prefix + "attn_norm.weight", {l.attention_norm, {}}, 1, d.hidden);
    matrix(l.qkv, q_rows + 2 * kv_rows, d.hidden);
    add(prefix + "attn_q.weight", q_rows, 0, 1, true);
    add(prefix + "attn_k.weight", kv_rows, q_rows, 1, true);
    add(prefix + "attn_v.weight", kv_rows, q_rows + kv_rows);
    whole(prefix + "attn_output.weight", l.attention_output, d.hidden, q_rows);
    whole(prefix + "ffn_norm.weight", {l.feed_forward_norm, {}}, 1, d.hidden);
    matrix(l.gate_up, 2 * d.feed_forward, d.hidden);
    add(prefix + "ffn_gate.weight", d.feed_forward, 0, 2);
    add(prefix + "ffn_up.weight", d.feed_forward, 1, 2);
    whole(prefix + "ffn_down.weight", l.down, d.hidden, d.feed_forward);
  }
  whole("output_norm.weight", {w.output_norm, {}}, 1, d.hidden);
  if (!d.tied_head) whole("output.weight", {w.head, {}}, d.vocab_size, d.hidden);
  if (!status) return status.error();
  return all;
}

// Which row of its tensor is row `row` of a section of a matrix: rotary pairs, half the rotated dims apart in
// the file, are neighbours here.
uint32_t file_row(const Section& s, uint32_t row) {
  const uint32_t r = (row - s.first) / s.stride;
  if (s.head_dim == 0) return r;
  const uint32_t d = r % s.head_dim;
  if (d >= s.rope_dims) return r;
  return r - d + d / 2 + d % 2 * (s.rope_dims / 2);
}

const Section& section_of(const Target& t, uint32_t row) {
  return *std::find_if(t.sections.begin(), t.sections.end(), [&](const Section& s) {
    return row >= s.first && (row - s.first) % s.stride == 0 && (row - s.first) / s.stride < s.rows;
  });
}

uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>(bits >> 16 | 0x40);  // stays a NaN
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);  // nearest, ties to even
}

struct Job {
  const Target* target;
  uint32_t first, last;  // rows
};

// One thread's way from the file to the device.
class Loader {
 public:
  Status prepare() {
    for (Memory& buffer : buffers_) {
      Result<Memory> memory = Memory::create(Memory::Kind::kPinned, kChunkBytes, "loading weights");
      if (!memory) return memory.error();
      buffer = std::move(*memory);
    }
    return check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                 "making a stream to load weights");
  }
  ~Loader() {
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }

  Status run(const Job& job) {
    // Two buffers: this one's last copy was two jobs ago and is waited for with the one in between.
    if (++jobs_ > 2)
      if (Status s = finish(); !s) return s;
    const Target& t = *job.target;
    std::byte* const out = buffers_[jobs_ % 2].data();
    const size_t origin = job.first * t.row_bytes(), bytes = (job.last - job.first) * t.row_bytes();
    if (t.to.is_four_bit()) std::memset(out, 0, bytes);  // columns that fill up the last unit
    row_.resize(t.columns);
    for (uint32_t row = job.first; row < job.last; ++row) {
      const Section& section = section_of(t, row);
      const std::byte* const from =
          section.from.data.data() +
          file_row(section, row) * kernels::source_row_bytes(section.from.form, t.columns);
      if (t.to.is_four_bit()) {
        pack_row(out, origin, t.to.four_bit.shape, row, from, section.from.form);
        continue;
      }
      kernels::dequantize_row(row_.data(), from, t.columns, section.from.form);
      std::transform(row_.begin(), row_.end(),
                     reinterpret_cast<uint16_t*>(out) + size_t{row - job.first} * t.columns, to_bf16);
    }
    return check(cudaMemcpyAsync(t.data() + origin, out, bytes, cudaMemcpyHostToDevice, stream_),
                 "copying weights");
  }
  Status finish() { return check(cudaStreamSynchronize(stream_), "copying weights"); }

 private:
  Memory buffers_[2];
  cudaStream_t stream_ = nullptr;
  std::vector<float> row_;
  uint32_t jobs_ = 0;
};

std::vector<Job> divide(const std::vector<Target>& all) {
  std::vector<Job> jobs;
  for (const Target& t : all) {
    auto step = static_cast<uint32_t>(std::max<size_t>(1, kChunkBytes / t.row_bytes()));
    if (t.to.is_four_bit())  // whole strips
      step = std::max(step / FourBitShape::kUnitRows, 1u) * FourBitShape::kUnitRows;
    for (uint32_t row = 0; row < t.rows; row += step) jobs.push_back({&t, row, std::min(row + step, t.rows)});
  }
  return jobs;
}

Status copy_rope(const ModelDescription& d, const Weights& w) {
  return check(cudaMemcpy(w.inverse_frequency, d.rope.inverse_frequency.data(),
                          d.rope.inverse_frequency.size() * sizeof(float), cudaMemcpyHostToDevice),
               "copying rotary frequencies");
}

}  // namespace

WeightForms forms_of(const Gguf& file, const ModelDescription& d) {
  WeightForms forms(d.layers);
  for (uint32_t i = 0; i < d.layers; ++i) {
    const auto group = [&](std::initializer_list<const char*> parts) {
      const bool all = std::all_of(parts.begin(), parts.end(), [&](const char* part) {
        const GgufTensor* tensor = file.tensor("blk." + std::to_string(i) + "." + part + ".weight");
        return tensor != nullptr && (tensor->type == TensorType::kQ4_0 || tensor->type == TensorType::kQ4_1);
      });
      return all ? kFileGroup : 0;
    };
    forms[i] = {.qkv = group({"attn_q", "attn_k", "attn_v"}),
                .attention_output = group({"attn_output"}),
                .gate_up = group({"ffn_gate", "ffn_up"}),
                .down = group({"ffn_down"})};
  }
  return forms;
}

WeightForms forms_of(const ModelDescription& d) {
  const uint32_t group = d.weight_group;
  return WeightForms(d.layers, {group, group, group, group});
}

Weights place_weights(const ModelDescription& d, const WeightForms& forms, Layout& layout) {
  Weights w;
  w.padded_vocab = (d.vocab_size + 7) / 8 * 8;
  size_t widest = 0;
  const auto matrix = [&](uint32_t group, uint32_t n, uint32_t k) -> Matrix {
    const size_t values = size_t{n} * k;
    if (group == 0) return {.wide = layout.take<bf16>(values), .four_bit = {}};
    widest = std::max(widest, values);
    const FourBitShape shape{.n = n, .k = k, .group = group};
    return {.wide = nullptr, .four_bit = {shape, layout.take<std::byte>(shape.bytes())}};
  };
  const uint32_t q_rows = d.heads * d.head_dim, kv_rows = d.kv_heads * d.head_dim;
  w.embedding = layout.take<bf16>(size_t{w.padded_vocab} * d.hidden);
  for (const LayerForms& form : forms) {
    LayerWeights l;
    l.attention_norm = layout.take<bf16>(d.hidden);
    l.qkv = matrix(form.qkv, q_rows + 2 * kv_rows, d.hidden);
    l.attention_output = matrix(form.attention_output, d.hidden, q_rows);
    l.feed_forward_norm = layout.take<bf16>(d.hidden);
    l.gate_up = matrix(form.gate_up, 2 * d.feed_forward, d.hidden);
    l.down = matrix(form.down, d.hidden, d.feed_forward);
    w.layers.push_back(l);
  }
  w.output_norm = layout.take<bf16>(d.hidden);
  w.head = d.tied_head ? w.embedding : layout.take<bf16>(size_t{w.padded_vocab} * d.hidden);
  w.inverse_frequency = layout.take<float>(d.rope.dims / 2);
  w.widened = layout.take<bf16>(widest);
  return w;
}

Status load_weights(const Gguf& file, const ModelDescription& d, const Weights& w, unsigned threads) {
  Result<std::vector<Target>> all = targets(file, d, w);
  if (!all) return all.error();
  if (Status s = copy_rope(d, w); !s) return s;
  const size_t padding = size_t{w.padded_vocab - d.vocab_size} * d.hidden * sizeof(bf16);
  for (bf16* table : {w.embedding, w.head})
    if (Status s = check(cudaMemset(table + size_t{d.vocab_size} * d.hidden, 0, padding), "clearing rows");
        !s)
      return s;
  const std::vector<Job> jobs = divide(*all);
  int device = 0;
  if (Status s = check(cudaGetDevice(&device), "asking for the device"); !s) return s;
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  Status outcome = ok_status();
  const auto work = [&] {
    Loader loader;
    Status status = check(cudaSetDevice(device), "choosing the device");
    if (status) status = loader.prepare();
    for (size_t j; status && (j = next.fetch_add(1)) < jobs.size();) status = loader.run(jobs[j]);
    if (status) status = loader.finish();
    if (status) return;
    const std::lock_guard lock(mutex);
    outcome = std::move(status);
    next = jobs.size();
  };
  std::vector<std::thread> helpers;
  for (unsigned i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  return outcome;
}

Status random_weights(const ModelDescription& d, const Weights& w, uint64_t seed) {
  Status status = copy_rope(d, w);
  const auto fill = [&](const Matrix& to, size_t rows, size_t columns) {
    if (!status) return;
    // A uniform value in [-a, a] has the variance a^2 / 3.
    status = check(to.is_four_bit() ? fill_random(to.four_bit, seed)
                                    : fill_uniform(to.wide, rows * columns,
                                                   std::sqrt(3.0f / static_cast<float>(columns)), seed),
                   "drawing weights");
    ++seed;
  };
  const auto ones = [&](bf16* to, size_t count) {
    if (status) status = check(fill_constant(to, count, 1), "setting norms");
  };
  const size_t q_rows = size_t{d.heads} * d.head_dim, kv_rows = size_t{d.kv_heads} * d.head_dim;
  fill({w.embedding, {}}, w.padded_vocab, d.hidden);
  for (const LayerWeights& l : w.layers) {
    ones(l.attention_norm, d.hidden);
    fill(l.qkv, q_rows + 2 * kv_rows, d.hidden);
    fill(l.attention_output, d.hidden, q_rows);
    ones(l.feed_forward_norm, d.hidden);
    fill(l.gate_up, 2 * size_t{d.feed_forward}, d.hidden);
    fill(l.down, d.hidden, d.feed_forward);
  }
  ones(w.output_norm, d.hidden);
  if (w.head != w.embedding) fill({w.head, {}}, w.padded_vocab, d.hidden);
  if (status) status = check(cudaDeviceSynchronize(), "drawing weights");
  return status;
}

}  // namespace ringmaster::gpu_worker::cuda
