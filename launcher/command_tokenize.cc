#include <cstdio>
#include <nlohmann/json.hpp>

#include "launcher/ask.h"

namespace ringmaster::launcher {

void add_tokenize(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("tokenize", "token ids of a text, without running it");
  const auto choice = add_cluster_options(*command);
  const auto text = std::make_shared<std::string>();
  const auto json = std::make_shared<bool>(false);
  command->add_option("text", *text, "the text; - reads standard input")->required()->type_name("TEXT");
  command->add_flag("--json", *json, "print a JSON array");
  command->callback([=, &exit] {
    auto input = text_argument(*text);
    if (!input) return fail(exit, input.error());
    auto client = connect(*choice, exit);
    if (!client) return;
    client::Request request;
    request.prompt = std::move(input).value();
    const auto ids = client->tokenize(request, 30 * kSecond);
    if (!ids) return fail_request(exit, ids.error());
    if (*json) {
      std::printf("%s\n", nlohmann::json(*ids).dump().c_str());
      return;
    }
    for (size_t i = 0; i < ids->size(); ++i) std::printf("%s%u", i == 0 ? "" : " ", (*ids)[i]);
    std::printf("\n");
  });
}

}  // namespace ringmaster::launcher
