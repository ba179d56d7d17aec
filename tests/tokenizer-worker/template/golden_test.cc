// Against the reference renderings of 36 published templates and 551 snippets of the language.
#include <map>

#include "tests/tokenizer-worker/template/support.h"

namespace ringmaster::tokenizer_worker::test {
namespace {

constexpr int kShown = 20;

// Empty if the result is what the reference says.
std::string difference(const Result<std::vector<RenderedSpan>>& result, const Json& expected) {
  if (expected.contains("text")) {
    if (!result) return "fails with: " + result.error().message;
    const std::string text = joined(*result), wanted = expected["text"].get<std::string>();
    if (text == wanted) return {};
    const size_t at = static_cast<size_t>(
        std::mismatch(text.begin(), text.end(), wanted.begin(), wanted.end()).first - text.begin());
    const size_t from = at < 20 ? 0 : at - 20;
    return "differs at byte " + std::to_string(at) + ": got " +
           Json(text.substr(from, 80)).dump(-1, ' ', false, Json::error_handler_t::replace) + ", wanted " +
           Json(wanted.substr(from, 80)).dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  const Json& error = expected["error"];
  if (result) return "gives text, wanted an error: " + error.dump();
  if (error["by_template"].get<bool>() && result.error().message != error["message"].get<std::string>())
    return "fails with '" + result.error().message + "', wanted: " + error.dump();
  return {};
}

TEST(TemplateGolden, RendersThirtySixTemplatesAsTheReferenceDoes) {
  if (!has_goldens()) GTEST_SKIP() << "skipped: no ../shared";
  const Json templates = Json::parse(read_file(kGoldens + "/templates.json"));
  const Json conversations = Json::parse(read_file(kGoldens + "/conversations.json"));
  std::map<std::string, ChatTemplate> compiled;
  for (const auto& [name, about] : templates.items()) {
    const Json& tokens = about["special_tokens"];
    auto result = ChatTemplate::compile(read_file(kGoldens + "/" + name + ".jinja"),
                                        tokens.value("bos_token", ""), tokens.value("eos_token", ""));
    ASSERT_TRUE(result) << name << ": " << result.error().message;
    compiled.emplace(name, std::move(result).value());
  }
  ASSERT_EQ(compiled.size(), 36u);
  int lines = 0, differences = 0;
  for (const Json& line : read_lines(std::string(TEMPLATE_TEST_DATA) + "/rendered.jsonl")) {
    const Json& conversation = conversations[line["conversation"].get<std::string>()];
    Json context = templates[line["template"].get<std::string>()]["special_tokens"];
    for (const char* name : {"tools", "documents"})
      if (!line.contains("absent"))
        context[name] = conversation.contains(name) ? conversation[name] : Json(nullptr);
    if (conversation.contains("kwargs")) context.update(conversation["kwargs"]);
    context["messages"] = conversation["messages"];
    context["add_generation_prompt"] = line["add_generation_prompt"];
    RenderOptions options = at_reference_time();
    options.continue_final_message = conversation.value("continue_final_message", false);
    const std::string why =
        difference(compiled.at(line["template"].get<std::string>()).render(context, options), line);
    ++lines;
    if (!why.empty() && ++differences <= kShown)
      ADD_FAILURE() << line["template"] << " " << line["conversation"] << " " << line["add_generation_prompt"]
                    << ": " << why;
  }
  EXPECT_EQ(lines, 2616);
  EXPECT_EQ(differences, 0);
}

TEST(TemplateGolden, EvaluatesTheSnippetsAsTheReferenceDoes) {
  if (!has_goldens()) GTEST_SKIP() << "skipped: no ../shared";
  const std::vector<Json> lines = read_lines(kGoldens + "/snippets.jsonl");
  ASSERT_EQ(lines.size(), 552u);
  int differences = 0;
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::string source = lines[i]["template"].get<std::string>();
    const std::string why = difference(spans(source, lines[0]["context"]), lines[i]);
    if (why.empty()) continue;
    ++differences;
    ADD_FAILURE() << source << "\n  " << why;
  }
  EXPECT_EQ(differences, 0);
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker::test
