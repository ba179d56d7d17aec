#include "base/ids.h"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace ringmaster {

namespace {

// Without entropy two requests could share a uid and one client would read the other's stream.
template <typename T>
T random_bits() {
  static_assert(sizeof(T) <= 256);  // such come whole or not at all (getrandom(2))
  T bits;
  ssize_t got = 0;
  do {
    got = getrandom(&bits, sizeof bits, 0);
  } while (got < 0 && errno == EINTR);
  if (got != sizeof bits) std::abort();
  return bits;
}

}  // namespace

Uid random_uid() {
  return random_bits<Uid>();
}

uint64_t random_number() {
  uint64_t number = 0;
  while (number == 0) number = random_bits<uint64_t>();
  return number;
}

std::string to_string(Uid uid) {
  std::array<char, 33> text{};
  std::snprintf(text.data(), text.size(), "%016llx%016llx", static_cast<unsigned long long>(uid.hi),
                static_cast<unsigned long long>(uid.lo));
  return std::string(text.data(), 32);
}

}  // namespace ringmaster
