#include "tokenizer-worker/stream_writer.h"

#include <algorithm>

namespace ringmaster::tokenizer_worker {
namespace {

// A message is closed beyond this size. One stream adds at most its credit: 1,024 tokens with 20
// log-probabilities each take about 250 KB, the most that router.credit_tokens allows (16,384) about 4 MB, so
// messages stay below msg::kMaxMessageBytes, which the router refuses beyond.
constexpr size_t kFullMessage = 1u << 20;

}  // namespace

bool StreamWriter::write(std::vector<Stream*>& to_send) {
  if (to_send.empty()) return true;
  std::sort(to_send.begin(), to_send.end(),
            [](const Stream* a, const Stream* b) { return a->client->number < b->client->number; });
  unsent_.clear();
  const Client* client = to_send.front()->client;
  for (Stream* stream : to_send) {
    if (stream->client != client || inner_.GetSize() > kFullMessage) {
      close_client(*client);
      if (outer_.GetSize() > kFullMessage) close_message();
      client = stream->client;
    }
    add(*stream);
  }
  close_client(*client);
  close_message();
  to_send.swap(unsent_);
  return to_send.empty();
}

void StreamWriter::add(Stream& stream) {
  in_message_.push_back(&stream);
  if (!stream.output.all_sent()) chunks_.push_back(add_chunk(stream));
  if (stream.phase == Stream::Phase::kEnded && !stream.done_sent) ends_.push_back(add_done(stream));
}

flatbuffers::Offset<msg::Chunk> StreamWriter::add_chunk(const Stream& stream) {
  const Output& output = stream.output;
  const TextPosition from = output.sent();
  flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<msg::Logprobs>>> logprobs;
  if (output.with_logprobs()) {
    logprobs_.clear();
    for (uint32_t token = from.next_token; token < output.next_token(); ++token) {
      const auto top = output.top_logprobs(token);
      // The wire's struct and ours are both {uint32_t, float}.
      const auto* wire = reinterpret_cast<const msg::TokenLogprob*>(top.data());
      const auto tops = inner_.CreateVectorOfStructs(wire, top.size());
      logprobs_.push_back(msg::CreateLogprobs(inner_, output.logprob(token), tops));
    }
    logprobs = inner_.CreateVector(logprobs_);
  }
  const auto ids = inner_.CreateVector(output.unsent_ids().data(), output.unsent_ids().size());
  const auto text = inner_.CreateString(output.unsent_text());
  const msg::Uid uid = msg::to_wire(stream.uid);
  return msg::CreateChunk(inner_, &uid, stream.epoch, /*choice=*/0, from.next_token, ids, from.text_offset,
                          text, logprobs);
}

flatbuffers::Offset<msg::Done> StreamWriter::add_done(const Stream& stream) {
  const Ending& ending = stream.ending;
  const auto text_or_nothing = [this](const std::string& text) {
    return text.empty() ? flatbuffers::Offset<flatbuffers::String>() : inner_.CreateString(text);
  };
  const auto message = text_or_nothing(ending.message);
  const auto stop = text_or_nothing(ending.stop);
  const auto usage =
      msg::CreateUsage(inner_, ending.prompt_tokens, ending.cached_tokens, ending.output_tokens);
  const msg::Uid uid = msg::to_wire(stream.uid);
  return msg::CreateDone(inner_, &uid, stream.epoch, ending.reason, msg::to_wire(ending.code), message, stop,
                         usage, &ending.timings);
}

void StreamWriter::close_client(const Client& client) {
  if (!chunks_.empty() || !ends_.empty()) {
    const auto stream = msg::CreateStream(inner_, inner_.CreateVector(chunks_), inner_.CreateVector(ends_));
    const msg::Bytes payload = msg::seal<msg::ClientMessage>(inner_, msg::ClientBody::Stream, stream.Union());
    outer_.ForceVectorAlignment(payload.size(), 1, 8);  // the nested message holds 64-bit fields
    const auto bytes = outer_.CreateVector(reinterpret_cast<const uint8_t*>(payload.data()), payload.size());
    const auto id = outer_.CreateVector(reinterpret_cast<const uint8_t*>(client.id.data()), client.id.size());
    clients_.push_back(msg::CreateToClient(outer_, id, bytes));
  }
  chunks_.clear();
  ends_.clear();
  inner_.Clear();
}

void StreamWriter::close_message() {
  bool taken = true;
  if (!clients_.empty()) {
    const auto streams = msg::CreateStreams(outer_, outer_.CreateVector(clients_));
    const msg::Bytes message =
        msg::seal<msg::RouterMessage>(outer_, msg::RouterBody::Streams, streams.Union());
    taken = outbox_.send(0, "", message) == actor::Sent::kOk;
    if (!taken) counters_.add(Counter::kSendsRefused);
  }
  for (Stream* stream : in_message_) {
    if (!taken) {
      unsent_.push_back(stream);
      continue;
    }
    stream->output.mark_sent();
    stream->done_sent = stream->phase == Stream::Phase::kEnded;
    stream->to_send = false;
  }
  clients_.clear();
  in_message_.clear();
  outer_.Clear();
}

}  // namespace ringmaster::tokenizer_worker
