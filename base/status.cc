#include "base/status.h"

#include <array>

namespace ringmaster {

std::string_view name(Code code) {
  static constexpr std::array<std::string_view, static_cast<size_t>(kLastCode) + 1> kNames = {
      "ok",
      "invalid_argument",
      "invalid_utf8",
      "context_length_exceeded",
      "too_large",
      "malformed",
      "unsupported_version",
      "unsupported",
      "not_found",
      "already_exists",
      "permission_denied",
      "overloaded",
      "resource_exhausted",
      "deadline_exceeded",
      "cancelled",
      "unavailable",
      "worker_lost",
      "internal"};
  const auto index = static_cast<size_t>(code);
  return index < kNames.size() ? kNames[index] : "unknown";
}

}  // namespace ringmaster
