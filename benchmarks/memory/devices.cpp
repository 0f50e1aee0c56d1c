#include "devices.h"

#include "device/sim/sim.h"

namespace bench {

using namespace nbx;

DeviceMemory& host_memory() { return memory_of(open_device(DeviceKind::kCpu, 0)); }

DeviceMemory& gpu_memory() {
  static Device& device = [&]() -> Device& {
    sim::set_memory(0, std::uint64_t{1} << 40);
    sim::set_backing(0, sim::Backing::kNone);
    Device& opened = open_device(DeviceKind::kSim, 0);
    const HostWork work{[](void*) {}, [](void*) {}, nullptr};
    opened.check(opened.primitives().launch_host(0, &work, 1e9, 0), "launch_host");
    return opened;
  }();
  return memory_of(device);
}

Blocks::Blocks(DeviceMemory& memory)
    : memory_(memory),
      stream_(default_stream(memory.device)),
      ticket_(memory.device.properties().integrated_work ? 0 : stream_.submitted()) {}

Blocks::~Blocks() {
  for (const Held& held : held_) give(held.block, held.bytes);
  static_cast<void>(memory_.heap.trim(0));
}

}  // namespace bench
