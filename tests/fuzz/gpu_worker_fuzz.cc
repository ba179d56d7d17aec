// A gpu-worker (fake device, its own clock) between a tokenizer-worker and a router that say anything in any
// order. No input may make it give up, its books are checked after every step, and when the tokenizer-worker
// has died everything is back.
//   script: { 0: type, sized command record | 1: type, sized prompt record | 2: time | 3: read the tokens
//             | 4: sized message of the router | 5: any position or bytes in the rings | 6: die and come back
//             } ...
#include <fcntl.h>

#include "base/log.h"
#include "gpu-worker/device/fake/fake_device.h"
#include "gpu-worker/gpu_worker.h"
#include "schemas/codec.h"
#include "shm/slot_memory.h"
#include "tests/fuzz/input.h"

namespace ringmaster::gpu_worker {
namespace {

constexpr uint32_t kVocabulary = 300;
constexpr uint32_t kBlockTokens = 4;
constexpr shm::SlotSizes kSizes{16 << 10, 32 << 10, 4 << 10};  // the token ring is small, so that it fills

// The only slot and who holds it; attaching and dying are calls of the script.
class OneSlot final : public shm::SlotServer {
 public:
  OneSlot()
      : places_(shm::place_rings(kSizes).value()),
        memory_(shm::MemoryFile::create("fuzz-slot", places_.size).value()) {}

  std::vector<int> watch_fds() const override { return {}; }
  void poll(const std::function<void(shm::GpuEnd&)>& attached,
            const std::function<void(uint32_t)>& lost) override {
    if (end_) {
      lost(0);
      end_.reset();
      return;
    }
    shm::reset_slot(memory_.bytes(), places_, 0, 77);
    rings = shm::rings_of(memory_.bytes(), places_);
    commands = shm::Producer(rings.command);
    prompts = shm::Producer(rings.prompt);
    tokens = shm::Consumer(rings.token);
    end_.emplace(shm::GpuEnd{0, "tokenizer-worker.0", 1, shm::Consumer(rings.command),
                             shm::Consumer(rings.prompt), shm::Producer(rings.token),
                             shm::Doorbell::create().value()});
    attached(*end_);
  }
  uint32_t held() const override { return end_ ? 1 : 0; }
  const shm::SlotCounters& counters() const override { return counters_; }
  std::vector<std::span<std::byte>> memory() const override { return {memory_.bytes()}; }

  // The holder's end.
  shm::SlotRings rings;
  shm::Producer commands, prompts;
  shm::Consumer tokens;

 private:
  shm::SlotPlaces places_;
  shm::MemoryFile memory_;
  std::optional<shm::GpuEnd> end_;
  shm::SlotCounters counters_;
};

class Router final : public actor::Outbox {
 public:
  actor::Sent send(actor::Channel, std::string_view, actor::Bytes message) override {
    FUZZ_CHECK(msg::open<msg::RouterMessage>(message));
    return actor::Sent::kOk;
  }
};

GpuWorkerConfig configuration() {
  GpuWorkerConfig config;
  config.device = "fake";
  config.block_tokens = kBlockTokens;
  config.kv_memory =
      48 * kBlockTokens * kFakeKvBytesPerToken;  // few enough that requests push each other out
  config.max_running = 4;
  config.max_waiting = 8;
  config.step_tokens = 64;
  config.prefill_chunk = 16;
  config.slots = 1;
  config.fake.vocab_size = kVocabulary;
  config.fake.context_length = 128;
  return config;
}

struct Play {
  Play() {
    device = make_fake_device(config, "", [this] { return now; }).value();
    auto server = std::make_unique<OneSlot>();
    slot = server.get();
    worker = GpuWorker::create(config, {"gpu-worker.0", 1, 77, "/run/gpu.ring", "tiny"}, *device,
                               std::move(server), router,
                               {.token_ring_bytes = kSizes.token_bytes, .check_every_step = true})
                 .value();
    worker->slots_readable(now);
  }

  void run(fuzz::Input& input) {
    turn();
    while (!input.empty() && !worker->finished()) {
      step(input);
      turn();
    }
    if (!worker->finished()) {
      worker->slots_readable(now);  // the tokenizer-worker dies
      for (int i = 0; i < 100 && !(worker->scheduler().idle() && worker->kv().num_used() == 0); ++i) {
        now += kSecond;
        turn();
      }
      FUZZ_CHECK(worker->scheduler().idle());
      FUZZ_CHECK(worker->kv().num_used() == 0 && worker->kv().available() == worker->kv().num_blocks());
      FUZZ_CHECK(worker->scheduler().check().ok());
      worker->drain(now);
    }
    FUZZ_CHECK(worker->finished() == 0);
  }

 private:
  void step(fuzz::Input& input) {
    switch (input.byte() % 7) {
      case 0:
        put(slot->commands, input);
        break;
      case 1:
        put(slot->prompts, input);
        break;
      case 2:
        now += Nanos{1} << (input.byte() % 36);
        break;
      case 3:
        read_tokens();
        break;
      case 4:
        worker->receive(0, "", input.sized_bytes(), now);
        break;
      case 5:
        spoil(input);
        break;
      case 6:
        worker->slots_readable(now);
        if (worker->rings().held() == 0) worker->slots_readable(now);
        break;
    }
  }
  static void put(shm::Producer& ring, fuzz::Input& input) {
    const uint32_t type = std::max<uint8_t>(1, input.byte());
    const auto record = input.sized_bytes();
    const auto space = ring.try_reserve(type, record.size());
    if (!space) return;
    if (!record.empty()) std::memcpy(space->data(), record.data(), record.size());
    ring.commit();
  }
  void read_tokens() {
    while (const auto record = slot->tokens.peek()) {
      FUZZ_CHECK(record->type == static_cast<uint32_t>(shm::RecordType::kTokens) ||
                 record->type == static_cast<uint32_t>(shm::RecordType::kEnded));
      slot->tokens.pop();
    }
  }
  void spoil(fuzz::Input& input) {
    shm::RingView* const views[] = {&slot->rings.command, &slot->rings.prompt, &slot->rings.token};
    const shm::RingView& ring = *views[input.byte() % 3];
    const size_t offset = input.byte() * size_t{64};
    const auto bytes = input.sized_bytes();
    switch (input.byte() % 3) {
      case 0:
        ring.index->head.store(input.number<uint64_t>());
        break;
      case 1:
        ring.index->tail.store(input.number<uint64_t>());
        break;
      case 2:
        if (offset < ring.data.size() && !bytes.empty())
          std::memcpy(ring.data.data() + offset, bytes.data(),
                      std::min(bytes.size(), ring.data.size() - offset));
        break;
    }
  }
  void turn() {
    for (int i = 0; i < 50 && worker->poll(now); ++i) {
    }
    worker->run_timers(now);
  }

  const GpuWorkerConfig config = configuration();
  Nanos now = 1000 * kSecond;
  Router router;
  std::unique_ptr<Device> device;
  OneSlot* slot = nullptr;
  std::unique_ptr<GpuWorker> worker;
};

}  // namespace
}  // namespace ringmaster::gpu_worker

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  ringmaster::log::mute(true);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ringmaster::fuzz::Input input(data, size);
  ringmaster::gpu_worker::Play().run(input);
  return 0;
}
