#include <cstring>
#include <map>
#include <random>

#include "core/error.h"
#include "sim_fixture.h"

namespace nbx {
namespace {

using SimMemory = SimTest;

TEST_F(SimMemory, CapacityIsCountedToTheUnit) {
  MemoryInfo before{};
  ASSERT_EQ(table().memory_info(kOrdinal, &before), kSuccess);
  const DeviceAddress address = allocate(1000);
  MemoryInfo held{};
  ASSERT_EQ(table().memory_info(kOrdinal, &held), kSuccess);
  EXPECT_EQ(before.free_bytes - held.free_bytes, 1024u);
  sim::set_pressure(kOrdinal, held.free_bytes - 2048);
  DeviceAddress more = 0;
  EXPECT_EQ(table().allocate(kOrdinal, 2049, &more), kAllocationRefused);
  ASSERT_EQ(table().allocate(kOrdinal, 2048, &more), kSuccess);
  ASSERT_EQ(table().memory_info(kOrdinal, &held), kSuccess);
  EXPECT_EQ(held.free_bytes, 0u);
  ASSERT_EQ(table().free(kOrdinal, more), kSuccess);
  ASSERT_EQ(table().free(kOrdinal, address), kSuccess);
}

TEST_F(SimMemory, FaultsHitTheCallsTheyName) {
  sim::Fault fault{Primitive::k_allocate};
  fault.first_call = 2;
  fault.call_count = 2;
  fault.status = kAllocationRefused;
  sim::add_fault(kOrdinal, fault);
  const std::uint64_t before = sim::call_count(kOrdinal, Primitive::k_allocate);
  std::vector<Status> statuses;
  for (int i = 0; i < 4; ++i) {
    DeviceAddress address = 0;
    statuses.push_back(table().allocate(kOrdinal, 64, &address));
    if (address != 0) {
      EXPECT_EQ(table().free(kOrdinal, address), kSuccess);
    }
  }
  EXPECT_EQ(statuses,
            (std::vector<Status>{kSuccess, kAllocationRefused, kAllocationRefused, kSuccess}));
  EXPECT_EQ(sim::call_count(kOrdinal, Primitive::k_allocate) - before, 4u);
  fault.first_call = 0;
  EXPECT_THROW(sim::add_fault(kOrdinal, fault), Error);
  EXPECT_THROW(sim::add_fault(99, sim::Fault{Primitive::k_allocate}), Error);
}

TEST_F(SimMemory, FaultsDelayAndMisalign) {
  sim::Fault fault{Primitive::k_allocate};
  fault.delay_seconds = 2.0;
  fault.misalignment = 24;
  sim::add_fault(kOrdinal, fault);
  const double start = sim::seconds();
  const DeviceAddress address = allocate(4096);
  EXPECT_GE(sim::seconds() - start, 2.0);
  EXPECT_EQ(address % 256, 24u);
  fill(address, 1, 1024, 0);
  ASSERT_EQ(table().synchronize(kOrdinal), kSuccess);
  ASSERT_EQ(table().free(kOrdinal, address), kSuccess);
}

TEST_F(SimMemory, AddressesResolveToTheirObject) {
  const DeviceAddress address = allocate(1000);
  ResolvedAddress resolved{};
  ASSERT_EQ(table().resolve(kOrdinal, address + 999, &resolved), kSuccess);
  EXPECT_EQ(resolved.object, address);
  EXPECT_EQ(resolved.offset, 999u);
  EXPECT_EQ(table().resolve(kOrdinal, address + 1000, &resolved), kInvalidValue);
  ASSERT_EQ(table().free(kOrdinal, address), kSuccess);
  EXPECT_EQ(table().resolve(kOrdinal, address, &resolved), kInvalidValue);
}

TEST_F(SimMemory, CopiesPastTheEndAreRefusedAtSubmit) {
  const DeviceAddress address = allocate(100);
  std::vector<std::byte> host(200);
  EXPECT_EQ(table().copy(kOrdinal, address, of(host.data()), 101, CopyKind::kHostToDevice, 0),
            kInvalidValue);
  EXPECT_EQ(table().fill(kOrdinal, address + 98, 0, 1, 3, 0), kInvalidValue);
  EXPECT_EQ(table().fill(kOrdinal, address, 0, 4, 1, 12345), kInvalidHandle);
  ASSERT_EQ(table().free(kOrdinal, address), kSuccess);
}

TEST_F(SimMemory, HostMappingsMayNotOverlap) {
  std::vector<std::byte> host(4096);
  DeviceAddress address = 0;
  ASSERT_EQ(table().map_host(kOrdinal, host.data(), 4096, &address), kSuccess);
  DeviceAddress again = 0;
  EXPECT_EQ(table().map_host(kOrdinal, host.data() + 100, 10, &again), kInvalidValue);
  EXPECT_EQ(table().map_host(kOrdinal, host.data() - 10, 20, &again), kInvalidValue);
  fill(address, 5, 1024, 0);
  ASSERT_EQ(table().synchronize(kOrdinal), kSuccess);
  EXPECT_EQ(host[4], std::byte{5});
  ASSERT_EQ(table().unmap_host(kOrdinal, host.data()), kSuccess);
  EXPECT_EQ(table().unmap_host(kOrdinal, host.data()), kInvalidValue);
}

class SimPages : public SimTest {
 protected:
  static PageHandle create(std::uint64_t bytes) {
    PageHandle page = 0;
    EXPECT_EQ(table().page_create(kOrdinal, bytes, &page), kSuccess);
    return page;
  }
  static DeviceAddress reserve(std::uint64_t bytes) {
    DeviceAddress base = 0;
    EXPECT_EQ(table().range_reserve(kOrdinal, bytes, &base), kSuccess);
    EXPECT_EQ(base % kGranule, 0u);
    return base;
  }
  static void map(DeviceAddress address, std::uint64_t bytes, PageHandle page) {
    EXPECT_EQ(table().page_map(kOrdinal, address, bytes, page), kSuccess);
    EXPECT_EQ(table().page_access(kOrdinal, address, bytes), kSuccess);
  }
  static std::uint32_t word_at(DeviceAddress address) {
    std::uint32_t word = 0;
    read(&word, address, 4, 0);
    EXPECT_EQ(table().synchronize(kOrdinal), kSuccess);
    return word;
  }
};

TEST_F(SimPages, RemappingMovesTheBytes) {
  const DeviceAddress base = reserve(4 * kGranule);
  const PageHandle page = create(kGranule);
  map(base, kGranule, page);
  fill(base, 123, kGranule / 4, 0);
  EXPECT_EQ(word_at(base + kGranule - 4), 123u);
  ASSERT_EQ(table().page_unmap(kOrdinal, base, kGranule), kSuccess);
  map(base + 2 * kGranule, kGranule, page);
  EXPECT_EQ(word_at(base + 2 * kGranule), 123u);
  map(base + 3 * kGranule, kGranule, page);  // the same page twice
  fill(base + 3 * kGranule, 9, 1, 0);
  EXPECT_EQ(word_at(base + 2 * kGranule), 9u);
  EXPECT_EQ(table().range_release(kOrdinal, base, 4 * kGranule), kInvalidValue) << "still mapped";
  ASSERT_EQ(table().page_release(kOrdinal, page), kSuccess);
  EXPECT_EQ(sim::books(kOrdinal).pages, 1u) << "mapped pages outlive their release";
  EXPECT_EQ(table().page_release(kOrdinal, page), kInvalidHandle);
  ASSERT_EQ(table().page_unmap(kOrdinal, base + 2 * kGranule, 2 * kGranule), kSuccess);
  EXPECT_EQ(sim::books(kOrdinal).pages, 0u);
  ASSERT_EQ(table().range_release(kOrdinal, base, 4 * kGranule), kSuccess);
}

TEST_F(SimPages, SpansCrossNeighbouringPages) {
  const DeviceAddress base = reserve(2 * kGranule);
  const PageHandle first = create(kGranule);
  const PageHandle second = create(kGranule);
  map(base, kGranule, first);
  EXPECT_EQ(table().fill(kOrdinal, base, 1, 4, kGranule / 2, 0), kInvalidValue);
  map(base + kGranule, kGranule, second);
  fill(base, 1, kGranule / 2, 0);
  EXPECT_EQ(word_at(base + 2 * kGranule - 4), 1u);
  ASSERT_EQ(table().page_unmap(kOrdinal, base, 2 * kGranule), kSuccess);
  ASSERT_EQ(table().page_release(kOrdinal, first), kSuccess);
  ASSERT_EQ(table().page_release(kOrdinal, second), kSuccess);
  ASSERT_EQ(table().range_release(kOrdinal, base, 2 * kGranule), kSuccess);
}

TEST_F(SimPages, BadCallsAreRefused) {
  const DeviceAddress base = reserve(2 * kGranule);
  const PageHandle page = create(kGranule);
  PageHandle none = 0;
  DeviceAddress range = 0;
  EXPECT_EQ(table().page_create(kOrdinal, kGranule + 1, &none), kInvalidValue);
  EXPECT_EQ(table().page_create(kOrdinal, std::uint64_t{1} << 50, &none), kAllocationRefused);
  EXPECT_EQ(table().range_reserve(kOrdinal, 100, &range), kInvalidValue);
  EXPECT_EQ(table().page_map(kOrdinal, base + 4096, kGranule, page), kInvalidValue);
  EXPECT_EQ(table().page_map(kOrdinal, base + 2 * kGranule, kGranule, page), kInvalidValue);
  EXPECT_EQ(table().page_map(kOrdinal, base, 2 * kGranule, page), kInvalidValue);
  EXPECT_EQ(table().page_access(kOrdinal, base, kGranule), kInvalidValue);
  ASSERT_EQ(table().page_map(kOrdinal, base, kGranule, page), kSuccess);
  EXPECT_EQ(table().page_map(kOrdinal, base, kGranule, page), kInvalidValue) << "already mapped";
  EXPECT_EQ(table().fill(kOrdinal, base, 0, 4, 1, 0), kInvalidValue) << "no access yet";
  EXPECT_EQ(table().page_unmap(kOrdinal, base, 2 * kGranule), kInvalidValue);
  ASSERT_EQ(table().page_unmap(kOrdinal, base, kGranule), kSuccess);
  ASSERT_EQ(table().page_release(kOrdinal, page), kSuccess);
  EXPECT_EQ(table().range_release(kOrdinal, base, kGranule), kInvalidValue);
  ASSERT_EQ(table().range_release(kOrdinal, base, 2 * kGranule), kSuccess);
}

TEST_F(SimPages, RandomMappingsFollowANaiveModel) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  constexpr std::uint32_t kSlots = 8;
  const DeviceAddress base = reserve(kSlots * kGranule);
  std::vector<PageHandle> pages;
  std::vector<std::uint32_t> contents(5, 0);  // of each page's first word
  for (std::size_t i = 0; i < contents.size(); ++i) pages.push_back(create(kGranule));
  std::map<std::uint32_t, std::size_t> mapped;  // slot -> page
  for (int step = 0; step < 300; ++step) {
    const std::uint32_t slot = static_cast<std::uint32_t>(random() % kSlots);
    const DeviceAddress address = base + slot * kGranule;
    const auto found = mapped.find(slot);
    if (found == mapped.end()) {
      const std::size_t page = random() % pages.size();
      map(address, kGranule, pages[page]);
      mapped[slot] = page;
    } else if (random() % 2 == 0) {
      contents[found->second] = static_cast<std::uint32_t>(random());
      fill(address, contents[found->second], 1, 0);
    } else {
      ASSERT_EQ(table().synchronize(kOrdinal), kSuccess);
      ASSERT_EQ(table().page_unmap(kOrdinal, address, kGranule), kSuccess);
      mapped.erase(found);
    }
    for (const auto& [at, page] : mapped) {
      ASSERT_EQ(word_at(base + at * kGranule), contents[page]) << "step " << step;
    }
  }
  for (const auto& [at, page] : mapped) {
    ASSERT_EQ(table().page_unmap(kOrdinal, base + at * kGranule, kGranule), kSuccess);
  }
  for (const PageHandle page : pages) ASSERT_EQ(table().page_release(kOrdinal, page), kSuccess);
  ASSERT_EQ(table().range_release(kOrdinal, base, kSlots * kGranule), kSuccess);
}

TEST_F(SimMemory, WithoutBackingOnlyTheBooksAreKept) {
  sim::set_backing(kOrdinal, sim::Backing::kNone);
  sim::set_memory(kOrdinal, std::uint64_t{1} << 40);
  const DeviceAddress first = allocate(std::size_t{300} << 30);
  const DeviceAddress second = allocate(std::size_t{300} << 30);
  EXPECT_GE(second, first + (std::uint64_t{300} << 30));
  fill(first, 1, 1000, 0);
  int runs = 0;
  const HostWork work{[](void* payload) { ++*static_cast<int*>(payload); }, [](void*) {}, &runs};
  ASSERT_EQ(table().launch_host(kOrdinal, &work, 0.0, 0), kSuccess);
  ASSERT_EQ(table().synchronize(kOrdinal), kSuccess);
  EXPECT_EQ(runs, 0);
  EXPECT_THROW(sim::set_backing(kOrdinal, sim::Backing::kReal), Error);
  DeviceAddress base = 0;
  PageHandle page = 0;
  ASSERT_EQ(table().range_reserve(kOrdinal, kGranule, &base), kSuccess);
  ASSERT_EQ(table().page_create(kOrdinal, kGranule, &page), kSuccess);
  ASSERT_EQ(table().page_map(kOrdinal, base, kGranule, page), kSuccess);
  ASSERT_EQ(table().page_access(kOrdinal, base, kGranule), kSuccess);
  ASSERT_EQ(table().page_unmap(kOrdinal, base, kGranule), kSuccess);
  ASSERT_EQ(table().page_release(kOrdinal, page), kSuccess);
  ASSERT_EQ(table().range_release(kOrdinal, base, kGranule), kSuccess);
  ASSERT_EQ(table().free(kOrdinal, first), kSuccess);
  ASSERT_EQ(table().free(kOrdinal, second), kSuccess);
  sim::set_backing(kOrdinal, sim::Backing::kReal);
  sim::set_memory(kOrdinal, device().properties().total_bytes);
}

}  // namespace
}  // namespace nbx
