#include "heap/uses.h"

namespace nbx {

Ticket completed_ticket(Device& device, StreamHandle stream, Ticket newest) {
  const Primitives& primitives = device.primitives();
  Ticket ticket = 0;
  if (primitives.completed_ticket(device.ordinal(), stream, &ticket) == kSuccess) return ticket;
  device.check(primitives.synchronize(device.ordinal()), "synchronize");
  return newest;
}

void wait_for(Device& device, const BlockUse& use) {
  const Primitives& primitives = device.primitives();
  if (primitives.wait_ticket(device.ordinal(), use.stream, use.ticket) == kSuccess) return;
  device.check(primitives.synchronize(device.ordinal()), "synchronize");
}

}  // namespace nbx
