// All requests of this tokenizer-worker, by epoch, and what each needs to become text: the state that dies
// with this process. The table finds, interns clients, and remembers which streams have something to send;
// what happens to a stream is decided in Requests.
//
//   encoding -> running -> ended           the ordinary way
//   encoding -> ended                      refused, cancelled, or complete before it started
//   running -> stopping -> ended           a stop string was found; the gpu-worker's account is awaited
//
// An ended stream stays for `linger`, so that a client that comes back gets the rest and its Done again.
// Pointers to streams are valid until erase(). Thread: the stream thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "schemas/codec.h"
#include "tokenizer-worker/output.h"
#include "tokenizer-worker/request_params.h"
#include "tokenizer-worker/ring_links.h"
#include "tokenizer-worker/stage_timings.h"
#include "tokenizer-worker/text/detokenizer.h"

namespace ringmaster::tokenizer_worker {

// A routing id that streams share; the number orders streams by client when they are sent.
struct Client {
  std::string id;
  uint64_t number = 0;
  uint32_t streams = 0;
};

// The content of the one Done.
struct Ending {
  msg::FinishReason reason{};
  Code code = Code::kOk;
  std::string message;
  std::string stop;
  uint32_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  msg::Timings timings;
};

struct Stream {
  enum class Phase : uint8_t { kEncoding, kRunning, kStopping, kEnded };

  Epoch epoch = 0;
  Uid uid;
  Client* client = nullptr;
  Phase phase = Phase::kEncoding;
  bool to_send = false;    // in the table's list
  bool done_sent = false;  // the client at its present address has been sent the Done
  LinkId link = 0;
  StageMarks marks;
  std::unique_ptr<RequestParams> params;  // until started
  uint64_t seed = 0;
  uint32_t context_length = 0;  // the cluster's: another worker's may be less than this one's own
  Nanos deadline = 0;  // 0: none

  uint32_t prompt_tokens = 0;
  uint32_t max_tokens = 0;
  uint32_t granted = 0;             // output tokens the gpu-worker may produce
  uint32_t top_logprobs = 0;        // at most this many beside the chosen one
  std::optional<Detokenizer> text;  // while running
  Output output;
  Ending ending;  // when ended; in kStopping what is known of it
};

class StreamTable {
 public:
  // Null when the epoch is taken.
  Stream* create(Epoch epoch, Uid uid, std::string_view client);
  Stream* find(Epoch epoch) const;
  void erase(Stream& stream);
  void move_to_client(Stream& stream, std::string_view client);

  size_t size() const { return streams_.size(); }
  size_t clients() const { return clients_.size(); }
  // Epochs in no order.
  std::vector<Epoch> epochs() const;

  // The stream has something for its client: it is in to_send() until taken from there.
  void mark(Stream& stream);
  std::vector<Stream*>& to_send() { return to_send_; }
  bool all_sent() const { return to_send_.empty(); }

 private:
  Client* intern(std::string_view id);
  void release(Client* client);

  std::unordered_map<Epoch, std::unique_ptr<Stream>> streams_;
  std::unordered_map<std::string, std::unique_ptr<Client>> clients_;
  std::vector<Stream*> to_send_;
  uint64_t next_client_ = 1;
};

}  // namespace ringmaster::tokenizer_worker
