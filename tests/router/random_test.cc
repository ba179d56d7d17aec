// Random events against simple workers and clients that keep their own books: whatever happens, in whatever
// order, every accepted request gets exactly one ending, in order, and the router's tables empty themselves.
#include <map>
#include <random>

#include "tests/router/support.h"

namespace ringmaster::router {
namespace {

// What a client knows of one of its requests.
struct Stream {
  std::string client;
  uint32_t next = 0;
  uint64_t grace_ms = 0;
  int endings = 0;  // Done messages that ended it; repetitions after a resume are not counted again
  bool expects_repeat = false;
  bool client_was_gone = false;
};

// What a tokenizer-worker holds: one byte of text a token.
struct Held {
  uint64_t request = 0;
  std::string client;
  uint32_t made = 0, length = 0;
  bool ended = false;
};

class RandomTest : public RouterTest, public testing::WithParamInterface<int> {
 protected:
  uint32_t draw(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }

  void open_request() {
    const std::string name = clients_[draw(4)];
    const uint64_t n = ++last_;
    auto g = text_request(n);
    g.resume_grace_ms = draw(2) ? 3000 : 0;
    if (draw(5) == 0) g.deadline_ms = 200 + draw(3000);
    g.priority = static_cast<int8_t>(draw(3));
    streams_[n] = {name, 0, g.resume_grace_ms, 0, false, net.unreachable.count(name) != 0};
    client(name, std::move(g));
  }

  uint64_t some_request() { return last_ == 0 ? 0 : 1 + random_() % last_; }

  void resume() {
    const uint64_t n = some_request();
    if (n == 0 || !accepted_.count(n)) return;
    Stream& s = streams_[n];
    if (s.grace_ms == 0) return;
    s.client = clients_[draw(4)];
    auto g = text_request(n);
    g.received_ids.assign(s.next, 5);
    g.received_text_offset = s.next;
    sampling(g).seed = 1;
    g.resume_grace_ms = static_cast<uint32_t>(s.grace_ms);
    s.expects_repeat = s.endings > 0;
    client(s.client, std::move(g));
  }

  void make_tokens(const std::string& tok) {
    auto& held = held_[tok];
    if (held.empty()) return;
    auto it = std::next(held.begin(), draw(static_cast<uint32_t>(held.size())));
    Held& h = it->second;
    if (h.ended) return;
    const uint32_t count = std::min(1 + draw(3), h.length - h.made);
    std::vector<Piece> pieces;
    if (count > 0)
      pieces.push_back(
          {it->first, h.request, h.made, std::vector<uint32_t>(count, 5), h.made, std::string(count, 'x')});
    h.made += count;
    h.ended = h.made == h.length;
    std::vector<End> ends;
    if (h.ended) ends.push_back({it->first, h.request, h.made});
    streams(tok, to_client(h.client, pieces, ends));
  }

  // The messages of the router to a tokenizer-worker; some Ends go unanswered.
  void serve(const std::string& tok) {
    auto& held = held_[tok];
    for (const Message& bytes : net.take(kWorkerChannel, tok)) {
      const auto* m = *msg::open<msg::TokenizerWorkerMessage>(bytes);
      if (const auto* a = m->body_as_Assign()) {
        const auto* nested =
            flatbuffers::GetRoot<msg::RouterMessage>(a->request()->data())->body_as_Generate();
        Held h;
        h.request = nested->uid()->hi();
        h.client.assign(a->client()->begin(), a->client()->end());
        h.made = nested->received_ids() ? nested->received_ids()->size() : 0;
        h.length = h.made + 1 + draw(12);
        held[a->epoch()] = h;
      } else if (const auto* e = m->body_as_End()) {
        const auto it = held.find(e->epoch());
        if (it == held.end() || it->second.ended || draw(4) == 0) continue;
        it->second.ended = true;
        replies_.emplace_back(tok,
                              to_client(it->second.client, {},
                                        {{it->first, it->second.request, it->second.made, e->reason()}}));
      } else if (const auto* acked = m->body_as_AckedEpochs()) {
        for (const auto* one : *acked->acks()) {
          const auto it = held.find(one->epoch());
          if (it != held.end() && it->second.ended && one->next_token() >= it->second.made) held.erase(it);
        }
      } else if (const auto* f = m->body_as_Forget()) {
        held.erase(f->epoch());
      } else if (const auto* g = m->body_as_GpuWorkers(); g && g->incarnation() == 0) {
        held.clear();
        unknown_.insert(tok);
      } else if (const auto* r = m->body_as_Resend()) {
        const auto it = held.find(r->epoch());
        if (it == held.end()) continue;
        Held& h = it->second;
        h.client.assign(r->client()->begin(), r->client()->end());
        std::vector<Piece> pieces;
        if (r->next_token() < h.made)
          pieces.push_back({it->first, h.request, r->next_token(),
                            std::vector<uint32_t>(h.made - r->next_token(), 5), r->next_token(),
                            std::string(h.made - r->next_token(), 'x')});
        std::vector<End> ends;
        if (h.ended) ends.push_back({it->first, h.request, h.made});
        if (!pieces.empty() || !ends.empty()) replies_.emplace_back(tok, to_client(h.client, pieces, ends));
      }
    }
  }

  void listen(const std::string& name) {
    for (const Message& bytes : net.take(kClientChannel, name)) {
      const auto* m = *msg::open<msg::ClientMessage>(bytes);
      if (const auto* a = m->body_as_Accepted()) accepted_.insert(a->uid()->hi());
      const auto* stream = m->body_as_Stream();
      if (!stream) continue;
      if (stream->chunks())
        for (const auto* c : *stream->chunks()) {
          Stream& s = streams_[c->uid()->hi()];
          ASSERT_TRUE(s.endings == 0 || s.expects_repeat) << "a piece after the ending of " << c->uid()->hi();
          if (s.client != name) continue;
          if (c->first_token() <= s.next) s.next = std::max(s.next, c->first_token() + c->ids()->size());
        }
      if (stream->ends())
        for (const auto* d : *stream->ends()) {
          Stream& s = streams_[d->uid()->hi()];
          if (d->epoch() == 0) continue;  // a refusal of a resume, or of a request that was never accepted
          if (s.endings > 0) {
            ASSERT_TRUE(s.expects_repeat) << "a second ending of " << d->uid()->hi();
            s.expects_repeat = false;
          } else {
            ++s.endings;
          }
        }
    }
  }

  void acknowledge() {
    const uint64_t n = some_request();
    if (n != 0) ack(streams_[n].client, n, streams_[n].next, streams_[n].next);
  }

  void restart_tokenizer(const std::string& tok) {
    held_[tok].clear();
    add(tok, ++instance_);
    for (const char* gpu : {kGpu, kGpu1}) link(tok, gpu);
  }

  void step() {
    const std::string tok = draw(2) ? kTok : kTok1;
    switch (draw(24)) {
      case 0:
      case 1:
      case 2:
        open_request();
        break;
      case 3:
        resume();
        break;
      case 4:
        if (const uint64_t n = some_request()) cancel(streams_[n].client, n);
        break;
      case 5:
      case 6:
        acknowledge();
        break;
      case 7:
        if (draw(6) == 0) restart_tokenizer(tok);
        break;
      case 8:
        if (draw(6) == 0) {
          const std::string gpu = draw(2) ? kGpu : kGpu1;
          add(gpu, ++instance_, 8);
          for (const char* t : {kTok, kTok1}) link(t, gpu);
        }
        break;
      case 9:
        if (draw(4) == 0)
          link(tok, kGpu, false);
        else
          link(tok, kGpu);
        break;
      case 10: {
        const std::string name = clients_[draw(4)];
        if (net.unreachable.erase(name) == 0 && draw(3) == 0) {
          net.unreachable.insert(name);
          net.take(kClientChannel, name);
          for (auto& [n, s] : streams_) s.client_was_gone |= s.client == name;
        } else {
          client(name, msg::PingT());
        }
        break;
      }
      case 11:
      case 12:
        advance_alive(draw(400) * kMillisecond);
        break;
      case 13:
        if (draw(3) == 0) {
          if (net.full.erase(tok) == 0) net.full.insert(tok);
        }
        break;
      default:
        make_tokens(tok);
        break;
    }
    settle();
  }

  void settle() {
    for (const char* tok : {kTok, kTok1}) serve(tok);
    for (auto& [tok, to] : std::exchange(replies_, {})) streams(tok, std::move(to));
    for (const std::string& tok : std::exchange(unknown_, {})) {
      add(tok, instances[tok]);
      for (const char* gpu : {kGpu, kGpu1}) link(tok, gpu);
    }
    for (const std::string& name : clients_)
      if (!net.unreachable.count(name)) listen(name);
    expect_books_balance();
  }

  std::mt19937_64 random_{static_cast<uint64_t>(GetParam())};
  const std::vector<std::string> clients_{"c0", "c1", "c2", "c3"};
  std::map<uint64_t, Stream> streams_;
  std::set<uint64_t> accepted_;
  std::map<std::string, std::map<Epoch, Held>> held_;
  std::vector<std::pair<std::string, std::unique_ptr<msg::ToClientT>>> replies_;
  std::set<std::string> unknown_;  // tokenizer-workers that were told to register again
  uint64_t last_ = 0;
  uint64_t instance_ = 100;
};

TEST_P(RandomTest, EveryRequestEndsExactlyOnce) {
  for (const char* tok : {kTok, kTok1}) add(tok, ++instance_);
  for (const char* gpu : {kGpu, kGpu1}) add(gpu, ++instance_, 8);
  for (const char* tok : {kTok, kTok1})
    for (const char* gpu : {kGpu, kGpu1}) link(tok, gpu);
  for (int i = 0; i < 1500 && !HasFatalFailure() && !HasNonfatalFailure(); ++i) step();

  // Everyone is back, everything runs out.
  net.unreachable.clear();
  net.full.clear();
  for (int i = 0; i < 90; ++i) {
    for (const std::string& name : clients_) client(name, msg::PingT());
    for (const char* tok : {kTok, kTok1})
      for (int k = 0; k < 40; ++k) make_tokens(tok);
    for (const char* tok : {kTok, kTok1}) link(tok, kGpu);
    advance_alive(kSecond);
    settle();
  }
  EXPECT_GT(accepted_.size(), 50u);
  for (const auto& [n, s] : streams_)
    if (accepted_.count(n) && !s.client_was_gone) {
      EXPECT_EQ(s.endings, 1) << n;
    }
  EXPECT_EQ(router->table().size(), 0u);
  EXPECT_EQ(router->table().clients(), 0u);
  EXPECT_EQ(router->life().waiting(), 0u);
  EXPECT_EQ(router->life().waiting_bytes(), 0u);
  for (const WorkerPtr& w : router->workers().all()) EXPECT_EQ(w->live, 0u) << w->name;
  for (const auto& [tok, held] : held_)
    for (const auto& [e, h] : held)
      ADD_FAILURE() << tok << " was not told to forget " << show(e) << " ended " << h.ended << " made "
                    << h.made;
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomTest, testing::Range(1, 13));

}  // namespace
}  // namespace ringmaster::router
