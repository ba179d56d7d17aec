#include "tokenizer-worker/counters.h"

namespace ringmaster::tokenizer_worker {

std::string Counters::to_string() const {
  std::string text;
  for (size_t i = 0; i < values_.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::string(kCounterNames[i]) + ' ' + std::to_string(values_[i]);
  }
  return text;
}

}  // namespace ringmaster::tokenizer_worker
