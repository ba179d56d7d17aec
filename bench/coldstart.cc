// coldstart.first_token: from `ringmaster up` (exec) to the first token at a client that was waiting already,
// the model in the page cache. Each round is a new cluster; the median and the worst of the rounds are
// printed.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>

#include "bench/support/bench_cluster.h"

int main(int argc, char** argv) {
  using namespace ringmaster;
  if (argc != 3) bench::die("usage: bench_coldstart RINGMASTER ROUNDS");
  std::vector<double> seconds;
  for (int round = std::max(1, std::atoi(argv[2])); round > 0; --round) {
    bench::BenchCluster cluster(argv[1], "");
    const Nanos start = monotonic_now();
    cluster.exec();
    auto client = cluster.connect();
    client::Request request;
    request.prompt = std::string("The capital of France is");
    request.max_tokens = 1;
    Nanos first = 0;
    const auto answer = client.generate(
        request,
        [&](const client::Piece& piece) {
          if (first == 0 && !piece.ids.empty()) first = monotonic_now() - start;
        },
        30 * kSecond);
    if (!answer) bench::die(answer.error().message);
    if (first == 0) bench::die("no token: " + answer->ending.message);
    seconds.push_back(static_cast<double>(first) / kSecond);
  }
  bench::figure("coldstart.first_token", bench::quantile(seconds, 0.5), "s");
  bench::figure("coldstart.first_token_worst", bench::quantile(seconds, 1), "s");
}
