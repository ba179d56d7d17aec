#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "base/unhandled.h"
#include "launcher/commands.h"

namespace {

// One line: what is wrong, and where the help is.
std::string complaint(const CLI::App* app, const CLI::Error& error) {
  std::string message = error.what();
  std::string command = "ringmaster";
  if (const auto chosen = app->get_subcommands(); !chosen.empty())
    command += " " + chosen.front()->get_name();
  else if (const auto unknown = app->remaining(); !unknown.empty())
    message = "unknown command '" + unknown.front() + "'";
  return "ringmaster: " + message + "; see `" + command + " --help`\n";
}

// Started without descriptor 0, 1 or 2, the next lock, pipe or socket would get its number, and be written to
// as output or be replaced by a supervisor that leaves its terminal. Inherited, as standard descriptors are.
void open_standard_descriptors() {
  int fd = STDIN_FILENO;
  while (fd >= STDIN_FILENO && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
  if (fd > STDERR_FILENO) close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace ringmaster::launcher;
  ringmaster::end_process_on_unhandled_exceptions();
  open_standard_descriptors();
  CLI::App app{"Ringmaster serves large language models from a cluster of small processes on this host."};
  app.name("ringmaster");
  app.set_version_flag("--version", "ringmaster " RINGMASTER_VERSION);
  app.failure_message(complaint);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done, 1 failed, 2 wrong arguments or cluster.yaml, 3 not running, 4 not ready, 5 does "
      "not fit.");
  Exit exit;
  add_up(app, exit);
  add_down(app, exit);
  add_status(app, exit);
  add_audit(app, exit);
  add_logs(app, exit);
  add_plan(app, exit);
  add_pull(app, exit);
  add_generate(app, exit);
  add_chat(app, exit);
  add_tokenize(app, exit);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::kUsage);
  }
  return static_cast<int>(exit.code);
}
