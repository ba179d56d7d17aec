#include "gpu-worker/device/fake/fake_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "base/context_hash.h"
#include "base/gguf.h"
#include "base/log.h"
#include "gpu-worker/device/common/kv_size.h"
#include "shm/pause.h"

namespace ringmaster::gpu_worker {
namespace {

using context_hash::kStart;
using context_hash::mix;
using context_hash::Ranking;

// Mixed into the state of a row whose context is not what its blocks hold; no token has this id.
constexpr TokenId kPoison = 0xFFFFFFFF;
// A timer that finds its core asleep comes 30 us late at the median (docs/performance.md).
constexpr Nanos kEarly = 50 * kMicrosecond;

struct Model {
  std::string name = "fake";
  uint64_t hash = 0;
  uint32_t vocab_size = 0;
  uint32_t context_length = 0;
  std::vector<TokenId> never;
};

// A block as a lane found it: whoever writes to it afterwards gives it another version.
struct SeenBlock {
  BlockId block = 0;
  uint64_t version = 0;
  bool operator==(const SeenBlock&) const = default;
};

struct LaneState {
  bool open = false;
  bool sampled = false;  // `last` is set
  bool broken = false;   // reported already
  TokenId last = 0;
  // The first `seen_positions` of the context, as far as they held when this lane last read or wrote them.
  uint32_t seen_positions = 0;
  std::vector<SeenBlock> seen;
  LaneOpen asked;
};

// ln of the geometric row's k-th probability, (1 - q) q^k; q between 0.1 and 0.6 depends on the context.
struct Geometric {
  explicit Geometric(uint64_t state)
      : q(0.1 + 0.5 * (static_cast<double>(mix(state, kPoison) >> 11) * 0x1p-53)) {}
  float logprob(uint32_t rank) const { return static_cast<float>(std::log1p(-q) + rank * std::log(q)); }
  double q;
};

class FakeDevice final : public Device {
 public:
  FakeDevice(FakeConfig script, DeviceInfo info, std::vector<TokenId> never, std::function<Nanos()> clock)
      : script_(std::move(script)),
        info_(std::move(info)),
        never_(std::move(never)),
        early_(clock ? 0 : kEarly),
        clock_(clock ? std::move(clock) : monotonic_now),
        lanes_(info_.num_lanes),
        hashes_(size_t{info_.num_blocks} * info_.block_tokens),
        ids_(hashes_.size()),
        versions_(info_.num_blocks) {}

  const DeviceInfo& info() const override { return info_; }
  void submit(StepPlan plan) override;
  std::optional<StepResult> retire(Nanos now) override;
  Nanos next_event() const override {
    return flying_.empty() || flying_.front().due == kNever ? kNever : flying_.front().due - early_;
  }

 private:
  struct Flying {
    Nanos due;
    StepResult result;
  };

  Status check(const StepPlan& plan) const;
  Status check(const StepPlan& plan, const StepRow& row, std::span<const uint8_t> opens) const;
  StepResult compute(const StepPlan& plan);
  uint64_t run_row(const StepPlan& plan, const StepRow& row);
  uint32_t unchanged(const StepPlan& plan, const StepRow& row, const LaneState& lane) const;
  void remember(const StepPlan& plan, const StepRow& row, LaneState& lane, uint32_t first_changed);
  SampledRow sample(const StepRow& row, uint64_t state);
  std::optional<TokenId> scripted(const LaneState& lane, uint32_t token_number) const;
  Nanos duration(const StepPlan& plan) const;

  size_t place(const StepPlan& plan, const StepRow& row, uint32_t position) const {
    const BlockId block = plan.blocks[row.first_block + position / info_.block_tokens];
    return size_t{block} * info_.block_tokens + position % info_.block_tokens;
  }

  const FakeConfig script_;
  const DeviceInfo info_;
  const std::vector<TokenId> never_;  // sorted
  const Nanos early_;                 // before a step is due, to spin until then
  const std::function<Nanos()> clock_;
  std::vector<LaneState> lanes_;
  // [num_blocks, block_tokens]: the context's hash up to and with this position, and the id at it.
  std::vector<uint64_t> hashes_;
  std::vector<TokenId> ids_;
  std::vector<uint64_t> versions_;  // [num_blocks]: writes to the block
  std::deque<Flying> flying_;
  Nanos last_due_ = 0;
  uint64_t last_step_ = 0;
  bool lost_ = false;
};

Status FakeDevice::check(const StepPlan& plan, const StepRow& row, std::span<const uint8_t> opens) const {
  const auto bad = [&](std::string what) {
    return Error{Code::kInternal, fmt::format("step {}, lane {}: {}", plan.step, row.lane, what)};
  };
  if (row.lane >= info_.num_lanes) return bad(fmt::format("allowed lanes: 0 to {}", info_.num_lanes - 1));
  const LaneState& lane = lanes_[row.lane];
  if (!lane.open && opens[row.lane] == 0) return bad("was never opened");
  if (row.num_tokens == 0) return bad("row without tokens");
  if (uint64_t{row.first_id} + row.num_tokens > plan.ids.size()) return bad("ids outside the plan");
  if (uint64_t{row.first_block} + row.num_blocks > plan.blocks.size()) return bad("blocks outside the plan");
  const uint64_t end = uint64_t{row.first_position} + row.num_tokens;
  if (end > info_.context_length)
    return bad(fmt::format("position {} of a context of {}", end - 1, info_.context_length));
  if (uint64_t{row.num_blocks} * info_.block_tokens < end)
    return bad(fmt::format("{} blocks do not cover {} positions", row.num_blocks, end));
  for (uint32_t i = 0; i < row.num_blocks; ++i)
    if (plan.blocks[row.first_block + i] >= info_.num_blocks)
      return bad(fmt::format("block {} of {}", plan.blocks[row.first_block + i], info_.num_blocks));
  for (uint32_t i = 0; i < row.num_tokens; ++i) {
    const TokenId id = plan.ids[row.first_id + i];
    if (id == kFromLane ? (opens[row.lane] != 0 || !lane.sampled) : id >= info_.vocab_size)
      return bad(id == kFromLane ? "kFromLane before anything was sampled"
                                 : fmt::format("id {} of a vocabulary of {}", id, info_.vocab_size));
  }
  return ok_status();
}

Status FakeDevice::check(const StepPlan& plan) const {
  if (plan.step <= last_step_)
    return Error{Code::kInternal,
                 fmt::format("step {} after step {}: steps must grow", plan.step, last_step_)};
  if (flying_.size() >= kMaxInFlight)
    return Error{Code::kInternal, fmt::format("step {}: {} steps are in flight", plan.step, flying_.size())};
  std::vector<uint8_t> opens(info_.num_lanes), rows(info_.num_lanes);
  for (const LaneOpen& open : plan.opens) {
    if (open.lane >= info_.num_lanes || opens[open.lane]++ != 0)
      return Error{Code::kInternal,
                   fmt::format("step {}: lane {} opened twice or out of range", plan.step, open.lane)};
  }
  for (const StepRow& row : plan.rows) {
    if (auto status = check(plan, row, opens); !status) return status;
    if (rows[row.lane]++ != 0)
      return Error{Code::kInternal, fmt::format("step {}: lane {} has two rows", plan.step, row.lane)};
  }
  return ok_status();
}

Nanos FakeDevice::duration(const StepPlan& plan) const {
  uint64_t prefill = 0;
  for (const StepRow& row : plan.rows)
    if (row.num_tokens > 1 || !row.samples) prefill += row.num_tokens;
  return script_.step_time + script_.prefill_time_per_token * static_cast<Nanos>(prefill);
}

void FakeDevice::submit(StepPlan plan) {
  Flying step{kNever, {}};
  const bool stalls = script_.stall_at_step != 0 && plan.step == script_.stall_at_step;
  const bool fails = script_.fail_at_step != 0 && plan.step == script_.fail_at_step;
  if (!stalls && last_due_ != kNever) step.due = std::max(clock_(), last_due_) + duration(plan);
  if (auto status = check(plan); !status) {
    step.result = {plan.step, {}, status.error()};
  } else if (lost_ || fails) {
    step.result = {plan.step,
                   {},
                   Error{Code::kWorkerLost, fmt::format("fake device: fails at step {} as configured "
                                                        "(gpu-worker.fake.fail_at_step)",
                                                        plan.step)}};
  } else {
    step.result = compute(plan);
  }
  lost_ = step.result.error.has_value();
  last_due_ = step.due;
  last_step_ = plan.step;
  flying_.push_back(std::move(step));
}

std::optional<StepResult> FakeDevice::retire(Nanos now) {
  if (flying_.empty() || flying_.front().due == kNever || flying_.front().due - early_ > now)
    return std::nullopt;
  // No longer than that, whatever `now` the caller has.
  for (Nanos left = flying_.front().due - clock_(); left > 0 && left <= early_;
       left = flying_.front().due - clock_())
    shm::cpu_pause();
  StepResult result = std::move(flying_.front().result);
  flying_.pop_front();
  return result;
}

// Steps run in order and nothing but submit() writes the KV memory, so a step may be computed when it is
// submitted.
StepResult FakeDevice::compute(const StepPlan& plan) {
  StepResult result{plan.step, {}, std::nullopt};
  for (const LaneOpen& open : plan.opens) {
    lanes_[open.lane] = LaneState{.open = true, .asked = open};
    auto& suppressed = lanes_[open.lane].asked.suppressed;
    if (script_.mode == FakeConfig::Mode::kHash) std::sort(suppressed.begin(), suppressed.end());
  }
  for (const StepRow& row : plan.rows) {
    const uint64_t state = run_row(plan, row);
    if (row.samples) result.rows.push_back(sample(row, state));
  }
  return result;
}

// How much of the row's context need not be read again: the beginning that this lane found right before, in
// blocks that are the same ones and that nobody has written since. Reading every position of every context at
// each step would find the same faults and cost more than the rest of the cluster.
uint32_t FakeDevice::unchanged(const StepPlan& plan, const StepRow& row, const LaneState& lane) const {
  const uint32_t positions = std::min(lane.seen_positions, row.first_position);
  for (uint32_t start = 0, i = 0; start < positions; start += info_.block_tokens, ++i) {
    const BlockId block = plan.blocks[row.first_block + i];
    if (lane.seen[i] != SeenBlock{block, versions_[block]}) return start;
  }
  return positions;
}

// The row's context held, and so does what the row has appended. Blocks before `first_changed` are as they
// were seen.
void FakeDevice::remember(const StepPlan& plan, const StepRow& row, LaneState& lane, uint32_t first_changed) {
  lane.seen_positions = row.first_position + row.num_tokens;
  lane.seen.resize((lane.seen_positions + info_.block_tokens - 1) / info_.block_tokens);
  for (size_t i = first_changed / info_.block_tokens; i < lane.seen.size(); ++i) {
    const BlockId block = plan.blocks[row.first_block + i];
    lane.seen[i] = {block, versions_[block]};
  }
}

// Reads the row's context, appends the row's ids to it; returns the state after the last.
uint64_t FakeDevice::run_row(const StepPlan& plan, const StepRow& row) {
  LaneState& lane = lanes_[row.lane];
  const uint32_t known = unchanged(plan, row, lane);
  uint64_t state = known == 0 ? kStart : hashes_[place(plan, row, known - 1)];
  bool context_holds = true;
  for (uint32_t position = known; position < row.first_position; ++position) {
    const size_t at = place(plan, row, position);
    const bool holds = hashes_[at] == mix(state, ids_[at]);
    state = hashes_[at];
    if (holds) continue;
    context_holds = false;
    state = mix(state, kPoison);
    if (!std::exchange(lane.broken, true))
      log::with({}, lane.asked.epoch)
          .error("fake device: step {}, lane {}: block {} does not hold this context at position {}",
                 plan.step, row.lane, at / info_.block_tokens, position);
  }
  for (uint32_t i = 0; i < row.num_tokens; ++i) {
    const TokenId given = plan.ids[row.first_id + i];
    const TokenId id = given == kFromLane ? lane.last : given;
    const size_t at = place(plan, row, row.first_position + i);
    state = hashes_[at] = mix(state, id);
    ids_[at] = id;
    ++versions_[at / info_.block_tokens];
  }
  if (context_holds)
    remember(plan, row, lane, known);
  else
    lane.seen_positions = 0;
  return state;
}

std::optional<TokenId> FakeDevice::scripted(const LaneState& lane, uint32_t token_number) const {
  if (script_.mode == FakeConfig::Mode::kHash) return std::nullopt;
  if (token_number >= script_.ids.size() && token_number >= lane.asked.min_tokens &&
      !lane.asked.suppressed.empty())
    return lane.asked.suppressed.front();
  return script_.ids[token_number % script_.ids.size()];
}

SampledRow FakeDevice::sample(const StepRow& row, uint64_t state) {
  LaneState& lane = lanes_[row.lane];
  const LaneOpen& asked = lane.asked;
  const Geometric probability(state);
  const std::optional<TokenId> first = scripted(lane, row.token_number);
  const auto bias_of = [&](TokenId id) -> std::optional<float> {
    for (const LogitBias& entry : asked.sampling.logit_bias)
      if (entry.id == id) return entry.bias;
    return std::nullopt;
  };
  const auto suppressed = [&](TokenId id) {
    return row.token_number < asked.min_tokens &&
           std::find(asked.suppressed.begin(), asked.suppressed.end(), id) != asked.suppressed.end();
  };

  // Candidates: ranked ids up to the first that nothing moves (all later ones lose to it), and every biased
  // id.
  SampledRow sampled{row.lane, 0, 0, {}, true};
  float best = -INFINITY;
  const auto consider = [&](TokenId id, float logprob) {
    const float score = logprob + bias_of(id).value_or(0);
    if (suppressed(id) || score <= best) return;
    best = score;
    sampled.id = id;
    sampled.logprob = logprob;
    sampled.failed = false;
  };
  Ranking ranking(state, info_.vocab_size, never_);
  const uint32_t limit = info_.vocab_size - static_cast<uint32_t>(never_.size());
  const uint32_t top = asked.logprobs > 0 ? asked.logprobs - 1 : 0;
  std::vector<TokenId> seen;
  bool settled = false;
  for (uint32_t drawn = 0; !settled || sampled.top.size() < top;) {
    TokenId id = 0;
    if (first && seen.empty()) {
      id = *first;
    } else {
      if (drawn++ == limit) break;
      id = ranking.next();
      if (first && id == *first) continue;
    }
    const float logprob = probability.logprob(static_cast<uint32_t>(seen.size()));
    seen.push_back(id);
    if (sampled.top.size() < top) sampled.top.push_back({id, logprob});
    if (!settled) consider(id, logprob);
    settled = settled || !(bias_of(id) || suppressed(id));
  }
  for (const LogitBias& entry : asked.sampling.logit_bias)
    if (std::find(seen.begin(), seen.end(), entry.id) == seen.end())
      consider(entry.id, probability.logprob(static_cast<uint32_t>(seen.size())));
  if (!sampled.failed) {
    lane.last = sampled.id;
    lane.sampled = true;
  }
  return sampled;
}

Result<Model> read_model(const GpuWorkerConfig& config, const std::string& model_path) {
  Model model{
      .vocab_size = config.fake.vocab_size, .context_length = config.fake.context_length, .never = {}};
  if (model_path.empty()) {
    if (model.vocab_size == 0)
      return Error{Code::kInvalidArgument,
                   "gpu-worker.fake.vocab_size is 0 (that of the model) and there is no model; "
                   "set it, or set model"};
    return model;
  }
  auto gguf = Gguf::open(model_path);
  if (!gguf) return std::move(gguf).error();
  auto tokens = gguf->texts("tokenizer.ggml.tokens");
  if (!tokens) return std::move(tokens).error();
  if (model.vocab_size > tokens->size())
    return Error{Code::kInvalidArgument,
                 fmt::format("gpu-worker.fake.vocab_size is {}; allowed: at most the {} of {}",
                             model.vocab_size, tokens->size(), model_path)};
  if (model.vocab_size == 0) model.vocab_size = static_cast<uint32_t>(tokens->size());
  auto architecture = gguf->text("general.architecture");
  if (!architecture) return std::move(architecture).error();
  auto context = gguf->integer(std::string(*architecture) + ".context_length");
  if (!context) return std::move(context).error();
  model.context_length = static_cast<uint32_t>(std::min<uint64_t>(model.context_length, *context));
  if (auto name = gguf->text("general.name")) model.name = std::string(*name);
  model.hash = gguf->header_hash();
  auto silent = context_hash::silent_ids(*gguf);
  if (!silent) return std::move(silent).error();
  model.never = std::move(silent).value();
  std::erase_if(model.never, [&](TokenId id) { return id >= model.vocab_size; });
  return model;
}

Status check_script(const FakeConfig& script, uint32_t vocab_size) {
  if (script.step_time < 0 || script.prefill_time_per_token < 0)
    return Error{Code::kInvalidArgument,
                 "gpu-worker.fake: step_time and prefill_time_per_token must not be negative"};
  if (script.mode == FakeConfig::Mode::kHash) return ok_status();
  if (script.ids.empty())
    return Error{Code::kInvalidArgument,
                 "gpu-worker.fake.ids is empty; mode text plays it, so name at least one id"};
  for (const TokenId id : script.ids)
    if (id >= vocab_size)
      return Error{
          Code::kInvalidArgument,
          fmt::format("gpu-worker.fake.ids holds {}; allowed: below the vocabulary's {}", id, vocab_size)};
  return ok_status();
}

}  // namespace

Result<std::unique_ptr<Device>> make_fake_device(const GpuWorkerConfig& config, const std::string& model_path,
                                                 std::function<Nanos()> clock) {
  auto model = read_model(config, model_path);
  if (!model) return std::move(model).error();
  if (auto status = check_script(config.fake, model->vocab_size); !status) return std::move(status).error();
  if (config.context_length > model->context_length)
    return Error{Code::kInvalidArgument,
                 fmt::format("gpu-worker.context_length is {}; allowed with this fake device: at "
                             "most {} (gpu-worker.fake.context_length and the model's)",
                             config.context_length, model->context_length)};
  DeviceInfo info;
  info.kind = "fake";
  info.variant = config.fake.mode == FakeConfig::Mode::kHash ? "hash" : "text";
  info.model = model->name;
  info.weights_hash = model->hash;
  info.vocab_size = model->vocab_size;
  info.num_lanes = config.max_running;
  info.step_limit = config.step_timeout;
  if (auto status = size_kv(config, config.block_tokens * kFakeKvBytesPerToken, model->context_length, info);
      !status)
    return std::move(status).error();
  return std::unique_ptr<Device>(
      std::make_unique<FakeDevice>(config.fake, std::move(info), std::move(model->never), std::move(clock)));
}

}  // namespace ringmaster::gpu_worker
