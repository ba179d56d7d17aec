// What the tests of this folder share: rendering in one call, files, the reference data.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tokenizer-worker/template/chat_template.h"

namespace ringmaster::tokenizer_worker::test {

using Json = nlohmann::ordered_json;

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

inline std::vector<Json> read_lines(const std::string& path) {
  const std::string text = read_file(path);
  std::vector<Json> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (end > at)
      lines.push_back(
          Json::parse(text.begin() + static_cast<ptrdiff_t>(at), text.begin() + static_cast<ptrdiff_t>(end)));
    at = end + 1;
  }
  return lines;
}

inline const std::string kGoldens = std::string(RINGMASTER_SHARED_DIR) + "/goldens/templates";
inline bool has_goldens() {
  return std::filesystem::exists(kGoldens + "/templates.json");
}

// The moment that the reference renderings saw: Thursday, 2026-03-05 14:07:09.
inline RenderOptions at_reference_time() {
  std::tm now{};
  now.tm_year = 126, now.tm_mon = 2, now.tm_mday = 5;
  now.tm_hour = 14, now.tm_min = 7, now.tm_sec = 9;
  now.tm_wday = 4, now.tm_yday = 63;
  return {now, false};
}

inline std::string joined(const std::vector<RenderedSpan>& spans) {
  std::string text;
  for (const RenderedSpan& span : spans) text += span.text;
  return text;
}

inline Result<std::vector<RenderedSpan>> spans(std::string_view source, const Json& context,
                                               const RenderOptions& options = at_reference_time()) {
  auto compiled = ChatTemplate::compile(source, "<s>", "</s>");
  if (!compiled) return std::move(compiled).error();
  return compiled->render(context, options);
}

// The text, or "error: " and the message.
inline std::string render(std::string_view source, const Json& context = Json::object()) {
  const auto result = spans(source, context);
  return result ? joined(*result) : "error: " + result.error().message;
}

}  // namespace ringmaster::tokenizer_worker::test
