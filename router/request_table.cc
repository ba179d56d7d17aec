#include "router/request_table.h"

namespace ringmaster::router {

std::string_view name(State state) {
  switch (state) {
    case State::kWaiting:
      return "waiting";
    case State::kRunning:
      return "running";
    case State::kEnding:
      return "ending";
    case State::kEnded:
      return "ended";
  }
  return "unknown";
}

Request& RequestTable::add(Uid uid, Epoch epoch, std::string_view route, Nanos now) {
  auto request = std::make_unique<Request>();
  request->uid = uid;
  request->epoch = epoch;
  request->received_at = now;
  Request& out = *request;
  by_uid_.emplace(uid, &out);
  by_epoch_.emplace(epoch, std::move(request));
  ++live_;
  attach(out, route, now);
  return out;
}

Request* RequestTable::find(Epoch epoch) const {
  const auto found = by_epoch_.find(epoch);
  return found == by_epoch_.end() ? nullptr : found->second.get();
}

Request* RequestTable::find(Uid uid) const {
  const auto found = by_uid_.find(uid);
  return found == by_uid_.end() ? nullptr : found->second;
}

bool RequestTable::enter(Request& request, State to) {
  if (!allowed(request.state_, to)) return false;
  request.state_ = to;
  if (to == State::kEnded) --live_;
  return true;
}

void RequestTable::erase(Request& request) {
  due_.cancel(request.epoch);
  detach(request);
  if (request.live()) --live_;
  by_uid_.erase(request.uid);
  by_epoch_.erase(request.epoch);
}

Request* RequestTable::take_due(Nanos now) {
  const auto epoch = due_.take_due(now);
  return epoch ? find(*epoch) : nullptr;
}

void RequestTable::attach(Request& request, std::string_view route, Nanos now) {
  if (request.client_ && request.client_->route == route) return;
  if (request.client_) detach(request);
  auto found = clients_.find(route);
  if (found == clients_.end()) {
    auto client = std::make_unique<Client>();
    client->route = std::string(route);
    client->last_seen = now;
    client->lease = leases_.insert(leases_.end(), client.get());
    found = clients_.emplace(client->route, std::move(client)).first;
  }
  Client& client = *found->second;
  request.client_ = &client;
  request.client_index_ = client.requests.size();
  client.requests.push_back(&request);
}

void RequestTable::detach(Request& request) {
  Client& client = *request.client_;
  Request* last = client.requests.back();
  client.requests[request.client_index_] = last;
  last->client_index_ = request.client_index_;
  client.requests.pop_back();
  request.client_ = nullptr;
  if (!client.requests.empty()) return;
  if (!client.gone) leases_.erase(client.lease);
  clients_.erase(clients_.find(client.route));
}

Client* RequestTable::find_client(std::string_view route) const {
  const auto found = clients_.find(route);
  return found == clients_.end() ? nullptr : found->second.get();
}

Client* RequestTable::touch(std::string_view route, Nanos now) {
  Client* client = find_client(route);
  if (!client) return nullptr;
  client->last_seen = now;
  if (!client->gone) leases_.splice(leases_.end(), leases_, client->lease);
  return client;
}

void RequestTable::set_gone(Client& client) {
  if (client.gone) return;
  client.gone = true;
  leases_.erase(client.lease);
}

void RequestTable::revive(Client& client, Nanos now) {
  if (!client.gone) return;
  client.gone = false;
  client.last_seen = now;
  client.lease = leases_.insert(leases_.end(), &client);
}

void RequestTable::forgive(Nanos now) {
  for (Client* client : leases_) client->last_seen = now;
}

}  // namespace ringmaster::router
