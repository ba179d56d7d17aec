// An idle cluster:
//   idle.cpu          CPU time of all processes over the given time, in per cent of one core
//   idle.memory       PSS of supervisor, router and one tokenizer-worker
//   idle.late_first_token  first token after the idleness against the median when warm; the median of the
//                     rounds, as each round has a single first token
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>

#include "bench/support/bench_cluster.h"

using namespace ringmaster;

int main(int argc, char** argv) {
  if (argc != 4) bench::die("usage: bench_idle RINGMASTER SECONDS ROUNDS");
  bench::BenchCluster cluster(
      argv[1], "gpu-worker:\n  device: fake\n  kv_memory: 256MiB\n  fake:\n    step_time: 2ms\n");
  cluster.up();
  auto client = cluster.connect();
  std::vector<double> warm;
  constexpr int kWarmRequests = 50;
  warm.reserve(kWarmRequests);
  for (int i = 0; i < kWarmRequests; ++i) warm.push_back(bench::first_token_ms(client));
  const auto processes = cluster.processes();
  const auto used = [&] {
    double total = 0;
    for (const auto& process : processes) total += bench::cpu_seconds(process.pid);
    return total;
  };
  double cpu = 0, seconds = 0;
  std::vector<double> late;
  for (int round = std::max(1, std::atoi(argv[3])); round > 0; --round) {
    const double before = used();
    const Nanos begin = monotonic_now();
    bench::sleep_for(std::max(1, std::atoi(argv[2])) * kSecond);
    cpu += used() - before;
    seconds += static_cast<double>(monotonic_now() - begin) / kSecond;
    late.push_back(bench::first_token_ms(client));
  }
  double memory = 0;
  bool counted_tokenizer = false;
  for (const auto& process : processes) {
    if (process.name == "gpu-worker") continue;
    // The kernel cuts process names to 15 characters.
    const bool tokenizer = process.name.rfind("tokenizer-worke", 0) == 0;
    if (tokenizer && counted_tokenizer) continue;
    counted_tokenizer = counted_tokenizer || tokenizer;
    memory += bench::pss_mebibytes(process.pid);
    std::fprintf(stderr, "  %-18s %.1f MiB\n", process.name.c_str(), bench::pss_mebibytes(process.pid));
  }
  bench::figure("idle.cpu", cpu / seconds * 100, "%");
  bench::figure("idle.memory", memory, "MiB");
  bench::figure("idle.late_first_token", bench::quantile(late, 0.5) - bench::quantile(warm, 0.5), "ms");
}
