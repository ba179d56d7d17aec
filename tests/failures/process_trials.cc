#include "tests/failures/process_trials.h"

#include <array>

namespace ringmaster::failures {
namespace {

// Limits of what takes milliseconds, on a machine that is slow and busy.
constexpr Nanos kLimit = 20 * kSecond;
constexpr std::array kPrograms = {Stage::kRouter, Stage::kTokenizerWorker, Stage::kGpuWorker};

client::Request request(uint32_t max_tokens) {
  client::Request out;
  out.prompt = std::string("The quick brown fox jumps over the lazy dog.");
  out.max_tokens = max_tokens;
  out.ignore_eos = true;
  out.has_seed = true;
  return out;
}

}  // namespace

ProcessTrials::ProcessTrials(std::string program) : program_(std::move(program)) {
  run("files", 0);  // the answer and the audit of an undisturbed life
}

void ProcessTrials::violation(const std::string& what) {
  if (judged_.violation.empty()) judged_.violation = what;
}

void ProcessTrials::start_all() {
  for (const char* other : kPrograms) {
    if (program_ == other || stage_.running(other)) continue;
    stage_.start(other);
    if (!stage_.wait_ready(other, kLimit)) violation(std::string(other) + " is not ready");
  }
}

void ProcessTrials::note_end(const End& end) {
  judged_.said += end.complaint;
  if (!end.in_order()) return violation("killed by signal " + std::to_string(end.status & 0x7F));
  if (end.code() == 0) return;
  judged_.outcome = Outcome::kEnded;
  if (end.complaint.empty()) violation("it exits with " + std::to_string(end.code()) + " and says nothing");
}

// Somebody has ended: the process under trial is started again, the others must not.
void ProcessTrials::watch() {
  for (const char* one : kPrograms) {
    const auto end = stage_.ended(one);
    if (!end) continue;
    if (one == program_ && first_life_) {
      first_life_ = false;
      note_end(*end);
      if (end->code() == 0) violation("it ends with code 0 without being asked");
    } else {
      violation(std::string(one) + " ended too: " + end->complaint);
    }
    stage_.start(one);
  }
}

ProcessTrials::Request ProcessTrials::ask(client::Client& client, bool cancel) {
  const uint32_t length = cancel ? 2'000 : 20;
  const auto uid = client.start(request(length));
  if (!uid) return {uid.error().message, "", ""};
  std::string ids, text;  // apart: where the answer is cut into pieces differs from run to run
  bool cancelled = false;
  const Nanos deadline = monotonic_now() + kLimit;
  while (monotonic_now() < deadline) {
    watch();
    const auto event = client.next(monotonic_now() + 5 * kMillisecond);
    if (!event) return {event.error().message, "", ""};
    if (!event->has_value()) continue;
    if (const auto* piece = std::get_if<client::Piece>(&(*event)->what)) {
      for (const TokenId id : piece->ids) ids += std::to_string(id) + " ";
      text += piece->text;
      if (cancel && !std::exchange(cancelled, true)) (void)client.cancel(*uid);
    }
    const auto* ending = std::get_if<client::Ending>(&(*event)->what);
    if (!ending) continue;
    const bool right =
        ending->reason == (cancel ? client::FinishReason::kCancelled : client::FinishReason::kLength);
    if (right) return {"", ids + text, ""};
    if (ending->code == Code::kOk || ending->message.empty())
      return {"", "", "ended with " + std::string(client::name(ending->reason)) + " and no error"};
    return {std::string(ringmaster::name(ending->code)) + ": " + ending->message, "", ""};
  }
  return {"", "", "no ending within 20 s"};
}

// Two requests that may be refused, then one that must be served at last.
void ProcessTrials::serve(client::Client& client) {
  for (const bool cancel : {false, true}) {
    const Request got = ask(client, cancel);
    if (!got.violation.empty()) return violation(got.violation);
    if (got.refused.empty()) {
      if (expected_.empty()) expected_ = got.answer;
      if (!cancel && got.answer != expected_) violation("the answer is " + got.answer);
      continue;
    }
    judged_.said += got.refused + "\n";
    if (judged_.outcome == Outcome::kAsUsual) judged_.outcome = Outcome::kRefused;
  }
  const Nanos deadline = monotonic_now() + kLimit;
  Request last;
  do {
    last = ask(client, false);
    if (!last.violation.empty()) return violation("afterwards: " + last.violation);
    if (last.refused.empty()) return;
    sleep_for(20 * kMillisecond);
  } while (monotonic_now() < deadline);
  violation("afterwards nothing is served: " + last.refused);
}

// What a process holds that went on after a failure, or that was started in its place. The audit is a
// question like others: the failing call may be of its answer.
void ProcessTrials::audit() {
  const bool was_first = first_life_;
  std::vector<Finding> found = stage_.audit(was_first ? kSecond : kLimit);
  watch();
  if (was_first && (!first_life_ || !found.empty())) {
    if (!first_life_ && !stage_.wait_ready(program_, kLimit)) violation("its successor is not ready");
    found = stage_.audit(kLimit);
  }
  if (!found.empty()) violation(lines(found));
}

void ProcessTrials::stop() {
  if (!stage_.running(program_)) return;
  const auto end = stage_.stop(program_, kLimit);
  if (!end) return violation("it does not end within 20 s after SIGTERM");
  if (first_life_) return note_end(*end);
  if (end->status != 0) violation("its successor ends with status " + std::to_string(end->status));
}

Judged ProcessTrials::run(const std::string& family, long n) {
  judged_ = {};
  first_life_ = true;
  start_all();
  const Shim shim({program_, family, n}, stage_.dir());
  stage_.start(program_, shim.environment());
  judged_.outcome = Outcome::kAsUsual;
  if (stage_.wait_ready(program_, kLimit)) {
    client::Client client = stage_.connect();
    serve(client);
    if (judged_.violation.empty()) audit();
    stop();
  } else {
    const Nanos deadline = monotonic_now() + kLimit;
    std::optional<End> end;
    while (!(end = stage_.ended(program_)) && monotonic_now() < deadline) sleep_for(kMillisecond);
    if (end) {
      note_end(*end);
      if (end->code() == 0) violation("it ends with code 0 and was never ready");
    } else {
      violation("neither ready nor at its end after 20 s");
      (void)stage_.stop(program_, 0);
    }
  }
  judged_.what = shim.note();
  judged_.calls = shim.calls();
  if (judged_.what.empty() && n > 0) judged_.outcome = Outcome::kNotReached;
  return std::move(judged_);
}

}  // namespace ringmaster::failures
