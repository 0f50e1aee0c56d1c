#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#ifdef __APPLE__
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

#include "device/cpu/cpu.h"

namespace nbx::cpu {
namespace {

#ifdef __APPLE__

MemoryInfo machine_memory() {
  std::uint64_t total = 0;
  std::size_t size = sizeof(total);
  if (sysctlbyname("hw.memsize", &total, &size, nullptr, 0) != 0) return {0, 0};
  vm_statistics64_data_t statistics{};
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  if (host_statistics64(mach_host_self(), HOST_VM_INFO64,
                        reinterpret_cast<host_info64_t>(&statistics), &count) != KERN_SUCCESS) {
    return {0, total};
  }
  const std::uint64_t pages =
      std::uint64_t{statistics.free_count} + statistics.inactive_count + statistics.purgeable_count;
  return {std::min(total, pages * static_cast<std::uint64_t>(getpagesize())), total};
}

void apply_group_limits(MemoryInfo*) {}

#else

constexpr std::uint64_t kNone = ~std::uint64_t{0};

MemoryInfo machine_memory() {
  MemoryInfo info{0, 0};
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string key;
    std::uint64_t kibibytes = 0;
    if (!(fields >> key >> kibibytes)) continue;
    if (key == "MemTotal:") info.total_bytes = kibibytes << 10;
    if (key == "MemAvailable:") info.free_bytes = kibibytes << 10;
  }
  return info;
}

/// A number of a file; kNone if it is absent or says "max".
std::uint64_t read_number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? value : kNone;
}

/// Cached file pages that the group gives up before it refuses memory.
std::uint64_t reclaimable(const std::string& path, const char* wanted) {
  std::ifstream file(path);
  std::string key;
  std::uint64_t value = 0;
  while (file >> key >> value) {
    if (key == wanted) return value;
  }
  return 0;
}

struct GroupFiles {
  const char* root;
  const char* limit;
  const char* usage;
  const char* inactive;
};
constexpr GroupFiles kUnified = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
constexpr GroupFiles kLegacy = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                "memory.usage_in_bytes", "total_inactive_file"};

/// Every group from `group` up to the root limits what lies below it.
void apply_groups(const GroupFiles& files, std::string group, MemoryInfo* info) {
  for (;;) {
    const std::string folder = files.root + group + "/";
    const std::uint64_t limit = read_number(folder + files.limit);
    // The legacy interface says "no limit" with a number near 2^63.
    if (limit != kNone && limit < info->total_bytes) {
      std::uint64_t used = read_number(folder + files.usage);
      if (used == kNone) used = 0;
      used -= std::min(used, reclaimable(folder + "memory.stat", files.inactive));
      info->total_bytes = limit;
      info->free_bytes = std::min(info->free_bytes, limit - std::min(limit, used));
    }
    if (group.empty()) return;
    group.erase(group.rfind('/'));
  }
}

void apply_group_limits(MemoryInfo* info) {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string group = line.substr(second + 1);
    if (group == "/" || group.empty() || group.front() != '/') group.clear();
    if (controllers.empty()) apply_groups(kUnified, group, info);
    if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      apply_groups(kLegacy, group, info);
    }
  }
}

#endif

}  // namespace

MemoryInfo host_memory() noexcept {
  try {
    MemoryInfo info = machine_memory();
    apply_group_limits(&info);
    info.free_bytes = std::min(info.free_bytes, info.total_bytes);
    return info;
  } catch (const std::exception&) {
    return {0, 0};  // no memory for a file name: nothing is free
  }
}

}  // namespace nbx::cpu
