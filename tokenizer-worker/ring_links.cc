#include "tokenizer-worker/ring_links.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/utf8.h"

namespace ringmaster::tokenizer_worker {
namespace {

using shm::RecordType;

// A reader of untrusted bytes: every piece is copied out once, so what was checked is what is used even when
// the peer writes at the same time.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool copy(void* to, size_t size) {
    if (size > bytes_.size()) return false;
    std::memcpy(to, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
    return true;
  }
  size_t left() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
};

class Writer {
 public:
  explicit Writer(std::span<std::byte> space) : space_(space) {}

  template <typename T>
  Writer& put(std::span<const T> values) {
    if (!values.empty()) std::memcpy(space_.data(), values.data(), values.size_bytes());
    space_ = space_.subspan(values.size_bytes());
    return *this;
  }
  template <typename T>
  Writer& put(const T& value) {
    return put(std::span<const T>(&value, 1));
  }

 private:
  std::span<std::byte> space_;
};

size_t prompt_size(const StartCommand& command) {
  return sizeof(shm::PromptRecord) + command.ids.size() * sizeof(TokenId);
}

size_t start_size(const StartCommand& command) {
  return sizeof(shm::StartRecord) + command.stop_ids.size() * sizeof(TokenId) +
         command.bias.size() * sizeof(LogitBias);
}
static_assert(sizeof(LogitBias) == 8, "travels as {uint32_t id, float bias}");
static_assert(sizeof(TokenLogprob) == 8, "travels as {uint32_t id, float logprob}");

template <typename T>
bool write_record(shm::Producer& ring, RecordType type, const T& record) {
  const auto space = ring.try_reserve(static_cast<uint32_t>(type), sizeof(T));
  if (!space) return false;
  Writer(*space).put(record);
  return true;
}

}  // namespace

LinkId RingLinks::add(const std::string& gpu_worker, uint64_t gpu_instance, shm::TokenizerEnd end) {
  const auto id = static_cast<LinkId>(links_.size());
  links_.push_back(
      std::make_unique<Link>(Link{{id, gpu_worker, gpu_instance}, std::move(end), {}, 0, false}));
  if (watch_) watch_(links_[id]->end.gpu_pidfd.get());
  return id;
}

void RingLinks::watch_peers(std::function<void(int fd)> add, std::function<void(int fd)> remove) {
  watch_ = std::move(add);
  unwatch_ = std::move(remove);
}

void RingLinks::drop(LinkId link, const std::string& why) {
  lose(link, why);
}

std::optional<LinkId> RingLinks::find(std::string_view gpu_worker, uint64_t gpu_instance) const {
  for (const auto& link : links_)
    if (link && link->info.gpu_instance == gpu_instance && link->info.gpu_worker == gpu_worker)
      return link->info.id;
  return std::nullopt;
}

std::vector<LinkInfo> RingLinks::all() const {
  std::vector<LinkInfo> infos;
  for (const auto& link : links_)
    if (link) infos.push_back(link->info);
  return infos;
}

std::vector<LinkHolding> RingLinks::holdings() const {
  std::vector<LinkHolding> out;
  for (const auto& link : links_)
    if (link)
      out.push_back({link->info, link->end.slot, link->end.commands.position(), link->end.prompts.position(),
                     link->end.tokens.position(), link->waiting.size()});
  return out;
}

Status RingLinks::start(LinkId link, StartCommand command) {
  Link* found = up(link);
  if (found == nullptr) return Error{Code::kWorkerLost, "the gpu-worker of this request is gone"};
  if (prompt_size(command) > found->end.prompts.largest_payload())
    return Error{Code::kTooLarge, "the prompt takes " + std::to_string(prompt_size(command)) +
                                      " bytes; the ring to " + found->info.gpu_worker + " takes at most " +
                                      std::to_string(found->end.prompts.largest_payload())};
  if (found->waiting_starts >= limits_.max_waiting_starts)
    return Error{Code::kOverloaded, std::to_string(found->waiting_starts) +
                                        " requests wait for room in the ring to " + found->info.gpu_worker +
                                        "; allowed: at most " + std::to_string(limits_.max_waiting_starts) +
                                        "; retry later"};
  Waiting waiting;
  waiting.type = RecordType::kStart;
  waiting.epoch = command.record.epoch;
  command.record.stop_id_count = static_cast<uint32_t>(command.stop_ids.size());
  command.record.bias_count = static_cast<uint32_t>(command.bias.size());
  waiting.start = std::make_unique<StartCommand>(std::move(command));
  ++found->waiting_starts;
  give(link, std::move(waiting));
  return ok_status();
}

void RingLinks::grant(LinkId link, Epoch epoch, uint32_t granted) {
  give(link, {RecordType::kGrant, epoch, granted, nullptr, false});
}

void RingLinks::stop_at(LinkId link, Epoch epoch, uint32_t token_count) {
  give(link, {RecordType::kStopAt, epoch, token_count, nullptr, false});
}

void RingLinks::cancel(LinkId link, Epoch epoch) {
  Link* found = up(link);
  if (found == nullptr) return;
  // The peer has seen nothing of a start whose prompt is not written: then nothing of the request needs to
  // leave.
  const auto unwritten = [&](const Waiting& w) { return w.epoch == epoch && w.start && !w.prompt_written; };
  const auto start = std::find_if(found->waiting.begin(), found->waiting.end(), unwritten);
  if (start == found->waiting.end()) {
    give(link, {RecordType::kCancel, epoch, 0, nullptr, false});
    return;
  }
  --found->waiting_starts;
  std::erase_if(found->waiting, [&](const Waiting& w) { return w.epoch == epoch; });
}

void RingLinks::give(LinkId link, Waiting command) {
  Link* found = up(link);
  if (found == nullptr) return;
  if (found->waiting.size() >= limits_.max_waiting) {
    lose(link, "does not read its commands: " + std::to_string(found->waiting.size()) + " wait");
    return;
  }
  found->waiting.push_back(std::move(command));
  write_waiting(*found);
}

bool RingLinks::write_waiting(Link& link) {
  while (!link.waiting.empty() && write(link, link.waiting.front())) {
    if (link.waiting.front().start) --link.waiting_starts;
    link.waiting.pop_front();
    link.wrote = true;
  }
  return !link.end.commands.broken() && !link.end.prompts.broken();
}

bool RingLinks::write(Link& link, Waiting& command) {
  switch (command.type) {
    case RecordType::kStart:
      return write_start(link, command);
    case RecordType::kGrant:
      return write_record(link.end.commands, command.type, shm::GrantRecord{command.epoch, command.value, 0});
    case RecordType::kStopAt:
      return write_record(link.end.commands, command.type,
                          shm::StopAtRecord{command.epoch, command.value, 0});
    default:
      return write_record(link.end.commands, RecordType::kCancel, shm::CancelRecord{command.epoch});
  }
}

bool RingLinks::write_start(Link& link, Waiting& command) {
  const StartCommand& start = *command.start;
  if (!command.prompt_written) {
    const auto space =
        link.end.prompts.try_reserve(static_cast<uint32_t>(RecordType::kPrompt), prompt_size(start));
    if (!space) return false;
    const shm::PromptRecord prompt{command.epoch, static_cast<uint32_t>(start.ids.size()),
                                   start.prompt_count};
    Writer(*space).put(prompt).put(std::span<const TokenId>(start.ids));
    command.prompt_written = true;
    link.wrote = true;
  }
  const auto space =
      link.end.commands.try_reserve(static_cast<uint32_t>(RecordType::kStart), start_size(start));
  if (!space) return false;
  Writer(*space)
      .put(start.record)
      .put(std::span<const TokenId>(start.stop_ids))
      .put(std::span<const LogitBias>(start.bias));
  return true;
}

void RingLinks::flush() {
  for (LinkId id = 0; id < links_.size(); ++id) {
    Link* link = up(id);
    if (link == nullptr) continue;
    if (!write_waiting(*link)) {
      lose(id, link->end.commands.broken() ? "its command ring is broken: " + link->end.commands.fault()
                                           : "its prompt ring is broken: " + link->end.prompts.fault());
      continue;
    }
    if (!std::exchange(link->wrote, false)) continue;
    link->end.prompts.commit();  // before the start command that names it
    link->end.commands.commit();
    link->end.gpu_bell.ring();
  }
}

bool RingLinks::poll(TokenSink& sink) {
  bool more = false;
  for (LinkId id = 0; id < links_.size(); ++id)
    if (Link* link = up(id)) more |= read(*link, sink, limits_.records_per_poll);
  return more;
}

bool RingLinks::read(Link& link, TokenSink& sink, size_t budget) {
  const LinkId id = link.info.id;
  for (size_t i = 0; i < budget; ++i) {
    const auto record = link.end.tokens.peek();
    if (!record) {
      if (link.end.tokens.broken()) lose(id, "its token ring is broken: " + link.end.tokens.fault());
      return false;
    }
    const bool good = read_record(link, *record, sink);
    if (up(id) == nullptr) return false;  // the sink's answer found the command ring full for good
    if (!good) {
      lose(id, "it wrote a malformed record of type " + std::to_string(record->type) + " and " +
                   std::to_string(record->payload.size()) + " bytes");
      return false;
    }
    link.end.tokens.pop();
  }
  return true;
}

bool RingLinks::read_record(const Link& link, const shm::Record& record, TokenSink& sink) {
  switch (static_cast<RecordType>(record.type)) {
    case RecordType::kTokens:
      return read_tokens(link.info.id, record.payload, sink);
    case RecordType::kEnded:
      return read_ended(link.info.id, record.payload, sink);
    default:
      return false;
  }
}

bool RingLinks::read_tokens(LinkId link, std::span<const std::byte> payload, TokenSink& sink) {
  shm::TokensRecord tokens;
  Cursor rows(payload);
  if (!rows.copy(&tokens, sizeof(tokens)) || tokens.count > rows.left() / sizeof(shm::TokenRow)) return false;
  Cursor tops(payload.subspan(sizeof(tokens) + tokens.count * sizeof(shm::TokenRow)));
  TokenLogprob top[kMaxTopLogprobs];
  for (uint32_t i = 0; i < tokens.count; ++i) {
    shm::TokenRow row;
    if (!rows.copy(&row, sizeof(row)) || row.top_count > kMaxTopLogprobs) return false;
    if (!tops.copy(top, row.top_count * sizeof(TokenLogprob))) return false;
    sink.on_token(link, row, {top, row.top_count});
    if (up(link) == nullptr) return true;
  }
  return tops.left() == 0;
}

bool RingLinks::read_ended(LinkId link, std::span<const std::byte> payload, TokenSink& sink) {
  shm::EndedRecord ended;
  Cursor cursor(payload);
  if (!cursor.copy(&ended, sizeof(ended)) || ended.message_size != cursor.left()) return false;
  std::string message(ended.message_size, '\0');
  cursor.copy(message.data(), message.size());
  if (ended.epoch == 0) {  // no request: the gpu-worker has ended the link
    lose(link, "it refuses our commands: " + (is_valid_utf8(message) ? message : "(unreadable)"));
    return true;
  }
  sink.on_ended(link, ended, message);
  return true;
}

void RingLinks::check_peers(TokenSink& sink) {
  for (LinkId id = 0; id < links_.size(); ++id) {
    Link* link = up(id);
    if (link == nullptr) continue;
    pollfd peer{link->end.gpu_pidfd.get(), POLLIN, 0};
    if (::poll(&peer, 1, 0) <= 0) continue;
    // What it had committed still counts; the limit lies above the records that any ring holds.
    read(*link, sink, 1'000'000);
    lose(id, "its process has ended");
  }
}

void RingLinks::lose(LinkId link, std::string why) {
  if (up(link) == nullptr) return;
  if (unwatch_) unwatch_(links_[link]->end.gpu_pidfd.get());
  lost_.push_back({links_[link]->info, std::move(why)});
  retired_.push_back(std::move(links_[link]));
}

std::vector<LostLink> RingLinks::take_lost() {
  retired_.clear();
  return std::exchange(lost_, {});
}

size_t RingLinks::waiting() const {
  size_t count = 0;
  for (const auto& link : links_)
    if (link) count += link->waiting.size();
  return count;
}

}  // namespace ringmaster::tokenizer_worker
