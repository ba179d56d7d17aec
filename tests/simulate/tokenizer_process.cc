#include <deque>

#include "tests/simulate/processes.h"

namespace ringmaster::simulate {
namespace {

namespace tw = tokenizer_worker;

// Two hops of at most 25 ms each, and turns that come late.
constexpr Nanos kAcknowledgedWithin = 500 * kMillisecond;

tw::RequestLimits limits_of(const Plan& plan) {
  tw::RequestLimits limits;
  limits.context_length = plan.config.gpu_worker.context_length;
  limits.max_live = plan.config.router.max_live_requests;
  limits.credit = plan.config.router.credit_tokens + (plan.sabotage == Sabotage::kMoreCredit ? 1 : 0);
  limits.linger = plan.config.tokenizer_worker.linger;
  return limits;
}

tw::WorkerTimes times_of(const Plan& plan) {
  tw::WorkerTimes times;
  times.heartbeat = plan.config.router.worker_timeout / 4;
  times.drain = plan.config.supervisor.drain_timeout;
  return times;
}

tw::WorkerIdentity identity_of(const Plan& plan, const std::string& name, uint64_t life,
                               const tw::Tokenizer& tokenizer) {
  tw::WorkerIdentity identity;
  identity.name = name;
  identity.pid = static_cast<int>(life);
  identity.instance = life;
  identity.vocab_size = tokenizer.vocab_size();
  identity.context_length = plan.config.gpu_worker.context_length;
  identity.max_live = plan.config.router.max_live_requests;
  return identity;
}

}  // namespace

// LinkAttacher without its thread: the gpu-worker hears of the wish, and this process of the answer, some
// time later. A gpu-worker that does not answer (it is stopped) is given up after a while.
class TokenizerProcess::Attaching final : public tw::Attacher {
 public:
  Attaching(World& world, TokenizerProcess& owner, FindGpu find_gpu)
      : world_(world), owner_(owner), find_gpu_(std::move(find_gpu)) {}

  bool attach(tw::AttachJob job) override {
    const Runs outside(false);
    const std::shared_ptr<bool> gone = owner_.gone_, over = std::make_shared<bool>(false);
    const auto reply = [this, gone, over, job](Result<shm::TokenizerEnd> end) {
      if (std::exchange(*over, true) || *gone) return;
      auto shared =
          std::make_shared<tw::Attached>(tw::Attached{job.gpu_worker, job.gpu_instance, std::move(end)});
      world_.at(world_.soon(), [this, gone, shared] {
        if (*gone) return;
        results_.push_back(std::move(*shared));
        owner_.bell_->ring();
      });
    };
    world_.at(world_.soon() + world_.random.between(0, 2) * kMillisecond, [this, gone, over, job, reply] {
      if (*gone) return;
      GpuProcess* gpu = find_gpu_(job.ring_socket);
      if (gpu == nullptr) return reply(Error{Code::kUnavailable, "nobody listens at " + job.ring_socket});
      gpu->slots().connect(
          {owner_.name(), owner_.life(), job.gpu_instance, duplicate(owner_.bell_->fd()), reply, over, gone});
    });
    world_.at(world_.now() + 2 * kSecond, [reply] {
      reply(Error{Code::kDeadlineExceeded, "the gpu-worker did not answer in time"});
    });
    return true;
  }

  std::optional<tw::Attached> take() override {
    if (results_.empty()) return std::nullopt;
    std::optional<tw::Attached> first(std::move(results_.front()));
    results_.pop_front();
    return first;
  }

 private:
  World& world_;
  TokenizerProcess& owner_;
  const FindGpu find_gpu_;
  std::deque<tw::Attached> results_;
};

TokenizerProcess::TokenizerProcess(World& world, std::string name, uint64_t life, actor::Outbox& outbox,
                                   const tw::Tokenizer& tokenizer, FindGpu find_gpu)
    : Process(world, std::move(name), life),
      builder_(tokenizer, nullptr),
      pool_(builder_, 0, world.plan.encode_queue, (make_bell(), *bell_)),
      attacher_(std::make_unique<Attaching>(world, *this, std::move(find_gpu))),
      requests_(limits_of(world.plan), tokenizer, pool_, links_, outbox, counters_),
      worker_(identity_of(world.plan, name_, life, tokenizer), times_of(world.plan), requests_, pool_, links_,
              *attacher_, outbox, counters_) {
  // A descriptor that is watched counts as ready once: the gpu-worker may be dead already.
  links_.watch_peers(
      [this](int) {
        peers_changed_ = true;
        bell_->ring();
      },
      [](int) {});
}

TokenizerProcess::~TokenizerProcess() {
  *gone_ = true;
}

std::optional<int> TokenizerProcess::exit_code() const {
  return worker_.drained() ? std::optional(0) : std::nullopt;
}

void TokenizerProcess::take(actor::Channel channel, std::string_view peer, actor::Bytes message, Nanos now) {
  worker_.receive(channel, peer, message, now);
}

Nanos TokenizerProcess::turn(Nanos now) {
  if (std::exchange(peers_changed_, false)) worker_.check_peers(now);
  const bool work = worker_.poll(now);
  const Nanos next = worker_.run_timers(now);
  worker_.flush(now);
  plan_encoding();
  return work ? std::min(next, world_.soon()) : next;
}

// The encode thread: takes a job, mostly soon.
void TokenizerProcess::plan_encoding() {
  if (encoding_planned_ || pool_.in_flight() == 0) return;
  encoding_planned_ = true;
  const Nanos takes = world_.random.percent(3) ? world_.random.between(1, 300) * kMillisecond
                                               : world_.random.between(5, 2000) * kMicrosecond;
  world_.at(world_.now() + takes, [this, gone = gone_] {
    if (*gone) return;
    encoding_planned_ = false;
    if (as_process([&] { return pool_.run_one(); })) plan_encoding();
  });
}

Status TokenizerProcess::check() const {
  using tw::Counter;
  const uint64_t assigned = counters_[Counter::kRequestsAssigned];
  const uint64_t over = counters_[Counter::kRequestsEnded] + counters_[Counter::kRequestsForgotten];
  if (assigned != over + requests_.live())
    return expect(false, fmt::format("{} requests assigned, but {} over and {} live", assigned, over,
                                     requests_.live()));
  for (const Counter never :
       {Counter::kProtocolErrors, Counter::kMessagesMalformed, Counter::kAcksIgnored, Counter::kSendsRefused})
    if (counters_[never] != 0)
      return expect(false, fmt::format("counter {} is {}", tw::kCounterNames[static_cast<size_t>(never)],
                                       counters_[never]));
  const uint32_t credit = world_.plan.config.router.credit_tokens;
  for (const Epoch epoch : requests_.table().epochs()) {
    const tw::Stream& stream = *requests_.table().find(epoch);
    const tw::Output& output = stream.output;
    const uint32_t unacknowledged = output.next_token() - output.acknowledged().next_token;
    if (unacknowledged > credit)
      return expect(false, fmt::format("epoch {:x} has {} tokens that are not acknowledged, the credit is {}",
                                       epoch, unacknowledged, credit));
    // Where nothing is lost, what a client has acknowledged gets here.
    const World::Told told = world_.told(stream.uid);
    if (world_.plan.prompt() && output.acknowledged().next_token < told.tokens &&
        world_.now() > told.at + kAcknowledgedWithin)
      return expect(false, fmt::format("epoch {:x} does not know of the acknowledgement of token {}", epoch,
                                       told.tokens));
  }
  return ok_status();
}

Status TokenizerProcess::check_baseline() const {
  const tw::StreamTable& table = requests_.table();
  if (auto ok = expect(table.size() == 0 && requests_.live() == 0,
                       fmt::format("{} streams are left, {} live", table.size(), requests_.live()));
      !ok)
    return ok;
  if (auto ok = expect(table.clients() == 0 && table.all_sent(), "clients or unsent pieces are left"); !ok)
    return ok;
  if (auto ok = expect(pool_.in_flight() == 0, "prompts are left in the encode pool"); !ok) return ok;
  if (auto ok = expect(links_.waiting() == 0, "commands wait for room in a ring"); !ok) return ok;
  return expect(links_.all().size() == world_.plan.config.gpu_worker.count,
                fmt::format("linked to {} gpu-workers of {}", links_.all().size(),
                            world_.plan.config.gpu_worker.count));
}

}  // namespace ringmaster::simulate
