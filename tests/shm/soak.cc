// The long runs of shm, as lines of `name value unit`: shm_soak records [COUNT] | kills [COUNT [SEED]].
// Started by scripts/soak; by default 10^8 records and 1,000 kills.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "tests/shm/kill_run.h"
#include "tests/shm/record_run.h"

namespace {

using namespace ringmaster;

void figure(const char* name, double value, const char* unit, int digits = 0) {
  std::printf("%s %.*f %s\n", name, digits, value, unit);
}

// The exit code: 1 with the fault's text.
int verdict(const std::string& fault) {
  if (!fault.empty()) std::fprintf(stderr, "FAULT: %s\n", fault.c_str());
  return fault.empty() ? 0 : 1;
}

int records(uint64_t count) {
  const shm::RecordRun run = shm::run_records(count);
  const auto read = static_cast<double>(run.records);
  figure("ring_records.records", read, "records");
  figure("ring_records.bytes", static_cast<double>(run.bytes), "bytes");
  figure("ring_records.time", run.seconds, "s", 1);
  figure("ring_records.faults", run.fault.empty() ? 0 : 1, "faults");
  return verdict(run.fault);
}

int kills(uint64_t count, uint64_t seed) {
  std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(seed));
  const shm::KillRun run = shm::run_kills(count, seed);
  figure("ring_kills.kills", static_cast<double>(run.kills), "kills");
  figure("ring_kills.of_tokenizer_side", static_cast<double>(run.tokenizers_killed), "kills");
  figure("ring_kills.of_gpu_side", static_cast<double>(run.gpus_killed), "kills");
  figure("ring_kills.before_first_record", static_cast<double>(run.idle_kills), "kills");
  figure("ring_kills.links", static_cast<double>(run.links), "links");
  figure("ring_kills.records", static_cast<double>(run.records), "records");
  figure("ring_kills.never_committed", static_cast<double>(run.lost_unpublished), "records");
  figure("ring_kills.slowest_notice", static_cast<double>(run.slowest_notice) / 1e6, "ms", 1);
  figure("ring_kills.time", run.seconds, "s", 1);
  figure("ring_kills.faults", run.fault.empty() ? 0 : 1, "faults");
  return verdict(run.fault);
}

}  // namespace

int main(int argc, char** argv) {
  const char* const run = argc > 1 ? argv[1] : "";
  const uint64_t count = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  if (std::strcmp(run, "records") == 0 && (argc == 2 || (argc == 3 && count > 0))) {
    return records(argc == 2 ? 100'000'000 : count);
  }
  if (std::strcmp(run, "kills") == 0 && (argc == 2 || (argc <= 4 && count > 0))) {
    return kills(argc == 2 ? 1000 : count,
                 argc == 4 ? std::strtoull(argv[3], nullptr, 10) : std::random_device()());
  }
  std::fprintf(stderr, "usage: shm_soak records [COUNT] | kills [COUNT [SEED]]\n");
  return 2;
}
