#include "schemas/codec.h"

#include <string>

namespace ringmaster::msg {

static_assert(static_cast<int>(Code::MAX) == static_cast<int>(kLastCode),
              "schemas/common.fbs and base/status.h must list the same codes");
static_assert(static_cast<int>(Code::context_length_exceeded) ==
              static_cast<int>(ringmaster::Code::kContextLengthExceeded));
static_assert(static_cast<int>(Code::unavailable) == static_cast<int>(ringmaster::Code::kUnavailable));

namespace {

// The verifier looks at the place of a vector's length but not of its elements (FlatBuffers 2.0), and at a
// nested message's places within it but not at its own. What has elements of 64 bits is looked at here.
template <typename Vector>
bool aligned(const Vector* vector) {
  return vector == nullptr || vector->size() == 0 ||  // of no elements the builder aligns the length alone
         reinterpret_cast<uintptr_t>(vector->Data()) % sizeof(uint64_t) == 0;
}

bool aligned_inside(const WorkerBooks& books) {
  const auto* tokenizer = books.tokenizer();
  const auto* gpu = books.gpu();
  return (tokenizer == nullptr || (aligned(tokenizer->streams()) && aligned(tokenizer->queries()))) &&
         (gpu == nullptr || aligned(gpu->sequences()));
}

template <typename Message>
bool aligned_inside(const Message&) {
  return true;
}

bool aligned_inside(const RouterMessage& message) {
  const auto* audited = message.body_as_Audited();
  return audited == nullptr || (aligned(audited->books()) && aligned_inside(*audited->books_nested_root()));
}

bool aligned_inside(const ClientMessage& message) {
  const auto* reply = message.body_as_AuditReply();
  if (reply == nullptr) return true;
  if (reply->router() != nullptr &&
      !(aligned(reply->router()->requests()) && aligned(reply->router()->queries())))
    return false;
  if (reply->workers() == nullptr) return true;
  for (const AuditedWorker* worker : *reply->workers())
    if (worker->books() != nullptr &&
        !(aligned(worker->books()) && aligned_inside(*worker->books_nested_root())))
      return false;
  return true;
}

}  // namespace

template <typename Message>
Result<const Message*> open(Bytes bytes) {
  // Shortest table buffer: root offset, identifier, vtable. The verifier refuses the rest.
  constexpr size_t kSmallest = 12;
  if (bytes.size() > kMaxMessageBytes)
    return Error{ringmaster::Code::kTooLarge, "message of " + std::to_string(bytes.size()) +
                                                  " bytes; allowed: at most " +
                                                  std::to_string(kMaxMessageBytes)};
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  if (bytes.size() < kSmallest || !flatbuffers::BufferHasIdentifier(data, identifier<Message>()))
    return Error{ringmaster::Code::kMalformed,
                 std::string("not a message of kind ") + identifier<Message>() + " (see docs/protocol.md)"};
  // Depth and table limits bound the verifier's work on hostile input.
  flatbuffers::Verifier verifier(data, bytes.size(), /*max_depth=*/32, /*max_tables=*/1'000'000);
  if (!verifier.VerifyBuffer<Message>(identifier<Message>()))
    return Error{ringmaster::Code::kMalformed, "message does not verify against its schema"};
  const auto* message = flatbuffers::GetRoot<Message>(data);
  if (!aligned_inside(*message))
    return Error{ringmaster::Code::kMalformed, "message has lists of 64-bit fields that are not aligned"};
  if (message->version() == 0 || message->version() > kVersion)
    return Error{ringmaster::Code::kUnsupportedVersion,
                 "message version " + std::to_string(message->version()) + "; this build reads 1 to " +
                     std::to_string(kVersion)};
  return message;
}

Bytes seal_audited(flatbuffers::FlatBufferBuilder& outer, uint64_t tag,
                   const flatbuffers::FlatBufferBuilder& books) {
  outer.Clear();
  outer.ForceVectorAlignment(books.GetSize(), 1, 8);  // the nested message has 64-bit fields
  const auto nested = outer.CreateVector(books.GetBufferPointer(), books.GetSize());
  return seal<RouterMessage>(outer, RouterBody::Audited, CreateAudited(outer, tag, nested).Union());
}

template Result<const RouterMessage*> open<RouterMessage>(Bytes);
template Result<const ClientMessage*> open<ClientMessage>(Bytes);
template Result<const TokenizerWorkerMessage*> open<TokenizerWorkerMessage>(Bytes);
template Result<const GpuWorkerMessage*> open<GpuWorkerMessage>(Bytes);

}  // namespace ringmaster::msg
