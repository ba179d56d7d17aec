#include "launcher/audit_comparison.h"

#include <algorithm>

namespace ringmaster::launcher {
namespace {

const client::WorkerBooks* find_worker(const AuditSnapshot& snapshot, std::string_view name) {
  const auto found = std::ranges::find(snapshot.books->workers, name, &client::WorkerBooks::name);
  return found == snapshot.books->workers.end() || found->state == "dead" ? nullptr : &*found;
}

}  // namespace

void Comparison::add(std::string_view rule, std::string process, std::string thing, std::string expected,
                     std::string found) {
  findings_.push_back({std::string(audit_rule(rule).name), std::move(process), std::move(thing),
                       std::move(expected), std::move(found)});
}

void Comparison::equal(std::string_view rule, const std::string& process, std::string thing,
                       uint64_t expected, uint64_t found) {
  if (expected != found) add(rule, process, std::move(thing), text(expected), text(found));
}

const ProcessFacts* Comparison::facts(std::string_view name) const {
  const auto found = std::ranges::find(s_.processes, name, &ProcessFacts::name);
  return found == s_.processes.end() ? nullptr : &*found;
}

const client::WorkerBooks* Comparison::worker(std::string_view name) const {
  return find_worker(s_, name);
}

bool Comparison::registering(const ProcessFacts& process) const {
  if (process.stopped || !unregistered(s_, process)) return false;
  const ProcessFacts* router = facts("router");
  return process.age < s_.registration || (router && router->age < s_.registration);
}

bool Comparison::registering(std::string_view name) const {
  const ProcessFacts* process = facts(name);
  return process && registering(*process);
}

bool Comparison::idle() const {
  return books().router.live == 0 &&
         std::ranges::none_of(s_.processes, [&](const ProcessFacts& p) { return registering(p); });
}

bool is_worker(const ProcessFacts& process) {
  return process.name.starts_with("gpu-worker") || process.name.starts_with("tokenizer-worker");
}

bool unregistered(const AuditSnapshot& snapshot, const ProcessFacts& process) {
  if (!is_worker(process) || process.state != "ready" || !process.alive) return false;
  const client::WorkerBooks* known = find_worker(snapshot, process.name);
  return !known || known->pid != process.pid;
}

std::string text(uint64_t number) {
  return std::to_string(number);
}

std::string show(Epoch epoch) {
  return "request " + text(epoch >> 32) + ":" + text(epoch & 0xFFFFFFFF);
}

const client::StreamBooks* find_stream(const client::TokenizerWorkerBooks& books, Epoch epoch) {
  const auto found = std::ranges::find(books.streams, epoch, &client::StreamBooks::epoch);
  return found == books.streams.end() ? nullptr : &*found;
}

const client::SlotBooks* find_slot(const std::vector<client::SlotBooks>& slots, uint32_t number) {
  const auto found = std::ranges::find(slots, number, &client::SlotBooks::slot);
  return found == slots.end() ? nullptr : &*found;
}

}  // namespace ringmaster::launcher
