#include "actor/memory_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/actor/recorder.h"

namespace ringmaster::actor {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Strings = std::vector<std::string>;

// A router with a door for clients (0) and one for workers (1); two workers and a client.
struct Network : testing::Test {
  Network() {
    net.attach("router", router);
    net.attach("w0", w0);
    net.attach("w1", w1);
    net.attach("c", client);
  }
  static Sent send(Outbox& from, Channel channel, const std::string& peer, const std::string& text) {
    return from.send(channel, peer, bytes_of(text));
  }
  void run() { ASSERT_TRUE(net.run_until_idle()); }

  MemoryTransport net{1, 1000};
  Outbox& router_out = net.add_router("router", 2);
  Outbox& w0_out = net.add_worker("w0", "router", 1);
  Outbox& w1_out = net.add_worker("w1", "router", 1);
  Outbox& client_out = net.add_worker("c", "router", 0);
  Recorder router, w0, w1, client;
};

TEST_F(Network, PeersAreNamesForTheRouterAndNothingForWorkers) {
  EXPECT_EQ(send(w0_out, 0, "", "hello"), Sent::kOk);
  EXPECT_EQ(send(client_out, 0, "", "generate"), Sent::kOk);
  EXPECT_EQ(send(router_out, 1, "w1", "assign"), Sent::kOk);
  EXPECT_EQ(send(router_out, 0, "c", "chunk"), Sent::kOk);
  EXPECT_THAT(router.got, IsEmpty()) << "only on command";
  run();
  EXPECT_THAT(router.got, ElementsAre("1 w0 hello", "0 c generate"));
  EXPECT_THAT(w1.got, ElementsAre("0  assign"));
  EXPECT_THAT(client.got, ElementsAre("0  chunk"));
}

TEST_F(Network, UnknownPeersAndWrongDoorsAreUnreachable) {
  EXPECT_EQ(send(router_out, 1, "nobody", "x"), Sent::kUnreachable);
  EXPECT_EQ(send(router_out, 0, "w0", "x"), Sent::kUnreachable);
  EXPECT_EQ(send(router_out, 1, "router", "x"), Sent::kUnreachable);
  EXPECT_THROW(send(router_out, 2, "w0", "x"), std::logic_error);
  EXPECT_THROW(send(w0_out, 0, "router", "x"), std::logic_error);
}

TEST_F(Network, DeliveryOneByOne) {
  send(w0_out, 0, "", "a");
  send(w1_out, 0, "", "b");
  send(w0_out, 0, "", "c");
  EXPECT_EQ(net.queued().size(), 3u);
  EXPECT_TRUE(net.deliver_next());
  EXPECT_THAT(router.got, ElementsAre("1 w0 a"));
  EXPECT_TRUE(net.deliver("w0", "router"));
  EXPECT_FALSE(net.deliver("w0", "router"));
  EXPECT_TRUE(net.deliver_next());
  EXPECT_FALSE(net.deliver_next());
  EXPECT_THAT(router.got, ElementsAre("1 w0 a", "1 w0 c", "1 w1 b"));
}

TEST_F(Network, LatencyAndTheClock) {
  net.set_latency(50);
  send(w0_out, 0, "", "a");
  net.run_until(1049);
  EXPECT_THAT(router.got, IsEmpty());
  EXPECT_EQ(net.now(), 1049);
  net.run_until(2000);
  EXPECT_THAT(router.received_at, ElementsAre(1050));
  EXPECT_EQ(net.now(), 2000);
  ASSERT_EQ(net.trace().size(), 1u);
  EXPECT_EQ(net.trace()[0].sent_at, 1000);
  EXPECT_EQ(net.trace()[0].at, 1050);
}

TEST_F(Network, TimersRunInOrderOfTimeAndAfterEachMessage) {
  w0.timers_ran_at.clear();
  w1.on_timers = [&](Nanos now) { return now < 1300 ? now + 100 : kNever; };
  w0.on_timers = [&](Nanos now) { return now < 1150 ? 1150 : kNever; };
  net.wake("w0");
  net.wake("w1");
  w1.timers_ran_at.clear();
  net.run_until(1120);
  EXPECT_THAT(w1.timers_ran_at, ElementsAre(1100));
  send(router_out, 1, "w1", "x");
  net.run_until(5000);
  EXPECT_THAT(w1.timers_ran_at, ElementsAre(1100, 1120, 1220, 1320));
  EXPECT_THAT(w0.timers_ran_at, ElementsAre(1000, 1150));
}

TEST_F(Network, AnswersWithinReceive) {
  router.on_receive = [&](Channel channel, std::string_view peer, Bytes message, Nanos) {
    EXPECT_EQ(router_out.send(channel, peer, bytes_of("re: " + text_of(message))), Sent::kOk);
  };
  send(w0_out, 0, "", "a");
  send(w1_out, 0, "", "b");
  run();
  EXPECT_THAT(w0.got, ElementsAre("0  re: a"));
  EXPECT_THAT(w1.got, ElementsAre("0  re: b"));
}

// ---- death ----

TEST_F(Network, KilledWorker) {
  send(router_out, 1, "w0", "to the dead");
  send(w0_out, 0, "", "of the dead");
  net.kill("w0");
  EXPECT_FALSE(net.alive("w0"));
  EXPECT_EQ(send(router_out, 1, "w0", "late"), Sent::kUnreachable);
  run();
  EXPECT_THAT(w0.got, IsEmpty());
  EXPECT_THAT(router.got, IsEmpty());
  EXPECT_EQ(net.dropped(), 2u);

  Recorder again;
  net.restart("w0", again);
  EXPECT_EQ(send(router_out, 1, "w0", "too early"), Sent::kUnreachable) << "not connected yet";
  send(w0_out, 0, "", "hello again");
  net.run_until(1000 + 20 * kMillisecond);
  EXPECT_THAT(router.got, ElementsAre("1 w0 hello again"));
  EXPECT_EQ(router.received_at.back(), 1000 + 20 * kMillisecond);
  EXPECT_EQ(send(router_out, 1, "w0", "welcome"), Sent::kOk);
  run();
  EXPECT_THAT(again.got, ElementsAre("0  welcome"));
}

TEST_F(Network, WhatADeadWorkerSentMayStillArrive) {
  send(w0_out, 0, "", "last words");
  net.kill("w0", /*sent_arrives=*/true);
  run();
  EXPECT_THAT(router.got, ElementsAre("1 w0 last words"));
}

TEST_F(Network, KilledRouterLeavesWorkersTheirMessages) {
  send(w0_out, 0, "", "lost with the router");
  net.kill("router");
  EXPECT_EQ(send(w0_out, 0, "", "kept 1"), Sent::kOk);
  EXPECT_EQ(send(w0_out, 0, "", "kept 2"), Sent::kOk);
  net.run_until(kSecond);
  Recorder again;
  net.restart("router", again);
  EXPECT_EQ(send(router_out, 1, "w0", "too early"), Sent::kUnreachable);
  EXPECT_EQ(send(w0_out, 0, "", "new"), Sent::kOk);
  net.run_until(kSecond + 20 * kMillisecond - 1);
  EXPECT_THAT(again.got, IsEmpty());
  net.run_until(kSecond + 20 * kMillisecond);
  EXPECT_THAT(again.got, ElementsAre("1 w0 kept 1", "1 w0 kept 2", "1 w0 new"));
  EXPECT_THAT(router.got, IsEmpty());
  EXPECT_EQ(send(router_out, 1, "w0", "known again"), Sent::kOk);
}

TEST_F(Network, PausedActorsGetNothingUntilResumed) {
  w0.on_timers = [](Nanos now) { return now + 100; };
  net.wake("w0");
  w0.timers_ran_at.clear();
  net.pause("w0");
  EXPECT_EQ(send(router_out, 1, "w0", "a"), Sent::kOk);
  net.run_until(3000);
  EXPECT_THAT(w0.got, IsEmpty());
  EXPECT_THAT(w0.timers_ran_at, IsEmpty());
  net.resume("w0");
  net.run_until(3000);
  EXPECT_THAT(w0.got, ElementsAre("0  a"));
  EXPECT_EQ(w0.received_at[0], 3000);
  EXPECT_THAT(w0.timers_ran_at, ElementsAre(3000));
}

// As in Loop: whoever judges others by their silence first hears what they said while it was stopped.
TEST_F(Network, AResumedActorHearsWhatWaitsBeforeItsTimersRun) {
  size_t heard_before_timers = 0;
  w0.on_timers = [&](Nanos now) {
    heard_before_timers = w0.got.size();
    return now + 100;
  };
  net.pause("w0");
  EXPECT_EQ(send(router_out, 1, "w0", "a"), Sent::kOk);
  net.run_until(3000);
  w0.timers_ran_at.clear();
  net.resume("w0");
  EXPECT_TRUE(net.message_waits("w0"));
  EXPECT_THAT(w0.timers_ran_at, IsEmpty());
  net.run_until(3000);
  EXPECT_EQ(heard_before_timers, 1u);
  EXPECT_FALSE(net.message_waits("w0"));

  net.pause("w0");
  net.run_until(4000);
  w0.timers_ran_at.clear();
  net.resume("w0");  // nothing waits
  EXPECT_THAT(w0.timers_ran_at, ElementsAre(4000));
}

TEST_F(Network, HighWaterMarkOfAPair) {
  net.set_high_water_mark(3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(send(w0_out, 0, "", "x"), Sent::kOk);
  EXPECT_EQ(send(w0_out, 0, "", "x"), Sent::kFull);
  EXPECT_EQ(send(w1_out, 0, "", "x"), Sent::kOk);
  net.deliver_next();
  EXPECT_EQ(send(w0_out, 0, "", "x"), Sent::kOk);
}

// ---- rules ----

TEST_F(Network, DropByPredicateAndLimit) {
  Rule rule;
  rule.from = "w0";
  rule.matches = [](Bytes message) { return text_of(message).starts_with("ping"); };
  rule.limit = 2;
  const int id = net.add_rule(rule);
  for (const auto* text : {"ping 1", "data", "ping 2", "ping 3"})
    EXPECT_EQ(send(w0_out, 0, "", text), Sent::kOk);
  send(w1_out, 0, "", "ping");
  run();
  EXPECT_THAT(router.got, ElementsAre("1 w0 data", "1 w0 ping 3", "1 w1 ping"));
  EXPECT_EQ(net.dropped(), 2u);
  net.remove_rule(id);
}

TEST_F(Network, ADelayKeepsTheOrderUnlessToldOtherwise) {
  Rule slow;
  slow.action = Rule::Action::kDelay;
  slow.delay = 100;
  slow.limit = 1;
  net.add_rule(slow);
  send(w0_out, 0, "", "slow");
  send(w0_out, 0, "", "behind it");
  send(w1_out, 0, "", "free");
  run();
  EXPECT_THAT(router.got, ElementsAre("1 w1 free", "1 w0 slow", "1 w0 behind it"));
  EXPECT_THAT(router.received_at, ElementsAre(1000, 1100, 1100));
  router.got.clear();
  slow.reorder = true;
  net.add_rule(slow);
  send(w0_out, 0, "", "slow");
  send(w0_out, 0, "", "overtakes");
  run();
  EXPECT_THAT(router.got, ElementsAre("1 w0 overtakes", "1 w0 slow"));
}

TEST_F(Network, Duplicate) {
  Rule twice;
  twice.action = Rule::Action::kDuplicate;
  twice.limit = 1;
  net.add_rule(twice);
  send(w0_out, 0, "", "a");
  send(w0_out, 0, "", "b");
  run();
  EXPECT_THAT(router.got, ElementsAre("1 w0 a", "1 w0 a", "1 w0 b"));
}

Strings shuffled(uint64_t seed) {
  MemoryTransport net(seed);
  Outbox& router_out = net.add_router("router", 1);
  Outbox& out = net.add_worker("w", "router", 0);
  Recorder router, worker;
  net.attach("router", router);
  net.attach("w", worker);
  Rule jitter;
  jitter.action = Rule::Action::kDelay;
  jitter.jitter = 1000;
  jitter.reorder = true;
  net.add_rule(jitter);
  Rule loss;
  loss.probability = 0.25;
  net.add_rule(loss);
  for (int i = 0; i < 400; ++i) EXPECT_EQ(out.send(0, "", bytes_of(std::to_string(i))), Sent::kOk);
  EXPECT_EQ(router_out.send(0, "w", bytes_of("x")), Sent::kOk);
  EXPECT_TRUE(net.run_until_idle());
  return router.got;
}

TEST(MemoryTransport, TheSeedDecidesEverything) {
  const Strings first = shuffled(1);
  EXPECT_EQ(first, shuffled(1));
  EXPECT_NE(first, shuffled(2));
  EXPECT_GT(first.size(), 240u);
  EXPECT_LT(first.size(), 360u);
  Strings sorted = first;
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return std::stoi(a.substr(4)) < std::stoi(b.substr(4)); });
  EXPECT_NE(first, sorted) << "reordered";
}

TEST_F(Network, MisuseIsNamed) {
  Recorder other;
  EXPECT_THROW(net.add_router("w0", 1), std::logic_error);
  EXPECT_THROW(net.add_worker("w2", "router", 2), std::logic_error);
  EXPECT_THROW(net.add_worker("w2", "w0", 0), std::logic_error);
  EXPECT_THROW(net.attach("w0", other), std::logic_error);
  EXPECT_THROW(net.kill("nobody"), std::logic_error);
  w0.on_timers = [](Nanos) { return 5; };  // always in the past
  net.wake("w0");
  EXPECT_THROW(net.run_until(2000), std::logic_error);
}

TEST_F(Network, ManyMessagesInOneInstantAreNoMisuse) {
  int runs_at_the_end = 0;
  router.on_timers = [&](Nanos now) {  // due at once, but messages of the same moment come first
    return router.got.size() == 30'000 && ++runs_at_the_end == 3 ? kNever : now;
  };
  for (int i = 0; i < 30'000; ++i) send(w0_out, 0, "", "x");
  net.run_until(2000);
  EXPECT_EQ(router.got.size(), 30'000u);
}

TEST_F(Network, AStepIsOneEventAndNoneLeavesTheClock) {
  net.set_latency(5);
  send(w0_out, 0, "", "a");
  send(w1_out, 0, "", "b");
  EXPECT_FALSE(net.step(1004));
  EXPECT_EQ(net.now(), 1000);
  EXPECT_TRUE(net.step(1005));
  EXPECT_EQ(net.trace().size(), 1u);
  EXPECT_EQ(net.now(), 1005);
  net.keep_trace(false);
  EXPECT_TRUE(net.step(1005));
  EXPECT_EQ(net.trace().size(), 1u);
  EXPECT_FALSE(net.step(2000));
}

}  // namespace
}  // namespace ringmaster::actor
