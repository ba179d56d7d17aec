#include "router/status_reply.h"

#include <algorithm>
#include <string>

namespace ringmaster::router {

// "ready": gets requests. "starting": registered, but not linked to a peer of the other kind yet.
std::string state_of(const Worker& worker, const WorkerRegistry& registry) {
  if (worker.state == Worker::State::kDead) return "dead";
  if (worker.state == Worker::State::kRefused) return "refused: " + worker.refusal;
  const bool linked = std::any_of(registry.all().begin(), registry.all().end(), [&](const WorkerPtr& other) {
    if (!other->usable() || other->is_gpu() == worker.is_gpu()) return false;
    return worker.is_gpu() ? other->linked_to(worker) : worker.linked_to(*other);
  });
  return linked ? "ready" : "starting";
}

actor::Bytes build_status(flatbuffers::FlatBufferBuilder& b, const StatusFacts& facts,
                          const WorkerRegistry& registry, const RequestTable& table,
                          const Counters& counters) {
  const auto text = [&](std::string_view s) { return b.CreateString(s.data(), s.size()); };
  std::vector<flatbuffers::Offset<msg::WorkerStatus>> workers;
  for (const WorkerPtr& w : registry.all()) {
    const auto kind = text(w->is_gpu() ? "gpu-worker" : "tokenizer-worker");
    const auto name = text(w->name);
    const auto state = text(state_of(*w, registry));
    const auto device = text(w->device);
    const auto age_ms = static_cast<uint64_t>(std::max<Nanos>(0, facts.now - w->last_seen) / kMillisecond);
    workers.push_back(msg::CreateWorkerStatus(b, kind, name, w->pid, state, device, w->live, w->load.running,
                                              w->load.waiting, w->load.blocks_free, w->load.blocks_total,
                                              w->load.steps, age_ms));
  }
  std::vector<flatbuffers::Offset<msg::Counter>> values;
  for (size_t i = 0; i < kCounterNames.size(); ++i)
    values.push_back(msg::CreateCounter(b, text(kCounterNames[i]), counters.all()[i]));

  const ModelLimits limits = registry.limits();
  const auto model = text(registry.model_name());
  const auto worker_vector = b.CreateVector(workers);
  const auto counter_vector = b.CreateVector(values);
  const auto body = msg::CreateStatusReply(b, facts.incarnation, facts.ready, model, limits.context_length,
                                           limits.vocab_size, static_cast<uint32_t>(table.live()),
                                           worker_vector, counter_vector);
  return msg::seal<msg::ClientMessage>(b, msg::ClientBody::StatusReply, body.Union());
}

}  // namespace ringmaster::router
