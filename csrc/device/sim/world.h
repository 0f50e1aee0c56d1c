// The state of all simulated devices, under one lock.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "device/host_status.h"
#include "device/sim/sim.h"

namespace nbx::sim {

class World;
struct Graph;
using Lock = std::unique_lock<std::mutex>;

/// A piece of queued work. Runs under the world's lock, except where it gives the lock up.
class Action {
 public:
  Action() = default;
  Action(const Action&) = delete;
  Action& operator=(const Action&) = delete;
  virtual ~Action() = default;
  virtual void run(World& world, Lock& lock) = 0;
  [[nodiscard]] virtual bool is_kernel() const noexcept { return false; }
};

struct SimStream;

/// A place in the order of a stream.
struct Mark {
  std::shared_ptr<SimStream> stream;
  Ticket ticket = 0;
  double finish = 0.0;
};

struct Work {
  std::shared_ptr<Action> action;  // null: only waits
  std::vector<Mark> waits;
  Ticket ticket = 0;
  double finish = 0.0;
};

struct SimStream {
  std::int32_t ordinal = 0;
  StreamHandle handle = 0;
  std::deque<Work> queue;
  Ticket submitted = 0;
  Ticket completed = 0;
  double end = 0.0;  // when the last submitted work is done
  double completed_at = 0.0;
  bool busy = false;  // some thread runs its head
  std::shared_ptr<Graph> capture;
  NodeHandle newest = 0;  // of the capture's nodes; 0 where what follows has none or several before
};

struct SimEvent {
  bool timing = false;
  bool recorded = false;
  Mark mark;
  std::weak_ptr<Graph> graph;  // recorded while captured
  bool in_capture = false;
};

struct Node {
  NodeHandle handle = 0;
  std::shared_ptr<Action> action;  // null without backing
};
using Nodes = std::vector<Node>;

/// A sequence in the order of submission, captured or built.
struct Graph {
  std::int32_t ordinal = 0;
  std::shared_ptr<SimStream> origin;
  std::vector<std::shared_ptr<SimStream>> streams;
  std::shared_ptr<Nodes> nodes = std::make_shared<Nodes>();  // launched ones are replaced whole
  double seconds = 0.0;
  bool finished = false;
  Mark last_launch;  // launches of one graph run one after the other
};

/// A function under a name, shared by what was loaded of it.
struct Registration {
  std::string name;
  KernelFunction function = nullptr;  // null when it is registered no more
  void* context = nullptr;
  std::vector<std::uint32_t> argument_bytes;
  std::uint32_t running = 0;
};

struct Module {
  std::int32_t ordinal = 0;
  std::shared_ptr<Registration> registration;
};

struct Kernel {
  std::int32_t ordinal = 0;
  ModuleHandle module = 0;
  std::uint32_t dynamic_shared_bytes = 0;
  std::shared_ptr<Registration> registration;
};

struct Page {
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  // in the device's page file
  bool released = false;     // by its owner; the memory goes when nothing maps it
  std::uint32_t mappings = 0;
};

struct Mapping {
  std::uint64_t bytes = 0;
  PageHandle page = 0;
  bool accessible = false;
};

struct Allocation {
  std::uint64_t bytes = 0;    // what the caller asked for
  std::uint64_t charged = 0;  // what it takes from the device
  DeviceAddress base = 0;     // of the host mapping
  std::uint64_t mapped = 0;   // bytes of the host mapping
};

struct ArmedFault {
  Fault fault;
  std::uint64_t seen = 0;
};

struct SimDevice {
  std::uint64_t total = 0;
  std::uint64_t pressure = 0;
  std::uint64_t used = 0;
  std::uint64_t peak = 0;
  Backing backing = Backing::kReal;
  Status sticky = kSuccess;
  DeviceAddress next_address = 0;  // without backing
  int page_file = -1;
  std::uint64_t page_file_bytes = 0;
  std::multimap<std::uint64_t, std::uint64_t> free_extents;  // bytes -> offset in the page file
  std::map<DeviceAddress, Allocation> allocations;
  std::map<DeviceAddress, std::uint64_t> ranges;
  std::map<DeviceAddress, Mapping> mappings;
  std::map<PageHandle, Page> pages;
  std::map<DeviceAddress, std::uint64_t> host_owned;   // host_allocate
  std::map<DeviceAddress, std::uint64_t> host_mapped;  // map_host
  std::set<std::int32_t> peers;
  std::map<StreamHandle, std::shared_ptr<SimStream>> streams;
  std::vector<std::shared_ptr<SimStream>> closing;  // destroyed with work left
  std::array<std::uint64_t, kPrimitiveCount> calls{};
  std::vector<ArmedFault> faults;
};

class World {
 public:
  World();

  std::mutex mutex;
  std::condition_variable changed;  // some work is complete
  double now = 0.0;
  std::vector<SimDevice> devices;
  std::map<EventHandle, SimEvent> events;
  std::map<GraphHandle, std::shared_ptr<Graph>> graphs;
  std::map<std::string, std::shared_ptr<Registration>> registrations;
  std::map<ModuleHandle, Module> modules;
  std::map<KernelHandle, Kernel> kernels;
  std::uint64_t next_handle = 1;
  std::uint32_t generation;  // of forks, when made

  /// Null if the handle names no stream of the device.
  [[nodiscard]] std::shared_ptr<SimStream> stream(std::int32_t ordinal, StreamHandle handle);
  Status submit(const std::shared_ptr<SimStream>& stream, std::shared_ptr<Action> action,
                double seconds, std::vector<Mark> waits = {});
  /// Runs what stands before `ticket` and waits for what other threads run.
  Status drain(Lock& lock, const std::shared_ptr<SimStream>& stream, Ticket ticket);
  /// Runs what is due by the virtual clock; stops where it would have to wait for a thread.
  void poll(Lock& lock, const std::shared_ptr<SimStream>& stream, double due);
  Status drain_device(Lock& lock, std::int32_t ordinal);

  [[nodiscard]] SimDevice& device(std::int32_t ordinal) {
    return devices[static_cast<std::size_t>(ordinal)];
  }
  /// True if the device may use every byte of the span.
  [[nodiscard]] bool addressable(std::int32_t ordinal, DeviceAddress address, std::uint64_t bytes);
  [[nodiscard]] bool pinned(DeviceAddress address, std::uint64_t bytes);

 private:
  [[nodiscard]] std::shared_ptr<SimStream> runnable(std::shared_ptr<SimStream> stream) const;
  void run_head(Lock& lock, SimStream& stream);
};

/// Never destroyed: devices outlive static objects.
World& world();

/// Every entry point begins with one: it takes the lock, counts the call, lets its cost pass on the
/// virtual clock and applies the fault plan.
class Entry {
 public:
  Entry(std::int32_t ordinal, Primitive primitive, double cost);
  [[nodiscard]] World& world() const noexcept { return *world_; }
  [[nodiscard]] SimDevice& device() const { return world_->device(ordinal_); }
  [[nodiscard]] Lock& lock() noexcept { return lock_; }

  Status status = kSuccess;
  std::uint32_t misalignment = 0;

 private:
  World* world_;
  std::int32_t ordinal_;
  Lock lock_;
};

/// Makes the work of a launch; refuses a kernel, geometry or arguments that do not suit each other.
Status make_launch(World& world, std::int32_t ordinal, KernelHandle kernel,
                   const LaunchGeometry& geometry, void* const* arguments, std::size_t count,
                   std::shared_ptr<Action>* action);

/// True on a thread that runs host work of a simulated stream.
[[nodiscard]] bool inside_work() noexcept;

// ---- costs in seconds, as measured on an H200 (per handle where they are)
// ------------------------
inline constexpr double kTrivialCost = 0.05e-6;
inline constexpr double kAllocateCost = 60e-6;
inline constexpr double kFreeCost = 31e-6;
inline constexpr double kReserveCost = 35e-6;
inline constexpr double kPageCreateCost = 14e-6;
inline constexpr double kPageMapCost = 1.3e-6;
inline constexpr double kPageAccessCost = 38e-6;
inline constexpr double kPageUnmapCost = 23e-6;
// 14 us for 2 MiB, 308 us for 512 MiB.
inline constexpr double kPageReleaseByteCost = 294e-6 / (510.0 * 1048576.0);
inline constexpr double kPageReleaseCost = 14e-6 - 2.0 * 1048576.0 * kPageReleaseByteCost;
inline constexpr double kPinByteCost = 179e-3 / (256.0 * 1048576.0);
inline constexpr double kRecordCost = 0.24e-6;
inline constexpr double kWaitCost = 0.24e-6;
inline constexpr double kQueryCost = 1.5e-6;
inline constexpr double kLaunchCost = 4.2e-6;
inline constexpr double kKernelSeconds = 2e-6;  // that a kernel runs, whatever it does
inline constexpr double kGraphLaunchCost = 2.7e-6;
inline constexpr double kPinnedRate = 55e9;
inline constexpr double kPageableRate = 7.9e9;
inline constexpr double kDeviceRate = 2.1e12;
inline constexpr double kPeerRate = 200e9;

inline constexpr std::uint64_t kGranule = std::uint64_t{2} << 20;
inline constexpr std::uint64_t kBaseAlignment = 256;

[[nodiscard]] inline std::byte* pointer_to(DeviceAddress address) noexcept {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}
[[nodiscard]] inline DeviceAddress address_of(const void* pointer) noexcept {
  return static_cast<DeviceAddress>(reinterpret_cast<std::uintptr_t>(pointer));
}

// ---- entries of the table, by file
// -----------------------------------------------------------------
void set_memory_entries(Primitives* table);
void set_page_entries(Primitives* table);
void set_queue_entries(Primitives* table);
void set_work_entries(Primitives* table);
void set_kernel_entries(Primitives* table);
void set_graph_entries(Primitives* table);

}  // namespace nbx::sim
