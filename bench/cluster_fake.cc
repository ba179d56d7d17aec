// What the cluster itself costs, on the fake device, whose time is a timer:
//   cluster_fake.added_ttft_p50  one stream, first token beyond the script's one step
//   cluster_fake.cpu_per_token, token_rate, itl_p99  256 streams at 2 ms steps, every token its own piece of
//   text; CPU time of router,
//                                tokenizer-workers, gpu-worker and this client, per token delivered
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdlib>
#include <unordered_map>

#include "bench/support/bench_cluster.h"

namespace {

using namespace ringmaster;

constexpr Nanos kStep = 2 * kMillisecond;
constexpr int kStreams = 256;
constexpr uint32_t kTokensOfStream = 1000;

void first_token(bench::BenchCluster& cluster) {
  auto client = cluster.connect();
  std::vector<double> added;
  for (int i = 0; i < 250; ++i) {
    const double first = bench::first_token_ms(client);
    if (i >= 50) added.push_back(first - static_cast<double>(kStep) / kMillisecond);
    bench::sleep_for(kMillisecond);
  }
  bench::figure("cluster_fake.added_ttft_p50", bench::quantile(added, 0.5), "ms");
  bench::figure("cluster_fake.added_ttft_p99", bench::quantile(added, 0.99), "ms");
}

client::Request long_request(int i) {
  client::Request request;
  request.prompt = std::vector<TokenId>{static_cast<TokenId>(1000 + i)};
  request.max_tokens = kTokensOfStream;
  request.ignore_eos = true;
  return request;
}

double used_cpu(const std::vector<bench::Process>& processes) {
  double total = bench::cpu_seconds(getpid());
  for (const bench::Process& process : processes) total += bench::cpu_seconds(process.pid);
  return total;
}

void throughput(bench::BenchCluster& cluster, Nanos duration) {
  auto client = cluster.connect();
  const auto processes = cluster.processes();
  std::unordered_map<Uid, Nanos> last_piece;
  std::vector<double> gaps;
  int started = 0;
  uint64_t tokens = 0;
  for (; started < kStreams; ++started)
    if (!client.start(long_request(started))) bench::die("start failed");
  const Nanos warm = monotonic_now() + kSecond;
  Nanos begin = 0;
  double cpu_before = 0;
  std::unordered_map<pid_t, double> before;
  while (begin == 0 || monotonic_now() < begin + duration) {
    const auto event = client.next(monotonic_now() + 5 * kSecond);
    if (!event || !event->has_value()) bench::die("the streams stand still");
    const Nanos now = monotonic_now();
    if (begin == 0 && now >= warm) {
      begin = now;
      cpu_before = used_cpu(processes);
      for (const auto& process : processes) before[process.pid] = bench::cpu_seconds(process.pid);
      tokens = 0;
    }
    if (const auto* piece = std::get_if<client::Piece>(&(*event)->what)) {
      tokens += piece->ids.size();
      Nanos& last = last_piece[(*event)->uid];
      if (last != 0 && begin != 0) gaps.push_back(static_cast<double>(now - last) / kMillisecond);
      last = now;
    } else if (const auto* ending = std::get_if<client::Ending>(&(*event)->what)) {
      if (ending->code != Code::kOk) bench::die("a stream failed: " + ending->message);
      last_piece.erase((*event)->uid);
      if (!client.start(long_request(started++))) bench::die("start failed");
    }
  }
  const double seconds = static_cast<double>(monotonic_now() - begin) / kSecond;
  const double cpu = used_cpu(processes) - cpu_before;
  const double count = static_cast<double>(tokens);
  bench::figure("cluster_fake.cpu_per_token", cpu / count * 1e6, "us");
  bench::figure("cluster_fake.token_rate", count / seconds, "tokens/s");
  bench::figure("cluster_fake.itl_p50", bench::quantile(gaps, 0.5), "ms");
  bench::figure("cluster_fake.itl_p99", bench::quantile(gaps, 0.99), "ms");
  for (const auto& process : processes)
    std::fprintf(stderr, "  %-18s %.2f us a token\n", process.name.c_str(),
                 (bench::cpu_seconds(process.pid) - before[process.pid]) / count * 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) bench::die("usage: bench_cluster_fake RINGMASTER SECONDS");
  bench::BenchCluster cluster(argv[1],
                              "tokenizer-worker:\n  count: 2\n"
                              "gpu-worker:\n  device: fake\n  kv_memory: 8GiB\n  max_running: 256\n"
                              "  fake:\n    step_time: 2ms\n");
  cluster.up();
  first_token(cluster);
  throughput(cluster, std::max(1, std::atoi(argv[2])) * kSecond);
}
