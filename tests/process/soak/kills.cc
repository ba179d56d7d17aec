// soak_kills [ROUNDS [SEED [VICTIM]]]: kill rounds of every kind of process
// (tests/process/support/kill_rounds.h), one line a figure as in bench/. Ends with status 1 if anything was
// wrong or left.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>

#include "tests/process/support/kill_rounds.h"

namespace {

using namespace ringmaster;        // NOLINT: this file is the program
using namespace ringmaster::test;  // NOLINT

std::optional<uint32_t> number(const char* text, uint32_t max) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  if (error != std::errc() || *end != 0 || value == 0 || value > max) return std::nullopt;
  return value;
}

double milliseconds(Nanos time) {
  return static_cast<double>(time) / kMillisecond;
}

}  // namespace

int main(int argc, char** argv) {
  const auto rounds = argc > 1 ? number(argv[1], 100'000) : 100;
  const auto seed = argc > 2 ? number(argv[2], UINT32_MAX) : 1;
  const std::string_view only = argc > 3 ? argv[3] : "";
  const bool known =
      only.empty() || std::find(std::begin(kVictims), std::end(kVictims), only) != std::end(kVictims);
  if (!rounds || !seed || !known || argc > 4) {
    std::fprintf(
        stderr,
        "usage: soak_kills [ROUNDS [SEED [VICTIM]]]; ROUNDS: 1 to 100000, default 100; SEED: 1 or more; "
        "VICTIM: router, tokenizer-worker.0, gpu-worker.0 or supervisor, default: one after the other\n");
    return 2;
  }
  size_t faults = 0, leftovers = 0;
  for (const std::string_view victim : kVictims) {
    if (!only.empty() && victim != only) continue;
    KillResult result = kill_rounds(victim, static_cast<int>(*rounds), *seed);
    for (const auto* list : {&result.faults, &result.leftovers})
      for (const std::string& line : *list) std::fprintf(stderr, "%s\n", line.c_str());
    faults += result.faults.size();
    leftovers += result.leftovers.size();
    const std::string kind(victim.substr(0, victim.find('.')));
    std::printf("kills.%s.rounds %d rounds\n", kind.c_str(), result.rounds);
    std::printf("kills.%s.streams %llu streams\n", kind.c_str(),
                static_cast<unsigned long long>(result.streams));
    std::printf("kills.%s.worker_lost %llu streams\n", kind.c_str(),
                static_cast<unsigned long long>(result.worker_lost));
    if (!result.back_after.empty()) {
      std::sort(result.back_after.begin(), result.back_after.end());
      std::printf("kills.%s.back_p50 %.1f ms\n", kind.c_str(),
                  milliseconds(result.back_after[result.back_after.size() / 2]));
      std::printf("kills.%s.back_max %.1f ms\n", kind.c_str(), milliseconds(result.back_after.back()));
    }
    std::fflush(stdout);
  }
  std::printf("kills.faults %zu faults\nkills.leftovers %zu leftovers\n", faults, leftovers);
  return faults + leftovers == 0 ? 0 : 1;
}
