#include "gpu-worker/audit.h"

#include <algorithm>

namespace ringmaster::gpu_worker {
namespace {

static_assert(static_cast<int>(SequenceState::kWaiting) == static_cast<int>(msg::SequencePhase::waiting) &&
              static_cast<int>(SequenceState::kRunning) == static_cast<int>(msg::SequencePhase::running) &&
              static_cast<int>(SequenceState::kPaused) == static_cast<int>(msg::SequencePhase::paused) &&
              static_cast<int>(SequenceState::kFinished) == static_cast<int>(msg::SequencePhase::finished));

// A dump is for a person; the first part names what is wrong.
constexpr size_t kMaxFault = 2048;

using Slots = flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<msg::SlotBooks>>>;

Slots slots(flatbuffers::FlatBufferBuilder& b, const RingServer& rings) {
  std::vector<flatbuffers::Offset<msg::SlotBooks>> out;
  for (const SlotHolding& s : rings.holdings())
    out.push_back(msg::CreateSlotBooks(b, s.slot, b.CreateString(s.holder), s.holder_pid, 0, s.commands_read,
                                       s.prompts_read, s.tokens_written, static_cast<uint32_t>(s.pending),
                                       s.broken));
  return b.CreateVector(out);
}

}  // namespace

void build_books(flatbuffers::FlatBufferBuilder& b, const Scheduler& scheduler, const KvCache& kv,
                 const RingServer& rings, uint32_t lanes) {
  const Holdings holdings = scheduler.holdings();
  std::vector<msg::SequenceBooks> listed;
  const size_t count = std::min(holdings.sequences.size(), msg::kMaxListed);
  listed.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const SequenceHolding& s = holdings.sequences[i];
    listed.emplace_back(s.epoch, s.owner, s.blocks, static_cast<msg::SequencePhase>(s.state), s.lane);
  }
  const Status checked = scheduler.check();
  const auto fault = b.CreateString(checked ? std::string() : checked.error().message.substr(0, kMaxFault));
  const auto sequences = b.CreateVectorOfStructs(listed);
  const auto slot_books = slots(b, rings);
  const auto live = std::ranges::count_if(
      holdings.sequences, [](const SequenceHolding& s) { return s.state != SequenceState::kFinished; });

  msg::GpuWorkerBooksBuilder out(b);
  out.add_sequences(sequences);
  out.add_unlisted(static_cast<uint32_t>(holdings.sequences.size() - count));
  out.add_live(static_cast<uint32_t>(live));
  out.add_lanes_taken(holdings.lanes_taken);
  out.add_lanes(lanes);
  out.add_in_flight(scheduler.in_flight());
  out.add_blocks(kv.num_blocks());
  out.add_blocks_free(kv.num_free());
  out.add_blocks_cached(kv.num_cached());
  out.add_blocks_used(kv.num_used());
  out.add_blocks_held(holdings.kv.held);
  out.add_references(holdings.kv.references);
  out.add_table_references(holdings.kv.table_references);
  out.add_deferred(holdings.kv.deferred);
  out.add_slots(slot_books);
  out.add_slots_total(rings.slots());
  out.add_fault(fault);
  const auto gpu = out.Finish();
  b.Finish(msg::CreateWorkerBooks(b, 0, gpu));
}

}  // namespace ringmaster::gpu_worker
