// The commands of `ringmaster`. One file a command: launcher/command_NAME.cc defines add_NAME(), which
// declares the sub-command, its options and the callback that runs it; main.cc lists them. To add one, write
// that file, declare it here and call it in main.cc. A callback prints its result to stdout, its errors to
// stderr through fail(), and sets the exit. Called by main(), one thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "base/config.h"
#include "base/status.h"

namespace ringmaster::launcher {

// What `ringmaster` returns to the shell; documented in launcher/README.md.
enum class ExitCode : int {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,       // arguments or cluster.yaml are wrong; nothing was done
  kNotRunning = 3,  // there is no such cluster on this host
  kNotReady = 4,    // `status`: it runs but does not serve
};

struct Exit {
  ExitCode code = ExitCode::kOk;
};

void add_up(CLI::App& app, Exit& exit);
void add_down(CLI::App& app, Exit& exit);
void add_status(CLI::App& app, Exit& exit);
void add_audit(CLI::App& app, Exit& exit);
void add_logs(CLI::App& app, Exit& exit);
void add_plan(CLI::App& app, Exit& exit);
void add_pull(CLI::App& app, Exit& exit);
void add_generate(CLI::App& app, Exit& exit);
void add_chat(CLI::App& app, Exit& exit);
void add_tokenize(CLI::App& app, Exit& exit);

// Prints "ringmaster: MESSAGE" to stderr and sets the exit.
void fail(Exit& exit, const std::string& message, ExitCode code = ExitCode::kFailed);
void fail(Exit& exit, const Error& error);
// kUsage for the codes that say that what was asked is wrong, kFailed for all others.
ExitCode exit_code(Code code);

// How every command is told its cluster: -c FILE, or --name NAME of one that was started with the built-in
// default.
struct ClusterChoice {
  std::string file;
  std::string name;
};
// Adds both options to `command`; the values are there when its callback runs.
std::shared_ptr<ClusterChoice> add_cluster_options(CLI::App& command);

// For an option's check(): comes before CLI11 converts, whose own complaints do not say what is allowed.
// `words` name the range, in --help too.
CLI::Validator whole_number(double min, double max, const std::string& words);
CLI::Validator real_number(double min, double max, const std::string& words);

// The configuration that the choice stands for, as `up` would start it.
Result<ClusterConfig> chosen_config(const ClusterChoice& choice);
// The same for a cluster that was started: what its STATE/cluster.yaml says, which it keeps after its end.
// kNotFound: no such cluster was ever started here.
Result<ClusterConfig> started_config(const ClusterChoice& choice);

}  // namespace ringmaster::launcher
