#include "router/tokenize_queries.h"

#include <utility>

#include "router/admission.h"

namespace ringmaster::router {

void TokenizeQueries::fail(const Query& query, Code code, std::string_view message) {
  replies_.tokenize_reply(query.route, query.tag, nullptr, code, message);
}

void TokenizeQueries::ask(std::string_view route, const msg::Tokenize& query, Nanos now) {
  counters_.add(Counter::kTokenizeQueries);
  Query entry{std::string(route), query.tag(), nullptr, now + kTokenizeLimit};
  if (const auto checked = check_prompt(query.prompt_type(), query.prompt()); !checked)
    return fail(entry, checked.error().code, checked.error().message);
  if (open_.size() >= kMaxTokenizeQueries)
    return fail(entry, Code::kOverloaded, "too many Tokenize queries are on their way; retry later");
  entry.worker = placer_.least_busy_tokenizer();
  if (!entry.worker)
    return fail(entry, Code::kUnavailable, "no tokenizer-worker is registered yet; retry later");
  switch (replies_.tokenize_query(*entry.worker, next_tag_, query)) {
    case actor::Sent::kOk:
      break;
    case actor::Sent::kUnreachable:
      return fail(entry, Code::kUnavailable, "the tokenizer-worker went away; retry");
    case actor::Sent::kFull:
      return fail(entry, Code::kOverloaded, "the tokenizer-worker takes no more messages now; retry later");
  }
  open_.emplace(next_tag_++, std::move(entry));
}

void TokenizeQueries::answer(const Worker& from, const msg::Tokenized& answer) {
  const auto found = open_.find(answer.tag());
  if (found == open_.end() || found->second.worker.get() != &from) return;
  const Query query = std::move(found->second);
  open_.erase(found);
  replies_.tokenize_reply(query.route, query.tag, answer.ids(), msg::to_code(answer.code()),
                          answer.message() ? answer.message()->string_view() : std::string_view());
}

void TokenizeQueries::worker_lost(const Worker& worker) {
  for (auto it = open_.begin(); it != open_.end();) {
    if (it->second.worker.get() != &worker) {
      ++it;
      continue;
    }
    fail(it->second, Code::kWorkerLost, "the tokenizer-worker died; retry");
    it = open_.erase(it);
  }
}

std::vector<uint64_t> TokenizeQueries::tags() const {
  std::vector<uint64_t> out;
  for (const auto& [tag, query] : open_) out.push_back(tag);
  return out;
}

void TokenizeQueries::run_due(Nanos now) {
  while (!open_.empty() && open_.begin()->second.due <= now) {
    fail(open_.begin()->second, Code::kDeadlineExceeded, "the tokenizer-worker did not answer within 10 s");
    open_.erase(open_.begin());
  }
}

}  // namespace ringmaster::router
