// `ringmaster pull`: fetches a known model into the model cache.
#include <cstdio>

#include "launcher/commands.h"
#include "launcher/pull.h"

namespace ringmaster::launcher {
namespace {

std::string known_names() {
  std::string names;
  for (const KnownModel& model : known_models())
    names += (names.empty() ? "" : ", ") + std::string(model.name);
  return names;
}

void pull_model(const std::string& name, Exit& exit) {
  const KnownModel* model = find_known_model(name);
  if (model == nullptr)
    return fail(exit, "the model is '" + name + "'; known: " + known_names(), ExitCode::kUsage);
  const Result<std::string> path = pull(*model, model_cache_dir(), [](const std::string& line) {
    std::fprintf(stderr, "ringmaster: %s\n", line.c_str());
  });
  if (!path.ok()) return fail(exit, path.error().message);
  std::printf("%s\n", path.value().c_str());
}

}  // namespace

void add_pull(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("pull", "fetch a model into the cache: " + known_names());
  auto name = std::make_shared<std::string>();
  command->add_option("model", *name, "its name")->required()->type_name("NAME");
  command->callback([name, &exit] { pull_model(*name, exit); });
}

}  // namespace ringmaster::launcher
