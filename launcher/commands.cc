#include "launcher/commands.h"

#include <cstdio>
#include <cstdlib>

namespace ringmaster::launcher {

void fail(Exit& exit, const std::string& message, ExitCode code) {
  std::fflush(stdout);
  std::fprintf(stderr, "ringmaster: %s\n", message.c_str());
  exit.code = code;
}

void fail(Exit& exit, const Error& error) {
  fail(exit, error.message, exit_code(error.code));
}

ExitCode exit_code(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kInvalidUtf8:
    case Code::kContextLengthExceeded:
    case Code::kTooLarge:
    case Code::kMalformed:
      return ExitCode::kUsage;
    default:
      return ExitCode::kFailed;
  }
}

namespace {

CLI::Validator checked(double min, double max, const std::string& words, bool whole) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        const bool good = !text.empty() && *end == 0 && value >= min && value <= max &&
                          (!whole || text.find_first_not_of("-0123456789") == std::string::npos);
        return good ? "" : "'" + text + "' is not allowed; allowed: " + words;
      },
      words);
}

// An empty word is a shell variable that was not set: it must not stand for the default cluster, which `down`
// would end.
std::string not_empty(const std::string& word) {
  return word.empty() ? "'' is not allowed; leave the option out for the default cluster" : "";
}

}  // namespace

CLI::Validator whole_number(double min, double max, const std::string& words) {
  return checked(min, max, words, true);
}

CLI::Validator real_number(double min, double max, const std::string& words) {
  return checked(min, max, words, false);
}

std::shared_ptr<ClusterChoice> add_cluster_options(CLI::App& command) {
  auto choice = std::make_shared<ClusterChoice>();
  CLI::Option* file = command.add_option("-c,--config", choice->file, "cluster.yaml of the cluster")
                          ->type_name("FILE")
                          ->check(not_empty);
  command.add_option("--name", choice->name, "name of a cluster with the built-in configuration")
      ->type_name("NAME")
      ->check(not_empty)
      ->excludes(file);
  return choice;
}

Result<ClusterConfig> chosen_config(const ClusterChoice& choice) {
  if (!choice.file.empty()) {
    Result<ClusterConfig> config = load_cluster_yaml(choice.file);
    // A file that is not there is a wrong argument, not a cluster that was never started.
    if (!config.ok() && config.error().code == Code::kNotFound)
      return Error{Code::kInvalidArgument, config.error().message};
    return config;
  }
  return default_cluster(choice.name.empty() ? ClusterConfig{}.name : choice.name);
}

Result<ClusterConfig> started_config(const ClusterChoice& choice) {
  const Result<ClusterConfig> chosen = chosen_config(choice);
  if (!chosen.ok()) return chosen;
  Result<ClusterConfig> started = load_cluster_yaml(chosen.value().state_dir + "/cluster.yaml");
  if (!started.ok() && started.error().code == Code::kNotFound)
    return Error{Code::kNotFound, "cluster '" + chosen.value().name + "' was never started here (looked in " +
                                      chosen.value().state_dir + "); start it with `ringmaster up`"};
  return started;
}

}  // namespace ringmaster::launcher
