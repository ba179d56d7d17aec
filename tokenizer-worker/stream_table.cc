#include "tokenizer-worker/stream_table.h"

#include <algorithm>

namespace ringmaster::tokenizer_worker {

Stream* StreamTable::create(Epoch epoch, Uid uid, std::string_view client) {
  auto [place, is_new] = streams_.try_emplace(epoch);
  if (!is_new) return nullptr;
  place->second = std::make_unique<Stream>();
  Stream& stream = *place->second;
  stream.epoch = epoch;
  stream.uid = uid;
  stream.client = intern(client);
  return &stream;
}

Stream* StreamTable::find(Epoch epoch) const {
  const auto found = streams_.find(epoch);
  return found == streams_.end() ? nullptr : found->second.get();
}

void StreamTable::erase(Stream& stream) {
  if (stream.to_send) std::erase(to_send_, &stream);
  release(stream.client);
  streams_.erase(stream.epoch);
}

void StreamTable::move_to_client(Stream& stream, std::string_view client) {
  Client* former = stream.client;
  stream.client = intern(client);
  release(former);
}

std::vector<Epoch> StreamTable::epochs() const {
  std::vector<Epoch> epochs;
  epochs.reserve(streams_.size());
  for (const auto& [epoch, stream] : streams_) epochs.push_back(epoch);
  return epochs;
}

void StreamTable::mark(Stream& stream) {
  if (stream.to_send) return;
  stream.to_send = true;
  to_send_.push_back(&stream);
}

Client* StreamTable::intern(std::string_view id) {
  auto [place, is_new] = clients_.try_emplace(std::string(id));
  if (is_new) place->second = std::make_unique<Client>(Client{std::string(id), next_client_++, 0});
  ++place->second->streams;
  return place->second.get();
}

void StreamTable::release(Client* client) {
  if (--client->streams == 0) clients_.erase(client->id);
}

}  // namespace ringmaster::tokenizer_worker
