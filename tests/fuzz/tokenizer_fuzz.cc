// Any text to ids and any ids to text, with any stop strings, against the obvious slow way.
//   script: flags, sized stop strings (2), sized text, then ids
#include <unistd.h>

#include <filesystem>

#include "base/utf8.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/vocabulary.h"
#include "tokenizer-worker/text/detokenizer.h"
#include "tokenizer-worker/text/utf8.h"

namespace ringmaster::tokenizer_worker {
namespace {

const Tokenizer& tokenizer() {
  static const std::unique_ptr<Tokenizer> loaded = [] {
    const std::string path =
        std::filesystem::temp_directory_path() / ("rm-fuzz-" + std::to_string(getpid()) + ".gguf");
    fuzz::small_vocabulary().write(path);
    auto file = Gguf::open(path);
    std::filesystem::remove(path);
    FUZZ_CHECK(file.ok());
    auto made = load_tokenizer(*file);
    if (!made) std::fprintf(stderr, "%s\n", made.error().message.c_str());
    FUZZ_CHECK(made.ok());
    return std::move(made).value();
  }();
  return *loaded;
}

// All ids at once: their bytes, then characters.
std::string decoded(const std::vector<TokenId>& ids, bool skip_special) {
  std::string bytes, text;
  for (const TokenId id : ids)
    if (!skip_special || !tokenizer().is_control(id)) bytes += tokenizer().bytes(id);
  if (append_lossy(bytes, text) < bytes.size()) text += kReplacement;
  return text;
}

struct Stop {
  size_t end = std::string::npos;  // of the first match that is complete, in the text
  size_t size = 0;
};
Stop first_stop(const std::string& text, const std::vector<std::string>& stops) {
  Stop first;
  for (const std::string& stop : stops) {
    const size_t at = text.find(stop);
    if (at == std::string::npos) continue;
    const size_t end = at + stop.size();
    if (end < first.end || (end == first.end && stop.size() > first.size)) first = {end, stop.size()};
  }
  return first;
}

void check_encode(const std::string& text, bool control) {
  if (!is_valid_utf8(text)) return;  // refused at the door
  std::vector<TokenId> ids;
  tokenizer().encode(text, control, ids);
  std::string bytes;
  for (const TokenId id : ids) {
    FUZZ_CHECK(id < tokenizer().vocab_size());
    FUZZ_CHECK(control || !tokenizer().is_control(id));
    bytes += tokenizer().bytes(id);
  }
  FUZZ_CHECK(bytes == text);
}

void check_decode(const std::vector<TokenId>& ids, const StreamRules& rules) {
  Detokenizer detokenizer(tokenizer(), rules);
  std::string text;
  for (const TokenId id : ids) {
    const std::string_view piece = detokenizer.push(id);
    FUZZ_CHECK(is_valid_utf8(piece));
    text += piece;
    if (detokenizer.stopped()) break;
  }
  if (!detokenizer.stopped()) text += detokenizer.finish();
  const std::string whole = decoded(ids, rules.skip_special);
  const Stop stop = first_stop(whole, rules.stop);
  FUZZ_CHECK(detokenizer.stopped() == (stop.size != 0));
  FUZZ_CHECK(text == whole.substr(0, rules.include_stop || stop.size == 0 ? stop.end : stop.end - stop.size));
  FUZZ_CHECK(detokenizer.text_bytes() == text.size());
}

}  // namespace
}  // namespace ringmaster::tokenizer_worker

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ringmaster;
  using namespace ringmaster::tokenizer_worker;
  fuzz::Input input(data, size);
  const uint8_t flags = input.byte();
  StreamRules rules;
  rules.include_stop = (flags & 1) != 0;
  rules.skip_special = (flags & 2) != 0;
  for (int i = 0; i < 2; ++i) {
    std::string stop = input.text(input.byte() % 16);
    if (!stop.empty() && is_valid_utf8(stop)) rules.stop.push_back(std::move(stop));
  }
  const std::string text = input.sized_text();
  check_encode(text, (flags & 4) != 0);
  std::vector<TokenId> ids;
  while (!input.empty()) ids.push_back(input.number<uint16_t>() % tokenizer().vocab_size());
  check_decode(ids, rules);
  // The text as a stream of its own, so that stop strings meet text.
  ids.clear();
  for (const char byte : text) ids.push_back(3 + static_cast<unsigned char>(byte));
  check_decode(ids, rules);
  return 0;
}
