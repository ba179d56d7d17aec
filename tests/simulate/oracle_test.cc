// What a request must get, for requests whose answer can be written down.
#include "tests/simulate/oracle.h"

#include <gtest/gtest.h>

#include "base/context_hash.h"
#include "tests/tokenizer-worker/worker/tiny_tokenizer.h"

namespace ringmaster::simulate {
namespace {

using tokenizer_worker::byte_ids;
using tokenizer_worker::kBos;
using tokenizer_worker::kTinyVocabulary;
using tokenizer_worker::TinyTokenizer;

constexpr uint32_t kContext = 64;

client::Request text_request(const std::string& text, uint32_t max_tokens) {
  client::Request request;
  request.prompt = text;
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

std::vector<TokenId> first_ids(const std::string& text, uint32_t count) {
  std::vector<TokenId> prompt = {kBos};
  for (const TokenId id : byte_ids(text)) prompt.push_back(id);
  return context_hash::expected(prompt, kTinyVocabulary, {}, count);
}

TEST(Oracle, IdsAreTheContractOfTheFakeDevice) {
  const TinyTokenizer tokenizer;
  const Oracle oracle(text_request("abc", 10), tokenizer, kContext);
  EXPECT_EQ(oracle.prompt_tokens(), 4u);
  EXPECT_EQ(oracle.ids(), first_ids("abc", 10));
  EXPECT_EQ(oracle.reason(), client::FinishReason::kLength);
}

TEST(Oracle, AStopIdEndsItWithTheIdAndNotBeforeMinTokens) {
  const TinyTokenizer tokenizer;
  const std::vector<TokenId> ids = first_ids("abc", 10);
  client::Request request = text_request("abc", 10);
  request.stop_ids = {ids[3]};
  const Oracle stopped(request, tokenizer, kContext);
  EXPECT_EQ(stopped.ids(), std::vector<TokenId>(ids.begin(), ids.begin() + 4));
  EXPECT_EQ(stopped.reason(), client::FinishReason::kStop);
  request.min_tokens = 5;
  const Oracle held_back(request, tokenizer, kContext);
  EXPECT_NE(held_back.ids()[3], ids[3]);
}

TEST(Oracle, WhatDoesNotFitIsRefused) {
  const TinyTokenizer tokenizer;
  EXPECT_TRUE(Oracle(text_request("abc", 60), tokenizer, kContext).fits());
  EXPECT_FALSE(Oracle(text_request("abc", 61), tokenizer, kContext).fits());
}

TEST(Oracle, TextsGrowWithTheTokens) {
  const TinyTokenizer tokenizer;
  const Oracle oracle(text_request("abc", 40), tokenizer, kContext);
  EXPECT_EQ(oracle.text_up_to(0), "");
  EXPECT_EQ(oracle.text_up_to(40), oracle.whole_text());
  EXPECT_FALSE(oracle.whole_text().empty());
}

}  // namespace
}  // namespace ringmaster::simulate
