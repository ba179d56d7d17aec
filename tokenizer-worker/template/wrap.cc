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

// The text wrapper of Python's textwrap with replace_whitespace off. Works on code points, hands out bytes of
// the line.
class Wrapper {
 public:
  Wrapper(Sandbox& box, const Value& line, int64_t width, bool break_words, bool break_hyphens)
      : box_(box),
        line_(line),
        width_(static_cast<size_t>(width)),
        break_words_(break_words),
        break_hyphens_(break_hyphens) {
    for (size_t at = 0; at < line.size;) {
      offsets_.push_back(at);
      codes_.push_back(next_code_point(line.str(), at));
    }
    offsets_.push_back(line.size);
  }

  std::vector<Value> run() {
    for (size_t begin = 0; begin < codes_.size() && box_.step();) {
      const size_t end = chunk_end(begin);
      chunks_.push_back({begin, end});
      begin = end;
    }
    while (next_ < chunks_.size() && box_.step()) fill_line();
    return std::move(lines_);
  }

 private:
  struct Chunk {
    size_t begin, end;  // code points
    size_t size() const { return end - begin; }
  };

  static bool is_blank(char32_t c) { return (c >= 9 && c <= 13) || c == ' '; }
  bool blank(const Chunk& chunk) const {
    return std::all_of(codes_.begin() + static_cast<ptrdiff_t>(chunk.begin),
                       codes_.begin() + static_cast<ptrdiff_t>(chunk.end), is_space);
  }
  bool letter(size_t at) const {
    return at < codes_.size() && is_word(codes_[at]) && !is_decimal(codes_[at]);
  }
  bool word(size_t at) const { return at < codes_.size() && is_word(codes_[at]); }
  bool word_or_punctuation(size_t at) const {
    return word(at) || (at < codes_.size() &&
                        std::u32string_view(U"!\"'&.,?").find(codes_[at]) != std::u32string_view::npos);
  }
  bool hyphen(size_t at) const { return at < codes_.size() && codes_[at] == '-'; }
  // Behind two or more hyphens that start at `at` and end before a word; 0 if there are none.
  size_t dash_end(size_t at) const {
    size_t end = at;
    while (hyphen(end)) ++end;
    return end >= at + 2 && word(end) ? end : 0;
  }
  // May a word be cut behind the hyphen at `at`?
  bool cut_behind(size_t at, size_t begin) const {
    if (!hyphen(at) || at <= begin) return false;
    const bool before = (at >= 2 && letter(at - 1) && letter(at - 2)) ||
                        (at >= 3 && word_or_punctuation(at - 1) && hyphen(at - 2) && letter(at - 3));
    return before && letter(at + 1) && (letter(at + 2) || (hyphen(at + 2) && letter(at + 3)));
  }

  // textwrap's wordsep_re and wordsep_simple_re.
  size_t chunk_end(size_t begin) const {
    size_t end = begin;
    if (is_blank(codes_[begin])) {
      while (end < codes_.size() && is_blank(codes_[end])) ++end;
      return end;
    }
    if (break_hyphens_ && begin > 0 && word_or_punctuation(begin - 1) && dash_end(begin) != 0)
      return dash_end(begin);
    for (end = begin + 1; end < codes_.size() && !is_blank(codes_[end]); ++end) {
      if (!break_hyphens_) continue;
      if (cut_behind(end, begin)) return end + 1;
      if (word_or_punctuation(end - 1) && dash_end(end) != 0) return end;
    }
    return end;
  }

  // How much of a word longer than a line still goes on a line with `left` places.
  size_t broken(const Chunk& chunk, size_t left) const {
    if (!break_hyphens_) return left;
    size_t last = chunk.begin + left;
    while (last > chunk.begin && !hyphen(last - 1)) --last;
    const bool others =
        std::any_of(codes_.begin() + static_cast<ptrdiff_t>(chunk.begin),
                    codes_.begin() + static_cast<ptrdiff_t>(last), [](char32_t c) { return c != '-'; });
    return last > chunk.begin + 1 && others ? last - chunk.begin : left;
  }

  void fill_line() {
    if (!lines_.empty() && blank(chunks_[next_]) && ++next_ == chunks_.size()) return;
    const size_t first = next_;
    size_t used = 0, begin = chunks_[first].begin, end = begin;
    while (next_ < chunks_.size() && used + chunks_[next_].size() <= width_) {
      used += chunks_[next_].size();
      end = chunks_[next_++].end;
    }
    // The blank at the end goes, but not the one before a word of which no letter fits: so does textwrap.
    bool drop = next_ > first && blank(chunks_[next_ - 1]);
    if (next_ < chunks_.size() && chunks_[next_].size() > width_) {
      if (break_words_) {
        const size_t taken = broken(chunks_[next_], width_ - used);
        end = chunks_[next_].begin += taken;
        drop = false;
      } else if (next_ == first) {
        end = chunks_[next_++].end;
        drop = false;
      }
    }
    if (drop) end = chunks_[next_ - 1].begin;
    if (end > begin) lines_.push_back(slice_bytes(box_, line_, offsets_[begin], offsets_[end]));
  }

  Sandbox& box_;
  const Value line_;
  const size_t width_;
  const bool break_words_, break_hyphens_;
  std::u32string codes_;
  std::vector<size_t> offsets_;
  std::vector<Chunk> chunks_;
  size_t next_ = 0;
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
    std::vector<Value> wrapped = Wrapper(box, line, width, break_words, break_hyphens).run();
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
