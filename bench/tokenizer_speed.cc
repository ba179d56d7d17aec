// How fast the default model's tokenizer encodes and streams text, one thread: MB of text a second, best of
// several rounds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/gguf.h"
#include "tokenizer-worker/text/detokenizer.h"
#include "tokenizer-worker/text/tokenizer.h"

namespace {

using namespace ringmaster;
using namespace ringmaster::tokenizer_worker;

constexpr int kRounds = 9;

template <typename F>
double best_seconds(F&& work) {
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

int fail(const std::string& message) {
  std::fprintf(stderr, "tokenizer_speed: %s\n", message.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return fail("usage: bench_tokenizer_speed TEXT_FILE...");
  std::string text;
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    if (!file) return fail(std::string("cannot read ") + argv[i]);
    std::ostringstream bytes;
    bytes << file.rdbuf();
    text += bytes.str();
  }
  if (text.empty()) return fail("the files are empty");
  auto path = resolve_model("smollm2");
  if (!path) return fail(path.error().message);
  auto gguf = Gguf::open(*path);
  if (!gguf) return fail(gguf.error().message);
  auto tokenizer = load_tokenizer(*gguf);
  if (!tokenizer) return fail(tokenizer.error().message);

  std::vector<TokenId> ids;
  const double encode = best_seconds([&] {
    ids.clear();
    (*tokenizer)->encode(text, false, ids);
  });
  uint64_t streamed = 0;
  const double stream = best_seconds([&] {
    Detokenizer detokenizer(**tokenizer, {{"\nObservation:", "<|stop|>"}});
    for (const TokenId id : ids) {
      if (!detokenizer.stopped()) detokenizer.push(id);
    }
    if (!detokenizer.stopped()) detokenizer.finish();
    streamed = detokenizer.text_bytes();
  });
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  std::printf("tokenizer.encode %.1f MB/s\n", megabytes / encode);
  std::printf("tokenizer.encode_ids %.2f M/s\n", static_cast<double>(ids.size()) / encode / 1e6);
  std::printf("tokenizer.stream %.1f MB/s\n", static_cast<double>(streamed) / 1e6 / stream);
  return 0;
}
