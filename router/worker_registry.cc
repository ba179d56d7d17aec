#include "router/worker_registry.h"

#include <algorithm>

#include "base/utf8.h"

namespace ringmaster::router {
namespace {

constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMaxModelNameBytes = 256;
constexpr size_t kMaxDeviceBytes = 32;
constexpr size_t kMaxSocketBytes = 107;  // sockaddr_un::sun_path without its zero

std::string_view view(const flatbuffers::String* text) {
  return text ? text->string_view() : std::string_view();
}

Status check_field(const char* what, std::string_view text, size_t least, size_t most) {
  if (text.size() < least || text.size() > most)
    return Error{Code::kInvalidArgument, std::string(what) + " has " + std::to_string(text.size()) +
                                             " bytes; allowed: " + std::to_string(least) + " to " +
                                             std::to_string(most)};
  const bool printable = std::all_of(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7F; });
  if (!printable || !is_valid_utf8(text))
    return Error{Code::kInvalidArgument, std::string(what) + " is not printable UTF-8"};
  return ok_status();
}

Status check_registration(const msg::Register& message) {
  if (auto name = check_field("name", view(message.name()), 1, kMaxNameBytes); !name) return name;
  if (message.kind() > msg::WorkerKind::MAX)
    return Error{Code::kUnsupported,
                 "worker kind " + std::to_string(static_cast<int>(message.kind())) + " is not known"};
  if (message.instance() == 0) return Error{Code::kInvalidArgument, "instance is 0; it must be random"};
  const bool gpu = message.kind() == msg::WorkerKind::gpu_worker;
  if (auto socket = check_field("ring_socket", view(message.ring_socket()), gpu ? 1 : 0, kMaxSocketBytes);
      !socket)
    return socket;
  if (auto device = check_field("device", view(message.device()), 0, kMaxDeviceBytes); !device) return device;
  if (!message.model() || message.model()->vocab_size() == 0)
    return Error{Code::kInvalidArgument, "model is absent or has a vocabulary of 0"};
  return check_field("model.name", view(message.model()->name()), 0, kMaxModelNameBytes);
}

WorkerPtr make_worker(const msg::Register& message, std::string_view peer, Nanos now) {
  auto worker = std::make_shared<Worker>();
  worker->kind = message.kind();
  worker->name = message.name()->str();
  worker->peer = std::string(peer);
  worker->pid = message.pid();
  worker->instance = message.instance();
  worker->model_name = std::string(view(message.model()->name()));
  worker->weights_hash = message.model()->weights_hash();
  worker->limits = {message.model()->vocab_size(), message.model()->context_length()};
  worker->device = std::string(view(message.device()));
  worker->ring_socket = std::string(view(message.ring_socket()));
  worker->max_live = message.max_live();
  worker->last_seen = now;
  return worker;
}

bool name_before(const WorkerPtr& worker, std::string_view name) {
  return worker->name < name;
}

}  // namespace

bool Worker::linked_to(const Worker& gpu) const {
  return std::any_of(links.begin(), links.end(), [&](const Link& link) {
    return link.gpu_instance == gpu.instance && link.gpu_worker == gpu.name;
  });
}

Result<WorkerRegistry::Added> WorkerRegistry::add(const msg::Register& message, std::string_view peer,
                                                  Nanos now) {
  if (auto fields = check_registration(message); !fields) return std::move(fields).error();
  Added added;
  auto place = std::lower_bound(all_.begin(), all_.end(), message.name()->string_view(), name_before);
  const bool known = place != all_.end() && (*place)->name == message.name()->string_view();
  if (known) {
    const WorkerPtr& former = *place;
    if (former->state != Worker::State::kDead && former->instance == message.instance() &&
        former->peer == peer) {
      former->last_seen = now;
      return Added{former, nullptr, true};
    }
    if (former->state != Worker::State::kDead) {
      added.replaced = former;
      bury(*former);
    }
  } else {
    if (auto room = make_room(); !room) return std::move(room).error();
    place = std::lower_bound(all_.begin(), all_.end(), message.name()->string_view(), name_before);
  }
  added.worker = make_worker(message, peer, now);
  added.worker->refusal = mismatch(*added.worker);
  if (!added.worker->refusal.empty()) added.worker->state = Worker::State::kRefused;
  if (known)
    *place = added.worker;
  else
    all_.insert(place, added.worker);
  // A route that spoke for another name speaks for this one now; the other is left to its silence.
  by_peer_.insert_or_assign(added.worker->peer, added.worker);
  return added;
}

Status WorkerRegistry::make_room() {
  if (all_.size() < kMaxWorkers) return ok_status();
  const auto dead = std::find_if(all_.begin(), all_.end(),
                                 [](const WorkerPtr& w) { return w->state == Worker::State::kDead; });
  if (dead == all_.end())
    return Error{Code::kResourceExhausted,
                 std::to_string(kMaxWorkers) + " workers are registered; no more are taken"};
  all_.erase(dead);
  return ok_status();
}

WorkerPtr WorkerRegistry::find(std::string_view peer) const {
  const auto found = by_peer_.find(peer);
  return found == by_peer_.end() ? nullptr : found->second;
}

bool WorkerRegistry::reconsider(Worker& worker) {
  if (worker.state != Worker::State::kRefused) return false;
  worker.refusal = mismatch(worker);
  if (!worker.refusal.empty()) return false;
  worker.state = Worker::State::kUsable;
  return true;
}

void WorkerRegistry::bury(Worker& worker) {
  worker.state = Worker::State::kDead;
  const auto found = by_peer_.find(worker.peer);
  if (found != by_peer_.end() && found->second.get() == &worker) by_peer_.erase(found);
}

std::vector<WorkerPtr> WorkerRegistry::silent(Nanos now, Nanos timeout) const {
  std::vector<WorkerPtr> out;
  for (const WorkerPtr& worker : all_)
    if (worker->state != Worker::State::kDead && now - worker->last_seen >= timeout) out.push_back(worker);
  return out;
}

Nanos WorkerRegistry::next_silent(Nanos timeout) const {
  Nanos next = kNever;
  for (const WorkerPtr& worker : all_)
    if (worker->state != Worker::State::kDead) next = std::min(next, worker->last_seen + timeout);
  return next;
}

void WorkerRegistry::forgive(Nanos now) {
  for (const WorkerPtr& worker : all_)
    if (worker->state != Worker::State::kDead) worker->last_seen = now;
}

ModelLimits WorkerRegistry::limits() const {
  const auto least = [](uint32_t a, uint32_t b) { return a == 0 ? b : b == 0 ? a : std::min(a, b); };
  ModelLimits out;
  for (const WorkerPtr& worker : all_) {
    if (!worker->usable()) continue;
    out.vocab_size = least(out.vocab_size, worker->limits.vocab_size);
    out.context_length = least(out.context_length, worker->limits.context_length);
  }
  return out;
}

std::string_view WorkerRegistry::model_name() const {
  for (const WorkerPtr& worker : all_)
    if (worker->usable() && !worker->model_name.empty()) return worker->model_name;
  return {};
}

std::string WorkerRegistry::mismatch(const Worker& candidate) const {
  for (const WorkerPtr& other : all_) {
    if (!other->usable() || other.get() == &candidate || other->name == candidate.name) continue;
    if (other->weights_hash != candidate.weights_hash)
      return "another model than " + other->name + " (weights " + std::to_string(candidate.weights_hash) +
             ", there " + std::to_string(other->weights_hash) + ")";
    const uint32_t mine = candidate.limits.vocab_size;
    const uint32_t theirs = other->limits.vocab_size;
    const bool fits = other->kind == candidate.kind ? mine == theirs
                      : candidate.is_gpu()          ? mine <= theirs
                                                    : theirs <= mine;
    if (!fits)
      return "vocabulary of " + std::to_string(mine) + " does not fit the " + std::to_string(theirs) +
             " of " + other->name;
  }
  return {};
}

}  // namespace ringmaster::router
