// What `generate`, `chat` and `tokenize` have in common: the options of a request, the connection to a
// running cluster, and one answer streamed to the terminal, cancelled by Ctrl-C. Commands of main(), one
// thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "client/cpp/ringmaster.h"
#include "launcher/commands.h"

namespace ringmaster::launcher {

struct AskOptions {
  client::Request request;  // all but the prompt
  uint32_t max_tokens = 0;
  uint64_t seed = 0;
  uint32_t logprobs = 0;
  bool json = false;
  bool ids = false;
  CLI::Option* max_tokens_option = nullptr;
  CLI::Option* seed_option = nullptr;
  CLI::Option* logprobs_option = nullptr;

  // The request as the options say, with `prompt`.
  client::Request with(decltype(client::Request::prompt) prompt) const;
};

std::shared_ptr<AskOptions> add_ask_options(CLI::App& command);

// A client of the chosen cluster, once its router has answered. Sets the exit and returns nothing if it does
// not run.
std::optional<client::Client> connect(const ClusterChoice& choice, Exit& exit);

// Runs the request. Text (or ids) goes to stdout as it comes, unless the options ask for JSON. Ctrl-C cancels
// the request. Sets the exit when the request was refused or failed; the answer so far is returned all the
// same. A second Ctrl-C leaves without waiting for the cancelling.
client::Answer ask(client::Client& client, client::Request request, const AskOptions& options, Exit& exit);

// One line.
std::string to_json(const client::Answer& answer);

// What `error` of the cluster says, its code first.
void fail_request(Exit& exit, const Error& error);

// "-" means standard input, up to the largest prompt that a cluster takes.
Result<std::string> text_argument(const std::string& argument);

}  // namespace ringmaster::launcher
