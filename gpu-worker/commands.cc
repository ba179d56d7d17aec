#include "gpu-worker/commands.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>
#include <vector>

namespace ringmaster::gpu_worker {
namespace {

using shm::RecordType;
using Payload = std::span<const std::byte>;

// The fixed part of a record. REQUIRES: payload.size() >= sizeof(T).
template <typename T>
T copy_of(Payload payload) {
  T value;
  std::memcpy(&value, payload.data(), sizeof value);
  return value;
}

template <typename T>
std::vector<T> copy_array(Payload payload, size_t offset, uint32_t count) {
  std::vector<T> values(count);
  if (count != 0) std::memcpy(values.data(), payload.data() + offset, count * sizeof(T));
  return values;
}

Error malformed(std::string message) {
  return {Code::kMalformed, std::move(message)};
}

// A record that is exactly its struct.
template <typename T>
Result<Command> read_fixed(const shm::Record& record, const char* what) {
  if (record.payload.size() != sizeof(T))
    return malformed(fmt::format("{} record of {} bytes; it has {}", what, record.payload.size(), sizeof(T)));
  return Command(copy_of<T>(record.payload));
}

Result<std::vector<TokenId>> read_prompt(Epoch epoch, const std::optional<shm::Record>& prompt,
                                         uint32_t& prompt_count) {
  if (!prompt) return malformed("start record without its prompt record, which must be written before it");
  if (prompt->type != static_cast<uint32_t>(RecordType::kPrompt) ||
      prompt->payload.size() < sizeof(shm::PromptRecord))
    return malformed(fmt::format("record of type {} with {} bytes in the prompt ring; expected a prompt",
                                 prompt->type, prompt->payload.size()));
  const auto head = copy_of<shm::PromptRecord>(prompt->payload);
  if (head.epoch != epoch)
    return malformed(
        fmt::format("start record of epoch {} meets the prompt of epoch {}; their order must be the same",
                    epoch, head.epoch));
  if (sizeof head + uint64_t{head.count} * sizeof(TokenId) != prompt->payload.size())
    return malformed(fmt::format("prompt record of {} bytes does not hold its {} ids", prompt->payload.size(),
                                 head.count));
  prompt_count = head.prompt_count;
  return copy_array<TokenId>(prompt->payload, sizeof head, head.count);
}

Command refuse(Epoch epoch, Error error) {
  return RefusedStart{epoch, std::move(error)};
}

Result<Command> read_start(const shm::Record& record, const std::optional<shm::Record>& prompt) {
  static_assert(sizeof(LogitBias) == 8);  // {uint32_t id, float bias}, as on the ring
  if (record.payload.size() < sizeof(shm::StartRecord))
    return malformed(fmt::format("start record of {} bytes; it has at least {}", record.payload.size(),
                                 sizeof(shm::StartRecord)));
  const auto start = copy_of<shm::StartRecord>(record.payload);
  if (start.epoch == 0) return malformed("start record of epoch 0; epochs begin at 1");
  const uint64_t biases_at = sizeof start + uint64_t{start.stop_id_count} * sizeof(TokenId);
  if (biases_at + uint64_t{start.bias_count} * sizeof(LogitBias) != record.payload.size())
    return refuse(start.epoch, malformed(fmt::format(
                                   "start record of {} bytes does not hold its {} stop ids and {} biases",
                                   record.payload.size(), start.stop_id_count, start.bias_count)));
  if (start.deadline < 0)
    return refuse(start.epoch,
                  Error{Code::kInvalidArgument, fmt::format("deadline is {}; allowed: 0 (none) or a time "
                                                            "on the monotonic clock",
                                                            start.deadline)});
  NewSequence s;
  auto ids = read_prompt(start.epoch, prompt, s.prompt_count);
  if (!ids) return refuse(start.epoch, std::move(ids).error());
  s.epoch = start.epoch;
  s.ids = std::move(ids).value();
  s.sampling = {.temperature = start.temperature,
                .top_k = start.top_k,
                .top_p = start.top_p,
                .min_p = start.min_p,
                .repetition_penalty = start.repetition_penalty,
                .frequency_penalty = start.frequency_penalty,
                .presence_penalty = start.presence_penalty,
                .seed = start.seed,
                .logit_bias = copy_array<LogitBias>(record.payload, biases_at, start.bias_count)};
  s.cache_salt = {start.cache_salt[0], start.cache_salt[1]};
  s.stop_ids = copy_array<TokenId>(record.payload, sizeof start, start.stop_id_count);
  s.min_tokens = start.min_tokens;
  s.max_tokens = start.max_tokens;
  s.granted = start.granted;
  s.logprobs = start.logprobs;
  s.priority = start.priority;
  s.deadline = start.deadline == 0 ? kNever : start.deadline;
  return Command(StartCommand{std::move(s)});
}

}  // namespace

Result<Command> read_command(const shm::Record& command, const std::optional<shm::Record>& prompt) {
  switch (static_cast<RecordType>(command.type)) {
    case RecordType::kStart:
      return read_start(command, prompt);
    case RecordType::kGrant:
      return read_fixed<shm::GrantRecord>(command, "grant");
    case RecordType::kCancel:
      return read_fixed<shm::CancelRecord>(command, "cancel");
    case RecordType::kStopAt:
      return read_fixed<shm::StopAtRecord>(command, "stop-at");
    case RecordType::kRebind:
      return read_fixed<shm::RebindRecord>(command, "rebind");
    default:
      return malformed(
          fmt::format("record of type {} in the command ring; known: start, grant, cancel, stop-at, rebind",
                      command.type));
  }
}

}  // namespace ringmaster::gpu_worker
