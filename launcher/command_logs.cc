// `ringmaster logs`: the JSON lines of all processes merged by time, while the cluster runs and afterwards.
#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cstdio>
#include <deque>

#include "launcher/commands.h"
#include "launcher/log_reader.h"

namespace ringmaster::launcher {
namespace {

struct LogsOptions {
  bool follow = false;
  bool json = false;
  std::optional<size_t> last;
  std::string process;
};

bool print(const LogLine& line, bool json) {
  return std::printf("%s\n", (json ? line.json : readable(line)).c_str()) >= 0;
}

void print_last(LogReader& reader, const LogsOptions& options) {
  std::deque<LogLine> lines;
  while (auto line = reader.next()) {
    lines.push_back(std::move(*line));
    if (lines.size() > *options.last) lines.pop_front();
  }
  for (const LogLine& line : lines) print(line, options.json);
}

std::string names(const LogReader& reader) {
  std::string out;
  for (const std::string& process : reader.processes()) out += (out.empty() ? "" : ", ") + process;
  return out.empty() ? "none" : out;
}

// Until the reader of our output goes away or the user interrupts.
void follow(LogReader& reader, const std::string& folder, bool json) {
  const UniqueFd watch(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  inotify_add_watch(watch.get(), folder.c_str(), IN_MODIFY | IN_CREATE | IN_MOVED_TO);
  for (;;) {
    while (auto line = reader.next())
      if (!print(*line, json)) return;
    if (std::fflush(stdout) != 0) return;
    // A look each second covers what inotify cannot see, such as files on a network.
    constexpr int kLookMs = 1000;
    pollfd entries[] = {{watch.get(), POLLIN, 0}, {STDOUT_FILENO, 0, 0}};
    poll(entries, 2, kLookMs);
    if ((entries[1].revents & (POLLERR | POLLHUP)) != 0) return;
    char events[4096];
    while (read(watch.get(), events, sizeof events) > 0) continue;
    reader.find_streams();
  }
}

void logs(const ClusterChoice& choice, const LogsOptions& options, Exit& exit) {
  const Result<ClusterConfig> config = started_config(choice);
  if (!config.ok())
    return config.error().code == Code::kNotFound ? fail(exit, config.error().message, ExitCode::kNotRunning)
                                                  : fail(exit, config.error());
  const std::string folder = config.value().state_dir + "/logs";
  LogReader reader(folder, options.process);
  if (reader.streams() == 0 && !options.follow)
    return fail(exit, options.process.empty() ? "there are no logs in " + folder
                                              : "no process '" + options.process + "' has logged in " +
                                                    folder + "; there are: " + names(LogReader(folder, "")));
  if (options.last) print_last(reader, options);
  while (auto line = reader.next())
    if (!print(*line, options.json)) return;
  if (options.follow) follow(reader, folder, options.json);
}

}  // namespace

void add_logs(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("logs", "show the logs of a cluster's processes, merged by time");
  auto choice = add_cluster_options(*command);
  auto options = std::make_shared<LogsOptions>();
  command->add_option("process", options->process,
                      "only this process or kind: router, gpu-worker, gpu-worker.0");
  command->add_flag("-f,--follow", options->follow, "go on as lines are written");
  command->add_option("-n,--last", options->last, "only the last N lines")
      ->check(whole_number(1, INT32_MAX, "1 to 2147483647"))
      ->type_name("N");
  command->add_flag("--json", options->json, "print the JSON lines as they are");
  command->callback([choice, options, &exit] { logs(*choice, *options, exit); });
}

}  // namespace ringmaster::launcher
