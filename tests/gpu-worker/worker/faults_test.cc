// What goes wrong outside: full rings, hostile records, dead holders, a lost device, signals.
#include <signal.h>
#include <sys/wait.h>

#include <cmath>
#include <random>

#include "base/process.h"
#include "tests/gpu-worker/worker/worker_fixture.h"

namespace ringmaster::gpu_worker {
namespace {

// OPS-15: one reader of a ring has stopped. Its rows leave the batch, the others do not notice, nothing of it
// is lost.
TEST_F(WorkerTest, OPS_15_AFullTokenRingDelaysNobodyElse) {
  config.fake.context_length = 1024;
  config.kv_memory = 2048 * kBlockTokens * kFakeKvBytesPerToken;
  make({.token_bytes = shm::kMinRingBytes});  // 64 records
  auto& slow = attach("tokenizer-worker.0");
  auto& other = attach("tokenizer-worker.1");
  stuck = &slow;
  for (Epoch epoch = 1; epoch <= 4; ++epoch)
    slow.start(epoch, make_prompt(4, static_cast<uint32_t>(epoch)), 300);
  ASSERT_TRUE(run_until([&] { return worker->rings().full(0); }));
  EXPECT_TRUE(worker->rings().counters().full > 0);

  const auto prompt = make_prompt(8, 99);
  const Nanos started = now;
  other.start(100, prompt, 200);
  ASSERT_TRUE(run_until([&] { return other.has_ended(100); }));
  expect_tokens(other, 100, prompt, 200, msg::FinishReason::length);
  EXPECT_LE(now - started, (200 + Device::kMaxInFlight) * config.fake.step_time) << "as if it were alone";
  EXPECT_TRUE(worker->rings().full(0));
  EXPECT_EQ(worker->scheduler().num_running(), 0u) << "the stuck slot's requests wait outside the batch";

  ASSERT_TRUE(run_until([&] { return now > started + 30 * kSecond; })) << "waiting costs turns, not an error";
  stuck = nullptr;
  ASSERT_TRUE(run_until(
      [&] { return slow.has_ended(1) && slow.has_ended(2) && slow.has_ended(3) && slow.has_ended(4); }));
  for (Epoch epoch = 1; epoch <= 4; ++epoch)
    expect_tokens(slow, epoch, make_prompt(4, static_cast<uint32_t>(epoch)), 300, msg::FinishReason::length);
  run_until([&] { return worker->scheduler().idle(); });
  expect_baseline();
}

// A reader that has stopped cannot make the worker queue refusals without end: its commands wait in its ring.
TEST_F(WorkerTest, ARefusalFloodToAStuckReaderIsBounded) {
  config.max_waiting = 8;
  make({.token_bytes = shm::kMinRingBytes});
  auto& side = attach("tokenizer-worker.0");
  stuck = &side;
  Epoch sent = 0;
  for (; sent < 400; ++sent) {
    Start start(sent + 1, {kVocab}, 1);  // refused at once
    if (!side.end.commands.free_bytes() || side.end.commands.free_bytes() < 1024) break;
    side.start(start);
  }
  ASSERT_EQ(sent, 400u);
  settle();
  const uint64_t bound =
      shm::kMinRingBytes / 128 + config.max_running + config.max_waiting + 64;  // 64: a turn
  EXPECT_LE(worker->counters().refused, bound);
  stuck = nullptr;
  ASSERT_TRUE(run_until([&] { return side.streams.size() == 400 && side.has_ended(400); }));
  for (Epoch epoch = 1; epoch <= 400; ++epoch) expect_refused(side, epoch, Code::kInvalidArgument);
}

TEST_F(WorkerTest, HostileStartsAreRefusedByNameAndHurtNobody) {
  make();
  auto& side = attach("tokenizer-worker.0");
  auto& good = attach("tokenizer-worker.1");
  const auto good_prompt = make_prompt(12, 5);
  good.start(1000, good_prompt, 60);
  struct Case {
    const char* what;
    Code code;
    std::function<void(Start&)> spoil;
  };
  const std::vector<Case> cases = {
      {"temperature NaN", Code::kInvalidArgument, [](Start& s) { s.record.temperature = NAN; }},
      {"temperature -1", Code::kInvalidArgument, [](Start& s) { s.record.temperature = -1; }},
      {"top_p 0", Code::kInvalidArgument, [](Start& s) { s.record.top_p = 0; }},
      {"min_p infinite", Code::kInvalidArgument, [](Start& s) { s.record.min_p = INFINITY; }},
      {"repetition_penalty 0", Code::kInvalidArgument, [](Start& s) { s.record.repetition_penalty = 0; }},
      {"frequency_penalty 3", Code::kInvalidArgument, [](Start& s) { s.record.frequency_penalty = 3; }},
      {"PRM-09: bias id of the vocabulary's size", Code::kInvalidArgument,
       [](Start& s) {
         s.biases = {{kVocab, 1}};
       }},
      {"PRM-13: stop id beyond the vocabulary", Code::kInvalidArgument,
       [](Start& s) { s.stop_ids = {151645}; }},
      {"too many stop ids", Code::kInvalidArgument, [](Start& s) { s.stop_ids.assign(kMaxStopIds + 1, 3); }},
      {"prompt id beyond the vocabulary", Code::kInvalidArgument, [](Start& s) { s.prompt[1] = kVocab; }},
      {"prompt id that means 'from lane'", Code::kInvalidArgument, [](Start& s) { s.prompt[1] = kFromLane; }},
      {"PRM-15: all log-probabilities", Code::kInvalidArgument, [](Start& s) { s.record.logprobs = kVocab; }},
      {"negative deadline", Code::kInvalidArgument, [](Start& s) { s.record.deadline = -5; }},
      {"empty prompt", Code::kInvalidArgument,
       [](Start& s) {
         s.prompt.clear();
         s.prompt_record.count = s.prompt_record.prompt_count = 0;
       }},
      {"prompt_count beyond count", Code::kInvalidArgument,
       [](Start& s) { s.prompt_record.prompt_count = 100; }},
      {"PRM-01: longer than the context", Code::kContextLengthExceeded,
       [](Start& s) {
         s.prompt = make_prompt(300);
         s.prompt_record.count = s.prompt_record.prompt_count = 300;
       }},
      {"max_tokens beyond the context", Code::kContextLengthExceeded,
       [](Start& s) { s.record.max_tokens = 0xFFFFFFFF; }},
      {"prompt count beyond its record", Code::kMalformed,
       [](Start& s) { s.prompt_record.count = 0xFFFFFFFF; }},
      {"prompt count below its record", Code::kMalformed, [](Start& s) { s.prompt_record.count = 1; }},
      {"prompt of another epoch", Code::kMalformed, [](Start& s) { s.prompt_record.epoch = 777; }},
      {"stop_id_count beyond the record", Code::kMalformed,
       [](Start& s) { s.record.stop_id_count = 0xFFFFFFF0; }},
      {"bias_count beyond the record", Code::kMalformed, [](Start& s) { s.record.bias_count = 0x20000000; }},
      {"counts that add up modulo 2^32", Code::kMalformed,
       [](Start& s) {
         s.record.stop_id_count = 0x40000000;
         s.record.bias_count = 0xE0000000;
       }},
  };
  Epoch epoch = 1;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    Start start(epoch, make_prompt(4), 4);
    c.spoil(start);
    side.start(start);
    settle();
    expect_refused(side, epoch++, c.code);
  }
  side.command(Start(epoch, make_prompt(4), 4));  // without a prompt
  settle();
  expect_refused(side, epoch++, Code::kMalformed);

  // Pairing survived all of that, and so did everybody else.
  const auto prompt = make_prompt(5, 6);
  side.start(epoch, prompt, 5);
  ASSERT_TRUE(run_until([&] { return side.has_ended(epoch) && good.has_ended(1000); }));
  expect_tokens(side, epoch, prompt, 5, msg::FinishReason::length);
  expect_tokens(good, 1000, good_prompt, 60, msg::FinishReason::length);
  EXPECT_EQ(worker->rings().counters().broken, 0u);
  run_until([&] { return worker->scheduler().idle(); });
  expect_baseline();
}

TEST_F(WorkerTest, ABrokenLinkEndsItsOwnRequestsOnly) {
  using Spoil = std::function<void(TokenizerSide&)>;
  const std::vector<std::pair<const char*, Spoil>> cases = {
      {"unknown record type",
       [](TokenizerSide& s) { s.put_raw(s.end.commands, 99, std::vector<std::byte>(64)); }},
      {"prompt in the command ring",
       [](TokenizerSide& s) { s.put_raw(s.end.commands, 16, std::vector<std::byte>(64)); }},
      {"empty start", [](TokenizerSide& s) { s.put_raw(s.end.commands, 1, {}); }},
      {"short start", [](TokenizerSide& s) { s.put_raw(s.end.commands, 1, std::vector<std::byte>(103)); }},
      {"start of epoch 0", [](TokenizerSide& s) { s.start(0, make_prompt(4), 4); }},
      {"short grant", [](TokenizerSide& s) { s.put_raw(s.end.commands, 2, std::vector<std::byte>(15)); }},
      {"long cancel", [](TokenizerSide& s) { s.put_raw(s.end.commands, 3, std::vector<std::byte>(16)); }},
      {"the same epoch twice", [](TokenizerSide& s) { s.start(7, make_prompt(4), 4); }},
      {"impossible command position",
       [](TokenizerSide& s) {
         auto* header = reinterpret_cast<shm::SlotHeader*>(s.end.memory.bytes().data());
         header->command_index.head.store(3);
       }},
      {"impossible prompt position",
       [](TokenizerSide& s) {
         auto* header = reinterpret_cast<shm::SlotHeader*>(s.end.memory.bytes().data());
         header->prompt_index.head.store(1ull << 60);
         s.command(Start(8, make_prompt(4), 4));
       }},
  };
  for (const auto& [what, spoil] : cases) {
    SCOPED_TRACE(what);
    make();
    sides.clear();
    auto& bad = attach("tokenizer-worker.0");
    auto& good = attach("tokenizer-worker.1");
    const auto prompt = make_prompt(6, 3);
    bad.start(7, make_prompt(4), 100);
    good.start(9, prompt, 20);
    ASSERT_TRUE(run_until([&] { return bad[7].tokens.size() > 2; }));
    spoil(bad);
    ASSERT_TRUE(run_until([&] { return good.has_ended(9); }));
    expect_tokens(good, 9, prompt, 20, msg::FinishReason::length);
    ASSERT_TRUE(bad.has_ended(7));
    EXPECT_EQ(bad[7].ended->reason, static_cast<uint8_t>(msg::FinishReason::error));
    EXPECT_EQ(bad[7].ended->code, static_cast<uint8_t>(Code::kMalformed));
    ASSERT_TRUE(bad.has_ended(0)) << "epoch 0: the link itself has ended";
    EXPECT_EQ(worker->rings().counters().broken, 1u);
    run_until([&] { return worker->scheduler().idle(); });
    expect_baseline();
    worker.reset();
  }
}

TEST_F(WorkerTest, CommandsAboutAnothersRequestAreIgnored) {
  make();
  auto& owner = attach("tokenizer-worker.0");
  auto& thief = attach("tokenizer-worker.1");
  const auto prompt = make_prompt(6);
  owner.start(1, prompt, 20);
  ASSERT_TRUE(run_until([&] { return owner[1].tokens.size() == 2; }));
  thief.cancel(1);
  thief.stop_at(1, 1);
  thief.grant(1, 3);
  thief.cancel(555);
  thief.start(1, prompt, 5);  // its own ring only hears of this
  ASSERT_TRUE(run_until([&] { return owner.has_ended(1); }));
  expect_tokens(owner, 1, prompt, 20, msg::FinishReason::length);
  expect_refused(thief, 1, Code::kAlreadyExists);
  EXPECT_EQ(worker->counters().foreign_commands, 3u);
}

TEST_F(WorkerTest, ARebindIsRefusedUntilItExists) {
  make();
  auto& side = attach("tokenizer-worker.0");
  side.put(side.end.commands, shm::RecordType::kRebind, shm::RebindRecord{1, 2, 0, 100});
  settle();
  expect_refused(side, 2, Code::kUnsupported);
}

// Random bytes where records should be, and random damage to good ones: the worker lives and serves others.
TEST_F(WorkerTest, RandomRecordsNeverEndTheWorker) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    make();
    sides.clear();
    auto& bad = attach("tokenizer-worker.0");
    auto& good = attach("tokenizer-worker.1");
    const auto prompt = make_prompt(6, static_cast<uint32_t>(round));
    good.start(1 << 20, prompt, 10);
    for (int i = 0; i < 40; ++i) {
      std::vector<std::byte> bytes(random() % 160);
      for (auto& b : bytes) b = static_cast<std::byte>(random() % 4 == 0 ? random() : 0);
      Start start(1 + random() % 8, make_prompt(1 + random() % 20), random() % 30);
      auto* words = reinterpret_cast<unsigned char*>(&start.record);
      words[8 + random() % (sizeof start.record - 8)] = static_cast<unsigned char>(random());
      switch (random() % 6) {
        case 0:
          bad.put_raw(bad.end.commands, 1 + random() % 6, bytes);
          break;
        case 1:
          bad.put_raw(bad.end.prompts, 1 + random() % 20, bytes);
          break;
        case 2:
          bad.cancel(random() % 9);
          break;
        default:
          bad.start(start);
      }
      if (random() % 4 == 0) worker->poll(now);
    }
    for (int i = 0; i < 20 && bad.end.tokens.peek(); ++i) bad.end.tokens.pop();  // whatever it says
    stuck = &bad;
    ASSERT_TRUE(run_until([&] { return good.has_ended(1 << 20); }));
    expect_tokens(good, 1 << 20, prompt, 10, msg::FinishReason::length);
    worker.reset();
    stuck = nullptr;
  }
}

// Runs `body` as another process that holds a slot; returns its pid. The process stays until it is killed.
template <typename Body>
pid_t in_child(Body body) {
  const pid_t pid = fork();
  if (pid == 0) {
    body();
    for (;;) pause();
  }
  return pid;
}

TEST_F(WorkerTest, ADeadHoldersRequestsEndAndItsSlotServesAgain) {
  config.slots = 1;
  make();
  const pid_t pid = in_child([&] {
    auto child_bell = shm::Doorbell::create();
    auto end = shm::attach_slot(socket, 77, "tokenizer-worker.0", *child_bell, monotonic_now() + 5 * kSecond);
    if (!end) _exit(1);
    TokenizerSide side(std::move(end).value());
    for (Epoch epoch = 1; epoch <= 5; ++epoch)
      side.start(epoch, make_prompt(8, static_cast<uint32_t>(epoch)), 200);
    static TokenizerSide* keep = nullptr;
    keep = new TokenizerSide(std::move(side));  // mapped until the process ends
    (void)keep;
    for (;;) pause();
  });
  ASSERT_GT(pid, 0);
  const auto running = [&] { return worker->scheduler().num_running() == 5; };
  for (const Nanos limit = monotonic_now() + 5 * kSecond; !running() && monotonic_now() < limit;) {
    worker->slots_readable(now);
    worker->poll(now);
  }
  ASSERT_TRUE(running());
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  for (const Nanos limit = monotonic_now() + 5 * kSecond;
       worker->rings().held() == 1 && monotonic_now() < limit;)
    worker->slots_readable(now);
  ASSERT_TRUE(run_until([&] { return worker->scheduler().idle(); }));
  expect_baseline();

  auto& next = attach("tokenizer-worker.1");
  EXPECT_EQ(next.end.slot, 0u);
  const auto prompt = make_prompt(8, 77);
  next.start(50, prompt, 6);
  ASSERT_TRUE(run_until([&] { return next.has_ended(50); }));
  expect_tokens(next, 50, prompt, 6, msg::FinishReason::length);
}

TEST_F(WorkerTest, OPS_11_DrainFinishesWhatRunsAndRefusesNewStarts) {
  make();
  auto& side = attach("tokenizer-worker.0");
  const auto prompt = make_prompt(6);
  side.start(1, prompt, 20);
  ASSERT_TRUE(run_until([&] { return side[1].tokens.size() == 3; }));
  flatbuffers::FlatBufferBuilder b;
  deliver(b, msg::GpuWorkerBody::DrainGpuWorker, msg::CreateDrainGpuWorker(b).Union());
  EXPECT_TRUE(worker->draining());
  side.start(2, prompt, 20);
  EXPECT_FALSE(run_until([&] { return worker->finished() && false; })) << "until it has finished";
  side.receive();
  ASSERT_EQ(worker->finished(), std::optional<int>(0));
  expect_tokens(side, 1, prompt, 20, msg::FinishReason::length);
  expect_refused(side, 2, Code::kUnavailable);
}

TEST_F(WorkerTest, DrainOfAnIdleWorkerEndsAtOnce) {
  make();
  worker->drain(now);
  EXPECT_EQ(worker->finished(), std::optional<int>(0));
}

TEST_F(WorkerTest, StopEndsEverythingNow) {
  make();
  auto& side = attach("tokenizer-worker.0");
  for (Epoch epoch = 1; epoch <= 20; ++epoch)
    side.start(epoch, make_prompt(6, static_cast<uint32_t>(epoch)), 100);
  ASSERT_TRUE(run_until([&] { return side[1].tokens.size() == 3; }));
  worker->drain(now);
  EXPECT_FALSE(worker->finished());
  worker->stop(now);
  EXPECT_EQ(worker->finished(), std::optional<int>(0));
  side.receive();
  for (Epoch epoch = 1; epoch <= 20; ++epoch) {
    ASSERT_TRUE(side.has_ended(epoch));
    EXPECT_EQ(side[epoch].ended->code, static_cast<uint8_t>(Code::kUnavailable));
  }
}

TEST_F(WorkerTest, ALostDeviceEndsEveryRequestAndTheProcess) {
  config.fake.fail_at_step = 5;
  make();
  auto& side = attach("tokenizer-worker.0");
  for (Epoch epoch = 1; epoch <= 20; ++epoch)
    side.start(epoch, make_prompt(6, static_cast<uint32_t>(epoch)), 100);
  EXPECT_FALSE(run_until([] { return false; }));
  side.receive();
  EXPECT_EQ(worker->finished(), std::optional<int>(kExitDeviceFailed));
  for (Epoch epoch = 1; epoch <= 20; ++epoch) {
    ASSERT_TRUE(side.has_ended(epoch)) << epoch;
    EXPECT_EQ(side[epoch].ended->reason, static_cast<uint8_t>(msg::FinishReason::error));
    EXPECT_EQ(side[epoch].ended->code, static_cast<uint8_t>(Code::kWorkerLost));
    EXPECT_NE(side[epoch].message.find("fail_at_step"), std::string::npos);
  }
}

TEST_F(WorkerTest, AStalledDeviceStillSendsHeartbeatsThatShowIt) {
  config.fake.stall_at_step = 3;
  make();
  auto& side = attach("tokenizer-worker.0");
  side.start(1, make_prompt(6), 100);
  ASSERT_TRUE(run_until([&] { return router.heartbeats.size() >= 6; }));
  EXPECT_EQ(side[1].tokens.size(), 2u);
  EXPECT_EQ(router.heartbeats.back()->load->steps, 2u);
  EXPECT_EQ(router.heartbeats.back()->load->running, 1u);
  side.cancel(1);  // the ending does not wait for the step
  settle();
  EXPECT_TRUE(side.has_ended(1));
}

TEST_F(WorkerTest, AStepThatHangsEndsEveryRequestAndTheProcess) {
  config.fake.stall_at_step = 3;
  config.step_timeout = 700 * kMillisecond;
  make();
  auto& side = attach("tokenizer-worker.0");
  for (Epoch epoch = 1; epoch <= 4; ++epoch)
    side.start(epoch, make_prompt(6, static_cast<uint32_t>(epoch)), 100);
  ASSERT_TRUE(run_until([&] { return side[1].tokens.size() == 2; }));
  const Nanos stalled = now;
  EXPECT_FALSE(run_until([] { return false; }));
  EXPECT_EQ(now - stalled, config.step_timeout) << "its timer wakes the worker, nothing else does";
  EXPECT_EQ(worker->finished(), std::optional<int>(kExitDeviceHung));
  side.receive();
  for (Epoch epoch = 1; epoch <= 4; ++epoch) {
    ASSERT_TRUE(side.has_ended(epoch)) << epoch;
    EXPECT_EQ(side[epoch].ended->code, static_cast<uint8_t>(Code::kWorkerLost));
    EXPECT_EQ(side[epoch].message,
              "a step of device fake did not end within 700 ms (gpu-worker.step_timeout)");
  }
}

// A worker that had no processor for an hour finds its steps done, not hung.
TEST_F(WorkerTest, ALateTurnBlamesNoStepForIt) {
  config.step_timeout = 700 * kMillisecond;
  make();
  auto& side = attach("tokenizer-worker.0");
  side.start(1, make_prompt(6), 10);
  ASSERT_TRUE(run_until([&] { return side[1].tokens.size() == 3; }));
  now += 3600 * kSecond;
  ASSERT_TRUE(run_until([&] { return side.has_ended(1); }));
  EXPECT_FALSE(worker->finished());
  expect_tokens(side, 1, make_prompt(6), 10, msg::FinishReason::length);
}

}  // namespace
}  // namespace ringmaster::gpu_worker
