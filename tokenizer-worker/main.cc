// tokenizer-worker --config FILE --name tokenizer-worker.N [--ready-fd N]
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "actor/loop.h"
#include "actor/zmq_transport.h"
#include "base/config.h"
#include "base/gguf.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/process.h"
#include "base/ready.h"
#include "base/unhandled.h"
#include "shm/doorbell.h"
#include "tokenizer-worker/template/chat_template.h"
#include "tokenizer-worker/text/tokenizer.h"
#include "tokenizer-worker/tokenizer_worker.h"

namespace {

using namespace ringmaster;                    // NOLINT: this file is the process
using namespace ringmaster::tokenizer_worker;  // NOLINT

struct TextModel {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat;
  std::string name;
  uint64_t weights_hash = 0;
  uint32_t context_length = 0;
};

// The limit that the gpu-worker computes too, from the same file and configuration; it may know a lower one,
// when its blocks hold less. The router goes by the least.
Result<uint32_t> context_length(const Gguf& gguf, const GpuWorkerConfig& config) {
  auto architecture = gguf.text("general.architecture");
  if (!architecture) return std::move(architecture).error();
  auto of_model = gguf.integer(std::string(*architecture) + ".context_length");
  if (!of_model) return std::move(of_model).error();
  uint64_t length = *of_model;
  if (config.device == "fake") length = std::min<uint64_t>(length, config.fake.context_length);
  if (config.context_length > 0) length = std::min<uint64_t>(length, config.context_length);
  if (length < 2 || length > UINT32_MAX)
    return Error{Code::kMalformed, gguf.path() + ": context length " + std::to_string(length) +
                                       "; allowed: 2 to " + std::to_string(UINT32_MAX)};
  return static_cast<uint32_t>(length);
}

Result<TextModel> load_model(const ClusterConfig& config) {
  auto path = resolve_model(config.model);
  if (!path) return std::move(path).error();
  auto gguf = Gguf::open(*path);
  if (!gguf) return std::move(gguf).error();
  auto tokenizer = load_tokenizer(*gguf);
  if (!tokenizer) return std::move(tokenizer).error();
  auto context = context_length(*gguf, config.gpu_worker);
  if (!context) return std::move(context).error();

  TextModel model;
  model.tokenizer = std::move(*tokenizer);
  model.name = config.model;
  model.weights_hash = gguf->header_hash();
  model.context_length = *context;
  const auto source = gguf->text("tokenizer.chat_template");
  if (!source) {
    log::warning("{} has no chat template: chat prompts are refused, text and ids work", *path);
    return model;
  }
  const auto text_of = [&](TokenId id) {
    return id < model.tokenizer->vocab_size() ? std::string(model.tokenizer->bytes(id)) : std::string();
  };
  auto chat =
      ChatTemplate::compile(*source, text_of(model.tokenizer->bos()), text_of(model.tokenizer->eos()));
  if (!chat) return Error{chat.error().code, *path + ": chat template: " + chat.error().message};
  model.chat = std::move(*chat);
  return model;
}

WorkerIdentity identity_of(const std::string& name, const TextModel& model, const ClusterConfig& config) {
  return {name,
          static_cast<int>(::getpid()),
          random_number(),
          model.name,
          model.weights_hash,
          model.tokenizer->vocab_size(),
          model.context_length,
          config.router.max_live_requests};
}

Status serve(const ProcessArguments& arguments, const ClusterConfig& config, const TextModel& model) {
  auto bell = shm::Doorbell::create();
  if (!bell) return std::move(bell).error();
  auto transport = actor::ZmqTransport::worker(config.worker_endpoint(), arguments.name);
  if (!transport) return std::move(transport).error();

  RenderChat render_chat;
  if (model.chat)
    render_chat = [&chat = *model.chat](const nlohmann::ordered_json& context) {
      return chat.render(context);
    };
  const PromptBuilder builder(*model.tokenizer, std::move(render_chat));
  EncodePool pool(builder, std::max(config.tokenizer_worker.encode_threads, 1u),
                  config.tokenizer_worker.encode_queue, *bell, config.tokenizer_worker.encode_inline);
  LinkAttacher attacher(arguments.name, *bell);
  RingLinks links;
  Counters counters;
  RequestLimits limits;
  limits.context_length = model.context_length;
  limits.max_live = config.router.max_live_requests;
  limits.credit = config.router.credit_tokens;
  limits.linger = config.tokenizer_worker.linger;
  Requests requests(limits, *model.tokenizer, pool, links, **transport, counters);
  WorkerTimes times;
  times.heartbeat = config.router.worker_timeout / 4;
  times.drain = config.supervisor.drain_timeout;
  TokenizerWorker worker(identity_of(arguments.name, model, config), times, requests, pool, links, attacher,
                         **transport, counters);

  auto loop = actor::Loop::create(worker, **transport, *bell, {.spin = config.tokenizer_worker.spin});
  if (!loop) return std::move(loop).error();
  if (auto ok = (*loop)->on_signal([&](int, Nanos now) { worker.drain(now); }); !ok) return ok;
  links.watch_peers(
      [&](int fd) {
        if (auto ok = (*loop)->watch(fd, [&](Nanos now) { worker.check_peers(now); }); !ok)
          log::warning("a gpu-worker's death will be seen at the next heartbeat: {}", ok.error().message);
      },
      [&](int fd) { (*loop)->unwatch(fd); });
  (*loop)->add_source([&](Nanos now) { return worker.poll(now); });
  (*loop)->add_flush([&] {
    worker.flush(monotonic_now());
    if (worker.drained()) (*loop)->stop();
  });
  log::info("serving {}: vocabulary {}, context {}", model.name, model.tokenizer->vocab_size(),
            model.context_length);
  ReadyLine ready(arguments.ready_fd);
  (*loop)->add_flush([&ready] { ready.alive(monotonic_now()); });
  ready.announce();
  (*loop)->run();
  log::info("stopped: {}", counters.to_string());
  (*transport)->close(kSecond);  // the last Dones are on their way
  return ok_status();
}

Status run(int argc, char** argv) {
  auto arguments = parse_process_arguments(argc, argv);
  if (!arguments) return std::move(arguments).error();
  auto config = load_cluster_yaml(arguments->config_path);
  if (!config) return std::move(config).error();
  if (auto ok = log::open(arguments->name, config->log_file(arguments->name), config->log); !ok) return ok;
  if (auto ok = actor::Loop::block_signals(); !ok) return ok;
  auto model = load_model(*config);
  if (!model) return std::move(model).error();
  return serve(*arguments, *config, *model);
}

}  // namespace

int main(int argc, char** argv) {
  end_process_on_unhandled_exceptions();
  if (const Status ok = run(argc, argv); !ok) {
    log::error("{}: {}", name(ok.error().code), ok.error().message);
    return 1;
  }
  return 0;
}
