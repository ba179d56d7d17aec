#include "gpu-worker/device/cpu/step_buffers.h"

#include <algorithm>

#include "gpu-worker/kernels/packing.h"

namespace ringmaster::gpu_worker {
namespace {

size_t prepared_bytes(const kernels::Table& table, size_t values) {
  return std::max(table.row_bytes[0](values), table.row_bytes[1](values));
}

}  // namespace

StepBuffers::StepBuffers(const ModelDescription& d, const kernels::Table& table, unsigned num_threads)
    : threads(num_threads),
      hidden_row_bytes(prepared_bytes(table, d.hidden)),
      attended_row_bytes(prepared_bytes(table, size_t{d.heads} * d.head_dim)),
      feed_forward_row_bytes(prepared_bytes(table, d.feed_forward)),
      qkv_width((size_t{d.heads} + 2 * size_t{d.kv_heads}) * d.head_dim),
      logit_width(kernels::groups_of(d.vocab_size) * kernels::kGroup),
      hidden_(d.hidden),
      head_dim_(d.head_dim),
      kv_heads_(d.kv_heads),
      group_(d.heads / d.kv_heads) {
  each([this](auto*&, size_t bytes) { bytes_ += (bytes + 63) / 64 * 64; });
}

void StepBuffers::place(std::byte* memory) {
  each([&]<typename T>(T*& pointer, size_t bytes) {
    pointer = reinterpret_cast<T*>(memory);
    memory += (bytes + 63) / 64 * 64;
  });
}

template <typename Visit>
void StepBuffers::each(Visit&& visit) {
  constexpr size_t kTokens = kRoundTokens, kFloat = sizeof(float);
  visit(x, kTokens * hidden_ * kFloat);
  visit(cosine, kTokens * head_dim_ * kFloat);
  visit(sine, kTokens * head_dim_ * kFloat);
  visit(normed, kTokens * hidden_row_bytes);
  visit(qkv, kTokens * qkv_width * kFloat);
  visit(q, kTokens * kv_heads_ * group_ * head_dim_ * kFloat);
  visit(attended, kTokens * attended_row_bytes);
  visit(activated, kTokens * feed_forward_row_bytes);
  visit(part_sums, kParts * group_ * head_dim_ * kFloat);
  visit(part_max_sums, kParts * group_ * 2 * kFloat);
  visit(logits, 2 * kLogitRows * logit_width * kFloat);
  for (PerThread& thread : threads) {
    visit(thread.gate, kTokens * kFeedForwardColumns * kFloat);
    visit(thread.up, kTokens * kFeedForwardColumns * kFloat);
    visit(thread.row, hidden_ * kFloat);
    visit(thread.normed, 2 * kPrivateRows * hidden_row_bytes);
    visit(thread.sums, kQueryTokens * group_ * head_dim_ * kFloat);
    visit(thread.max_sums, kQueryTokens * group_ * 2 * kFloat);
    visit(thread.later_sums, kernels::kQueries * head_dim_ * kFloat);
  }
}

}  // namespace ringmaster::gpu_worker
