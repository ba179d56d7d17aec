// AuditQuery: every worker is asked, all answers come back in one reply, silence has a limit.
#include "router/audit.h"

#include "tests/router/support.h"

namespace ringmaster::router {
namespace {

class AuditTest : public RouterTest {
 protected:
  AuditTest() {
    add(kTok, 21);
    add(kTok1, 22);
    add(kGpu, 11);
    link(kTok, kGpu);
    link(kTok1, kGpu);
    clear();
  }
  void clear() { net.boxes.clear(); }
  void ask(const std::string& name, uint64_t tag) {
    msg::AuditQueryT query;
    query.tag = tag;
    client(name, std::move(query));
  }
  // The tag with which `name` was asked; 0: it was not.
  uint64_t asked(const std::string& name) {
    uint64_t tag = 0;
    for (const Message& bytes : net.take(kWorkerChannel, name)) {
      if (const auto message = msg::open<msg::GpuWorkerMessage>(bytes); message.ok()) {
        if (const auto* audit = (*message)->body_as_AuditGpuWorker()) tag = audit->tag();
      } else if (const auto other = msg::open<msg::TokenizerWorkerMessage>(bytes); other.ok()) {
        if (const auto* audit = (*other)->body_as_Audit()) tag = audit->tag();
      }
    }
    return tag;
  }
  void answer(const std::string& name, uint64_t tag, uint32_t live) {
    msg::WorkerBooksT books;
    if (name == kGpu) {
      books.gpu = std::make_unique<msg::GpuWorkerBooksT>();
      books.gpu->live = live;
    } else {
      books.tokenizer = std::make_unique<msg::TokenizerWorkerBooksT>();
      books.tokenizer->live = live;
    }
    flatbuffers::FlatBufferBuilder b;
    b.Finish(msg::WorkerBooks::Pack(b, &books));
    msg::AuditedT audited;
    audited.tag = tag;
    audited.books.assign(b.GetBufferPointer(), b.GetBufferPointer() + b.GetSize());
    worker(name, std::move(audited));
  }
  std::vector<msg::AuditReplyT> replies(const std::string& name) {
    std::vector<msg::AuditReplyT> out;
    for (const Message& bytes : net.take(kClientChannel, name)) {
      const auto opened = msg::open<msg::ClientMessage>(bytes);
      if (opened.ok() && (*opened)->body_as_AuditReply())
        (*opened)->body_as_AuditReply()->UnPackTo(&out.emplace_back());
    }
    return out;
  }
  static uint32_t live(const msg::AuditedWorkerT& worker) {
    const auto* books = flatbuffers::GetRoot<msg::WorkerBooks>(worker.books.data());
    return worker.gpu ? books->gpu()->live() : books->tokenizer()->live();
  }
};

TEST_F(AuditTest, AllAnswersInOneReplyBesideTheRoutersOwnBooks) {
  client("c", text_request(1));
  client("c", text_request(2));
  clear();
  ask("c", 77);
  EXPECT_TRUE(replies("c").empty());
  const uint64_t tag = asked(kTok);
  EXPECT_NE(tag, 0u);
  EXPECT_EQ(asked(kTok1), tag);
  EXPECT_EQ(asked(kGpu), tag);
  answer(kTok, tag, 1);
  answer(kGpu, tag, 2);
  EXPECT_TRUE(replies("c").empty());
  answer(kTok1, tag, 5);
  const auto all = replies("c");
  ASSERT_EQ(all.size(), 1u);
  const msg::AuditReplyT& reply = all[0];
  EXPECT_EQ(reply.tag, 77u);
  EXPECT_EQ(reply.code, msg::Code::ok);
  EXPECT_EQ(reply.incarnation, 1u);
  ASSERT_EQ(reply.workers.size(), 3u);
  EXPECT_EQ(reply.workers[0]->name, kGpu);
  EXPECT_EQ(reply.workers[0]->state, "ready");
  EXPECT_EQ(reply.workers[0]->live, 2u);
  EXPECT_EQ(live(*reply.workers[0]), 2u);
  EXPECT_EQ(live(*reply.workers[1]), 1u);
  EXPECT_EQ(live(*reply.workers[2]), 5u);
  ASSERT_EQ(reply.workers[1]->linked.size(), 1u);
  EXPECT_EQ(reply.workers[1]->linked[0]->gpu_worker, kGpu);
  EXPECT_EQ(reply.workers[1]->linked[0]->gpu_instance, 11u);
  const msg::RouterBooksT& own = *reply.router;
  EXPECT_EQ(own.live, 2u);
  EXPECT_EQ(own.accepted, 2u);
  EXPECT_EQ(own.ended, 0u);
  EXPECT_EQ(own.clients, 1u);
  ASSERT_EQ(own.requests.size(), 2u);
  EXPECT_EQ(own.requests[0].epoch(), epoch(1));
  EXPECT_EQ(own.requests[0].phase(), msg::RequestPhase::running);
  EXPECT_EQ(own.requests[0].gpu(), 0u);
  EXPECT_EQ(own.requests[0].tokenizer() + own.requests[1].tokenizer(), 1u + 2u) << "one on each";
}

TEST_F(AuditTest, WhoIsSilentIsWithoutBooksAfterHalfASecond) {
  ask("c", 1);
  const uint64_t tag = asked(kTok);
  answer(kTok, tag, 3);
  answer(kGpu, tag, 0);
  advance_alive(kAuditLimit - kMillisecond);
  EXPECT_TRUE(replies("c").empty());
  advance(kMillisecond);
  const auto all = replies("c");
  ASSERT_EQ(all.size(), 1u);
  EXPECT_FALSE(all[0].workers[0]->books.empty());
  EXPECT_FALSE(all[0].workers[1]->books.empty());
  EXPECT_TRUE(all[0].workers[2]->books.empty());
  answer(kTok1, tag, 9);  // too late
  EXPECT_TRUE(replies("c").empty());
}

TEST_F(AuditTest, TheDeadAreShownAndNotAsked) {
  net.unreachable.insert(kTok1);
  ask("c", 1);
  const uint64_t tag = asked(kTok);
  answer(kTok, tag, 0);
  answer(kGpu, tag, 0);
  const auto first = replies("c");
  ASSERT_EQ(first.size(), 1u) << "nobody waits for one that cannot be reached";
  net.unreachable.clear();
  advance_alive(kAuditSpacing);
  clear();
  ask("c", 2);
  EXPECT_EQ(asked(kTok1), 0u);
  const uint64_t second = asked(kTok);
  answer(kTok, second, 0);
  answer(kGpu, second, 0);
  const auto all = replies("c");
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].workers[2]->name, kTok1);
  EXPECT_EQ(all[0].workers[2]->state, "dead");
  EXPECT_TRUE(all[0].workers[2]->books.empty());
}

TEST_F(AuditTest, OneAtATimeAndSpaced) {
  ask("c", 1);
  const uint64_t first = asked(kTok);
  ask("d", 2);
  const auto refused = replies("d");
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].tag, 2u);
  EXPECT_EQ(refused[0].code, msg::Code::overloaded);
  for (const char* name : {kTok, kTok1, kGpu}) answer(name, first, 0);
  EXPECT_EQ(replies("c").size(), 1u);
  ask("d", 3);
  EXPECT_EQ(replies("d").at(0).code, msg::Code::overloaded) << "too soon";
  advance(kAuditSpacing);
  clear();
  ask("d", 4);
  const uint64_t second = asked(kTok);
  EXPECT_NE(second, first);
  answer(kTok, first, 8);  // of the former audit
  for (const char* name : {kTok1, kGpu, kTok}) answer(name, second, 0);
  const auto all = replies("d");
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].tag, 4u);
  EXPECT_EQ(live(*all[0].workers[1]), 0u);
}

TEST_F(AuditTest, WorkersDoNotAskAndClientsDoNotAnswer) {
  msg::AuditQueryT query;
  worker(kTok, std::move(query));
  EXPECT_EQ(count(Counter::kWorkerMessagesRejected), 1u);
  ask("c", 1);
  msg::AuditedT audited;
  audited.tag = asked(kTok);
  audited.books = {1, 2, 3};
  client("c", audited);
  EXPECT_EQ(count(Counter::kMessagesRejected), 1u);
  worker("stranger", std::move(audited));
  EXPECT_EQ(count(Counter::kWorkerMessagesRejected), 2u) << "books that do not verify";
}

TEST_F(AuditTest, ListsAreCappedAndCounted) {
  RouterOptions options;
  options.limits.max_live = 10'000;
  restart(options);
  for (const char* name : {kTok, kTok1, kGpu}) add(name, instances[name]);
  link(kTok, kGpu);
  for (uint64_t n = 1; n <= msg::kMaxListed + 5; ++n) client("c", text_request(n));
  clear();
  ask("c", 1);
  const uint64_t tag = asked(kTok);
  for (const char* name : {kTok, kTok1, kGpu}) answer(name, tag, 0);
  const auto all = replies("c");
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].router->requests.size(), msg::kMaxListed);
  EXPECT_EQ(all[0].router->unlisted, 5u);
  EXPECT_EQ(all[0].router->live, msg::kMaxListed + 5);
  EXPECT_EQ(all[0].router->requests.back().epoch(), epoch(msg::kMaxListed)) << "the lowest epochs";
}

}  // namespace
}  // namespace ringmaster::router
