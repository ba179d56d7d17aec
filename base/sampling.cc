#include "base/sampling.h"

#include <cmath>
#include <string>

namespace ringmaster {
namespace {

Error out_of_range(const char* field, float value, const char* range) {
  return {Code::kInvalidArgument,
          std::string(field) + " is " + std::to_string(value) + "; allowed: " + range};
}

}  // namespace

Status check(const Sampling& s) {
  // Written as !(in range) so that NaN fails every check.
  if (!(s.temperature >= 0 && std::isfinite(s.temperature)))
    return out_of_range("temperature", s.temperature, "0 (greedy) or a positive number");
  if (!(s.top_p > 0 && s.top_p <= 1)) return out_of_range("top_p", s.top_p, "above 0, at most 1");
  if (!(s.min_p >= 0 && s.min_p <= 1)) return out_of_range("min_p", s.min_p, "0 to 1");
  if (!(s.repetition_penalty > 0 && std::isfinite(s.repetition_penalty)))
    return out_of_range("repetition_penalty", s.repetition_penalty, "a positive number");
  if (!(s.frequency_penalty >= -2 && s.frequency_penalty <= 2))
    return out_of_range("frequency_penalty", s.frequency_penalty, "-2 to 2");
  if (!(s.presence_penalty >= -2 && s.presence_penalty <= 2))
    return out_of_range("presence_penalty", s.presence_penalty, "-2 to 2");
  if (s.logit_bias.size() > kMaxLogitBias)
    return Error{Code::kTooLarge, "logit_bias has " + std::to_string(s.logit_bias.size()) +
                                      " entries; allowed: at most " + std::to_string(kMaxLogitBias)};
  for (const LogitBias& entry : s.logit_bias)
    if (!(entry.bias >= -100 && entry.bias <= 100))
      return out_of_range(("logit_bias[" + std::to_string(entry.id) + "]").c_str(), entry.bias,
                          "-100 to 100");
  return ok_status();
}

}  // namespace ringmaster
