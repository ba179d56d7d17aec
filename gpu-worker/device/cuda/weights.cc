#include "gpu-worker/device/cuda/weights.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "gpu-worker/device/cuda/cuda_error.h"
#include "gpu-worker/kernels/cuda/fill.h"
#include "gpu-worker/kernels/packing.h"
#include "gpu-worker/model/tensors.h"

namespace ringmaster::gpu_worker::cuda {
namespace {

constexpr size_t kChunkBytes = 8 << 20;  // converted and copied at a time by a thread

// Where rows of a tensor of the file go.
struct Target {
  SourceTensor from;
  uint32_t rows = 0, columns = 0;
  bf16* to = nullptr;     // the first row
  uint32_t stride = 1;    // rows of the target from one to the next
  uint32_t head_dim = 0;  // not 0: rows of a head are reordered so that rotary pairs are neighbours
  uint32_t rope_dims = 0;
};

// All tensors of the model with their places.
Result<std::vector<Target>> targets(const Gguf& file, const ModelDescription& d, const Weights& w) {
  std::vector<Target> all;
  Status status = check_all_known(file, d.layers);
  const auto add = [&](const std::string& name, uint32_t rows, uint32_t columns, bf16* to,
                       uint32_t stride = 1, bool rotary = false) {
    if (!status) return;
    const Result<SourceTensor> tensor = find_tensor(file, name, rows, columns, rows == 1, "the cuda device");
    if (!tensor) {
      status = tensor.error();
      return;
    }
    Target target{.from = *tensor, .rows = rows, .columns = columns, .to = to, .stride = stride};
    if (rotary && d.rope.pairs == Rope::Pairs::kHalves) {
      target.head_dim = d.head_dim;
      target.rope_dims = d.rope.dims;
    }
    all.push_back(target);
  };
  const uint32_t q_rows = d.heads * d.head_dim, kv_rows = d.kv_heads * d.head_dim;
  add("token_embd.weight", d.vocab_size, d.hidden, w.embedding);
  for (uint32_t i = 0; i < d.layers; ++i) {
    const std::string prefix = "blk." + std::to_string(i) + ".";
    const LayerWeights& l = w.layers[i];
    add(prefix + "attn_norm.weight", 1, d.hidden, l.attention_norm);
    add(prefix + "attn_q.weight", q_rows, d.hidden, l.qkv, 1, true);
    add(prefix + "attn_k.weight", kv_rows, d.hidden, l.qkv + size_t{q_rows} * d.hidden, 1, true);
    add(prefix + "attn_v.weight", kv_rows, d.hidden, l.qkv + size_t{q_rows + kv_rows} * d.hidden);
    add(prefix + "attn_output.weight", d.hidden, q_rows, l.attention_output);
    add(prefix + "ffn_norm.weight", 1, d.hidden, l.feed_forward_norm);
    add(prefix + "ffn_gate.weight", d.feed_forward, d.hidden, l.gate_up, 2);
    add(prefix + "ffn_up.weight", d.feed_forward, d.hidden, l.gate_up + d.hidden, 2);
    add(prefix + "ffn_down.weight", d.hidden, d.feed_forward, l.down);
  }
  add("output_norm.weight", 1, d.hidden, w.output_norm);
  if (!d.tied_head) add("output.weight", d.vocab_size, d.hidden, w.head);
  if (!status) return status.error();
  return all;
}

// Where row `row` of a head's rows goes: the second half of the rotated dims between the first.
uint32_t neighbour_row(uint32_t row, uint32_t head_dim, uint32_t rope_dims) {
  const uint32_t d = row % head_dim, half = rope_dims / 2;
  if (d >= rope_dims) return row;
  return row - d + (d < half ? 2 * d : 2 * (d - half) + 1);
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
    auto* const out = reinterpret_cast<uint16_t*>(buffers_[jobs_ % 2].data());
    row_.resize(t.columns);
    const size_t row_bytes = kernels::source_row_bytes(t.from.form, t.columns);
    for (uint32_t row = job.first; row < job.last; ++row) {
      kernels::dequantize_row(row_.data(), t.from.data.data() + row * row_bytes, t.columns, t.from.form);
      const uint32_t to = t.head_dim != 0 ? neighbour_row(row, t.head_dim, t.rope_dims) : row;
      std::transform(row_.begin(), row_.end(), out + size_t{to - job.first} * t.columns, to_bf16);
    }
    const size_t bytes = size_t{t.columns} * sizeof(bf16);
    return check(cudaMemcpy2DAsync(t.to + size_t{job.first} * t.stride * t.columns, bytes * t.stride, out,
                                   bytes, bytes, job.last - job.first, cudaMemcpyHostToDevice, stream_),
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
    uint32_t step =
        static_cast<uint32_t>(std::max<size_t>(1, kChunkBytes / (size_t{t.columns} * sizeof(bf16))));
    if (t.head_dim != 0) step = std::max(step / t.head_dim, 1u) * t.head_dim;  // whole heads
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

Weights place_weights(const ModelDescription& d, Layout& layout) {
  Weights w;
  w.padded_vocab = (d.vocab_size + 7) / 8 * 8;
  const size_t hidden = d.hidden, q_rows = size_t{d.heads} * d.head_dim,
               kv_rows = size_t{d.kv_heads} * d.head_dim;
  w.embedding = layout.take<bf16>(w.padded_vocab * hidden);
  for (uint32_t i = 0; i < d.layers; ++i) {
    LayerWeights l;
    l.attention_norm = layout.take<bf16>(hidden);
    l.qkv = layout.take<bf16>((q_rows + 2 * kv_rows) * hidden);
    l.attention_output = layout.take<bf16>(hidden * q_rows);
    l.feed_forward_norm = layout.take<bf16>(hidden);
    l.gate_up = layout.take<bf16>(2 * size_t{d.feed_forward} * hidden);
    l.down = layout.take<bf16>(hidden * d.feed_forward);
    w.layers.push_back(l);
  }
  w.output_norm = layout.take<bf16>(hidden);
  w.head = d.tied_head ? w.embedding : layout.take<bf16>(w.padded_vocab * hidden);
  w.inverse_frequency = layout.take<float>(d.rope.dims / 2);
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
  const auto fill = [&](bf16* to, size_t rows, size_t columns) {
    // A uniform value in [-a, a] has the variance a^2 / 3.
    if (status)
      status = check(fill_uniform(to, rows * columns, std::sqrt(3.0f / static_cast<float>(columns)), seed++),
                     "drawing weights");
  };
  const auto ones = [&](bf16* to, size_t count) {
    if (status) status = check(fill_constant(to, count, 1), "setting norms");
  };
  const size_t q_rows = size_t{d.heads} * d.head_dim, kv_rows = size_t{d.kv_heads} * d.head_dim;
  fill(w.embedding, w.padded_vocab, d.hidden);
  for (const LayerWeights& l : w.layers) {
    ones(l.attention_norm, d.hidden);
    fill(l.qkv, q_rows + 2 * kv_rows, d.hidden);
    fill(l.attention_output, d.hidden, q_rows);
    ones(l.feed_forward_norm, d.hidden);
    fill(l.gate_up, 2 * size_t{d.feed_forward}, d.hidden);
    fill(l.down, d.hidden, d.feed_forward);
  }
  ones(w.output_norm, d.hidden);
  if (w.head != w.embedding) fill(w.head, w.padded_vocab, d.hidden);
  if (status) status = check(cudaDeviceSynchronize(), "drawing weights");
  return status;
}

}  // namespace ringmaster::gpu_worker::cuda
