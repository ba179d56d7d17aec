// An actor that writes down what it gets, and can be told what to do with it.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "actor/actor.h"

namespace ringmaster::actor {

inline Bytes bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

inline std::string text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class Recorder final : public Actor {
 public:
  // "channel peer text"
  std::vector<std::string> got;
  std::vector<Nanos> received_at;
  std::vector<Nanos> timers_ran_at;
  std::function<void(Channel, std::string_view peer, Bytes, Nanos)> on_receive;
  std::function<Nanos(Nanos)> on_timers;

  void receive(Channel channel, std::string_view peer, Bytes message, Nanos now) override {
    got.push_back(std::to_string(channel) + " " + std::string(peer) + " " + text_of(message));
    received_at.push_back(now);
    if (on_receive) on_receive(channel, peer, message, now);
  }
  Nanos run_timers(Nanos now) override {
    timers_ran_at.push_back(now);
    return on_timers ? on_timers(now) : kNever;
  }
};

}  // namespace ringmaster::actor
