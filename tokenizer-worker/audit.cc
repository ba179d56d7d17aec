#include "tokenizer-worker/audit.h"

#include <algorithm>

namespace ringmaster::tokenizer_worker {
namespace {

using Phase = Stream::Phase;
static_assert(static_cast<int>(Phase::kEncoding) == static_cast<int>(msg::StreamPhase::encoding) &&
              static_cast<int>(Phase::kRunning) == static_cast<int>(msg::StreamPhase::running) &&
              static_cast<int>(Phase::kStopping) == static_cast<int>(msg::StreamPhase::stopping) &&
              static_cast<int>(Phase::kEnded) == static_cast<int>(msg::StreamPhase::ended));

// The place of a stream's link in `links`. One that is still being encoded has its link already.
uint32_t place(LinkId link, const std::vector<LinkHolding>& links) {
  for (size_t i = 0; i < links.size(); ++i)
    if (links[i].link.id == link) return static_cast<uint32_t>(i);
  return msg::kNone;
}

}  // namespace

void build_books(flatbuffers::FlatBufferBuilder& b, Holdings holdings) {
  const std::vector<LinkHolding> links = holdings.links.holdings();
  std::vector<Epoch> epochs = holdings.streams.epochs();
  std::ranges::sort(epochs);
  std::vector<msg::StreamBooks> listed;
  size_t alive = 0;
  for (const Epoch epoch : epochs) {
    const Stream& stream = *holdings.streams.find(epoch);
    if (stream.phase == Phase::kEnded || ++alive > msg::kMaxListed) continue;
    listed.emplace_back(epoch, place(stream.link, links), static_cast<msg::StreamPhase>(stream.phase));
  }
  std::ranges::sort(holdings.queries);
  holdings.queries.resize(std::min(holdings.queries.size(), msg::kMaxListed));

  std::vector<flatbuffers::Offset<msg::SlotBooks>> slots;
  for (const LinkHolding& l : links)
    slots.push_back(msg::CreateSlotBooks(b, l.slot, b.CreateString(l.link.gpu_worker), 0, l.link.gpu_instance,
                                         l.commands_written, l.prompts_written, l.tokens_read,
                                         static_cast<uint32_t>(l.waiting)));
  const auto slot_books = b.CreateVector(slots);
  const auto streams = b.CreateVectorOfStructs(listed);
  const auto queries = b.CreateVector(holdings.queries);

  msg::TokenizerWorkerBooksBuilder out(b);
  out.add_streams(streams);
  out.add_unlisted(static_cast<uint32_t>(alive - listed.size()));
  out.add_live(holdings.live);
  out.add_ended_kept(static_cast<uint32_t>(epochs.size() - alive));
  out.add_clients(static_cast<uint32_t>(holdings.streams.clients()));
  out.add_assigned(holdings.counters[Counter::kRequestsAssigned]);
  out.add_ended(holdings.counters[Counter::kRequestsEnded]);
  out.add_forgotten(holdings.counters[Counter::kRequestsForgotten]);
  out.add_encoding(static_cast<uint32_t>(holdings.encoding));
  out.add_queries(queries);
  out.add_slots(slot_books);
  out.add_attaching(static_cast<uint32_t>(holdings.attaching));
  const auto tokenizer = out.Finish();
  b.Finish(msg::CreateWorkerBooks(b, tokenizer));
}

}  // namespace ringmaster::tokenizer_worker
