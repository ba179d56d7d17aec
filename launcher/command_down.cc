// `ringmaster down`: ends a cluster and returns when nothing of it is left.
#include <cstdio>

#include "launcher/commands.h"
#include "launcher/stop_cluster.h"

namespace ringmaster::launcher {
namespace {

void down(const ClusterChoice& choice, bool now, Exit& exit) {
  const Result<ClusterConfig> config = started_config(choice);
  if (!config.ok())
    return config.error().code == Code::kNotFound ? fail(exit, config.error().message, ExitCode::kNotRunning)
                                                  : fail(exit, config.error());
  const Status stopped =
      stop_cluster(config.value().state_dir, {.drain = config.value().supervisor.drain_timeout, .now = now});
  if (stopped.ok()) {
    std::printf("cluster '%s' has ended\n", config.value().name.c_str());
  } else if (stopped.error().code == Code::kNotFound) {
    fail(exit, "cluster '" + config.value().name + "' is not running", ExitCode::kNotRunning);
  } else {
    fail(exit, stopped.error().message);
  }
}

}  // namespace

void add_down(CLI::App& app, Exit& exit) {
  CLI::App* command =
      app.add_subcommand("down", "end a cluster: running requests may finish (supervisor.drain_timeout)");
  auto choice = add_cluster_options(*command);
  auto now = std::make_shared<bool>(false);
  command->add_flag("--now", *now, "do not wait for running requests");
  command->callback([choice, now, &exit] { down(*choice, *now, exit); });
}

}  // namespace ringmaster::launcher
