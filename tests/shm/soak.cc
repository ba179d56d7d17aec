// The long runs of shm: shm_soak records COUNT | kills COUNT [SEED]. Started by scripts/soak.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "tests/shm/kill_run.h"
#include "tests/shm/record_run.h"

namespace {

using namespace ringmaster;

int records(uint64_t count) {
  const shm::RecordRun run = shm::run_records(count);
  std::printf("%llu records, %.1f GB, %.1f s, %.1f million a second\n",
              static_cast<unsigned long long>(run.records), static_cast<double>(run.bytes) / 1e9, run.seconds,
              static_cast<double>(run.records) / run.seconds / 1e6);
  if (!run.fault.empty()) std::printf("FAULT: %s\n", run.fault.c_str());
  return run.fault.empty() ? 0 : 1;
}

int kills(uint64_t count, uint64_t seed) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const shm::KillRun run = shm::run_kills(count, seed);
  std::printf(
      "%llu kills (%llu of a tokenizer's side, %llu of a gpu's side, %llu before it had read anything), "
      "%llu links, %llu records, %llu never published, slowest notice %.1f ms, %.1f s\n",
      static_cast<unsigned long long>(run.kills), static_cast<unsigned long long>(run.tokenizers_killed),
      static_cast<unsigned long long>(run.gpus_killed), static_cast<unsigned long long>(run.idle_kills),
      static_cast<unsigned long long>(run.links), static_cast<unsigned long long>(run.records),
      static_cast<unsigned long long>(run.lost_unpublished), static_cast<double>(run.slowest_notice) / 1e6,
      run.seconds);
  if (!run.fault.empty()) std::printf("FAULT: %s\n", run.fault.c_str());
  return run.fault.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t count = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  if (count > 0 && std::strcmp(argv[1], "records") == 0) return records(count);
  if (count > 0 && std::strcmp(argv[1], "kills") == 0) {
    return kills(count, argc > 3 ? std::strtoull(argv[3], nullptr, 10) : std::random_device()());
  }
  std::fprintf(stderr, "usage: shm_soak records COUNT | kills COUNT [SEED]\n");
  return 2;
}
