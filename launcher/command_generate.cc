#include <cstdio>

#include "launcher/ask.h"

namespace ringmaster::launcher {

void add_generate(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("generate", "continue a text; streams to stdout");
  const auto choice = add_cluster_options(*command);
  const auto options = add_ask_options(*command);
  const auto prompt = std::make_shared<std::string>();
  command->add_option("-p,--prompt", *prompt, "the text to continue; - reads standard input")
      ->required()
      ->type_name("TEXT");
  command->callback([=, &exit] {
    auto text = text_argument(*prompt);
    if (!text) return fail(exit, text.error());
    auto client = connect(*choice, exit);
    if (!client) return;
    const client::Answer answer = ask(*client, options->with(std::move(text).value()), *options, exit);
    if (options->json) std::printf("%s\n", to_json(answer).c_str());
  });
}

}  // namespace ringmaster::launcher
