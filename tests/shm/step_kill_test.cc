// A writer and a reader killed after every single instruction of what they do with a ring. Whatever the
// moment, the other side sees exactly what was published or read until then, in whole records, and the ring
// goes on.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "shm/doorbell.h"
#include "shm/slot_memory.h"
#include "tests/shm/stepped.h"

namespace ringmaster::shm {
namespace {

constexpr int kMostSteps = 200'000;  // far beyond any of these paths: a child that spins is a fault

constexpr size_t kNoted = 64;  // bytes of each record: copying costs steps

// What a reader has read, as it would stand in a process that outlives its ring.
struct Accepted {
  std::atomic<uint64_t> count;
  std::byte bytes[16][kNoted];
};

struct World {
  World() = default;
  ~World() { munmap(bell_memory, kPage); }
  World(const World&) = delete;
  SlotPlaces places = place_rings({kMinRingBytes, kMinRingBytes, kMinRingBytes}).value();
  MemoryFile memory = MemoryFile::create("step-kill", places.size).value();
  MemoryFile notes = MemoryFile::create("step-kill-notes", kPage).value();
  Doorbell bell = Doorbell::create().value();
  void* bell_memory = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, bell.fd(), 0);
  RingView ring() { return rings_of(memory.bytes(), places).token; }
  RingIndex& index() { return *ring().index; }
  BellPage& bell_page() { return *static_cast<BellPage*>(bell_memory); }
  Accepted& accepted() { return *reinterpret_cast<Accepted*>(notes.bytes().data()); }
  // Empty, with both positions at `position`.
  void reset(uint64_t position) {
    reset_slot(memory.bytes(), places, 0, 1);
    index().head = index().tail = position;
    new (notes.bytes().data()) Accepted{};
    bell_page().sequence = bell_page().sleeping = 0;
  }
};
static_assert(sizeof(Accepted) <= kPage);

// Record n is of type n + 1 and says n twice: in its first word, and in every byte behind it.
void put(Producer& producer, uint64_t n, size_t size) {
  if (const auto space = producer.try_reserve(1 + static_cast<uint32_t>(n), size)) {
    std::memset(space->data(), static_cast<int>(n + 1), space->size());
    std::memcpy(space->data(), &n, sizeof n);
  }
}
bool is(std::span<const std::byte> payload, uint64_t n) {
  uint64_t found = 0;
  if (payload.size() < sizeof found) return false;
  std::memcpy(&found, payload.data(), sizeof found);
  for (const std::byte b : payload.subspan(sizeof found))
    if (std::to_integer<uint64_t>(b) != n + 1) return false;
  return found == n;
}

// Records that can be read now, from `first` on; -1 if one is not what it should be.
int read_all(Consumer& consumer, uint64_t first) {
  int count = 0;
  for (auto record = consumer.peek(); record; record = consumer.peek(), ++count) {
    const uint64_t n = first + static_cast<uint64_t>(count);
    if (record->type != 1 + n || !is(record->payload, n)) return -1;
    consumer.pop();
  }
  return consumer.broken() ? -1 : count;
}

// What a process does, in parts: a kill costs all instructions before it, so each part is stepped by itself,
// with those before it at full speed.
using Parts = std::vector<std::function<void()>>;
using Role = std::function<Parts(World&)>;

// Kills a child after 0, 1, 2, ... instructions of one part. `check` looks at the world after each death;
// `done` says that the child was through with its last part.
void kill_in_part(World& world, uint64_t position, const Role& role, size_t part, size_t parts,
                  const std::function<void(World&, bool done)>& check, int& kills) {
  bool through = false;
  for (int steps = 0; !through; steps += kEvery, ++kills) {
    ASSERT_LT(steps, kMostSteps) << "no end";
    world.reset(position);
    SteppedChild child([&] {
      for (const auto& once : role(world)) once();  // so that no marked call goes through the dynamic linker
      world.reset(position);
      const Parts all = role(world);
      for (size_t i = 0; i < part; ++i) all[i]();
      return all[part];
    });
    ASSERT_TRUE(child.ready()) << "ptrace is not allowed here";
    for (int i = 0; i < steps && !through; ++i) through = !child.step();
    child.kill();
    SCOPED_TRACE("killed in part " + std::to_string(part) + " after " + std::to_string(steps) +
                 " instructions");
    check(world, through && part + 1 == parts);
    if (testing::Test::HasFailure()) return;
    // A successor gets the slot anew and finds nothing of the dead one.
    reset_slot(world.memory.bytes(), world.places, 0, 1);
    Producer producer(world.ring());
    Consumer consumer(world.ring());
    ASSERT_EQ(read_all(consumer, 0), 0);
    for (uint64_t n = 0; n < 40; ++n) {
      put(producer, n, 200);
      producer.commit();
      ASSERT_EQ(read_all(consumer, n), 1);
    }
  }
}

void kill_at_every_instruction(uint64_t position, const Role& role,
                               const std::function<void(World&, bool done)>& check) {
  World world;
  world.reset(position);
  const size_t parts = role(world).size();
  int kills = 0;
  for (size_t part = 0; part < parts; ++part) kill_in_part(world, position, role, part, parts, check, kills);
  std::printf("             %d kills, %d instructions apart\n", kills, kEvery);
  EXPECT_GT(kills * kEvery, 20 * static_cast<int>(parts)) << "the marked part was optimised away";
}

// ---- the writer ----

// `before` records are published before the marked part, `batch` by it; `visible` is what the reader finds.
// `skipped` records in front of these may have been read before, and then their space was reused.
void kill_writer(uint64_t position, int before, int batch, const Role& role, int skipped = 0) {
  int most = before;
  kill_at_every_instruction(position, role, [&](World& world, bool done) {
    Consumer consumer(world.ring());
    for (int i = 0; i < skipped && world.index().tail == position; ++i) {
      ASSERT_TRUE(consumer.peek());
      consumer.pop();
    }
    const bool rung = world.bell.sequence() != 0;
    const int visible = read_all(consumer, 0);
    ASSERT_TRUE(visible == before || visible == before + batch)
        << visible << " records: " << consumer.fault();
    ASSERT_GE(visible, most) << "published earlier, gone later";
    most = visible;
    if (rung) {
      ASSERT_EQ(visible, before + batch) << "the bell rang before the records were there";
    }
    if (done) {
      ASSERT_EQ(visible, before + batch);
    }
    ASSERT_LE(world.index().head.load() - world.index().tail.load(), kMinRingBytes);
    // The reader's own wait ends, rung or not.
    ASSERT_EQ(world.bell.wait(0, monotonic_now() + (rung ? kSecond : 0)), rung);
  });
  EXPECT_EQ(most, before + batch);
}

TEST(KilledWriter, OneRecord) {
  kill_writer(0, 0, 1, [](World& world) -> Parts {
    auto producer = std::make_shared<Producer>(world.ring());
    return {[producer] { put(*producer, 0, 200); }, [producer] { producer->commit(); },
            [&] { world.bell.ring(); }};
  });
}

TEST(KilledWriter, RecordBehindAPadAtTheEndOfTheRing) {
  kill_writer(3968, 0, 1, [](World& world) -> Parts {
    auto producer = std::make_shared<Producer>(world.ring());
    return {[producer] { put(*producer, 0, 128); }, [producer] { producer->commit(); },
            [&] { world.bell.ring(); }};
  });
}

TEST(KilledWriter, BatchAcrossTheEndOfTheRingIsPublishedAtOnce) {
  kill_writer(3840, 0, 4, [](World& world) -> Parts {
    auto producer = std::make_shared<Producer>(world.ring());
    return {[producer] { put(*producer, 0, 100); },
            [producer] { put(*producer, 1, 150); },  // does not fit before the end
            [producer] { put(*producer, 2, 8); },
            [producer] { put(*producer, 3, 500); },
            [producer] { producer->commit(); },
            [&] { world.bell.ring(); }};
  });
}

TEST(KilledWriter, FullRingThatGetsRoomAndASleepingReader) {
  kill_writer(0, 6, 1, [](World& world) -> Parts {
    auto producer = std::make_shared<Producer>(world.ring());
    for (uint64_t n = 0; n < 6; ++n) put(*producer, n, 600);  // 640 each: 3,840 of 4,096
    producer->commit();
    world.bell_page().sleeping = 1;
    return {[producer] { put(*producer, 6, 400); },                           // full
            [producer] { put(*producer, 6, 200); },                           // fits
            [producer] { producer->commit(); }, [&] { world.bell.ring(); }};  // wakes
  });
}

// The reader goes on while the writer waits: its first try finds no room, its second does.
TEST(KilledWriter, FullRingWhoseReaderGoesOn) {
  kill_writer(
      0, 7, 1,
      [](World& world) -> Parts {
        auto producer = std::make_shared<Producer>(world.ring());
        auto own_bell = std::make_shared<Doorbell>(Doorbell::create().value());
        put(*producer, 100, 504);
        for (uint64_t n = 0; n < 7; ++n) put(*producer, n, 504);
        producer->commit();
        return {[producer] { put(*producer, 7, 100); },
                [own_bell] { own_bell->wait(own_bell->sequence(), 1); },
                [&] { world.index().tail = 512; },  // the reader's: the first record is gone
                [producer] { static_cast<void>(producer->free_bytes()); },
                [producer] { put(*producer, 7, 100); },
                [producer] { producer->commit(); },
                [&] { world.bell.ring(); }};
      },
      1);
}

TEST(KilledWriter, TakingItsRoleAndMovingIt) {
  kill_writer(1024, 0, 1, [](World& world) -> Parts {
    auto first = std::make_shared<Producer>();
    auto second = std::make_shared<Producer>();
    return {[&world, first] { *first = Producer(world.ring()); }, [=] { *second = std::move(*first); },
            [second] { put(*second, 0, 64); }, [second] { second->commit(); }};
  });
}

// ---- the reader ----

// Reads one record if there is one, and notes it before it frees it.
void read_and_note(World& world, Consumer& consumer) {
  Accepted& accepted = world.accepted();
  if (const auto record = consumer.peek()) {
    const uint64_t n = accepted.count.load(std::memory_order_relaxed);
    std::memcpy(accepted.bytes[n], record->payload.data(), std::min(record->payload.size(), kNoted));
    accepted.count.store(n + 1, std::memory_order_release);
    consumer.pop();
  }
}

// The writer of `sizes` lives on: sees only whole records freed, none that had not been read, and a full lap
// of records more goes through the ring.
void kill_reader(uint64_t position, const std::vector<size_t>& sizes, const Role& reader) {
  uint64_t most = 0;
  std::shared_ptr<Producer> producer;
  const Role role = [&](World& world) {
    Producer writer(world.ring());
    for (uint64_t n = 0; n < sizes.size(); ++n) put(writer, n, sizes[n]);
    writer.commit();
    return reader(world);
  };
  kill_at_every_instruction(position, role, [&](World& world, bool done) {
    const uint64_t accepted = world.accepted().count;
    for (uint64_t n = 0; n < accepted; ++n)
      ASSERT_TRUE(is({world.accepted().bytes[n], std::min(sizes[n], kNoted)}, n));
    Producer writer(world.ring());
    ASSERT_FALSE(writer.broken()) << writer.fault();
    Consumer successor(world.ring());
    ASSERT_EQ(writer.free_bytes(), kMinRingBytes - (world.index().head.load() - world.index().tail.load()));
    uint64_t left = 0;
    for (auto record = successor.peek(); record; record = successor.peek(), ++left) {
      const uint64_t n = record->type - 1;
      ASSERT_TRUE(is(record->payload, n));
      if (left == 0) {
        ASSERT_TRUE(n == accepted || n + 1 == accepted) << "freed unread, or read twice";
      }
      successor.pop();
      ASSERT_EQ(n + 1 < sizes.size(), successor.peek().has_value());
    }
    ASSERT_FALSE(successor.broken()) << successor.fault();
    if (left == 0) {
      ASSERT_EQ(accepted, sizes.size()) << "freed unread";
    }
    if (done) {
      ASSERT_EQ(left, 0u);
    }
    ASSERT_GE(accepted, most);
    most = accepted;
    for (uint64_t n = 0; n < 20; ++n) {
      put(writer, n, 300);
      writer.commit();
      ASSERT_EQ(read_all(successor, n), 1);
    }
    ASSERT_FALSE(writer.broken()) << writer.fault();
  });
  EXPECT_EQ(most, sizes.size());
}

Role reads(size_t records) {
  return [records](World& world) {
    auto consumer = std::make_shared<Consumer>(world.ring());
    return Parts(records + 1,
                 [&world, consumer] { read_and_note(world, *consumer); });  // the last finds nothing
  };
}

TEST(KilledReader, OneRecord) {
  kill_reader(0, {200}, reads(1));
}
TEST(KilledReader, RecordBehindAPadAtTheEndOfTheRing) {
  kill_reader(3968, {128}, reads(1));
}
TEST(KilledReader, SeveralRecordsAcrossTheEndOfTheRing) {
  kill_reader(3840, {100, 150, 8, 500}, reads(4));
}
TEST(KilledReader, FullRing) {
  kill_reader(64, {2040, 1976}, reads(2));
}
TEST(KilledReader, TakingItsRoleAndWaitingForMore) {
  kill_reader(0, {100}, [](World& world) -> Parts {
    auto first = std::make_shared<Consumer>();
    auto second = std::make_shared<Consumer>();
    return {[&world, first] { *first = Consumer(world.ring()); }, [=] { *second = std::move(*first); },
            [&world, second] { read_and_note(world, *second); },
            [&world] { world.bell.wait(world.bell.sequence(), 1); }};
  });
}

}  // namespace
}  // namespace ringmaster::shm
