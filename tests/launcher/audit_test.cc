// The rules of `ringmaster audit`: one pair of workers that serves one request and whose books balance, then
// one broken book a rule, each with the finding it must give, literally.
#include "launcher/audit.h"

#include <gmock/gmock.h>

#include <functional>
#include <set>

#include "tests/launcher/audit_books.h"

namespace ringmaster::launcher {
namespace {

using client::RequestPhase;
using client::SequencePhase;
using client::StreamPhase;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Broken {
  const char* name;
  const char* rule;
  bool from_idle;
  std::function<void(AuditSnapshot&)> breakage;
  std::vector<std::string> says;
};
const std::vector<Broken>& broken_books() {
  static const std::vector<Broken> all = {
      {"NoAnswer",
       "answer",
       false,
       [](auto& s) {
         books(s).workers[0].gpu_books.reset();
         s.processes[2].stopped = true;
       },
       {"gpu-worker.0: answer: books: expected an answer, found no answer; the process is stopped"}},
      {"SilentRouter",
       "answer",
       false,
       [](auto& s) {
         s.books.reset();
         s.no_books = "deadline_exceeded: no answer from the cluster in time";
       },
       {"router: answer: books: expected an answer, found deadline_exceeded: no answer from the cluster in "
        "time"}},
      {"GivenUp",
       "process",
       true,
       [](auto& s) {
         s.processes[2] = {.name = "gpu-worker.0", .state = "given up"};
         books(s).workers[0].state = "dead";
         books(s).workers[0].gpu_books.reset();
         tok(s).slots.clear();
         books(s).workers[1].linked.clear();
         s.processes[3].descriptors.slots = s.processes[3].mapped_slots = 0;
         s.processes[3].descriptors.bells = s.processes[3].mapped_bells = 1;
         s.processes[3].descriptors.pidfds = 0;
         s.processes[0].descriptors.pidfds = 3;
         s.processes[1].descriptors.worker_connections = 1;
       },
       {"gpu-worker.0: process: state: expected ready, found given up, process gone"}},
      {"NotRegistered",
       "process",
       true,
       [](auto& s) {
         books(s).workers.pop_back();
         gpu(s).slots.clear();
         s.processes[2].descriptors.bells = s.processes[2].mapped_bells = 1;
         s.processes[2].descriptors.pidfds = 0;
       },
       {"tokenizer-worker.0: process: registration: expected known to the router, found not"}},
      {"SupervisorGone",
       "process",
       true,
       [](auto& s) { s.processes[0] = {.name = "supervisor", .state = "ready"}; },
       {"supervisor: process: state: expected ready, found ready, process gone"}},
      {"SupervisorStopped",
       "process",
       true,
       [](auto& s) { s.processes[0].stopped = true; },
       {"supervisor: process: state: expected running, found stopped"}},
      {"RegisteredIsTheFormerOne",
       "process",
       false,
       [](auto& s) { books(s).workers[0].pid = 33; },
       {"gpu-worker.0: process: pid at the router: expected 3, found 33"}},
      {"AcceptedAndGone",
       "requests.balance",
       false,
       [](auto& s) { books(s).router.accepted = 6; },
       {"router: requests.balance: accepted requests: expected 5, found 6"}},
      {"LoadOfNobody",
       "requests.load",
       false,
       [](auto& s) { books(s).workers[0].live = 2; },
       {"gpu-worker.0: requests.load: requests placed on it: expected 1, found 2"}},
      {"StreamNobodyKnows",
       "streams.owner",
       false,
       [](auto& s) {
         tok(s).streams.push_back({kEpoch + 1, 0, StreamPhase::kEncoding});
         tok(s).live = 2;
         tok(s).assigned = 6;
       },
       {"tokenizer-worker.0: streams.owner: request 3:8: expected live in the router, found not"}},
      {"StreamOfAnother",
       "streams.owner",
       false,
       [](auto& s) {
         books(s).router.requests[0].tokenizer = 2;
         books(s).workers.push_back({.name = "tokenizer-worker.1", .state = "dead", .live = 1});
         books(s).workers[1].live = 0;
       },
       {"tokenizer-worker.0: streams.owner: request 3:7: expected placed on tokenizer-worker.0, found placed "
        "on "
        "tokenizer-worker.1"}},
      {"StreamMissing",
       "streams.missing",
       false,
       [](auto& s) {
         books(s).router.requests.push_back({kEpoch + 1, 1, 0, RequestPhase::kEnding});
         books(s).router.live = 2;
         books(s).router.accepted = 6;
         books(s).workers[0].live = books(s).workers[1].live = 2;
       },
       {"tokenizer-worker.0: streams.missing: request 3:8: expected a stream, found none"}},
      {"AssignedAndGone",
       "streams.balance",
       false,
       [](auto& s) { tok(s).assigned = 7; },
       {"tokenizer-worker.0: streams.balance: assigned requests: expected 5, found 7"}},
      {"SequenceOfNobody",
       "sequences.owner",
       false,
       [](auto& s) {
         gpu(s).sequences.push_back({kEpoch + 1, 0, 0, SequencePhase::kWaiting, false});
         gpu(s).live = 2;
       },
       {"gpu-worker.0: sequences.owner: request 3:8: expected a running stream of tokenizer-worker.0, found "
        "none"}},
      {"SequenceOfAFreeSlot",
       "sequences.owner",
       false,
       [](auto& s) {
         gpu(s).sequences.push_back({kEpoch + 1, 5, 0, SequencePhase::kWaiting, false});
       },
       {"gpu-worker.0: sequences.owner: request 3:8: expected the holder of slot 5, found none"}},
      {"SequenceMissing",
       "sequences.missing",
       false,
       [](auto& s) {
         gpu(s).sequences.clear();
         gpu(s).live = gpu(s).lanes_taken = gpu(s).blocks_used = gpu(s).blocks_held = gpu(s).deferred = 0;
         gpu(s).references = gpu(s).table_references = 0;
         gpu(s).blocks_free = 93;
       },
       {"gpu-worker.0: sequences.missing: request 3:7: expected a sequence for tokenizer-worker.0, found "
        "none"}},
      {"QueryNobodyAwaits",
       "queries.owner",
       false,
       [](auto& s) { tok(s).queries.push_back(69); },
       {"tokenizer-worker.0: queries.owner: tokenize query 69: expected awaited by the router, found not"}},
      {"SlotOfTheDead",
       "slots.pair",
       true,
       [](auto& s) { gpu(s).slots[0].peer_pid = 99; },
       {"gpu-worker.0: slots.pair: slot 0: expected free, or held by the living tokenizer-worker.0, found "
        "held by "
        "process 99, which is gone"}},
      {"SlotWithoutALink",
       "slots.pair",
       true,
       [](auto& s) {
         gpu(s).slots.push_back({.slot = 1, .peer = "tokenizer-worker.0", .peer_pid = 4});
         s.processes[2].descriptors.bells = s.processes[2].mapped_bells = 3;
         s.processes[2].descriptors.pidfds = 2;
       },
       {"gpu-worker.0: slots.pair: slot 1: expected a link of tokenizer-worker.0, found none"}},
      {"LinkWithoutASlot",
       "slots.pair",
       true,
       [](auto& s) {
         gpu(s).slots.clear();
         s.processes[2].descriptors.bells = s.processes[2].mapped_bells = 1;
         s.processes[2].descriptors.pidfds = 0;
       },
       {"gpu-worker.0: slots.pair: slot 0: expected held by tokenizer-worker.0, found free"}},
      {"LinkUnknown",
       "links.known",
       true,
       [](auto& s) { books(s).workers[1].linked.clear(); },
       {"tokenizer-worker.0: links.known: link to gpu-worker.0: expected known to the router, found not"}},
      {"CommandUnread",
       "rings.read",
       true,
       [](auto& s) { gpu(s).slots[0].commands = 576; },
       {"gpu-worker.0: rings.read: command ring of slot 0, tokenizer-worker.0: expected 640, found 576"}},
      {"TokensUnread",
       "rings.read",
       true,
       [](auto& s) { tok(s).slots[0].tokens = 128; },
       {"tokenizer-worker.0: rings.read: token ring of slot 0, gpu-worker.0: expected 192, found 128"}},
      {"BlockLost",
       "blocks.total",
       false,
       [](auto& s) { gpu(s).blocks_free = 89; },
       {"gpu-worker.0: blocks.total: KV blocks: expected 100, found 99"}},
      {"ReferenceTooMany",
       "blocks.references",
       false,
       [](auto& s) { gpu(s).references = 5; },
       {"gpu-worker.0: blocks.references: references: expected 4, found 5"}},
      {"TableTooLong",
       "blocks.references",
       false,
       [](auto& s) { gpu(s).sequences[0].blocks = 2; },
       {"gpu-worker.0: blocks.references: entries of all block tables: expected 2, found 3"}},
      {"BlockOfNobody",
       "blocks.used",
       false,
       [](auto& s) {
         gpu(s).blocks_used = 4;
         gpu(s).blocks_free = 89;
       },
       {"gpu-worker.0: blocks.used: used KV blocks: expected 3, found 4"}},
      {"LaneOfNobody",
       "lanes.held",
       false,
       [](auto& s) { gpu(s).lanes_taken = 2; },
       {"gpu-worker.0: lanes.held: lanes taken: expected 1, found 2"}},
      {"Fault",
       "books.fault",
       false,
       [](auto& s) { gpu(s).fault = "lane 3 has 2 holders\na long dump"; },
       {"gpu-worker.0: books.fault: check: expected no fault, found lane 3 has 2 holders"}},
      {"BlocksKept",
       "idle",
       true,
       [](auto& s) {
         gpu(s).blocks_used = gpu(s).blocks_held = gpu(s).deferred = 1;
         gpu(s).references = 1;
         gpu(s).blocks_free = 92;
       },
       {"gpu-worker.0: idle: used KV blocks: expected 0, found 1",
        "gpu-worker.0: idle: releases that wait for a step: expected 0, found 1"}},
      {"PromptInThePool",
       "idle",
       true,
       [](auto& s) { tok(s).encoding = 1; },
       {"tokenizer-worker.0: idle: prompts in the encode pool: expected 0, found 1"}},
      {"SlotStillMapped",
       "memory",
       true,
       [](auto& s) { s.processes[3].mapped_slots = 2; },
       {"tokenizer-worker.0: memory: mapped slots: expected 1, found 2"}},
      {"PidfdKept",
       "descriptors",
       true,
       [](auto& s) { s.processes[2].descriptors.pidfds = 2; },
       {"gpu-worker.0: descriptors: pidfds: expected 1, found 2"}},
      {"WorkerConnectionKept",
       "descriptors",
       true,
       [](auto& s) { s.processes[1].descriptors.worker_connections = 3; },
       {"router: descriptors: connections of workers: expected 2, found 3"}},
      {"ThreadAndEventfdKept",
       "since",
       true,
       [](auto& s) {
         s.before = s.processes;
         s.processes[3].threads = 7;
         s.processes[2].descriptors.eventfds = 6;
       },
       {"gpu-worker.0: since: eventfds: expected 5, found 6",
        "tokenizer-worker.0: since: threads: expected 6, found 7"}},
  };
  return all;
}

TEST(Audit, BooksThatBalanceGiveNoFinding) {
  EXPECT_THAT(show(compare(balanced())), IsEmpty());
  EXPECT_FALSE(is_idle(balanced()));
  EXPECT_THAT(show(compare(idle())), IsEmpty());
  EXPECT_TRUE(is_idle(idle()));
}

class BrokenBooks : public testing::TestWithParam<Broken> {};

TEST_P(BrokenBooks, GiveTheirFinding) {
  AuditSnapshot s = GetParam().from_idle ? idle() : balanced();
  GetParam().breakage(s);
  EXPECT_EQ(show(compare(s)), GetParam().says);
  for (const Finding& f : compare(s)) EXPECT_EQ(f.rule, GetParam().rule);
}

INSTANTIATE_TEST_SUITE_P(Audit, BrokenBooks, testing::ValuesIn(broken_books()),
                         [](const auto& broken) { return std::string(broken.param.name); });

TEST(Audit, EveryRuleHasItsBrokenBooks) {
  std::set<std::string_view> rules, shown;
  for (const AuditRule& rule : audit_rules()) rules.insert(rule.name);
  for (const Broken& broken : broken_books()) shown.insert(broken.rule);
  EXPECT_EQ(shown, rules);
}

TEST(Audit, ListsThatAreCappedAreNotTakenForWhole) {
  AuditSnapshot s = balanced();
  s.books->router.requests.clear();
  s.books->router.unlisted = 1;
  tok(s).streams.clear();
  tok(s).unlisted = 1;
  gpu(s).sequences.clear();
  gpu(s).unlisted = 1;
  EXPECT_THAT(show(compare(s)), IsEmpty());
}

TEST(Audit, WhatIsOnItsWayInTheRingsIsNoMissingSequence) {
  AuditSnapshot s = balanced();
  gpu(s).sequences.clear();
  gpu(s).unlisted = 0;
  gpu(s).table_references = gpu(s).lanes_taken = 0;
  gpu(s).references = gpu(s).deferred;
  gpu(s).slots[0].commands = 576;
  EXPECT_THAT(
      show(compare(s)),
      ElementsAre(
          "gpu-worker.0: rings.read: command ring of slot 0, tokenizer-worker.0: expected 640, found 576"));
}

TEST(Audit, OnlyTheSameDifferenceInBothRoundsCounts) {
  const Finding stays{"idle", "gpu-worker.0", "lanes", "0", "1"};
  Finding moves{"rings.read", "gpu-worker.0", "command ring", "640", "576"};
  const std::vector<Finding> first = {stays, moves};
  moves.found = "640";
  moves.expected = "704";
  EXPECT_THAT(show(seen_twice(first, {moves, stays})),
              ElementsAre("gpu-worker.0: idle: lanes: expected 0, found 1"));
  EXPECT_THAT(seen_twice({}, first), IsEmpty());
  EXPECT_THAT(seen_twice(first, {}), IsEmpty());
}

}  // namespace
}  // namespace ringmaster::launcher
