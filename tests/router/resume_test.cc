// Clients that vanish, come back, lose pieces or endings: nothing lost, nothing twice, one ending.
#include "tests/router/support.h"

namespace ringmaster::router {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

msg::GenerateT again(uint64_t n, std::vector<uint32_t> received, uint64_t text_offset) {
  auto g = text_request(n);
  g.received_ids = std::move(received);
  g.received_text_offset = text_offset;
  return g;
}

class ResumeTest : public RouterTest {
 protected:
  // Request 1 of c1 with the tokens {7,8,9} "abc" sent and the first acknowledged.
  void SetUp() override {
    start_pair();
    run_request("c1", 1);
    streams(kTok, to_client("c1", {{epoch(1), 1, 0, {7, 8, 9}, 0, "abc"}}));
    ack("c1", 1, 1, 1);
    at("c1");
    at_tok();
  }
  void end_it() {
    streams(kTok, to_client("c1", {}, {{epoch(1), 1, 3}}));
    at("c1");
    at_tok();
  }
};

TEST_F(ResumeTest, AnotherConnectionTakesTheStreamOver) {
  client("c2", again(1, {7, 8}, 2));
  EXPECT_THAT(at("c2"), ElementsAre("Accepted 1 1:1 resumed next 2"));
  EXPECT_THAT(at_tok(), ElementsAre("Resend 1:1 to c2 from 2/2"));
  // On its way to the former route when the client moved: dropped, the repetition covers it.
  streams(kTok, to_client("c1", {{epoch(1), 1, 3, {10}, 3, "d"}}));
  EXPECT_THAT(at("c1"), IsEmpty());
  EXPECT_THAT(at("c2"), IsEmpty());
  EXPECT_EQ(count(Counter::kChunksStale), 1u);
  EXPECT_THAT(at_tok(), IsEmpty());  // the owner is told nothing: it is still the owner
  streams(kTok, to_client("c2", {{epoch(1), 1, 2, {9, 10}, 2, "cd"}}));
  EXPECT_THAT(at("c2"), ElementsAre("Stream piece 1 1:1 @2{9,10} 'cd'@2"));
  ack("c1", 1, 3, 3);
  EXPECT_THAT(at_tok(), IsEmpty());
  EXPECT_EQ(router->table().clients(), 1u);
  expect_books_balance();
}

TEST_F(ResumeTest, ADuplicateOfTheFirstGenerateStartsNothing) {
  client("c1", text_request(1));
  EXPECT_THAT(at("c1"), ElementsAre("Accepted 1 1:1 resumed next 1"));  // not below what was acknowledged
  EXPECT_THAT(at_tok(), ElementsAre("Resend 1:1 to c1 from 1/1"));
  EXPECT_EQ(count(Counter::kRequestsAccepted), 1u);
  EXPECT_EQ(router->table().live(), 1u);
}

TEST_F(ResumeTest, WhatAResumeSaysIsAnAcknowledgement) {
  client("c1", again(1, {7, 8}, 2));
  at_tok();
  client("c1", text_request(1));  // a duplicate of the first Generate, late: the worker has freed up to 2
  EXPECT_THAT(at_tok(), ElementsAre("Resend 1:1 to c1 from 2/2"));
}

TEST_F(ResumeTest, AnAcknowledgementOfLessThanAResumeSaidIsOld) {
  client("c1", again(1, {7, 8}, 2));
  at_tok();
  ack("c1", 1, 1, 1);
  EXPECT_THAT(at_tok(), IsEmpty());
  ack("c1", 1, 3, 1);  // tokens are news, the text is not
  EXPECT_THAT(at_tok(), ElementsAre("AckedEpochs 1:1 3/2"));
}

TEST_F(ResumeTest, AnotherTenantMayNotResume) {
  auto g = again(1, {7}, 1);
  g.tenant = "other";
  client("c2", std::move(g));
  EXPECT_THAT(at("c2"), ElementsAre("Stream done 1 0:0 refused permission_denied 0"));
  EXPECT_THAT(at_tok(), IsEmpty());
  streams(kTok, to_client("c1", {{epoch(1), 1, 3, {10}, 3, "d"}}));
  EXPECT_THAT(at("c1"), ElementsAre("Stream piece 1 1:1 @3{10} 'd'@3"));  // the owner's stream goes on
}

// Pieces of a former life of the request, which the router has forgotten, met the resume that began this one.
TEST_F(ResumeTest, MoreThanWasSentCountsAsAllThatWasSent) {
  client("c2", again(1, {7, 8, 9, 10}, 4));
  EXPECT_THAT(at("c2"), ElementsAre("Accepted 1 1:1 resumed next 3"));
  EXPECT_THAT(at_tok(), ElementsAre("Resend 1:1 to c2 from 3/3"));
  EXPECT_EQ(router->table().live(), 1u);
}

TEST_F(ResumeTest, WhileWaitingItOnlyChangesTheRoute) {
  link(kTok, kGpu, false);
  client("c1", text_request(2));
  client("c2", text_request(2));
  at_tok();
  EXPECT_THAT(at("c2"), ElementsAre("Accepted 2 1:2 resumed"));
  link(kTok, kGpu);
  EXPECT_THAT(at_tok(), ElementsAre("Assign 1:2 gpu-worker.0 for c2"));
}

TEST_F(ResumeTest, WhileEndingItWaitsForTheDone) {
  cancel("c1", 1);
  at_tok();
  client("c2", again(1, {7, 8, 9}, 3));
  EXPECT_THAT(at_tok(), ElementsAre("Resend 1:1 to c2 from 3/3"));
  streams(kTok, to_client("c2", {}, {{epoch(1), 1, 3, msg::FinishReason::cancelled}}));
  EXPECT_THAT(at("c2"), ElementsAre("Accepted 1 1:1 resumed next 3", "Stream done 1 1:1 cancelled ok 3"));
  expect_books_balance();
}

// ---- after the ending ----

TEST_F(ResumeTest, ALostDoneIsHadAgainFromTheRouter) {
  end_it();
  client("c2", again(1, {7, 8, 9}, 3));
  EXPECT_THAT(at("c2"), ElementsAre("Accepted 1 1:1 resumed next 3", "Stream done 1 1:1 stop ok 3"));
  EXPECT_THAT(at_tok(), IsEmpty());
  EXPECT_EQ(count(Counter::kEndedStop), 1u);
  expect_books_balance();
}

TEST_F(ResumeTest, LostPiecesBeforeTheDoneComeAgainFromTheWorker) {
  end_it();
  client("c2", again(1, {7}, 1));
  EXPECT_THAT(at("c2"), ElementsAre("Accepted 1 1:1 resumed next 1"));
  EXPECT_THAT(at_tok(), ElementsAre("Resend 1:1 to c2 from 1/1"));
  streams(kTok, to_client("c2", {{epoch(1), 1, 1, {8, 9}, 1, "bc"}}, {{epoch(1), 1, 3}}));
  EXPECT_THAT(at("c2"), ElementsAre("Stream piece 1 1:1 @1{8,9} 'bc'@1 done 1 1:1 stop ok 3"));
  // The repetition is over: from here on the ended request is silent again.
  streams(kTok, to_client("c2", {{epoch(1), 1, 1, {8, 9}, 1, "bc"}}, {{epoch(1), 1, 3}}));
  EXPECT_THAT(at("c2"), IsEmpty());
  EXPECT_EQ(count(Counter::kEndedStop), 1u);
  expect_books_balance();
}

TEST_F(ResumeTest, ARepetitionThatDoesNotComeIsAnError) {
  end_it();
  client("c2", again(1, {7}, 1));
  at("c2");
  advance_alive(2 * kSecond);
  EXPECT_THAT(at("c2"), ElementsAre("Stream done 1 1:1 error unavailable 3"));
  expect_books_balance();
}

TEST_F(ResumeTest, TheOwnerDiesWhileItRepeats) {
  end_it();
  client("c2", again(1, {7}, 1));
  at("c2");
  add(kTok, 99);
  EXPECT_THAT(at("c2"), ElementsAre("Stream done 1 1:1 error worker_lost 3"));
  client("c2", again(1, {7, 8, 9}, 3));  // who has everything still gets the true ending
  EXPECT_THAT(at("c2"), ElementsAre("Accepted 1 1:1 resumed next 3", "Stream done 1 1:1 stop ok 3"));
  expect_books_balance();
}

TEST_F(ResumeTest, UnacknowledgedEndingsAreKeptForLingerThenTheWorkerIsTold) {
  end_it();
  msg::PingT ping;
  for (int i = 0; i < 29; ++i) {
    client("c1", ping);
    advance_alive(kSecond);
  }
  EXPECT_EQ(router->table().size(), 1u);
  EXPECT_THAT(at_tok(), IsEmpty());
  advance_alive(kSecond);
  EXPECT_EQ(router->table().size(), 0u);
  EXPECT_THAT(at_tok(), ElementsAre("Forget 1:1"));
}

TEST_F(ResumeTest, OldestEndingsGiveWayToTheBound) {
  RouterOptions options;
  options.limits.max_ended = 2;
  restart(options);
  start_pair();
  for (uint64_t n = 1; n <= 4; ++n) {
    run_request("c1", n);
    streams(kTok, to_client("c1", {{epoch(static_cast<uint32_t>(n)), n, 0, {7}, 0, "a"}},
                            {{epoch(static_cast<uint32_t>(n)), n, 1}}));
  }
  EXPECT_EQ(router->table().size(), 2u);
  EXPECT_THAT(at_tok(), ElementsAre("Forget 1:2"));  // 1:1 was swept with the opening of request 4
  EXPECT_EQ(router->table().find(epoch(1)), nullptr);
  EXPECT_NE(router->table().find(epoch(4)), nullptr);
}

// ---- clients that vanish ----

TEST_F(ResumeTest, UnreachableClientsAreKeptForGraceThenCancelled) {
  net.unreachable.insert("c1");
  streams(kTok, to_client("c1", {{epoch(1), 1, 3, {10}, 3, "d"}}));
  EXPECT_EQ(count(Counter::kClientsLost), 1u);
  advance_alive(10 * kSecond - 1);
  EXPECT_THAT(at_tok(), IsEmpty());
  EXPECT_EQ(router->table().live(), 1u);
  advance_alive(1);
  EXPECT_THAT(at_tok(), ElementsAre("Forget 1:1"));
  EXPECT_EQ(router->table().live(), 0u);
  EXPECT_EQ(count(Counter::kEndedCancelled), 1u);
  client("c3", again(1, {7, 8, 9, 10}, 4));  // too late, but it learns how it ended
  EXPECT_THAT(at("c3"),
              ElementsAre("Accepted 1 1:1 resumed next 4", "Stream done 1 1:1 cancelled cancelled 4"));
  advance_alive(10 * kSecond);
  EXPECT_EQ(router->table().size(), 0u);
  expect_books_balance();
}

TEST_F(ResumeTest, WithoutGraceItEndsAtOnce) {
  auto g = text_request(2);
  g.resume_grace_ms = 0;
  client("c9", std::move(g));
  at_tok();
  net.unreachable.insert("c9");
  streams(kTok, to_client("c9", {{epoch(2), 2, 0, {7}, 0, "a"}}));
  EXPECT_THAT(at_tok(), ElementsAre("Forget 1:2"));
  EXPECT_EQ(router->table().find(epoch(2)), nullptr);
  EXPECT_EQ(count(Counter::kEndedCancelled), 1u);
  expect_books_balance();
}

TEST_F(ResumeTest, WithoutGraceTheLastAckStillReachesTheWorker) {
  auto g = text_request(2);
  g.resume_grace_ms = 0;
  client("c9", std::move(g));
  at_tok();
  streams(kTok, to_client("c9", {{epoch(2), 2, 0, {7}, 0, "a"}}, {{epoch(2), 2, 1}}));
  ack("c9", 2, 1, 1);
  EXPECT_THAT(at_tok(), ElementsAre("AckedEpochs 1:2 1/1"));
  EXPECT_EQ(router->table().find(epoch(2)), nullptr);
}

TEST_F(ResumeTest, AClientThatIsBackUnderItsNameGetsWhatItMissed) {
  net.unreachable.insert("c1");
  streams(kTok, to_client("c1", {{epoch(1), 1, 3, {10}, 3, "d"}}));
  net.unreachable.clear();
  client("c1", msg::PingT());
  EXPECT_THAT(at("c1"), ElementsAre("Pong 1"));
  EXPECT_THAT(at_tok(), ElementsAre("Resend 1:1 to c1 from 1/1"));
  advance_alive(20 * kSecond);
  EXPECT_EQ(router->table().live(), 1u);  // no longer an orphan
}

TEST_F(ResumeTest, AClientWithAFullQueueGetsWhatItMissedOnceItSpeaks) {
  net.full.insert("c1");
  streams(kTok, to_client("c1", {{epoch(1), 1, 3, {10}, 3, "d"}}));
  EXPECT_EQ(count(Counter::kSendsFull), 1u);
  EXPECT_EQ(count(Counter::kClientsLost), 1u);
  net.full.clear();
  client("c1", msg::PingT());
  EXPECT_THAT(at("c1"), ElementsAre("Pong 1"));
  EXPECT_THAT(at_tok(), ElementsAre("Resend 1:1 to c1 from 1/1"));
}

TEST_F(ResumeTest, ADoneThatMetAClosedDoorIsSentWhenTheClientIsBack) {
  ack("c1", 1, 3, 3);
  at_tok();
  net.unreachable.insert("c1");
  streams(kTok, to_client("c1", {}, {{epoch(1), 1, 3}}));
  net.unreachable.clear();
  client("c1", msg::PingT());
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 1 1:1 stop ok 3", "Pong 1"));
}

TEST_F(ResumeTest, TheLeaseIsRenewedByAnyMessageAndEndsInSilence) {
  msg::PingT ping;
  advance_alive(29 * kSecond);
  client("c1", ping);
  advance_alive(29 * kSecond);
  EXPECT_EQ(count(Counter::kClientsLost), 0u);
  advance_alive(kSecond);
  EXPECT_EQ(count(Counter::kClientsLost), 1u);
  at("c1");
  // Only silent, not unreachable: pieces still went to it, so coming back within the grace needs no
  // repetition.
  advance_alive(5 * kSecond);
  client("c1", ping);
  EXPECT_THAT(at_tok(), IsEmpty());
  advance_alive(30 * kSecond);  // the lease runs again from there
  EXPECT_EQ(count(Counter::kClientsLost), 2u);
  at("c1");
  advance_alive(10 * kSecond);
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 1 1:1 cancelled cancelled 3"));
  EXPECT_THAT(at_tok(), ElementsAre("Forget 1:1"));
  expect_books_balance();
}

TEST_F(ResumeTest, LIF_03_AQueuedRequestWhoseClientLeftNeverStarts) {
  link(kTok, kGpu, false);
  at("c1");
  auto g = text_request(2);
  g.resume_grace_ms = 0;
  net.unreachable.insert("c9");  // gone before it could read Accepted
  client("c9", std::move(g));
  at_tok();
  link(kTok, kGpu);
  EXPECT_THAT(at_tok(), IsEmpty());
  EXPECT_EQ(router->life().waiting(), 0u);
  expect_books_balance();
}

// ---- after a restart of the router ----

TEST_F(ResumeTest, ANewRouterContinuesFromWhatTheClientHas) {
  RouterOptions options;
  options.incarnation = 2;
  restart(options);
  start_pair();
  auto g = again(1, {7, 8}, 2);
  client("c1", std::move(g));
  EXPECT_THAT(at("c1"), ElementsAre("Stream done 1 0:0 refused invalid_argument 0"));  // the seed is missing
  g = again(1, {7, 8}, 2);
  sampling(g).seed = 7;
  client("c1", std::move(g));
  EXPECT_THAT(at("c1"), ElementsAre("Accepted 1 2:1 resumed next 2"));
  EXPECT_THAT(at_tok(), ElementsAre("Assign 2:1 gpu-worker.0 for c1"));
  // A worker that still has the stream of the former life is told to forget it.
  streams(kTok, to_client("c1", {{epoch(1), 1, 3, {10}, 3, "d"}}));
  EXPECT_THAT(at("c1"), IsEmpty());
  EXPECT_THAT(at_tok(), ElementsAre("Forget 1:1"));
  streams(kTok, to_client("c1", {{epoch(1, 2), 1, 2, {9}, 2, "c"}}));
  EXPECT_THAT(at("c1"), ElementsAre("Stream piece 1 2:1 @2{9} 'c'@2"));
}

}  // namespace
}  // namespace ringmaster::router
