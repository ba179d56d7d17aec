#include "router/placement.h"

#include <tuple>

namespace ringmaster::router {
namespace {

// A worker without a limit of its own counts as this large: only its share against other workers matters.
constexpr double kUnlimited = 1024;

double live_share(const Worker& worker) {
  return worker.live / (worker.max_live == 0 ? kUnlimited : static_cast<double>(worker.max_live));
}

double block_share(const Worker& worker) {
  if (worker.load.blocks_total == 0) return 0;
  return 1 - static_cast<double>(worker.load.blocks_free) / worker.load.blocks_total;
}

bool less_loaded(const Worker& a, const Worker& b) {
  return std::tuple(live_share(a), block_share(a), a.last_placed) <
         std::tuple(live_share(b), block_share(b), b.last_placed);
}

}  // namespace

WorkerPtr Placer::best_tokenizer(const Worker& gpu) const {
  WorkerPtr best;
  for (const WorkerPtr& worker : registry_.all()) {
    if (worker->is_gpu() || !worker->usable() || !worker->has_room() || !worker->linked_to(gpu)) continue;
    if (!best || less_loaded(*worker, *best)) best = worker;
  }
  return best;
}

std::optional<Placement> Placer::place() {
  Placement best;
  for (const WorkerPtr& gpu : registry_.all()) {
    if (!gpu->is_gpu() || !gpu->usable() || !gpu->has_room()) continue;
    if (best.gpu && !less_loaded(*gpu, *best.gpu)) continue;
    if (WorkerPtr tokenizer = best_tokenizer(*gpu)) best = {std::move(tokenizer), gpu};
  }
  if (!best.gpu) return std::nullopt;
  best.gpu->last_placed = best.tokenizer->last_placed = ++turn_;
  return best;
}

bool Placer::any_ready() const {
  for (const WorkerPtr& gpu : registry_.all()) {
    if (!gpu->is_gpu() || !gpu->usable()) continue;
    for (const WorkerPtr& worker : registry_.all())
      if (!worker->is_gpu() && worker->usable() && worker->linked_to(*gpu)) return true;
  }
  return false;
}

WorkerPtr Placer::least_busy_tokenizer() {
  WorkerPtr best;
  for (const WorkerPtr& worker : registry_.all()) {
    if (worker->is_gpu() || !worker->usable()) continue;
    if (!best || less_loaded(*worker, *best)) best = worker;
  }
  if (best) best->last_placed = ++turn_;
  return best;
}

}  // namespace ringmaster::router
