// What calls cost on the virtual clock: the figures measured on a card, so that policies can be
// compared without one.
#include "account/account.h"
#include "core/error.h"
#include "heap/heap.h"
#include "sim_fixture.h"
#include "stream/stream.h"

namespace nbx {
namespace {

constexpr double kMicro = 1e-6;
constexpr std::uint64_t kMega = std::uint64_t{1} << 20;

class SimCosts : public SimTest {
 protected:
  template <class Call>
  static double cost(const Call& call) {
    static_cast<void>(table());  // opened before the clock is read
    const double before = sim::seconds();
    EXPECT_EQ(call(), kSuccess);
    return sim::seconds() - before;
  }
};

TEST_F(SimCosts, AnAllocationAndItsFree) {
  DeviceAddress address = 0;
  const double both = cost([&] { return table().allocate(kOrdinal, 2 * kMega, &address); }) +
                      cost([&] { return table().free(kOrdinal, address); });
  EXPECT_NEAR(both, 91 * kMicro, 1e-9);
}

TEST_F(SimCosts, PagesPayByTheHandle) {
  DeviceAddress base = 0;
  EXPECT_NEAR(cost([&] { return table().range_reserve(kOrdinal, 1024 * kMega, &base); }),
              35 * kMicro, 1e-9);
  const std::uint64_t sizes[] = {2 * kMega, 512 * kMega};
  PageHandle pages[2] = {};
  DeviceAddress at[2] = {base, base + 2 * kMega};
  for (int i = 0; i < 2; ++i) {
    EXPECT_NEAR(cost([&] { return table().page_create(kOrdinal, sizes[i], &pages[i]); }),
                14 * kMicro, 1e-9);
    EXPECT_NEAR(cost([&] { return table().page_map(kOrdinal, at[i], sizes[i], pages[i]); }),
                1.3 * kMicro, 1e-9);
  }
  const double access =
      cost([&] { return table().page_access(kOrdinal, base, sizes[0] + sizes[1]); });
  EXPECT_GE(access, 2 * 31 * kMicro);
  EXPECT_LE(access, 2 * 46 * kMicro);
  const double unmap =
      cost([&] { return table().page_unmap(kOrdinal, base, sizes[0] + sizes[1]); });
  EXPECT_GE(unmap, 2 * 20 * kMicro);
  EXPECT_LE(unmap, 2 * 27 * kMicro);
  EXPECT_NEAR(cost([&] { return table().page_release(kOrdinal, pages[0]); }), 14 * kMicro, 1e-9);
  EXPECT_NEAR(cost([&] { return table().page_release(kOrdinal, pages[1]); }), 308 * kMicro, 1e-9);
  ASSERT_EQ(table().range_release(kOrdinal, base, 1024 * kMega), kSuccess);
}

TEST_F(SimCosts, EventsAndQueries) {
  const StreamHandle stream = new_stream();
  const EventHandle event = new_event();
  bool complete = false;
  Ticket ticket = 0;
  EXPECT_NEAR(cost([&] { return table().event_record(kOrdinal, event, stream); }), 0.24 * kMicro,
              1e-9);
  EXPECT_NEAR(cost([&] { return table().event_query(kOrdinal, event, &complete); }), 1.5 * kMicro,
              1e-9);
  EXPECT_NEAR(cost([&] { return table().completed_ticket(kOrdinal, stream, &ticket); }),
              1.5 * kMicro, 1e-9);
  EXPECT_GT(cost([&] { return table().stream_wait_event(kOrdinal, stream, event); }), 0.0);
  ASSERT_EQ(table().stream_synchronize(kOrdinal, stream), kSuccess);
  ASSERT_EQ(table().event_destroy(kOrdinal, event), kSuccess);
  ASSERT_EQ(table().stream_destroy(kOrdinal, stream), kSuccess);
}

TEST_F(SimCosts, PinnedMemoryPaysByTheByte) {
  void* pointer = nullptr;
  EXPECT_NEAR(cost([&] { return table().host_allocate(kOrdinal, 256 * kMega, &pointer); }), 179e-3,
              1e-6);
  ASSERT_EQ(table().host_free(kOrdinal, pointer), kSuccess);
}

TEST_F(SimCosts, CopiesPayByTheByteAndByWhereTheyRead) {
  const DeviceAddress address = allocate(64 * kMega);
  void* pinned = nullptr;
  ASSERT_EQ(table().host_allocate(kOrdinal, 64 * kMega, &pinned), kSuccess);
  std::vector<std::byte> pageable(64 * kMega);
  const auto copy_from = [&](const void* from) {
    return cost([&] {
      write(address, from, 64 * kMega, 0);
      return table().stream_synchronize(kOrdinal, 0);
    });
  };
  EXPECT_NEAR(64.0 * kMega / copy_from(pinned), 55e9, 1e9);
  EXPECT_NEAR(64.0 * kMega / copy_from(pageable.data()), 7.9e9, 0.1e9);
  ASSERT_EQ(table().host_free(kOrdinal, pinned), kSuccess);
  ASSERT_EQ(table().free(kOrdinal, address), kSuccess);
}

TEST_F(SimCosts, TheHostCountsTickets) {
  Ticket ticket = 0;
  EXPECT_EQ(cost([&] { return table().submitted_ticket(kOrdinal, 0, &ticket); }), 0.0);
}

TEST_F(SimCosts, AFreeBlockTakenBackCostsNothing) {
  Account root("root", nullptr);
  Stream& stream = default_stream(device());
  for (const bool pages : {false, true}) {
    Heap heap(device(), &root.tree_lock(), pages);
    for (const std::uint64_t bytes : {std::uint64_t{100}, std::uint64_t{100'000}, 3 * kMega}) {
      const auto take_and_give = [&] {
        const Block block = heap.allocate(bytes, 64, stream, root);
        heap.free(block, bytes, root, stream.id(), 0);
        return kSuccess;
      };
      // The first block of a size brings its memory, and a later one the slab of the next.
      for (int i = 0; i < 8; ++i) take_and_give();
      for (int i = 0; i < 20; ++i) EXPECT_EQ(cost(take_and_give), 0.0) << bytes;
    }
  }
}

}  // namespace
}  // namespace nbx
