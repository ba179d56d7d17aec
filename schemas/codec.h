// The door for control messages: verify before reading, one error value for everything that is wrong.
//   open<RouterMessage>(bytes)       checks size, identifier, structure (FlatBuffers verifier) and version
//   seal(builder, body)              finishes a message of this version
// Any thread; no state. What open() returns points into `bytes`, which must outlive it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "base/ids.h"
#include "base/status.h"
#include "schemas/client_generated.h"
#include "schemas/gpu_worker_generated.h"
#include "schemas/router_generated.h"
#include "schemas/tokenizer_worker_generated.h"

namespace ringmaster::msg {

using Bytes = std::span<const std::byte>;

inline constexpr uint16_t kVersion = 1;
// A 10 MB prompt must be refused by name, not cut off by the transport, so the door is wider than any valid
// request: kMaxPromptBytes of text plus the rest of a Generate.
inline constexpr size_t kMaxMessageBytes = 16u << 20;
inline constexpr size_t kMaxPromptBytes = 8u << 20;
// Entries of each list of a process's books: router.max_live_requests by default. Books of this size from 128
// workers fit one AuditReply.
inline constexpr size_t kMaxListed = 4096;
inline constexpr uint32_t kNone = 0xFFFFFFFF;  // RequestBooks, StreamBooks: placed on none

// Error codes: kTooLarge, kMalformed, kUnsupportedVersion (newer than kVersion, or 0).
template <typename Message>
Result<const Message*> open(Bytes bytes);

// Finishes `builder` with a Message of kVersion around `body`, e.g.
//   seal<RouterMessage>(b, RouterBody::Ping, CreatePing(b).Union());
template <typename Message, typename BodyType>
Bytes seal(flatbuffers::FlatBufferBuilder& builder, BodyType type, flatbuffers::Offset<void> body);

inline ringmaster::Uid to_uid(const Uid& uid) {
  return {uid.hi(), uid.lo()};
}
inline Uid to_wire(ringmaster::Uid uid) {
  return Uid(uid.hi, uid.lo);
}
// A code that this build does not know is kInternal: the verifier does not check the range of enums.
inline ringmaster::Code to_code(Code code) {
  return code <= Code::MAX ? static_cast<ringmaster::Code>(code) : ringmaster::Code::kInternal;
}
inline Code to_wire(ringmaster::Code code) {
  return static_cast<Code>(code);
}

// A finished WorkerBooks as the Audited of a worker. Valid until `outer` is used again.
Bytes seal_audited(flatbuffers::FlatBufferBuilder& outer, uint64_t tag,
                   const flatbuffers::FlatBufferBuilder& books);

extern template Result<const RouterMessage*> open<RouterMessage>(Bytes);
extern template Result<const ClientMessage*> open<ClientMessage>(Bytes);
extern template Result<const TokenizerWorkerMessage*> open<TokenizerWorkerMessage>(Bytes);
extern template Result<const GpuWorkerMessage*> open<GpuWorkerMessage>(Bytes);

// ---- implementation of seal ----

template <typename Message>
const char* identifier();
template <>
inline const char* identifier<RouterMessage>() {
  return RouterMessageIdentifier();
}
template <>
inline const char* identifier<ClientMessage>() {
  return ClientMessageIdentifier();
}
template <>
inline const char* identifier<TokenizerWorkerMessage>() {
  return TokenizerWorkerMessageIdentifier();
}
template <>
inline const char* identifier<GpuWorkerMessage>() {
  return GpuWorkerMessageIdentifier();
}

template <typename Message, typename BodyType>
Bytes seal(flatbuffers::FlatBufferBuilder& builder, BodyType type, flatbuffers::Offset<void> body) {
  typename Message::Builder message(builder);
  message.add_body(body);
  message.add_body_type(type);
  message.add_version(kVersion);
  builder.Finish(message.Finish(), identifier<Message>());
  return {reinterpret_cast<const std::byte*>(builder.GetBufferPointer()), builder.GetSize()};
}

}  // namespace ringmaster::msg
