#include "devices.h"

#include "device/sim/sim.h"

namespace bench {

using namespace nbx;

DeviceMemory& host_memory() { return memory_of(open_device(DeviceKind::kCpu, 0)); }

DeviceMemory& gpu_memory(std::int32_t ordinal) {
  const auto open = [](std::int32_t number) -> Device* {
    sim::set_memory(number, std::uint64_t{1} << 40);
    sim::set_backing(number, sim::Backing::kNone);
    Device& opened = open_device(DeviceKind::kSim, number);
    const HostWork work{[](void*) {}, [](void*) {}, nullptr};
    const StreamHandle stream = default_stream(opened).handle();
    opened.check(opened.primitives().launch_host(number, &work, 1e9, stream), "launch_host");
    return &opened;
  };
  static Device* const devices[] = {open(0), open(1)};
  return memory_of(*devices[ordinal]);
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
