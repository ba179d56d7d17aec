// One line about a message, for the trace.
#include <fmt/format.h>

#include "schemas/codec.h"
#include "tests/simulate/process.h"

namespace ringmaster::simulate {
namespace {

std::string short_uid(const msg::Uid* uid) {
  return fmt::format("{:04x}", msg::to_uid(*uid).hi >> 48);
}

std::string stream(const msg::Stream& stream) {
  std::string out;
  if (stream.chunks())
    for (const msg::Chunk* c : *stream.chunks())
      out += fmt::format(" [{} e{:x} tokens {}+{} text {}+{}]", short_uid(c->uid()), c->epoch(),
                         c->first_token(), c->ids() ? c->ids()->size() : 0, c->text_offset(),
                         c->text() ? c->text()->size() : 0);
  if (stream.ends())
    for (const msg::Done* d : *stream.ends())
      out += fmt::format(" [{} e{:x} done {} {} after {}: {}]", short_uid(d->uid()), d->epoch(),
                         msg::EnumNameFinishReason(d->reason()), msg::EnumNameCode(d->code()),
                         d->usage() ? d->usage()->output_tokens() : 0,
                         d->message() ? d->message()->string_view() : std::string_view());
  return out;
}

std::string to_client(const msg::ClientMessage& m) {
  std::string out = msg::EnumNameClientBody(m.body_type());
  if (const auto* a = m.body_as_Accepted())
    out += fmt::format(" {} e{:x}{} next {}", short_uid(a->uid()), a->epoch(), a->resumed() ? " resumed" : "",
                       a->next_token());
  if (const auto* s = m.body_as_Stream()) out += stream(*s);
  if (const auto* r = m.body_as_Rejected()) out += fmt::format(" {}", r->message()->string_view());
  if (const auto* p = m.body_as_Pong()) out += fmt::format(" {}", p->incarnation());
  return out;
}

std::string to_router(const msg::RouterMessage& m) {
  std::string out = msg::EnumNameRouterBody(m.body_type());
  if (const auto* g = m.body_as_Generate())
    out += fmt::format(" {} has {} tokens, text {}", short_uid(g->uid()),
                       g->received_ids() ? g->received_ids()->size() : 0, g->received_text_offset());
  if (const auto* acks = m.body_as_Acks())
    for (const msg::Ack* a : *acks->acks())
      out += fmt::format(" [{} {}, {}]", short_uid(a->uid()), a->next_token(), a->text_offset());
  if (const auto* c = m.body_as_Cancel()) out += " " + short_uid(c->uid());
  if (const auto* r = m.body_as_Register())
    out += fmt::format(" {} instance {}", r->name()->string_view(), r->instance());
  if (const auto* l = m.body_as_Linked())
    out += fmt::format(" {} instance {} {}", l->gpu_worker()->string_view(), l->gpu_instance(),
                       l->up() ? "up" : "down");
  if (const auto* s = m.body_as_Streams())
    for (const msg::ToClient* to : *s->to()) {
      out += fmt::format(" {}:", std::string_view(reinterpret_cast<const char*>(to->client()->data()),
                                                  to->client()->size()));
      const auto inner = msg::open<msg::ClientMessage>(
          {reinterpret_cast<const std::byte*>(to->payload()->data()), to->payload()->size()});
      if (inner && (*inner)->body_as_Stream()) out += stream(*(*inner)->body_as_Stream());
    }
  return out;
}

std::string to_tokenizer(const msg::TokenizerWorkerMessage& m) {
  std::string out = msg::EnumNameTokenizerWorkerBody(m.body_type());
  if (const auto* g = m.body_as_GpuWorkers()) {
    out += fmt::format(" incarnation {}:", g->incarnation());
    if (g->workers())
      for (const msg::GpuWorker* w : *g->workers())
        out += fmt::format(" {} instance {}", w->name()->string_view(), w->instance());
  }
  if (const auto* a = m.body_as_Assign())
    out += fmt::format(" e{:x} on {} instance {}", a->epoch(), a->gpu_worker()->string_view(),
                       a->gpu_instance());
  if (const auto* acks = m.body_as_AckedEpochs())
    for (const msg::EpochAck* a : *acks->acks())
      out += fmt::format(" [e{:x} {}, {}]", a->epoch(), a->next_token(), a->text_offset());
  if (const auto* r = m.body_as_Resend())
    out += fmt::format(" e{:x} from {}, {}", r->epoch(), r->next_token(), r->text_offset());
  if (const auto* e = m.body_as_End())
    out += fmt::format(" e{:x} {}", e->epoch(), msg::EnumNameCode(e->code()));
  if (const auto* f = m.body_as_Forget()) out += fmt::format(" e{:x}", f->epoch());
  return out;
}

std::string to_gpu(const msg::GpuWorkerMessage& m) {
  std::string out = msg::EnumNameGpuWorkerBody(m.body_type());
  if (const auto* r = m.body_as_Registered()) out += fmt::format(" {}", r->incarnation());
  return out;
}

template <typename Message>
std::string opened(actor::Bytes bytes, std::string (*describe)(const Message&)) {
  const auto message = msg::open<Message>(bytes);
  return message ? describe(**message) : "unreadable: " + message.error().message;
}

}  // namespace

std::string describe_message(std::string_view to, actor::Bytes message) {
  if (to == "router") return opened<msg::RouterMessage>(message, to_router);
  if (to.starts_with("tokenizer")) return opened<msg::TokenizerWorkerMessage>(message, to_tokenizer);
  if (to.starts_with("gpu")) return opened<msg::GpuWorkerMessage>(message, to_gpu);
  return opened<msg::ClientMessage>(message, to_client);
}

}  // namespace ringmaster::simulate
