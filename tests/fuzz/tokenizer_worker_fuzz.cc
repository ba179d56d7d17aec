// A tokenizer-worker between a router and a gpu-worker that say anything in any order. What it sends must
// open (tests/tokenizer-worker/worker/world.h looks), and after a drain every request has ended.
//   script: { 0: sized message of the router | 1: type, sized record of the gpu-worker | 2: encode a prompt
//             | 3: time | 4: the transport is full, or not | 5: an attach fails } ...
#include <array>
#include <deque>

#include "base/log.h"
#include "tests/fuzz/input.h"
#include "tests/tokenizer-worker/worker/world.h"
#include "tokenizer-worker/tokenizer_worker.h"

namespace ringmaster::tokenizer_worker {
namespace {

class FailingAttacher final : public Attacher {
 public:
  bool attach(AttachJob job) override {
    if (jobs.size() == 4) return false;
    jobs.push_back(std::move(job));
    return true;
  }
  std::optional<Attached> take() override {
    if (failures == 0 || jobs.empty()) return std::nullopt;
    --failures;
    AttachJob job = std::move(jobs.front());
    jobs.pop_front();
    return Attached{job.gpu_worker, job.gpu_instance, Error{Code::kNotFound, "nobody listens there"}};
  }
  std::deque<AttachJob> jobs;
  int failures = 0;
};

struct Play {
  void run(fuzz::Input& input) {
    turn();
    while (!input.empty()) {
      step(input);
      turn();
    }
    w.outbox.full = false;
    worker.drain(w.now);
    worker.drain(w.now);
    for (int i = 0; i < 100 && !worker.drained(); ++i) {
      w.now += kSecond;
      while (w.pool.run_one()) {
      }
      turn();
    }
    FUZZ_CHECK(worker.drained());
    FUZZ_CHECK(w.requests.live() == 0);
    w.expect_balanced();
  }

  void step(fuzz::Input& input) {
    switch (input.byte() % 6) {
      case 0:
        worker.receive(0, "", input.sized_bytes(), w.now);
        break;
      case 1: {
        const auto type = static_cast<shm::RecordType>(std::max<uint8_t>(1, input.byte()));
        const std::string record = input.sized_text();
        if (w.links.all().size() == 1) w.gpu.raw(type, record);  // a lost link's ring is read no more
        break;
      }
      case 2:
        w.pool.run_one();
        break;
      case 3:
        w.now += Nanos{1} << (input.byte() % 38);
        break;
      case 4:
        w.outbox.full = !w.outbox.full;
        break;
      case 5:
        ++attacher.failures;
        break;
    }
  }
  void turn() {
    for (int i = 0; i < 100 && worker.poll(w.now); ++i) {
    }
    worker.run_timers(w.now);
    worker.flush(w.now);
    w.outbox.clear();
    if (w.links.all().size() == 1) (void)w.gpu.commands();
  }

  World w;
  FailingAttacher attacher;
  WorkerTimes times;
  TokenizerWorker worker{{"tokenizer-worker.0", 4711, 0xABC, "tiny", 5, kTinyVocabulary, 256, 64},
                         times,
                         w.requests,
                         w.pool,
                         w.links,
                         attacher,
                         w.outbox,
                         w.counters};
};

}  // namespace
}  // namespace ringmaster::tokenizer_worker

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  ringmaster::log::mute(true);
  GTEST_FLAG_SET(break_on_failure, true);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ringmaster::fuzz::Input input(data, size);
  ringmaster::tokenizer_worker::Play().run(input);
  return 0;
}
