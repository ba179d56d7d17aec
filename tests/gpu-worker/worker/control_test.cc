// The control side: registration, heartbeats, what the router may send.
#include "tests/gpu-worker/worker/worker_fixture.h"

namespace ringmaster::gpu_worker {
namespace {

TEST_F(WorkerTest, RegistersWithEverythingARouterNeeds) {
  make();
  ASSERT_EQ(router.registers.size(), 1u);
  const msg::RegisterT& r = *router.registers[0];
  EXPECT_EQ(r.kind, msg::WorkerKind::gpu_worker);
  EXPECT_EQ(r.name, "gpu-worker.0");
  EXPECT_EQ(r.pid, getpid());
  EXPECT_EQ(r.instance, 77u);
  EXPECT_EQ(r.device, "fake");
  EXPECT_EQ(r.ring_socket, socket);
  EXPECT_EQ(r.max_live, 16u + 1024u);
  ASSERT_NE(r.model, nullptr);
  EXPECT_EQ(r.model->name, "tiny");
  EXPECT_EQ(r.model->vocab_size, kVocab);
  EXPECT_EQ(r.model->context_length, 256u);
}

TEST_F(WorkerTest, HeartbeatsCarryTheLoad) {
  config.max_running = 2;
  make();
  auto& side = attach("tokenizer-worker.0");
  ASSERT_EQ(router.heartbeats.size(), 1u);
  EXPECT_EQ(router.heartbeats[0]->load->blocks_free, 256u);
  EXPECT_EQ(router.heartbeats[0]->load->blocks_total, 256u);
  for (Epoch epoch = 1; epoch <= 5; ++epoch)
    side.start(epoch, make_prompt(8, static_cast<uint32_t>(epoch)), 240);
  const Nanos started = now;
  ASSERT_TRUE(run_until([&] { return router.heartbeats.size() == 3; }));
  EXPECT_EQ(now, started + 2 * kHeartbeat);
  const msg::HeartbeatT& h = *router.heartbeats.back();
  EXPECT_EQ(h.instance, 77u);
  EXPECT_EQ(h.kind, msg::WorkerKind::gpu_worker);
  EXPECT_EQ(h.load->running, 2u);
  EXPECT_EQ(h.load->waiting, 3u);
  EXPECT_LT(h.load->blocks_free, 256u);
  EXPECT_EQ(h.load->steps, 200u) << "400 ms of steps of 2 ms";
}

TEST_F(WorkerTest, AnIdleWorkerWakesForHeartbeatsOnly) {
  make();
  settle();
  const Nanos started = now;
  int turns = 0;
  while (now < started + 10 * kSecond) {
    now = worker->run_timers(now);
    EXPECT_FALSE(worker->poll(now));
    ++turns;
  }
  EXPECT_LE(turns, 51);
}

TEST_F(WorkerTest, RegistersAgainWhenTheRouterDoesNotKnowIt) {
  make();
  deliver_registered(4);
  EXPECT_EQ(router.registers.size(), 1u);
  deliver_registered(0);  // a router that restarted, answering a heartbeat
  EXPECT_EQ(router.registers.size(), 2u);
  deliver_registered(5);
  EXPECT_EQ(router.registers.size(), 2u);
  deliver_registered(6);  // another router took over without a question
  EXPECT_EQ(router.registers.size(), 3u);
  deliver_registered(6);
  deliver_registered(6);
  EXPECT_EQ(router.registers.size(), 3u);
}

TEST_F(WorkerTest, ARestartedRouterDoesNotDisturbStreams) {
  make();
  auto& side = attach("tokenizer-worker.0");
  const auto prompt = make_prompt(6);
  side.start(1, prompt, 30);
  ASSERT_TRUE(run_until([&] { return side[1].tokens.size() == 10; }));
  deliver_registered(0);
  deliver_registered(9);
  ASSERT_TRUE(run_until([&] { return side.has_ended(1); }));
  expect_tokens(side, 1, prompt, 30, msg::FinishReason::length);
}

TEST_F(WorkerTest, MalformedMessagesAreCountedAndIgnored) {
  make();
  const std::vector<std::vector<std::byte>> bad = {{},
                                                   std::vector<std::byte>(3),
                                                   std::vector<std::byte>(64),
                                                   std::vector<std::byte>(msg::kMaxMessageBytes + 1)};
  for (const auto& bytes : bad) worker->receive(0, "", bytes, now);
  flatbuffers::FlatBufferBuilder b;  // of another receiver
  const auto ping = msg::seal<msg::RouterMessage>(b, msg::RouterBody::Ping, msg::CreatePing(b).Union());
  worker->receive(0, "", ping, now);
  EXPECT_EQ(worker->counters().malformed_messages, 5u);
  EXPECT_FALSE(worker->draining());
  EXPECT_FALSE(worker->finished());
}

TEST_F(WorkerTest, SettingsThatContradictEachOtherAreRefusedAtStart) {
  config.step_tokens = 8;  // below max_running
  auto made_bell = shm::Doorbell::create();
  ASSERT_TRUE(made_bell.ok());
  auto made = make_fake_device(config, "", [this] { return now; });
  ASSERT_TRUE(made.ok());
  auto slots = shm::SlotServer::create(folder + "/gpu.ring", 1, {}, 77, *made_bell);
  ASSERT_TRUE(slots.ok());
  auto created =
      GpuWorker::create(config, {"gpu-worker.0", 1, 1, ""}, **made, std::move(slots).value(), router);
  ASSERT_FALSE(created.ok());
  EXPECT_NE(created.error().message.find("step_tokens"), std::string::npos) << created.error().message;
}

}  // namespace
}  // namespace ringmaster::gpu_worker
