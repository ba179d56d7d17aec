#include "tests/simulate/world.h"

#include <cstring>

namespace ringmaster::simulate {

void World::digest(actor::Bytes bytes) {
  uint64_t hash = bytes.size();
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), sizeof(uint64_t)))) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), std::min(bytes.size(), sizeof word));
    hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 29;
  }
  digest(hash);
}

}  // namespace ringmaster::simulate
