// Outcomes as values: a closed list of codes and a Result<T> that holds a value or an Error.
// Anyone may use it; nothing here allocates on the success path. Exceptions are left to programming errors
// at start-up. Codes travel on the wire: schemas/common.fbs repeats them in this order (checked there).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace ringmaster {

enum class Code : uint8_t {
  kOk = 0,
  kInvalidArgument,        // a parameter is out of its documented range
  kInvalidUtf8,            // text from outside is not UTF-8
  kContextLengthExceeded,  // prompt + max_tokens does not fit the context
  kTooLarge,               // a message, prompt or list is over its bound
  kMalformed,              // bytes that do not parse: message, file, JSON, template
  kUnsupportedVersion,     // a message or segment of another version
  kUnsupported,            // well-formed, but this build cannot do it
  kNotFound,               // unknown request, worker, model, file
  kAlreadyExists,          // state directory, endpoint or uid is taken
  kPermissionDenied,       // another tenant's request, a file mode
  kOverloaded,             // a bounded queue is full; retry later
  kResourceExhausted,      // memory, blocks, descriptors
  kDeadlineExceeded,
  kCancelled,
  kUnavailable,  // no ready worker
  kWorkerLost,   // the worker that ran the request died
  kInternal,     // a bug: books do not balance, an impossible state
};
inline constexpr Code kLastCode = Code::kInternal;

// The code's name as it appears in messages, logs and JSON: "invalid_argument".
std::string_view name(Code code);

struct [[nodiscard]] Error {
  Code code = Code::kInternal;
  std::string message;  // for a person: what, where, the value, the allowed range, the remedy
};

// A value or an Error. REQUIRES: value() only when ok(), error() only when !ok().
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit by design
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT
  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  T* operator->() { return &value(); }
  const T& operator*() const& { return value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

struct Unit {};
using Status = Result<Unit>;
inline Status ok_status() {
  return Status(Unit{});
}

}  // namespace ringmaster
