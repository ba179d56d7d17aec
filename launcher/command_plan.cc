#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/config_keys.h"
#include "launcher/commands.h"
#include "launcher/preflight.h"

namespace ringmaster::launcher {
namespace {

struct PlanOptions {
  std::string model, device = "cuda", memory;
  uint32_t context = 0, batch = 1;
  bool json = false;
};

// The budget is the gpu-worker's, which counts it at its start; so its program answers in our place.
void plan(const PlanOptions& options, Exit& exit) {
  uint64_t memory = 0;
  if (!options.memory.empty()) {
    const std::optional<uint64_t> size = parse_size(options.memory);
    if (!size || *size == 0)
      return fail(exit, "--memory is '" + options.memory + "'; allowed: a size as 80GiB, above 0",
                  ExitCode::kUsage);
    memory = *size;
  }
  const Result<std::string> model = resolve_model(options.model);
  if (!model.ok()) return fail(exit, model.error());
  const std::string program = own_folder() + "/gpu-worker", context = std::to_string(options.context),
                    batch = std::to_string(options.batch), bytes = std::to_string(memory);
  const std::array<const char*, 9> argv = {
      program.c_str(), "plan",        options.device.c_str(), model.value().c_str(),
      context.c_str(), batch.c_str(), bytes.c_str(),          options.json ? "json" : "text",
      nullptr};
  execv(program.c_str(), const_cast<char* const*>(argv.data()));
  fail(exit, program + " cannot be executed: " + std::strerror(errno));
}

}  // namespace

void add_plan(CLI::App& app, Exit& exit) {
  CLI::App* command =
      app.add_subcommand("plan", "memory that a model needs, without a GPU and without loading it");
  const auto options = std::make_shared<PlanOptions>();
  command
      ->add_option("model", options->model,
                   "a name that `pull` knows, a .gguf file, or a shape (config.json)")
      ->required()
      ->type_name("MODEL");
  command->add_option("--context", options->context, "tokens of a sequence; 0: the model's longest")
      ->type_name("N")
      ->check(whole_number(0, 1 << 24, "0 to 16777216"));
  command->add_option("--batch", options->batch, "sequences at once (gpu-worker.max_running)")
      ->type_name("B")
      ->check(whole_number(1, 4096, "1 to 4096"));
  command->add_option("--device", options->device, "cuda (default) or cpu")
      ->type_name("DEVICE")
      ->check(CLI::IsMember({"cuda", "cpu"}));
  command->add_option("--memory", options->memory, "of the device; default: an H200's, or what is free here")
      ->type_name("SIZE");
  command->add_flag("--json", options->json, "print a JSON object");
  command->footer("Exit codes: 0 it fits, 5 it does not, 1 failed, 2 wrong arguments or model.");
  command->callback([=, &exit] { plan(*options, exit); });
}

}  // namespace ringmaster::launcher
