#include "base/ids.h"

#include <sys/random.h>

#include <array>
#include <cstdio>
#include <cstdlib>

namespace ringmaster {

Uid random_uid() {
  Uid uid;
  // Without entropy two requests could share a uid and one client would read the other's stream.
  if (getrandom(&uid, sizeof uid, 0) != sizeof uid) std::abort();
  return uid;
}

std::string to_string(Uid uid) {
  std::array<char, 33> text{};
  std::snprintf(text.data(), text.size(), "%016llx%016llx", static_cast<unsigned long long>(uid.hi),
                static_cast<unsigned long long>(uid.lo));
  return std::string(text.data(), 32);
}

}  // namespace ringmaster
