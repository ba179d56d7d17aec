#include "tokenizer-worker/template/wrap.h"

#include <algorithm>
#include <vector>

#include "tokenizer-worker/template/pieces.h"
#include "tokenizer-worker/template/text.h"
#include "tokenizer-worker/template/unicode.h"

namespace ringmaster::tokenizer_worker::jinja {
namespace {

std::string without(std::string_view text, std::string_view open, std::string_view close) {
  std::string out;
  size_t at = 0;
  for (;;) {
    const size_t begin = text.find(open, at);
    const size_t end = begin == std::string_view::npos ? begin : text.find(close, begin + open.size());
    if (end == std::string_view::npos) break;
    out += text.substr(at, begin - at);
    at = end + close.size();
  }
  return out += text.substr(at);
}

std::string resolved(std::string_view text) {
  static constexpr std::pair<std::string_view, char> kEntities[] = {
      {"&amp;", '&'}, {"&lt;", '<'},   {"&gt;", '>'},   {"&#39;", '\''},
      {"&#34;", '"'}, {"&quot;", '"'}, {"&apos;", '\''}};
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto entity = std::find_if(std::begin(kEntities), std::end(kEntities),
                                     [&](const auto& e) { return text.substr(at).starts_with(e.first); });
    if (text[at] == '&' && entity != std::end(kEntities)) {
      out.push_back(entity->second);
      at += entity->first.size();
    } else {
      out.push_back(text[at++]);
    }
  }
  return out;
}

// Stretches of one kind, white space or not, and inside the latter pieces that end in a hyphen between
// letters.
std::vector<std::string_view> chunks(std::string_view text, bool break_hyphens) {
  std::vector<std::string_view> out;
  size_t begin = 0;
  bool space = false;
  const auto flush = [&](size_t end) {
    if (end > begin) out.push_back(text.substr(begin, end - begin));
    begin = end;
  };
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const char32_t code = next_code_point(text, at);
    if (is_space(code) != space) flush(here);
    space = is_space(code);
    if (!break_hyphens || code != '-' || here - begin < 2 || at >= text.size()) continue;
    size_t before = here - 1;
    while (before > begin && (text[before] & 0xC0) == 0x80) --before;
    size_t from = before, to = at;
    if (is_letter(next_code_point(text, from)) && is_letter(next_code_point(text, to))) flush(at);
  }
  flush(text.size());
  return out;
}

class Wrapper {
 public:
  Wrapper(Sandbox& box, const Value& line, int64_t width, bool break_words)
      : box_(box), line_(line), width_(width), break_words_(break_words) {}

  std::vector<Value> run(bool break_hyphens) {
    std::vector<std::string_view> rest = chunks(line_.str(), break_hyphens);
    std::reverse(rest.begin(), rest.end());
    while (!rest.empty() && box_.step()) fill_line(rest);
    return std::move(lines_);
  }

 private:
  static int64_t size(std::string_view text) { return static_cast<int64_t>(count_code_points(text)); }
  static bool blank(std::string_view text) { return strip_space(text, true, false).empty(); }

  void fill_line(std::vector<std::string_view>& rest) {
    if (blank(rest.back()) && !lines_.empty()) rest.pop_back();
    std::vector<std::string_view> line;
    int64_t used = 0;
    while (!rest.empty() && used + size(rest.back()) <= width_) {
      used += size(rest.back());
      line.push_back(rest.back());
      rest.pop_back();
    }
    if (!rest.empty() && size(rest.back()) > width_) {
      if (break_words_) {
        const size_t cut = byte_offset(rest.back(), static_cast<size_t>(std::max<int64_t>(1, width_ - used)));
        line.push_back(rest.back().substr(0, cut));
        rest.back().remove_prefix(cut);
        if (rest.back().empty()) rest.pop_back();
      } else if (line.empty()) {
        line.push_back(rest.back());
        rest.pop_back();
      }
    }
    if (!line.empty() && blank(line.back())) line.pop_back();
    if (line.empty()) return;
    const char* first = line.front().data();
    lines_.push_back(
        part(box_, line_, {first, static_cast<size_t>(line.back().data() + line.back().size() - first)}));
  }

  Sandbox& box_;
  const Value line_;
  const int64_t width_;
  const bool break_words_;
  std::vector<Value> lines_;
};

}  // namespace

std::string without_tags(std::string_view text) {
  const std::string bare = without(without(text, "<!--", "-->"), "<", ">");
  std::string folded;
  bool space = false;
  for (size_t at = 0; at < bare.size();) {
    const size_t begin = at;
    if (is_space(next_code_point(bare, at))) {
      space = true;
      continue;
    }
    if (space && !folded.empty()) folded += ' ';
    space = false;
    folded += std::string_view(bare).substr(begin, at - begin);
  }
  return resolved(folded);
}

Value wrap_words(Sandbox& box, const Value& string, int64_t width, bool break_words, const Value& joint,
                 bool break_hyphens) {
  if (!box.step_bytes(8 * size_t{string.size})) return {};
  TextBuilder out;
  bool first_line = true;
  for (const Value& line : split_lines(box, string, false)) {
    std::vector<Value> wrapped = Wrapper(box, line, width, break_words).run(break_hyphens);
    if (!first_line) out.append(joint);
    first_line = false;
    for (size_t i = 0; i < wrapped.size(); ++i) {
      if (i > 0) out.append(joint);
      out.append(wrapped[i]);
    }
    if (box.failed() || out.size() > kMaxTextBytes || !box.step_bytes(joint.size * (wrapped.size() + 1)))
      return box.room_for_text(out.size()), Value{};
  }
  return out.finish(box);
}

}  // namespace ringmaster::tokenizer_worker::jinja
