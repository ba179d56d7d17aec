#include "shm/slot_memory.h"

#include <cstring>
#include <new>
#include <string>

namespace ringmaster::shm {
namespace {

Status check_capacity(const char* ring, uint64_t bytes) {
  if (bytes >= kMinRingBytes && bytes <= kMaxRingBytes && (bytes & (bytes - 1)) == 0) return ok_status();
  return Error{Code::kInvalidArgument, std::string(ring) + " ring of " + std::to_string(bytes) +
                                           " bytes: allowed are powers of two from " +
                                           std::to_string(kMinRingBytes) + " to " +
                                           std::to_string(kMaxRingBytes)};
}

Status mismatch(const char* field, uint64_t found, uint64_t expected) {
  return Error{Code::kMalformed, std::string("slot header: ") + field + " is " + std::to_string(found) +
                                     ", expected " + std::to_string(expected)};
}

bool same(const RingPlace& a, const RingPlace& b) {
  return a.offset == b.offset && a.capacity == b.capacity;
}

}  // namespace

Result<SlotPlaces> place_rings(const SlotSizes& sizes) {
  if (auto ok = check_capacity("command", sizes.command_bytes); !ok) return std::move(ok).error();
  if (auto ok = check_capacity("prompt", sizes.prompt_bytes); !ok) return std::move(ok).error();
  if (auto ok = check_capacity("token", sizes.token_bytes); !ok) return std::move(ok).error();
  SlotPlaces places;
  places.command = {kPage, sizes.command_bytes};
  places.prompt = {places.command.offset + places.command.capacity, sizes.prompt_bytes};
  places.token = {places.prompt.offset + places.prompt.capacity, sizes.token_bytes};
  places.size = places.token.offset + places.token.capacity;
  return places;
}

SlotRings rings_of(std::span<std::byte> memory, const SlotPlaces& places) {
  auto& header = *reinterpret_cast<SlotHeader*>(memory.data());
  const auto data = [&](const RingPlace& place) { return memory.subspan(place.offset, place.capacity); };
  return {{&header.command_index, data(places.command)},
          {&header.prompt_index, data(places.prompt)},
          {&header.token_index, data(places.token)}};
}

void reset_slot(std::span<std::byte> memory, const SlotPlaces& places, uint32_t slot, uint64_t gpu_instance) {
  auto* header = new (memory.data()) SlotHeader{};
  header->magic = kSlotMagic;
  header->version = kLayoutVersion;
  header->slot = slot;
  header->size = places.size;
  header->gpu_instance = gpu_instance;
  header->command = places.command;
  header->prompt = places.prompt;
  header->token = places.token;
}

Status check_slot(std::span<const std::byte> memory, const SlotPlaces& places, uint32_t slot,
                  uint64_t gpu_instance) {
  const auto& header = *reinterpret_cast<const SlotHeader*>(memory.data());
  if (header.magic != kSlotMagic) return mismatch("magic", header.magic, kSlotMagic);
  if (header.version != kLayoutVersion) {
    return Error{Code::kUnsupportedVersion, "slot header: version is " + std::to_string(header.version) +
                                                ", this build has " + std::to_string(kLayoutVersion)};
  }
  if (header.slot != slot) return mismatch("slot", header.slot, slot);
  if (header.size != places.size) return mismatch("size", header.size, places.size);
  if (header.gpu_instance != gpu_instance) return mismatch("gpu_instance", header.gpu_instance, gpu_instance);
  if (!same(header.command, places.command) || !same(header.prompt, places.prompt) ||
      !same(header.token, places.token)) {
    return Error{Code::kMalformed, "slot header: the rings do not lie where their sizes put them"};
  }
  return ok_status();
}

}  // namespace ringmaster::shm
