// A model through the whole cluster, client to client, nothing cached:
//   cluster_device.start           `ringmaster up` to ready
//   cluster_device.ttft_N          first token of one prompt of N ids, median of nine
//   cluster_device.rate            output tokens of 256 requests of 512 ids in, 128 out, all at once
//   cluster_device.text_rate       prompts of 2,000 words a second, tokenised by the tokenizer-workers
//   cluster_device.text_share      that against the same ids sent ready-made, in alternating rounds
//   cluster_device.text_volume     text tokenised meanwhile
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <random>

#include "bench/support/bench_cluster.h"

namespace {

using namespace ringmaster;

constexpr Nanos kLongest = 300 * kSecond;

double seconds_since(Nanos start) {
  return static_cast<double>(monotonic_now() - start) / kSecond;
}

std::vector<TokenId> random_ids(std::mt19937& random, size_t count) {
  std::uniform_int_distribution<TokenId> id(1000, 40000);  // words, in the vocabularies there are
  std::vector<TokenId> ids(count);
  for (TokenId& i : ids) i = id(random);
  return ids;
}

std::string random_text(std::mt19937& random, int words) {
  static constexpr const char* kWords[] = {"the",    "of",     "water",   "mountain", "because",
                                           "system", "seldom", "light",   "forty",    "ship",
                                           "memory", "answer", "Tuesday", "with",     "under",
                                           "before", "a",      "quickly", "river,",   "stone."};
  std::uniform_int_distribution<size_t> word(0, std::size(kWords) - 1);
  std::string text;
  for (int i = 0; i < words; ++i) text.append(kWords[word(random)]).append(" ");
  return text;
}

client::Request request(decltype(client::Request::prompt) prompt, uint32_t tokens) {
  client::Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = tokens;
  r.ignore_eos = true;
  return r;
}

// All at once: the seconds until the last has ended.
double run_all(client::Client& client, std::vector<client::Request> requests) {
  const Nanos start = monotonic_now();
  size_t open = requests.size();
  for (client::Request& r : requests)
    if (!client.start(std::move(r))) bench::die("start failed");
  while (open > 0) {
    const auto event = client.next(start + kLongest);
    if (!event || !event->has_value()) bench::die("the streams stand still");
    const auto* ending = std::get_if<client::Ending>(&(*event)->what);
    if (ending == nullptr) continue;
    if (ending->code != Code::kOk) bench::die("a stream failed: " + ending->message);
    --open;
  }
  return seconds_since(start);
}

double median_first_token_ms(client::Client& client, size_t ids, std::mt19937& random) {
  std::vector<double> times;
  for (int i = 0; i < 10; ++i) {
    const double first = bench::first_token_ms(client, random_ids(random, ids), kLongest);
    if (i > 0) times.push_back(first);
  }
  return bench::quantile(times, 0.5);
}

void text_against_ids(client::Client& client, const std::string& name, std::mt19937& random) {
  constexpr int kRequests = 256, kWords = 2000, kRounds = 3;
  constexpr uint32_t kTokens = 8;
  std::vector<std::string> texts;
  std::vector<std::vector<TokenId>> ids;
  size_t bytes = 0;
  for (int i = 0; i < kRequests; ++i) {
    texts.push_back(random_text(random, kWords));
    bytes += texts.back().size();
    const auto tokenized = client.tokenize(request(texts.back(), 1), kLongest);
    if (!tokenized) bench::die("tokenize: " + tokenized.error().message);
    ids.push_back(*tokenized);
  }
  std::vector<double> of_text, of_ids;
  for (int round = 0; round <= kRounds; ++round) {
    std::vector<client::Request> as_text, as_ids;
    for (const std::string& text : texts) as_text.push_back(request(text, kTokens));
    for (const auto& prompt : ids) as_ids.push_back(request(prompt, kTokens));
    const double ids_time = run_all(client, std::move(as_ids)),
                 text_time = run_all(client, std::move(as_text));
    if (round == 0) continue;  // warms up
    of_ids.push_back(ids_time);
    of_text.push_back(text_time);
  }
  const double text = bench::quantile(of_text, 0.5);
  bench::figure((name + ".text_rate").c_str(), kRequests / text, "requests/s");
  bench::figure((name + ".text_share").c_str(), bench::quantile(of_ids, 0.5) / text * 100, "%");
  bench::figure((name + ".text_volume").c_str(), static_cast<double>(bytes) / text * 1e-6, "MB/s");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) bench::die("usage: bench_cluster_device RINGMASTER cpu|cuda|fake [MODEL.gguf]");
  const std::string device = argv[2], name = "cluster_device";
  bench::BenchCluster cluster(argv[1],
                              std::string(argc == 4 ? "model: " + std::string(argv[3]) + "\n" : "") +
                                  "tokenizer-worker:\n  count: 4\n"
                                  "gpu-worker:\n  device: " +
                                  device + "\n  kv_memory: " + (device == "cuda" ? "96GiB" : "24GiB") +
                                  "\n  max_running: 256\n  max_waiting: 1024\n"
                                  "  step_tokens: 8192\n  prefill_chunk: 8192\n  prefix_cache: false\n");
  const Nanos start = monotonic_now();
  cluster.up();
  bench::figure((name + ".start").c_str(), seconds_since(start), "s");
  auto client = cluster.connect();
  std::mt19937 random(1);
  for (const size_t ids : {512, 2048, 8000})
    bench::figure((name + ".ttft_" + std::to_string(ids)).c_str(), median_first_token_ms(client, ids, random),
                  "ms");
  for (int round = 0; round < 2; ++round) {
    constexpr int kRequests = 256;
    constexpr uint32_t kTokens = 128;
    std::vector<client::Request> requests;
    for (int i = 0; i < kRequests; ++i) requests.push_back(request(random_ids(random, 512), kTokens));
    const double time = run_all(client, std::move(requests));
    if (round == 1) bench::figure((name + ".rate").c_str(), kRequests * kTokens / time, "tokens/s");
  }
  text_against_ids(client, name, random);
}
