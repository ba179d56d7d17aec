#include "tests/simulate/oracle.h"

#include <algorithm>

#include "base/context_hash.h"

namespace ringmaster::simulate {
namespace {

std::vector<TokenId> prompt_ids(const client::Request& request,
                                const tokenizer_worker::Tokenizer& tokenizer) {
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&request.prompt)) return *ids;
  std::vector<TokenId> ids;
  if (tokenizer.adds_bos()) ids.push_back(tokenizer.bos());
  tokenizer.encode(std::get<std::string>(request.prompt), /*control=*/false, ids);
  return ids;
}

}  // namespace

Oracle::Oracle(const client::Request& request, const tokenizer_worker::Tokenizer& tokenizer,
               uint32_t context_length) {
  const std::vector<TokenId> prompt = prompt_ids(request, tokenizer);
  prompt_tokens_ = static_cast<uint32_t>(prompt.size());
  const uint32_t room = context_length - std::min(context_length, prompt_tokens_);
  const uint32_t limit = request.max_tokens.value_or(room);
  fits_ = room > 0 && limit <= room;
  texts_.emplace_back();
  if (!fits_) return;

  std::vector<TokenId> stops = request.stop_ids;
  if (!request.ignore_eos) stops.insert(stops.end(), tokenizer.end_ids().begin(), tokenizer.end_ids().end());
  const auto is_stop = [&](TokenId id) { return std::find(stops.begin(), stops.end(), id) != stops.end(); };

  tokenizer_worker::Detokenizer text(tokenizer, {request.stop, request.include_stop, request.skip_special});
  std::string certain;
  uint64_t state = context_hash::kStart;
  for (const TokenId id : prompt) state = context_hash::mix(state, id);
  while (ids_.size() < limit) {
    context_hash::Ranking ranking(state, tokenizer.vocab_size(), {});
    TokenId id = ranking.next();
    while (ids_.size() < request.min_tokens && is_stop(id)) id = ranking.next();
    const bool counts = ids_.size() >= request.min_tokens;
    ids_.push_back(id);
    state = context_hash::mix(state, id);
    certain += text.push(id);
    if (text.stopped()) {
      texts_.push_back(certain);
      reason_ = client::FinishReason::kStop;
      stop_ = text.stop_string();
      return;
    }
    tokenizer_worker::Detokenizer cut = text;  // as if the stream ended here
    texts_.push_back(certain + std::string(cut.finish()));
    if (counts && is_stop(id)) {
      reason_ = client::FinishReason::kStop;
      return;
    }
  }
}

}  // namespace ringmaster::simulate
