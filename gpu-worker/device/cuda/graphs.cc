#include "gpu-worker/device/cuda/graphs.h"

#include <algorithm>
#include <string>

#include "gpu-worker/device/cuda/cuda_error.h"

namespace ringmaster::gpu_worker::cuda {

std::vector<uint32_t> DecodeGraphs::classes(uint32_t max_rows) {
  std::vector<uint32_t> all;
  uint32_t rows = 1;
  while (rows < max_rows) {
    all.push_back(rows);
    rows += rows < 16 ? rows : rows < 128 ? 16 : rows < 256 ? 32 : 64;
  }
  all.push_back(max_rows);
  return all;
}

Result<DecodeGraphs> DecodeGraphs::capture(cudaStream_t stream, uint32_t max_rows, const Enqueue& enqueue) {
  DecodeGraphs graphs;
  for (const uint32_t rows : classes(max_rows)) {
    graphs.classes_.push_back({.rows = rows});
    for (uint32_t set = 0; set < kSets; ++set) {
      if (Status s =
              check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a graph");
          !s)
        return s.error();
      const Status enqueued = enqueue(stream, rows, set);
      cudaGraph_t graph = nullptr;
      const Status ended = check(cudaStreamEndCapture(stream, &graph), "ending a graph");
      Status made = enqueued ? ended : enqueued;
      if (made)
        made = check(cudaGraphInstantiate(&graphs.classes_.back().graphs[set], graph, 0),
                     "making a graph of " + std::to_string(rows) + " rows");
      if (graph != nullptr) (void)cudaGraphDestroy(graph);
      if (made)
        made = check(cudaGraphUpload(graphs.classes_.back().graphs[set], stream), "uploading a graph");
      if (!made) return made.error();
    }
  }
  return graphs;
}

DecodeGraphs::~DecodeGraphs() {
  for (const Class& c : classes_)
    for (cudaGraphExec_t graph : c.graphs)
      if (graph != nullptr) (void)cudaGraphExecDestroy(graph);
}

std::optional<uint32_t> DecodeGraphs::class_of(uint32_t rows) const {
  const auto found =
      std::find_if(classes_.begin(), classes_.end(), [&](const Class& c) { return c.rows >= rows; });
  if (found == classes_.end()) return std::nullopt;
  return found->rows;
}

Status DecodeGraphs::launch(uint32_t rows_of_class, uint32_t set, cudaStream_t stream) const {
  const auto found =
      std::find_if(classes_.begin(), classes_.end(), [&](const Class& c) { return c.rows == rows_of_class; });
  if (found == classes_.end())
    return Error{Code::kInternal, "no graph for " + std::to_string(rows_of_class) + " rows"};
  return check(cudaGraphLaunch(found->graphs[set], stream), "starting a step's graph");
}

}  // namespace ringmaster::gpu_worker::cuda
