#include "tests/simulate/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "gpu-worker/device/fake/fake_device.h"
#include "tests/tokenizer-worker/worker/tiny_tokenizer.h"

namespace ringmaster::simulate {
namespace {

constexpr uint32_t kContext = 160;
constexpr Nanos kFaultsLast = 8 * kSecond;

void draw_config(Plan& plan, Random& r) {
  ClusterConfig& c = plan.config;
  plan.tight = r.percent(25);
  c.router.max_live_requests = plan.tight ? r.count(2, 6) : 64;
  c.router.credit_tokens = r.percent(15) ? r.count(64, 160) : r.count(2, 32);  // the former fill rings
  c.router.client_lease = 3 * kSecond;
  c.router.worker_timeout = kSecond;
  c.tokenizer_worker.count = r.count(1, 3);
  c.tokenizer_worker.linger = 2 * kSecond;
  c.supervisor.drain_timeout = r.between(100, 3000) * kMillisecond;
  plan.place_limit = r.between(1, 5) * kSecond;
  plan.encode_queue = plan.tight ? r.count(1, 3) : 64;

  GpuWorkerConfig& g = c.gpu_worker;
  g.count = r.count(1, 2);
  g.device = "fake";
  g.block_tokens = r.pick({4u, 8u, 16u});
  const uint32_t least_blocks = (kContext + g.block_tokens - 1) / g.block_tokens;
  g.kv_memory =
      uint64_t{r.count(least_blocks, 3 * least_blocks)} * g.block_tokens * gpu_worker::kFakeKvBytesPerToken;
  g.context_length = kContext;
  g.max_running = r.count(1, 8);
  g.max_waiting = plan.tight ? r.count(1, 4) : 64;
  g.step_tokens = r.count(g.max_running, 64);
  g.prefill_chunk = r.count(1, 32);
  g.batching_window = r.percent(30) ? r.between(0, 5) * kMillisecond : 0;
  // One more than there are tokenizer-workers, so that a restarted one usually finds a slot before the death
  // of its forerunner is noticed, and sometimes does not.
  g.slots = c.tokenizer_worker.count + r.count(0, 1);
  g.prefix_cache = r.percent(80);
  g.fake.mode = FakeConfig::Mode::kHash;
  g.fake.vocab_size = tokenizer_worker::kTinyVocabulary;
  g.fake.context_length = kContext;
  g.fake.step_time = r.between(1, 20) * kMillisecond;
  g.fake.prefill_time_per_token = r.percent(30) ? r.between(1, 500) * kMicrosecond : 0;

  plan.slot_sizes.command_bytes = r.percent(30) ? 4 << 10 : 32 << 10;
  plan.slot_sizes.prompt_bytes = r.percent(30) ? 4 << 10 : 32 << 10;
  plan.slot_sizes.token_bytes = r.percent(30) ? 4 << 10 : 32 << 10;
  if (c.router.credit_tokens >= 64) {  // a tokenizer-worker that is stopped for a moment finds its ring full
    plan.slot_sizes.token_bytes = 4 << 10;
    g.fake.step_time = r.between(1, 3) * kMillisecond;
  }
}

void draw_network(Plan& plan, Random& r) {
  Network& n = plan.network;
  n.latency = r.between(0, 200) * kMicrosecond;
  n.client_jitter = r.percent(50) ? r.between(1, 20'000) * kMicrosecond : 0;
  n.worker_jitter = r.percent(50) ? r.between(1, 5'000) * kMicrosecond : 0;
  if (!plan.client_faults) return;
  if (r.percent(50)) n.drop_percent = r.count(1, 15);
  if (r.percent(50)) n.duplicate_percent = r.count(1, 15);
}

void draw_clients(Plan& plan, Random& r) {
  plan.num_clients = r.count(1, 3);
  plan.client_options.ping_interval = 500 * kMillisecond;
  plan.client_options.silence_limit = 20 * kSecond;
  plan.client_options.ack_every = r.count(1, std::max(1u, plan.config.router.credit_tokens / 2));
  plan.client_options.ask_again_after = kSecond;
  for (uint32_t i = 0; i < plan.num_clients; ++i)
    plan.read_pause.push_back(r.percent(25) ? r.between(1, 200) * kMillisecond : 0);
}

std::string draw_text(Random& r) {
  // Few beginnings, so that prefixes are shared; then anything that is UTF-8.
  static const std::string kBeginnings[] = {"hello world, this is a rather long beginning", "Observation: x",
                                            "h", "error\nhi"};
  static const std::string kMore[] = {" world", "a", "\xC3\xA9", "\xE2\x82\xAC", "ervation", "\n", "q"};
  std::string text = r.pick(kBeginnings);
  for (uint32_t i = r.count(0, 30); i > 0; --i) text += r.pick(kMore);
  return text;
}

client::Request draw_request(const Plan& plan, Random& r) {
  client::Request q;
  if (r.percent(60)) {
    q.prompt = draw_text(r);
  } else {
    std::vector<TokenId> ids(r.count(1, 60));
    Random shared(r.below(3));
    for (TokenId& id : ids) id = static_cast<TokenId>(shared.below(tokenizer_worker::kTinyVocabulary));
    ids.push_back(static_cast<TokenId>(r.below(tokenizer_worker::kTinyVocabulary)));
    q.prompt = std::move(ids);
  }
  const uint32_t kind = r.count(0, 99);
  if (kind < 80)
    q.max_tokens = r.count(1, 40);
  else if (kind < 95)
    q.max_tokens = r.count(40, 90);
  else if (kind < 98)
    q.max_tokens = r.count(100, 200);  // may not fit
  if (r.percent(20) && q.max_tokens) q.min_tokens = r.count(0, *q.max_tokens);
  if (r.percent(25)) {
    static const std::string kStops[] = {"l", "er", "o w", "x", "\n", "a"};
    for (uint32_t i = r.count(1, 3); i > 0; --i) q.stop.push_back(r.pick(kStops));
    q.include_stop = r.percent(30);
  }
  if (r.percent(20))
    for (uint32_t i = r.count(1, 20); i > 0; --i)
      q.stop_ids.push_back(static_cast<TokenId>(r.below(tokenizer_worker::kTinyVocabulary)));
  q.ignore_eos = r.percent(30);
  q.skip_special = r.percent(70);
  if (r.percent(30)) q.logprobs = static_cast<uint8_t>(r.count(0, 3));
  if (r.percent(30)) q.priority = static_cast<int8_t>(r.between(-3, 3));
  if (r.percent(15)) q.deadline_ms = r.count(20, 3000);
  if (r.percent(30)) q.tenant = r.percent(50) ? "red" : "blue";
  if (r.percent(30)) {
    q.sampling.temperature = 0.7f;
    q.has_seed = r.percent(50);
    q.sampling.seed = r.next();
  }
  q.resume_grace_ms = plan.any_faults() && r.percent(20) ? r.count(0, 300) : r.count(1000, 3000);
  return q;
}

void draw_requests(Plan& plan, Random& r) {
  const uint32_t count = r.count(2, 14);
  // Some runs are one burst, others spread.
  const Nanos spread = r.percent(30) ? 200 * kMillisecond : 6 * kSecond;
  for (uint32_t i = 0; i < count; ++i) {
    PlannedRequest p;
    p.at = kStart + r.between(0, spread);
    p.client = static_cast<uint32_t>(r.below(plan.num_clients));
    p.uid = {r.next(), r.next() | 1};
    p.request = draw_request(plan, r);
    if (r.percent(25)) p.cancel_after = r.between(1, 1500) * kMillisecond;
    plan.requests.push_back(std::move(p));
  }
  std::stable_sort(plan.requests.begin(), plan.requests.end(),
                   [](const auto& a, const auto& b) { return a.at < b.at; });
}

Fault draw_fault(const Plan& plan, Random& r) {
  Fault f;
  f.at = kStart + r.between(0, kFaultsLast);
  std::vector<std::string> processes;
  if (plan.router_faults) processes.push_back("router");
  if (plan.worker_faults) {
    for (uint32_t i = 0; i < plan.config.tokenizer_worker.count; ++i)
      processes.push_back(worker_name(false, i));
    for (uint32_t i = 0; i < plan.config.gpu_worker.count; ++i) processes.push_back(worker_name(true, i));
  }
  const bool client = plan.client_faults && (processes.empty() || r.percent(40));
  if (client) {
    f.target = std::to_string(r.below(plan.num_clients));
    const uint32_t kind = r.count(0, 99);
    f.kind = kind < 40   ? Fault::Kind::kBreak
             : kind < 70 ? Fault::Kind::kMove
             : kind < 85 ? Fault::Kind::kPause
                         : Fault::Kind::kVanish;
  } else {
    f.target = processes[r.below(processes.size())];
    const uint32_t kind = r.count(0, 99);
    f.kind = kind < 60 ? Fault::Kind::kKill : kind < 85 ? Fault::Kind::kPause : Fault::Kind::kDrain;
  }
  f.length = r.percent(70) ? r.between(10, 400) * kMillisecond : r.between(400, 3000) * kMillisecond;
  f.last_words = r.percent(50);
  if (f.kind == Fault::Kind::kKill && r.percent(40)) f.in_turn = r.count(1, 12);
  return f;
}

// Streams that are in full flow, with credit for more than a ring holds, and tokenizer-workers that are
// stopped now and then for less than the router's patience with them. Some requests are cancelled meanwhile:
// then the router ends them itself before the worker goes on.
void draw_slow_readers(Plan& plan, Random& r) {
  plan.slow_readers = true;
  plan.end_limit = r.between(20, 150) * kMillisecond;
  plan.config.router.credit_tokens = r.count(64, 160);
  plan.slot_sizes.token_bytes = shm::kMinRingBytes;
  plan.config.gpu_worker.max_running = r.count(4, 8);
  plan.config.gpu_worker.step_tokens = r.count(16, 64);
  plan.config.gpu_worker.fake.step_time = r.between(1, 3) * kMillisecond;
  for (PlannedRequest& p : plan.requests) {
    p.request.max_tokens = r.count(60, 90);
    p.request.min_tokens = 0;
    p.request.ignore_eos = true;
    p.request.stop_ids.clear();
    if (r.percent(60)) p.request.stop.clear();
    p.cancel_after = r.percent(40) ? r.between(10, 400) * kMillisecond : 0;
    p.at = kStart + r.between(0, kFaultsLast - kSecond);
  }
  // Most right after a request, while its tokens come; far enough apart for a heartbeat in between.
  Nanos free_from = kStart;
  std::stable_sort(plan.requests.begin(), plan.requests.end(),
                   [](const auto& a, const auto& b) { return a.at < b.at; });
  for (const PlannedRequest& p : plan.requests) {
    const Nanos at = p.at + r.between(2, 100) * kMillisecond;
    if (at < free_from) continue;
    Fault f{.at = at, .kind = Fault::Kind::kPause};
    f.length = r.between(50, 350) * kMillisecond;
    free_from = at + f.length + 600 * kMillisecond;
    for (uint32_t i = 0; i < plan.config.tokenizer_worker.count; ++i) {
      f.target = worker_name(false, i);
      plan.faults.push_back(f);
    }
  }
}

}  // namespace

std::string worker_name(bool gpu, uint32_t index) {
  return fmt::format("{}-worker.{}", gpu ? "gpu" : "tokenizer", index);
}

std::string client_name(uint32_t client, uint32_t life) {
  return fmt::format("client.{}.{}", client, life);
}

std::string_view name(Fault::Kind kind) {
  static constexpr std::string_view kNames[] = {"kill", "pause", "drain", "break", "move", "vanish"};
  return kNames[static_cast<size_t>(kind)];
}

Plan make_plan(uint64_t seed) {
  Plan plan;
  plan.seed = seed;
  Random r(seed);
  plan.run = r.fork();
  // A quarter of the runs is undisturbed: there nothing but what was asked for may happen.
  if (!r.percent(25)) {
    plan.worker_faults = r.percent(60);
    plan.router_faults = r.percent(40);
    plan.client_faults = r.percent(60);
    plan.device_fails = r.percent(5);
  }
  draw_config(plan, r);
  draw_network(plan, r);
  draw_clients(plan, r);
  draw_requests(plan, r);
  if (!plan.any_faults() && !plan.tight && r.percent(60)) draw_slow_readers(plan, r);
  if (plan.device_fails) plan.config.gpu_worker.fake.fail_at_step = r.count(1, 300);
  if (plan.worker_faults || plan.router_faults || plan.client_faults)
    for (uint32_t i = r.count(1, 8); i > 0; --i) plan.faults.push_back(draw_fault(plan, r));
  std::stable_sort(plan.faults.begin(), plan.faults.end(),
                   [](const auto& a, const auto& b) { return a.at < b.at; });
  plan.calm_from = kStart + kFaultsLast + kSecond;
  return plan;
}

std::string describe(const Plan& p) {
  const GpuWorkerConfig& g = p.config.gpu_worker;
  std::string out = fmt::format(
      "seed {}: {} tokenizer-workers, {} gpu-workers ({} lanes, {} blocks of {}, step {} tokens in {} ms), "
      "{} "
      "clients, {} requests, credit {}, {} live at most; latency {} us, jitter {}/{} us, drop {} %, "
      "duplicate "
      "{} %",
      p.seed, p.config.tokenizer_worker.count, g.count, g.max_running,
      g.kv_memory / gpu_worker::kFakeKvBytesPerToken / g.block_tokens, g.block_tokens, g.step_tokens,
      g.fake.step_time / kMillisecond, p.num_clients, p.requests.size(), p.config.router.credit_tokens,
      p.config.router.max_live_requests, p.network.latency / kMicrosecond,
      p.network.client_jitter / kMicrosecond, p.network.worker_jitter / kMicrosecond, p.network.drop_percent,
      p.network.duplicate_percent);
  for (const Fault& f : p.faults)
    out += fmt::format("\n  {:10.6f} {} {} for {} ms{}", static_cast<double>(f.at - kStart) / kSecond,
                       name(f.kind), f.target, f.length / kMillisecond,
                       f.in_turn == 0 ? "" : fmt::format(", at its act {}", f.in_turn));
  return out;
}

}  // namespace ringmaster::simulate
