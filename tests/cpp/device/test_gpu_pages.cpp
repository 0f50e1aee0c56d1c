// Pages, host memory, peers and other processes through the cuda and hip tables, on stubs.
#include <algorithm>
#include <cstring>
#include <memory>

#include "account/account.h"
#include "device/gpu_fixture.h"
#include "heap/heap.h"
#include "stream/stream.h"

namespace nbx {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;

class GpuPages : public GpuTest {
 protected:
  PageHandle new_page(std::uint64_t bytes) const {
    PageHandle page = 0;
    EXPECT_EQ(table().page_create(ordinal(), bytes, &page), kSuccess);
    return page;
  }
  DeviceAddress reserve(std::uint64_t bytes) const {
    DeviceAddress base = 0;
    EXPECT_EQ(table().range_reserve(ordinal(), bytes, &base), kSuccess);
    return base;
  }
  void map(DeviceAddress address, std::uint64_t bytes, PageHandle page) const {
    EXPECT_EQ(table().page_map(ordinal(), address, bytes, page), kSuccess);
  }
};

TEST_P(GpuPages, AreMappedInSpansOfSeveral) {
  const DeviceAddress base = reserve(8 * kPage);
  const PageHandle small = new_page(kPage);
  const PageHandle large = new_page(3 * kPage);
  EXPECT_EQ(stub_->used(ordinal()), used_ + 4 * kPage);
  map(base, kPage, small);
  map(base + kPage, 3 * kPage, large);
  EXPECT_EQ(table().page_access(ordinal(), base, 5 * kPage), kInvalidValue) << "a hole at the end";
  ASSERT_EQ(table().page_access(ordinal(), base, 4 * kPage), kSuccess);
  fill(base, 5, 4 * kPage / 4, 0);
  EXPECT_EQ(word_at(base + 4 * kPage - 4, 0), 5u);
  EXPECT_EQ(table().page_unmap(ordinal(), base, 2 * kPage), kInvalidValue) << "a part of a page";
  EXPECT_EQ(table().page_unmap(ordinal(), base + kPage, kPage), kInvalidValue);
  ASSERT_EQ(table().page_unmap(ordinal(), base, 4 * kPage), kSuccess);
  EXPECT_EQ(table().page_unmap(ordinal(), base, 4 * kPage), kInvalidValue);

  map(base + 4 * kPage, kPage, small);  // elsewhere, with what it held
  ASSERT_EQ(table().page_access(ordinal(), base + 4 * kPage, kPage), kSuccess);
  EXPECT_EQ(word_at(base + 4 * kPage, 0), 5u);
  ASSERT_EQ(table().page_release(ordinal(), small), kSuccess);
  EXPECT_EQ(stub_->used(ordinal()), used_ + 4 * kPage) << "mapped pages stay";
  ASSERT_EQ(table().page_unmap(ordinal(), base + 4 * kPage, kPage), kSuccess);
  ASSERT_EQ(table().page_release(ordinal(), large), kSuccess);
  EXPECT_EQ(table().page_release(ordinal(), large), kInvalidValue);
  ASSERT_EQ(table().range_release(ordinal(), base, 8 * kPage), kSuccess);
}

TEST_P(GpuPages, FailuresPassThrough) {
  const DeviceAddress base = reserve(2 * kPage);
  const PageHandle page = new_page(kPage);
  stub_->fail(symbol("cuMemMap", "hipMemMap"), 1, 999);
  EXPECT_EQ(table().page_map(ordinal(), base, kPage, page), 999);
  EXPECT_EQ(table().page_access(ordinal(), base, kPage), kInvalidValue) << "nothing is mapped";
  map(base, kPage, page);
  stub_->fail(symbol("cuMemSetAccess", "hipMemSetAccess"), 1, 999);
  EXPECT_EQ(table().page_access(ordinal(), base, kPage), 999);
  stub_->fail(symbol("cuMemUnmap", "hipMemUnmap"), 1, 999);
  EXPECT_EQ(table().page_unmap(ordinal(), base, kPage), 999);
  ASSERT_EQ(table().page_access(ordinal(), base, kPage), kSuccess) << "still mapped";
  ASSERT_EQ(table().page_unmap(ordinal(), base, kPage), kSuccess);
  ASSERT_EQ(table().page_release(ordinal(), page), kSuccess);
  ASSERT_EQ(table().range_release(ordinal(), base, 2 * kPage), kSuccess);
}

TEST_P(GpuPages, PeersReachWhatWasMappedBeforeAndAfter) {
  bool supported = false;
  ASSERT_EQ(table().peer_supported(other(), ordinal(), &supported), kSuccess);
  ASSERT_TRUE(supported);
  ASSERT_EQ(table().peer_supported(ordinal(), ordinal(), &supported), kSuccess);
  EXPECT_FALSE(supported);
  EXPECT_EQ(table().peer_enable(ordinal(), ordinal()), kInvalidDevice);
  EXPECT_EQ(table().peer_enable(ordinal(), 77), kInvalidDevice);

  const DeviceAddress base = reserve(2 * kPage);
  const PageHandle before = new_page(kPage);
  const PageHandle after = new_page(kPage);
  map(base, kPage, before);
  ASSERT_EQ(table().page_access(ordinal(), base, kPage), kSuccess);
  ASSERT_EQ(table().peer_enable(other(), ordinal()), kSuccess);
  ASSERT_EQ(table().peer_enable(other(), ordinal()), kSuccess) << "twice is no error";
  EXPECT_EQ(table().last_error(other()), kSuccess);
  map(base + kPage, kPage, after);
  ASSERT_EQ(table().page_access(ordinal(), base + kPage, kPage), kSuccess);
  // Work of the other device on both.
  ASSERT_EQ(table().fill(other(), base, 8, 4, 2 * kPage / 4, 0), kSuccess);
  ASSERT_EQ(table().synchronize(other()), kSuccess);
  EXPECT_EQ(word_at(base + 2 * kPage - 4, 0), 8u);
  ASSERT_EQ(table().page_unmap(ordinal(), base, 2 * kPage), kSuccess);
  ASSERT_EQ(table().page_release(ordinal(), before), kSuccess);
  ASSERT_EQ(table().page_release(ordinal(), after), kSuccess);
  ASSERT_EQ(table().range_release(ordinal(), base, 2 * kPage), kSuccess);
}

TEST_P(GpuPages, CopiesBetweenDevices) {
  const DeviceAddress here = allocate(400);
  DeviceAddress there = 0;
  ASSERT_EQ(table().allocate(other(), 400, &there), kSuccess);
  ASSERT_EQ(table().fill(other(), there, 21, 4, 100, 0), kSuccess);
  ASSERT_EQ(table().synchronize(other()), kSuccess);
  ASSERT_EQ(table().copy_peer(ordinal(), here, other(), there, 400, 0), kSuccess);
  EXPECT_EQ(word_at(here + 396, 0), 21u);
  EXPECT_EQ(table().copy_peer(ordinal(), here, 77, there, 400, 0), kInvalidDevice);
  ASSERT_EQ(table().free(other(), there), kSuccess);
  free(here);
}

TEST_P(GpuPages, HostMemoryIsRegisteredOnce) {
  const auto deleter = [](void* memory) { std::free(memory); };
  const std::unique_ptr<void, decltype(deleter)> memory(std::aligned_alloc(4096, 5 * 4096),
                                                        deleter);
  auto* const bytes = static_cast<char*>(memory.get());
  DeviceAddress address = 0;
  EXPECT_EQ(table().map_host(ordinal(), bytes + 1, 4096, &address), kInvalidValue);
  ASSERT_EQ(table().map_host(ordinal(), bytes + 4096, 2 * 4096, &address), kSuccess);
  EXPECT_EQ(address, of(bytes + 4096));
  EXPECT_EQ(table().map_host(ordinal(), bytes + 4096, 2 * 4096, &address), 712);
  EXPECT_EQ(table().map_host(ordinal(), bytes, 2 * 4096, &address), 712) << "they overlap";
  EXPECT_EQ(table().map_host(ordinal(), bytes + 2 * 4096, 4096, &address), 712);
  DeviceAddress found = 0;
  ASSERT_EQ(table().device_address(ordinal(), bytes + 5000, &found), kSuccess);
  EXPECT_EQ(found, of(bytes + 5000));
  ASSERT_EQ(table().unmap_host(ordinal(), bytes + 4096), kSuccess);
  EXPECT_EQ(table().unmap_host(ordinal(), bytes + 4096), kInvalidValue);
  EXPECT_NE(table().device_address(ordinal(), bytes + 5000, &found), kSuccess);
}

TEST_P(GpuPages, MemoryIsExportedAndOpened) {
  const DeviceAddress address = allocate(400);
  IpcHandle handle{};
  ASSERT_EQ(table().ipc_export(ordinal(), address, &handle), kSuccess);
  EXPECT_EQ(table().ipc_export(ordinal(), address + 4, &handle), kInvalidValue);
  DeviceAddress opened = 0;
  ASSERT_EQ(table().ipc_open(ordinal(), &handle, &opened), kSuccess);
  EXPECT_EQ(opened, address);
  EXPECT_EQ(table().ipc_close(ordinal(), opened), kSuccess);
  ResolvedAddress resolved{};
  ASSERT_EQ(table().resolve(ordinal(), address + 100, &resolved), kSuccess);
  EXPECT_EQ(resolved.object, address);
  EXPECT_EQ(resolved.offset, 100u);
  free(address);
}

TEST_P(GpuPages, AHeapLivesOnThem) {
  Account root("root", nullptr);
  Stream& stream = default_stream(*device_);
  Heap heap(*device_, &root.tree_lock());
  std::vector<Block> blocks;
  for (std::uint32_t i = 1; i <= 200; ++i) {
    blocks.push_back(heap.allocate(i * 10'000, 64, stream, root, Lifetime::kSteady));
    fill(blocks.back().address, i, i * 2'500, 0);
  }
  EXPECT_GE(stub_->used(ordinal()), used_ + 200'000'000);
  for (std::uint32_t i = 1; i <= 200; ++i) {
    const DeviceAddress address = blocks[i - 1].address;
    EXPECT_EQ(word_at(address, 0), i);
    EXPECT_EQ(word_at(address + i * 10'000 - 4, 0), i);
    heap.free(blocks[i - 1], i * 10'000, root, stream.id(), stream.submitted());
  }
  heap.trim(0);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuPages);
INSTANTIATE_TEST_SUITE_P(Devices, GpuPages, testing::ValuesIn(driver_devices()), device_test_name);

}  // namespace
}  // namespace nbx
