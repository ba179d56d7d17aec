#include "launcher/ask.h"

#include <signal.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "schemas/codec.h"

namespace ringmaster::launcher {
namespace {

volatile sig_atomic_t interrupted = 0;

// Ctrl-C during an answer cancels it instead of ending the command, twice stops waiting for the cancellation;
// the former handler comes back afterwards.
class CatchInterrupt {
 public:
  CatchInterrupt() {
    interrupted = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = interrupted + 1; };
    sigaction(SIGINT, &action, &former_);
  }
  ~CatchInterrupt() { sigaction(SIGINT, &former_, nullptr); }

 private:
  struct sigaction former_ {};
};

void print(const client::Piece& piece, const AskOptions& options) {
  if (options.json) return;
  if (options.ids) {
    for (size_t i = 0; i < piece.ids.size(); ++i)
      std::printf("%s%u", piece.first_token + i == 0 ? "" : " ", piece.ids[i]);
  } else {
    std::fwrite(piece.text.data(), 1, piece.text.size(), stdout);
  }
  std::fflush(stdout);
}

// Stands for the bound of what must be above 0: far below all that makes sense, and not 0 as a float.
constexpr double kAboveZero = 1e-30;

}  // namespace

client::Request AskOptions::with(decltype(client::Request::prompt) prompt) const {
  client::Request out = request;
  out.prompt = std::move(prompt);
  if (max_tokens_option->count() > 0) out.max_tokens = max_tokens;
  if (seed_option->count() > 0) {
    out.sampling.seed = seed;
    out.has_seed = true;
  }
  if (logprobs_option->count() > 0) out.logprobs = static_cast<uint8_t>(logprobs);
  return out;
}

std::shared_ptr<AskOptions> add_ask_options(CLI::App& command) {
  auto options = std::make_shared<AskOptions>();
  client::Request& request = options->request;
  Sampling& s = request.sampling;
  options->max_tokens_option = command.add_option(
      "--max-tokens", options->max_tokens, "most output tokens (default: up to the end of the context)");
  options->max_tokens_option->check(whole_number(1, UINT32_MAX, "1 to 4294967295"));
  command.add_option("--temperature", s.temperature, "0 is greedy")
      ->check(real_number(0, 1e30, "0 or more"))
      ->capture_default_str();
  command.add_option("--top-k", s.top_k, "sample from the k most probable tokens; 0: off")
      ->check(whole_number(0, UINT32_MAX, "0 to 4294967295"))
      ->capture_default_str();
  command.add_option("--top-p", s.top_p, "sample from the smallest set with this probability")
      ->check(real_number(kAboveZero, 1, "above 0, at most 1"))
      ->capture_default_str();
  command.add_option("--min-p", s.min_p, "drop tokens below this share of the best one's probability")
      ->check(real_number(0, 1, "0 to 1"))
      ->capture_default_str();
  command.add_option("--repeat-penalty", s.repetition_penalty, "above 1: discourage tokens seen before")
      ->check(real_number(kAboveZero, 1e30, "above 0"))
      ->capture_default_str();
  command
      .add_option("--frequency-penalty", s.frequency_penalty, "discourage tokens by how often they were said")
      ->check(real_number(-2, 2, "-2 to 2"))
      ->capture_default_str();
  command.add_option("--presence-penalty", s.presence_penalty, "discourage tokens that were said")
      ->check(real_number(-2, 2, "-2 to 2"))
      ->capture_default_str();
  options->seed_option = command.add_option("--seed", options->seed, "of the sampling (default: drawn)");
  options->seed_option->check(whole_number(0, 18446744073709551615.0, "0 to 18446744073709551615"));
  options->logprobs_option =
      command.add_option("--logprobs", options->logprobs, "log-probabilities with the N best (with --json)")
          ->check(whole_number(0, kMaxTopLogprobs, "0 to " + std::to_string(kMaxTopLogprobs)));
  command.add_option("--stop", request.stop, "end before this text; may be given several times")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command.add_flag("--ignore-eos", request.ignore_eos, "go on after the model's end tokens");
  command.add_option("--priority", request.priority, "higher runs first")
      ->check(whole_number(-128, 127, "-128 to 127"))
      ->default_str("0");  // CLI11 would show the byte as a character
  command.add_option("--deadline-ms", request.deadline_ms, "end after this time; 0: none")
      ->check(whole_number(0, UINT32_MAX, "0 to 4294967295"))
      ->capture_default_str();
  command.add_flag("--json", options->json, "print one JSON object when the answer is whole");
  command.add_flag("--ids", options->ids, "print token ids instead of text");
  return options;
}

std::optional<client::Client> connect(const ClusterChoice& choice, Exit& exit) {
  const auto config = started_config(choice);
  if (!config) {
    fail(exit, config.error().message,
         config.error().code == Code::kNotFound ? ExitCode::kNotRunning : ExitCode::kUsage);
    return std::nullopt;
  }
  auto client = client::Client::connect(config->client_endpoint());
  if (!client) {
    fail(exit, client.error());
    return std::nullopt;
  }
  // A local router answers within a millisecond; without one the socket would silently wait for it.
  if (!client->status(2 * kSecond)) {
    fail(exit,
         "cluster '" + config->name + "' does not answer at " + config->client_endpoint() +
             "; is it up? (`ringmaster status`, `ringmaster up`)",
         ExitCode::kNotRunning);
    return std::nullopt;
  }
  return std::move(client).value();
}

client::Answer ask(client::Client& client, client::Request request, const AskOptions& options, Exit& exit) {
  client::Answer answer;
  CatchInterrupt catching;
  const auto uid = client.start(std::move(request));
  if (!uid) {
    fail(exit, uid.error());
    return answer;
  }
  bool cancelled = false;
  while (true) {
    if (interrupted && !cancelled) {
      cancelled = true;
      (void)client.cancel(*uid);  // the answer is the ending
    }
    if (interrupted > 1) {
      fail(exit,
           "interrupted before the cluster had confirmed the cancelling; it gives the request up by itself");
      return answer;
    }
    const auto event = client.next(monotonic_now() + 100 * kMillisecond);
    if (!event) {
      fail(exit, event.error());
      return answer;
    }
    if (!event->has_value() || (*event)->uid != *uid) continue;
    if (const auto* accepted = std::get_if<client::Accepted>(&(*event)->what)) {
      answer.accepted = *accepted;
    } else if (const auto* piece = std::get_if<client::Piece>(&(*event)->what)) {
      print(*piece, options);
      answer.ids.insert(answer.ids.end(), piece->ids.begin(), piece->ids.end());
      answer.text += piece->text;
      answer.logprobs.insert(answer.logprobs.end(), piece->logprobs.begin(), piece->logprobs.end());
    } else {
      answer.ending = std::get<client::Ending>((*event)->what);
      break;
    }
  }
  if (!options.json && (answer.ending.code == Code::kOk || !answer.ids.empty())) std::printf("\n");
  std::fflush(stdout);
  if (cancelled && answer.ending.reason == client::FinishReason::kCancelled)
    fail(exit, "interrupted");
  else if (answer.ending.code != Code::kOk)
    fail_request(exit, {answer.ending.code, answer.ending.message});
  return answer;
}

void fail_request(Exit& exit, const Error& error) {
  fail(exit, std::string(name(error.code)) + (error.message.empty() ? "" : ": " + error.message),
       exit_code(error.code));
}

std::string to_json(const client::Answer& answer) {
  const auto ms = [](Nanos time) { return static_cast<double>(time) / kMillisecond; };
  const client::Ending& end = answer.ending;
  nlohmann::ordered_json out;
  out["text"] = answer.text;
  out["ids"] = answer.ids;
  out["finish_reason"] = name(end.reason);
  if (end.code != Code::kOk) out["error"] = {{"code", name(end.code)}, {"message", end.message}};
  if (!end.stop.empty()) out["stop"] = end.stop;
  out["seed"] = answer.accepted.seed;
  out["usage"] = {{"prompt_tokens", end.usage.prompt_tokens},
                  {"cached_tokens", end.usage.cached_tokens},
                  {"output_tokens", end.usage.output_tokens}};
  const client::Timings& t = end.timings;
  out["timings_ms"] = {{"route", ms(t.route)},   {"tokenize", ms(t.tokenize)},
                       {"queue", ms(t.queue)},   {"prefill", ms(t.prefill)},
                       {"decode", ms(t.decode)}, {"detokenize", ms(t.detokenize)},
                       {"total", ms(t.total)}};
  if (!answer.logprobs.empty()) {
    auto& list = out["logprobs"] = nlohmann::ordered_json::array();
    for (const client::Logprobs& entry : answer.logprobs) {
      nlohmann::ordered_json top = nlohmann::ordered_json::array();
      for (const client::TokenLogprob& token : entry.top)
        top.push_back({{"id", token.id}, {"logprob", token.logprob}});
      list.push_back({{"logprob", entry.chosen}, {"top", top}});
    }
  }
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<std::string> text_argument(const std::string& argument) {
  if (argument != "-") return argument;
  std::string text;
  char buffer[1 << 16];
  size_t got = 0;
  while (text.size() <= msg::kMaxPromptBytes && (got = std::fread(buffer, 1, sizeof buffer, stdin)) > 0)
    text.append(buffer, got);
  if (std::ferror(stdin)) return Error{Code::kInvalidArgument, "cannot read standard input"};
  if (text.size() > msg::kMaxPromptBytes)
    return Error{Code::kTooLarge, "standard input holds more than the " +
                                      std::to_string(msg::kMaxPromptBytes) + " bytes that a prompt may have"};
  return text;
}

}  // namespace ringmaster::launcher
