#include "gpu-worker/ring_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace ringmaster::gpu_worker {
namespace {

using shm::RecordType;

// Commands of one slot in a turn: a flood of one tokenizer-worker delays the others and the steps by about 64
// prompt copies at most.
constexpr int kCommandsPerTurn = 64;
// A record that is small beside any ring, so that a nearly full one still takes part of a step.
constexpr size_t kMaxTokensPayload = 16 << 10;
// An ending's message is for a person; what a hostile request put into it is cut off.
constexpr size_t kMaxMessage = 1024;
// Nobody rings when a reader made room, so we look: soon at first, then at a rate that costs no visible CPU.
constexpr Nanos kFirstRetry = kMillisecond;
constexpr Nanos kLastRetry = 16 * kMillisecond;
// A reader this late is worth a line; then again while it lasts.
constexpr Nanos kReportAfter = kSecond;
constexpr Nanos kReportEvery = 10 * kSecond;

template <typename T>
std::byte* put(std::byte* at, const T& value) {
  std::memcpy(at, &value, sizeof value);
  return at + sizeof value;
}

struct WireTop {
  uint32_t id;
  float logprob;
};

}  // namespace

RingServer::RingServer(std::unique_ptr<shm::SlotServer> slots, uint32_t count, uint64_t token_bytes,
                       size_t max_pending, Handler& handler)
    : slots_(std::move(slots)),
      token_bytes_(token_bytes),
      max_pending_(max_pending),
      handler_(handler),
      links_(count) {}

void RingServer::poll_slots() {
  slots_->poll([this](shm::GpuEnd& end) { attach(end); }, [this](uint32_t slot) { lose(slot); });
}

void RingServer::attach(shm::GpuEnd& end) {
  links_[end.slot].emplace(end);
  log::info("slot {} is held by {} (pid {})", end.slot, end.holder, end.holder_pid);
}

void RingServer::lose(uint32_t slot) {
  if (!links_[slot]) return;
  const Link& link = *links_[slot];
  log::info("slot {}: {} (pid {}) has ended; the slot is free again", slot, link.end->holder,
            link.end->holder_pid);
  if (!link.pending.empty())
    log::warning("slot {}: {} records that {} had no room for are dropped", slot, link.pending.size(),
                 link.end->holder);
  links_[slot].reset();
  handler_.on_lost(slot);
}

bool RingServer::read() {
  bool found = false;
  for (uint32_t slot = 0; slot < links_.size(); ++slot)
    if (links_[slot] && !links_[slot]->broken) found |= read_slot(slot, *links_[slot]);
  return found;
}

std::optional<Error> RingServer::ring_error(const Link& link) const {
  const auto error = [](const char* ring, const std::string& fault) {
    return Error{Code::kMalformed, fmt::format("its {} ring is broken: {}", ring, fault)};
  };
  if (link.end->commands.broken()) return error("command", link.end->commands.fault());
  if (link.end->prompts.broken()) return error("prompt", link.end->prompts.fault());
  if (link.end->tokens.broken()) return error("token", link.end->tokens.fault());
  return std::nullopt;
}

bool RingServer::read_slot(uint32_t slot, Link& link) {
  bool found = false;
  const auto fail = [&](const Error& why) {
    break_link(slot, why);
    handler_.on_broken(slot, why);
    return true;
  };
  for (int i = 0; i < kCommandsPerTurn && link.pending.size() < max_pending_ && !link.broken; ++i) {
    const auto record = link.end->commands.peek();
    const bool is_start = record && record->type == static_cast<uint32_t>(RecordType::kStart);
    const auto prompt = is_start ? link.end->prompts.peek() : std::nullopt;
    if (const auto error = ring_error(link)) return fail(*error);
    if (!record) break;
    auto command = read_command(*record, prompt);
    link.end->commands.pop();
    if (prompt) link.end->prompts.pop();  // one for each start, also for one that is refused
    if (!command) return fail(command.error());
    ++counters_.commands;
    found = true;
    handler_.on_command(slot, std::move(command).value());
  }
  return found;
}

void RingServer::break_link(uint32_t slot, const Error& why) {
  if (!links_[slot] || links_[slot]->broken) return;
  Link& link = *links_[slot];
  link.broken = true;
  ++counters_.broken;
  log::error(
      "slot {}: link to {} (pid {}) is broken: {}; its requests end and nothing is read from it until that "
      "process ends",
      slot, link.end->holder, link.end->holder_pid, why.message);
}

void RingServer::write(uint64_t step, const Events& events, Nanos now) {
  for (const TokenEvent& token : events.tokens)
    if (links_[token.owner]) links_[token.owner]->rows.push_back(&token);
  for (auto& link : links_) {
    if (!link || link->rows.empty()) continue;
    write_rows(*link, step, link->rows, now);
    link->rows.clear();
  }
  for (const EndEvent& ending : events.endings)
    if (links_[ending.owner]) write_ending(*links_[ending.owner], ending, now);
}

// Writes a record in place, or behind those that wait for room already.
template <typename Fill>
void RingServer::emit(Link& link, RecordType type, size_t size, Nanos now, Fill fill) {
  if (link.end->tokens.broken()) return;
  if (link.pending.empty()) {
    if (auto space = link.end->tokens.try_reserve(static_cast<uint32_t>(type), size)) {
      fill(space->data());
      link.dirty = true;
      return;
    }
    ++counters_.full;
    link.full_since = now;
    link.next_report = now + kReportAfter;
    if (next_retry_ == kNever) retry_interval_ = kFirstRetry;
    next_retry_ = now + retry_interval_;
  }
  Pending waiting{type, std::vector<std::byte>(size)};
  fill(waiting.payload.data());
  link.pending.push_back(std::move(waiting));
}

void RingServer::write_rows(Link& link, uint64_t step, std::span<const TokenEvent* const> rows, Nanos now) {
  const size_t limit = std::min(kMaxTokensPayload, link.end->tokens.largest_payload());
  while (!rows.empty()) {
    size_t count = 0, size = sizeof(shm::TokensRecord);
    for (const TokenEvent* row : rows) {
      const size_t bytes = sizeof(shm::TokenRow) + row->top.size() * sizeof(WireTop);
      if (count != 0 && size + bytes > limit) break;
      size += bytes;
      ++count;
    }
    emit(link, RecordType::kTokens, size, now, [&](std::byte* at) {
      at = put(at, shm::TokensRecord{step, static_cast<uint32_t>(count), 0});
      for (const TokenEvent* row : rows.first(count))
        at = put(at, shm::TokenRow{row->epoch, row->token_number, row->id, row->logprob,
                                   static_cast<uint32_t>(row->top.size())});
      for (const TokenEvent* row : rows.first(count))
        for (const TopToken& top : row->top) at = put(at, WireTop{top.id, top.logprob});
    });
    ++counters_.token_records;
    rows = rows.subspan(count);
  }
}

void RingServer::write_ending(Link& link, const EndEvent& e, Nanos now) {
  std::string_view message = e.message;
  if (message.size() > kMaxMessage) {
    size_t cut = kMaxMessage;
    while (cut > 0 && (static_cast<unsigned char>(message[cut]) & 0xC0) == 0x80) --cut;  // whole characters
    message = message.substr(0, cut);
  }
  emit(link, RecordType::kEnded, sizeof(shm::EndedRecord) + message.size(), now, [&](std::byte* at) {
    shm::EndedRecord record{};
    record.epoch = e.epoch;
    record.reason = static_cast<uint8_t>(e.reason);
    record.code = static_cast<uint8_t>(e.code);
    record.message_size = static_cast<uint32_t>(message.size());
    record.prompt_tokens = e.prompt_tokens;
    record.cached_tokens = e.cached_tokens;
    record.output_tokens = e.output_tokens;
    record.first_step_at = e.first_step_at;
    record.first_token_at = e.first_token_at;
    record.last_token_at = e.last_token_at;
    at = put(at, record);
    std::memcpy(at, message.data(), message.size());
  });
  ++counters_.ended_records;
}

bool RingServer::flush(Nanos now) {
  if (next_retry_ == kNever || now < next_retry_) return false;
  bool moved = false, waiting = false;
  for (auto& link : links_) {
    if (!link || link->pending.empty()) continue;
    while (!link->pending.empty()) {
      const Pending& record = link->pending.front();
      auto space = link->end->tokens.try_reserve(static_cast<uint32_t>(record.type), record.payload.size());
      if (!space) break;
      std::memcpy(space->data(), record.payload.data(), record.payload.size());
      link->pending.pop_front();
      link->dirty = moved = true;
    }
    if (link->end->tokens.broken()) link->pending.clear();
    if (link->pending.empty()) continue;
    waiting = true;
    if (now >= link->next_report) report(*link, now);
  }
  retry_interval_ = moved ? kFirstRetry : std::min(2 * retry_interval_, kLastRetry);
  next_retry_ = waiting ? now + retry_interval_ : kNever;
  return moved;
}

// OPS-15: who is stuck, how far behind, for how long.
void RingServer::report(Link& link, Nanos now) {
  link.next_report = now + kReportEvery;
  log::warning(
      "slot {}: {} (pid {}) has not read its token ring for {} ms: {} of {} bytes unread, {} records wait; "
      "its requests are out of the batch",
      link.end->slot, link.end->holder, link.end->holder_pid, (now - link.full_since) / kMillisecond,
      token_bytes_ - link.end->tokens.free_bytes(), token_bytes_, link.pending.size());
}

void RingServer::commit() {
  for (auto& link : links_) {
    if (!link || !link->dirty) continue;
    link->end->tokens.commit();
    link->end->tokenizer_bell.ring();
    link->dirty = false;
  }
}

std::vector<SlotHolding> RingServer::holdings() const {
  std::vector<SlotHolding> out;
  for (const auto& link : links_)
    if (link)
      out.push_back({link->end->slot, link->end->holder, link->end->holder_pid,
                     link->end->commands.position(), link->end->prompts.position(),
                     link->end->tokens.position(), link->pending.size(), link->broken});
  return out;
}

bool RingServer::any_pending() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](const auto& link) { return link && !link->pending.empty(); });
}

}  // namespace ringmaster::gpu_worker
