#include "tokenizer-worker/template/chat_template.h"

#include <algorithm>
#include <utility>

#include "tokenizer-worker/template/conversation.h"
#include "tokenizer-worker/template/evaluator.h"
#include "tokenizer-worker/template/program.h"
#include "tokenizer-worker/template/text.h"
#include "tokenizer-worker/template/unicode.h"

namespace ringmaster::tokenizer_worker {

struct ChatTemplate::Program {
  jinja::Program code;
  std::string bos;
  std::string eos;
};

namespace {

std::tm local_time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

// The text that a continued message ends in: its content, or the last text part of it.
Result<std::string_view> final_content(const nlohmann::ordered_json& context) {
  const Error missing{Code::kInvalidArgument,
                      "continue_final_message needs a last message with text content"};
  const auto messages = context.find("messages");
  if (messages == context.end() || !messages->is_array() || messages->empty() ||
      !messages->back().is_object())
    return missing;
  const auto content = messages->back().find("content");
  if (content == messages->back().end()) return missing;
  if (content->is_string()) return std::string_view(content->get_ref<const std::string&>());
  if (!content->is_array()) return missing;
  for (auto part = content->rbegin(); part != content->rend(); ++part)
    if (const auto text = part->is_object() ? part->find("text") : part->end();
        part->is_object() && text != part->end() && text->is_string())
      return std::string_view(text->get_ref<const std::string&>());
  return missing;
}

// Where transformers cuts a continued text: behind the last place where the final content stands, with its
// trailing white space if the template kept it.
Result<size_t> continuation_end(std::string_view rendered, std::string_view content) {
  const std::string_view bare = jinja::strip_space(content, true, true);
  const size_t at = rendered.rfind(bare);
  if (at == std::string_view::npos)
    return Error{Code::kInvalidArgument,
                 "continue_final_message is set but the final message does not appear in the rendered chat; "
                 "the template may change or drop it"};
  const std::string_view left = jinja::strip_space(content, true, false);
  return rendered.substr(at, left.size()) == left ? at + left.size() : at + bare.size();
}

std::vector<RenderedSpan> spans_of(const jinja::TextBuilder& out, size_t end) {
  std::vector<RenderedSpan> spans;
  size_t begin = 0;
  for (const jinja::Run& run : out.runs()) {
    if (begin >= end) break;
    const size_t stop = std::min<size_t>(run.end, end);
    spans.push_back({out.text().substr(begin, stop - begin), run.from_template});
    begin = stop;
  }
  return spans;
}

}  // namespace

ChatTemplate::ChatTemplate(std::unique_ptr<Program> program) : program_(std::move(program)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::compile(std::string_view source, std::string bos, std::string eos) {
  auto code = jinja::parse(source);
  if (!code) return std::move(code).error();
  return ChatTemplate(
      std::make_unique<Program>(Program{std::move(code).value(), std::move(bos), std::move(eos)}));
}

Result<std::vector<RenderedSpan>> ChatTemplate::render(const nlohmann::ordered_json& context,
                                                       const RenderOptions& options) const {
  if (!context.is_object())
    return Error{Code::kInvalidArgument, "the context of a chat template must be a JSON object"};
  jinja::Sandbox box(options.now.has_value() ? *options.now : local_time_now(), options.limits);
  jinja::Evaluator evaluator(program_->code, box);
  for (const auto& [name, value] : context.get_ref<const nlohmann::ordered_json::object_t&>()) {
    const auto id = program_->code.ids.find(name);
    if (id == program_->code.ids.end()) continue;  // the template never asks for it
    evaluator.set(id->second,
                  name == "messages" ? jinja::messages_from_json(box, value) : jinja::from_json(box, value));
  }
  for (const auto& [name, text] :
       {std::pair("bos_token", &program_->bos), std::pair("eos_token", &program_->eos)})
    if (const auto id = program_->code.ids.find(name); id != program_->code.ids.end())
      evaluator.set(id->second, jinja::string_value(*text, jinja::Value::kTemplate));

  jinja::TextBuilder out;
  if (!box.failed()) evaluator.run(out);
  if (box.by_template()) return Error{Code::kInvalidArgument, box.message()};
  if (box.failed())
    return Error{Code::kInvalidArgument,
                 box.message() + " (line " + std::to_string(evaluator.line()) + " of the chat template)"};
  if (!options.continue_final_message) return spans_of(out, out.size());
  const auto content = final_content(context);
  if (!content) return content.error();
  const auto end = continuation_end(out.text(), *content);
  if (!end) return end.error();
  return spans_of(out, *end);
}

}  // namespace ringmaster::tokenizer_worker
