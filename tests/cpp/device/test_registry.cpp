#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "device/cpu/cpu.h"
#include "device/device.h"

namespace nbx {
namespace {

std::string message_of(ErrorKind kind, void (*call)()) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(Registry, ReportsEveryKindInOrderOfPreference) {
  const auto reports = report_kinds();
  std::vector<std::string> names;
  for (const KindReport& report : reports) {
    names.emplace_back(report.name);
    EXPECT_EQ(report.reason.empty(), report.availability == Availability::kReady) << report.name;
    EXPECT_EQ(report.device_count > 0, report.availability == Availability::kReady) << report.name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"cuda", "hip", "metal", "cpu", "sim"}));
}

TEST(Registry, OneDeviceForEver) {
  EXPECT_EQ(&open_device(DeviceKind::kCpu, 0), &open_device(DeviceKind::kCpu, 0));
  EXPECT_NE(&open_device(DeviceKind::kSim, 0), &open_device(DeviceKind::kSim, 1));
  EXPECT_EQ(open_device(DeviceKind::kCpu, 0).name(), "cpu");
  EXPECT_EQ(open_device(DeviceKind::kSim, 1).name(), "sim:1");
}

TEST(Registry, MissingKindsAreErrorsAndNeverReplaced) {
  for (const KindReport& report : report_kinds()) {
    if (report.availability == Availability::kReady) continue;
    try {
      static_cast<void>(open_device(report.kind, 0));
      FAIL() << report.name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kDevice);
      EXPECT_NE(std::string(error.what()).find(report.reason), std::string::npos);
    }
  }
}

TEST(Registry, OrdinalsOutOfRangeNameTheCount) {
  const auto text =
      message_of(ErrorKind::kDevice, [] { static_cast<void>(open_device(DeviceKind::kSim, 99)); });
  EXPECT_NE(text.find("\"sim:99\""), std::string::npos) << text;
  EXPECT_NE(text.find("2 device(s)"), std::string::npos) << text;
}

TEST(Registry, ParsesNames) {
  EXPECT_EQ(parse_device("cpu").kind, DeviceKind::kCpu);
  EXPECT_EQ(parse_device("cuda:3").ordinal, 3);
  EXPECT_EQ(parse_device("sim").ordinal, 0);
  for (const char* text :
       {"", "gpu", "CPU", "cpu:", "cpu:x", "sim:-1", "sim:1x", "sim:99999999999"}) {
    EXPECT_THROW(static_cast<void>(parse_device(text)), Error) << text;
  }
}

TEST(Registry, AThreadMayHaveItsOwnDefault) {
  Device& sim = open_device(DeviceKind::kSim, 0);
  Device* former = set_thread_default(&sim);
  EXPECT_EQ(&default_device(), &sim);
  EXPECT_EQ(set_thread_default(former), &sim);
}

TEST(Primitives, TheTableAnswersForItself) {
  const Primitives& cpu = open_device(DeviceKind::kCpu, 0).primitives();
  EXPECT_TRUE(supports(cpu, Primitive::k_allocate));
  EXPECT_FALSE(supports(cpu, Primitive::k_module_load));
  EXPECT_TRUE(supports(open_device(DeviceKind::kSim, 0).primitives(), Primitive::k_page_map));
  EXPECT_STREQ(name_of(primitive_named("graph_launch")), "graph_launch");
  EXPECT_THROW(static_cast<void>(primitive_named("nothing")), Error);
}

TEST(Primitives, AMissingOneIsRefusedByName) {
  try {
    open_device(DeviceKind::kCpu, 0).require(Primitive::k_module_load);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("'module_load'"), std::string::npos);
  }
}

TEST(Device, FailedCallsCarryTheirFigures) {
  try {
    open_device(DeviceKind::kSim, 0).check(2, "allocate");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDevice);
    EXPECT_STREQ(error.what(), "sim:0: allocate failed with status 2: the memory does not suffice");
    ASSERT_EQ(error.figures().size(), 3u);
    EXPECT_EQ(std::get<std::int64_t>(error.figures()[2].second), 2);
  }
}

TEST(CpuMemory, StaysWithinTheMachine) {
  const MemoryInfo info = cpu::host_memory();
  EXPECT_GT(info.total_bytes, std::uint64_t{64} << 20);
  EXPECT_LE(info.free_bytes, info.total_bytes);
}

}  // namespace
}  // namespace nbx
