#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "launcher/ask.h"

namespace ringmaster::launcher {
namespace {

// One question, one answer; the conversation remembers both when the answer is whole.
void turn(client::Client& client, const AskOptions& options, std::vector<client::ChatMessage>& conversation,
          std::string question, Exit& exit) {
  conversation.push_back({"user", std::move(question)});
  const client::Answer answer = ask(client, options.with(conversation), options, exit);
  if (options.json) std::printf("%s\n", to_json(answer).c_str());
  if (answer.ending.code == Code::kOk || !answer.text.empty())
    conversation.push_back({"assistant", answer.text});
  else
    conversation.pop_back();
}

void converse(client::Client& client, const AskOptions& options,
              std::vector<client::ChatMessage> conversation, Exit& exit) {
  const size_t opening = conversation.size();
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal) std::fprintf(stderr, "/clear starts anew, /exit or Ctrl-D leaves, Ctrl-C stops an answer.\n");
  std::string line;
  while (true) {
    if (terminal) std::fprintf(stderr, "> ");
    if (!std::getline(std::cin, line) || line == "/exit") break;
    if (line == "/clear") {
      conversation.resize(opening);
      continue;
    }
    if (line.empty()) continue;
    turn(client, options, conversation, line, exit);
  }
  if (terminal) std::fprintf(stderr, "\n");
}

}  // namespace

void add_chat(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("chat", "a conversation in the model's own chat template");
  const auto choice = add_cluster_options(*command);
  const auto options = add_ask_options(*command);
  const auto system = std::make_shared<std::string>();
  const auto question = std::make_shared<std::string>();
  command->add_option("--system", *system, "system message at the beginning")->type_name("TEXT");
  const CLI::Option* asked =
      command
          ->add_option("question", *question,
                       "ask this alone and leave; without it lines come from standard input")
          ->type_name("QUESTION");
  command->callback([=, &exit] {
    auto client = connect(*choice, exit);
    if (!client) return;
    std::vector<client::ChatMessage> conversation;
    if (!system->empty()) conversation.push_back({"system", *system});
    if (asked->count() == 0)
      converse(*client, *options, std::move(conversation), exit);
    else
      turn(*client, *options, conversation, *question, exit);
  });
}

}  // namespace ringmaster::launcher
