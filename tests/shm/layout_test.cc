// The bytes of shm/LAYOUT.md as literals: a change here is a new layout version.
#include "shm/layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string_view>

#include "shm/handshake.h"
#include "shm/slot_memory.h"

namespace ringmaster::shm {
namespace {

std::string_view first_bytes(const uint64_t& magic) {
  return {reinterpret_cast<const char*>(&magic), 8};
}

TEST(Layout, MagicsReadInMemoryOrder) {
  EXPECT_EQ(first_bytes(kSlotMagic), std::string_view("RMRING1\0", 8));
  EXPECT_EQ(first_bytes(kBellMagic), std::string_view("RMBELL1\0", 8));
  EXPECT_EQ(first_bytes(kHandshakeMagic), std::string_view("RMHAND1\0", 8));
}

TEST(Layout, OffsetsAreThoseOfTheDocument) {
  EXPECT_EQ(kLayoutVersion, 1u);
  EXPECT_EQ(offsetof(SlotHeader, magic), 0u);
  EXPECT_EQ(offsetof(SlotHeader, version), 8u);
  EXPECT_EQ(offsetof(SlotHeader, slot), 12u);
  EXPECT_EQ(offsetof(SlotHeader, size), 16u);
  EXPECT_EQ(offsetof(SlotHeader, gpu_instance), 24u);
  EXPECT_EQ(offsetof(SlotHeader, command), 32u);
  EXPECT_EQ(offsetof(SlotHeader, prompt), 48u);
  EXPECT_EQ(offsetof(SlotHeader, token), 64u);
  EXPECT_EQ(offsetof(SlotHeader, command_index), 128u);
  EXPECT_EQ(offsetof(SlotHeader, prompt_index), 256u);
  EXPECT_EQ(offsetof(SlotHeader, token_index), 384u);
  EXPECT_EQ(offsetof(RingIndex, head), 0u);
  EXPECT_EQ(offsetof(RingIndex, tail), 64u);
  EXPECT_EQ(offsetof(BellPage, sequence), 64u);
  EXPECT_EQ(offsetof(BellPage, sleeping), 128u);
  EXPECT_EQ(sizeof(Hello), 88u);
  EXPECT_EQ(sizeof(Reply), 56u);
}

TEST(Layout, RingsFollowTheHeaderPage) {
  const auto places = place_rings({.command_bytes = 8192, .prompt_bytes = 65536, .token_bytes = 4096});
  ASSERT_TRUE(places.ok());
  EXPECT_EQ(places->command.offset, 4096u);
  EXPECT_EQ(places->prompt.offset, 4096u + 8192);
  EXPECT_EQ(places->token.offset, 4096u + 8192 + 65536);
  EXPECT_EQ(places->size, 4096u + 8192 + 65536 + 4096);
}

TEST(Layout, ImpossibleSizesAreNamed) {
  const auto odd = place_rings({.command_bytes = 12288, .prompt_bytes = 65536, .token_bytes = 4096});
  ASSERT_FALSE(odd.ok());
  EXPECT_EQ(odd.error().code, Code::kInvalidArgument);
  EXPECT_EQ(odd.error().message,
            "command ring of 12288 bytes: allowed are powers of two from 4096 to 1073741824");
  EXPECT_FALSE(place_rings({.command_bytes = 4096, .prompt_bytes = 0, .token_bytes = 4096}).ok());
  EXPECT_FALSE(place_rings({.command_bytes = 4096, .prompt_bytes = 4096, .token_bytes = 2ull << 30}).ok());
  EXPECT_FALSE(place_rings({.command_bytes = 2048, .prompt_bytes = 4096, .token_bytes = 4096}).ok());
}

TEST(Layout, HeaderIsCheckedFieldByField) {
  const SlotPlaces places = place_rings({4096, 4096, 4096}).value();
  auto file = MemoryFile::create("test", places.size);
  ASSERT_TRUE(file.ok());
  const auto bytes = file->bytes();
  auto& header = *reinterpret_cast<SlotHeader*>(bytes.data());
  const auto code_after = [&](auto change) {
    reset_slot(bytes, places, 3, 99);
    EXPECT_TRUE(check_slot(bytes, places, 3, 99).ok());
    change();
    const Status status = check_slot(bytes, places, 3, 99);
    return status.ok() ? Code::kOk : status.error().code;
  };
  EXPECT_EQ(code_after([&] { header.magic ^= 1; }), Code::kMalformed);
  EXPECT_EQ(code_after([&] { header.version = 2; }), Code::kUnsupportedVersion);
  EXPECT_EQ(code_after([&] { header.slot = 4; }), Code::kMalformed);
  EXPECT_EQ(code_after([&] { header.size += 4096; }), Code::kMalformed);
  EXPECT_EQ(code_after([&] { header.gpu_instance = 98; }), Code::kMalformed);
  EXPECT_EQ(code_after([&] { header.prompt.offset = 0; }), Code::kMalformed);
  EXPECT_EQ(code_after([&] { header.token.capacity *= 2; }), Code::kMalformed);
}

TEST(Layout, ResetEmptiesTheRings) {
  const SlotPlaces places = place_rings({4096, 4096, 4096}).value();
  auto file = MemoryFile::create("test", places.size);
  ASSERT_TRUE(file.ok());
  reset_slot(file->bytes(), places, 0, 1);
  Producer producer(rings_of(file->bytes(), places).prompt);
  ASSERT_TRUE(producer.try_reserve(16, 100));
  producer.commit();
  reset_slot(file->bytes(), places, 0, 1);
  Consumer consumer(rings_of(file->bytes(), places).prompt);
  EXPECT_FALSE(consumer.peek());
  EXPECT_FALSE(consumer.broken());
}

}  // namespace
}  // namespace ringmaster::shm
