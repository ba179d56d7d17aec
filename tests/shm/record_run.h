// Two processes and one ring: records of random size, checked for order and content. Short as a test, 10^8
// records as a long run (scripts/soak ring-records).
#pragma once

#include <cstdint>
#include <string>

namespace ringmaster::shm {

struct RecordRun {
  std::string fault;  // empty: every record arrived once, whole and in order
  uint64_t records = 0, bytes = 0;
  double seconds = 0;
};

// Ends at the first fault, and when either side waits for 30 s.
RecordRun run_records(uint64_t count);

}  // namespace ringmaster::shm
