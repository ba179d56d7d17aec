// Any template before any conversation, with limits low enough for many of them a second. A mark that only
// the conversation holds never comes out as the template's own text.
//   input: template, a zero byte, JSON
#include "tests/fuzz/input.h"
#include "tokenizer-worker/template/chat_template.h"

namespace ringmaster::tokenizer_worker {
namespace {

constexpr const char* kMark = "\uE123";

void play(std::string_view source, std::string_view json) {
  const auto compiled = ChatTemplate::compile(source, "<s>", "</s>");
  if (!compiled) {
    FUZZ_CHECK(!compiled.error().message.empty());
    return;
  }
  auto context = nlohmann::ordered_json::parse(json, nullptr, false);
  if (!context.is_object()) context = nlohmann::ordered_json::object();
  if (!context.contains("messages"))
    context["messages"] = nlohmann::ordered_json::parse(
        R"([{"role":"system","content":"Be."},{"role":"user","content":" Hi <b> "},{"role":"assistant","content":""}])");
  if (context["messages"].is_array())
    for (auto& message : context["messages"])
      if (message.is_object() && message.contains("content") && message["content"].is_string())
        message["content"] = kMark + message["content"].get<std::string>() + kMark;

  RenderOptions options;
  options.now.emplace();
  options.now->tm_year = 126;
  options.now->tm_mday = 5;
  options.limits = {.steps = 20'000, .bytes = 4 << 20};
  options.continue_final_message = !source.empty() && (source.size() % 4 == 0);
  const auto spans = compiled->render(context, options);
  if (!spans) {
    FUZZ_CHECK(!spans.error().message.empty());
    return;
  }
  const bool marks_in_source =
      source.find(kMark) != std::string_view::npos || source.find('\\') != std::string_view::npos;
  for (size_t i = 0; i < spans->size(); ++i) {
    const RenderedSpan& span = (*spans)[i];
    FUZZ_CHECK(!span.text.empty());
    FUZZ_CHECK(i == 0 || span.from_template != (*spans)[i - 1].from_template);
    if (span.from_template && !marks_in_source) FUZZ_CHECK(span.text.find(kMark) == std::string::npos);
  }
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), size);
  const std::string source(input.substr(0, end)), json(input.substr(std::min(end + 1, size)));
  ringmaster::tokenizer_worker::play(source, json);
  return 0;
}
