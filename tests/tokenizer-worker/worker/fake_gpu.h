// The gpu-worker's end of a ring slot inside the test's process: reads commands, writes whatever a test
// wants, and dies when told (its "pidfd" is the read end of a pipe).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/sampling.h"
#include "schemas/codec.h"
#include "shm/records.h"
#include "shm/slot_memory.h"
#include "tokenizer-worker/ring_links.h"

namespace ringmaster::tokenizer_worker {

struct SeenCommand {
  shm::RecordType type{};
  Epoch epoch = 0;
  uint32_t value = 0;  // Grant, StopAt
  shm::StartRecord start{};
  shm::PromptRecord prompt{};
  std::vector<TokenId> ids, stop_ids;
  std::vector<LogitBias> bias;
};

// What a test writes for one token.
struct TokenOut {
  Epoch epoch = 0;
  uint32_t number = 0;
  TokenId id = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top;
};

class FakeGpu {
 public:
  explicit FakeGpu(uint64_t instance = 7, shm::SlotSizes sizes = {64 << 10, 256 << 10, 256 << 10}) {
    auto places = shm::place_rings(sizes);
    auto memory = shm::MemoryFile::create("test-slot", places->size);
    shm::reset_slot(memory->bytes(), *places, 0, instance);
    auto mine =
        shm::MemoryFile::attach(shm::UniqueFd(::fcntl(memory->fd(), F_DUPFD_CLOEXEC, 0)), places->size);
    auto bell = shm::Doorbell::create();
    bell_.emplace(shm::Doorbell::attach(shm::UniqueFd(::fcntl(bell->fd(), F_DUPFD_CLOEXEC, 0))).value());
    int life[2];
    EXPECT_EQ(::pipe2(life, O_CLOEXEC), 0);
    life_ = shm::UniqueFd(life[1]);
    const auto theirs = shm::rings_of(memory->bytes(), *places);
    end_ = shm::TokenizerEnd{std::move(*memory),
                             shm::Producer(theirs.command),
                             shm::Producer(theirs.prompt),
                             shm::Consumer(theirs.token),
                             std::move(*bell),
                             0,
                             instance,
                             shm::UniqueFd(life[0])};
    const auto rings = shm::rings_of(mine->bytes(), *places);
    token_index = rings.token.index;
    commands_ = shm::Consumer(rings.command);
    prompts_ = shm::Consumer(rings.prompt);
    tokens_ = shm::Producer(rings.token);
    memory_.emplace(std::move(*mine));
  }

  shm::TokenizerEnd take_end() { return std::move(*std::exchange(end_, std::nullopt)); }
  void die() { life_.reset(); }
  bool rang() const { return bell_->sequence() != 0; }

  // Everything that has been published in the command ring, starts with their prompts.
  std::vector<SeenCommand> commands() {
    std::vector<SeenCommand> seen;
    while (auto command = next_command()) seen.push_back(std::move(*command));
    return seen;
  }
  std::optional<SeenCommand> next_command() {
    const auto record = commands_.peek();
    if (!record) return std::nullopt;
    SeenCommand seen;
    seen.type = static_cast<shm::RecordType>(record->type);
    const std::byte* at = record->payload.data();
    std::memcpy(&seen.epoch, at, sizeof(Epoch));
    if (seen.type == shm::RecordType::kGrant || seen.type == shm::RecordType::kStopAt)
      std::memcpy(&seen.value, at + sizeof(Epoch), sizeof(uint32_t));
    if (seen.type == shm::RecordType::kStart) read_start(at, record->payload.size(), seen);
    commands_.pop();
    return seen;
  }

  // One step's tokens, as the gpu-worker writes them.
  void tokens(const std::vector<TokenOut>& rows) {
    const shm::TokensRecord head{1, static_cast<uint32_t>(rows.size()), 0};
    std::string bytes;
    put(bytes, &head, sizeof(head));
    for (const TokenOut& row : rows) {
      const shm::TokenRow wire{row.epoch, row.number, row.id, row.logprob,
                               static_cast<uint32_t>(row.top.size())};
      put(bytes, &wire, sizeof(wire));
    }
    for (const TokenOut& row : rows) put(bytes, row.top.data(), row.top.size() * sizeof(TokenLogprob));
    raw(shm::RecordType::kTokens, bytes);
  }
  // Tokens first, first + 1, ... of one request.
  void say(Epoch epoch, uint32_t first, const std::vector<TokenId>& ids) {
    for (const TokenId id : ids) tokens({{epoch, first++, id, 0, {}}});
  }
  void ended(Epoch epoch, msg::FinishReason reason, uint32_t output_tokens, Code code = Code::kOk,
             const std::string& message = "", uint32_t cached_tokens = 0) {
    shm::EndedRecord record{};
    record.epoch = epoch;
    record.reason = static_cast<uint8_t>(reason);
    record.code = static_cast<uint8_t>(code);
    record.message_size = static_cast<uint32_t>(message.size());
    record.cached_tokens = cached_tokens;
    record.output_tokens = output_tokens;
    record.first_step_at = times.first_step;
    record.first_token_at = times.first_token;
    record.last_token_at = times.last_token;
    std::string bytes;
    put(bytes, &record, sizeof(record));
    raw(shm::RecordType::kEnded, bytes + message);
  }
  void raw(shm::RecordType type, const std::string& payload) {
    const auto space = tokens_.try_reserve(static_cast<uint32_t>(type), payload.size());
    ASSERT_TRUE(space) << "the token ring of the test is full";
    std::memcpy(space->data(), payload.data(), payload.size());
    tokens_.commit();
  }

  struct {
    Nanos first_step = 0, first_token = 0, last_token = 0;
  } times;  // in the next ended()
  shm::RingIndex* token_index = nullptr;

 private:
  static void put(std::string& bytes, const void* from, size_t size) {
    bytes.append(static_cast<const char*>(from), size);
  }

  void read_start(const std::byte* at, size_t size, SeenCommand& seen) {
    std::memcpy(&seen.start, at, sizeof(seen.start));
    seen.stop_ids.resize(seen.start.stop_id_count);
    seen.bias.resize(seen.start.bias_count);
    const size_t stops = seen.stop_ids.size() * sizeof(TokenId),
                 biases = seen.bias.size() * sizeof(LogitBias);
    ASSERT_EQ(size, sizeof(seen.start) + stops + biases);
    if (stops > 0) std::memcpy(seen.stop_ids.data(), at + sizeof(seen.start), stops);
    if (biases > 0) std::memcpy(seen.bias.data(), at + sizeof(seen.start) + stops, biases);
    const auto prompt = prompts_.peek();
    ASSERT_TRUE(prompt) << "a start command without its prompt";
    ASSERT_EQ(prompt->type, static_cast<uint32_t>(shm::RecordType::kPrompt));
    std::memcpy(&seen.prompt, prompt->payload.data(), sizeof(seen.prompt));
    ASSERT_EQ(seen.prompt.epoch, seen.epoch);
    ASSERT_EQ(prompt->payload.size(), sizeof(seen.prompt) + seen.prompt.count * sizeof(TokenId));
    seen.ids.resize(seen.prompt.count);
    std::memcpy(seen.ids.data(), prompt->payload.data() + sizeof(seen.prompt),
                seen.ids.size() * sizeof(TokenId));
    prompts_.pop();
  }

  std::optional<shm::MemoryFile> memory_;
  std::optional<shm::Doorbell> bell_;
  std::optional<shm::TokenizerEnd> end_;
  shm::UniqueFd life_;
  shm::Consumer commands_, prompts_;
  shm::Producer tokens_;
};

}  // namespace ringmaster::tokenizer_worker
