// A directory with the path of a ring socket, and helpers around attaching to it.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "shm/slot.h"
#include "tests/shm/process.h"

namespace ringmaster::shm {

struct SlotSocket : testing::Test {
  static constexpr SlotSizes kSmall{4096, 8192, 4096};

  SlotSocket() {
    char name[] = "/tmp/rm-slot-test.XXXXXX";
    directory = mkdtemp(name);
    path = directory + "/gpu-worker.0.ring";
  }
  ~SlotSocket() override { std::filesystem::remove_all(directory); }

  std::unique_ptr<SlotServer> serve(uint64_t instance, uint32_t slots = 1) {
    auto made = SlotServer::create(path, slots, kSmall, instance, bell);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    return made.ok() ? std::move(made).value() : nullptr;
  }
  Result<TokenizerEnd> attach(uint64_t instance, const Doorbell& own, Nanos patience = 10 * kSecond) {
    return attach_slot(path, instance, "w", own, monotonic_now() + patience);
  }

  std::string directory, path;
  Doorbell bell = Doorbell::create().value();
};

inline bool readable(int fd, int milliseconds = 0) {
  pollfd item{fd, POLLIN, 0};
  return ::poll(&item, 1, milliseconds) > 0;
}

// A record of one 8-byte word; false when there is no room.
inline bool put_word(Producer& producer, uint64_t word) {
  const auto space = producer.try_reserve(1, sizeof word);
  if (!space) return false;
  std::memcpy(space->data(), &word, sizeof word);
  producer.commit();
  return true;
}
inline std::optional<uint64_t> take_word(Consumer& consumer) {
  const auto record = consumer.peek();
  if (!record || record->payload.size() != sizeof(uint64_t)) return std::nullopt;
  uint64_t word;
  std::memcpy(&word, record->payload.data(), sizeof word);
  consumer.pop();
  return word;
}

}  // namespace ringmaster::shm
