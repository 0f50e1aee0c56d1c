#include "device/device.h"

#include "core/error.h"

namespace nbx {

std::string Device::name() const {
  std::string text = primitives_.kind_name;
  if (kind() != DeviceKind::kCpu) text += ":" + std::to_string(ordinal_);
  return text;
}

void Device::fail(Status status, const char* call) const {
  Error error(ErrorKind::kDevice, name() + ": " + call + " failed with status " +
                                      std::to_string(status) + ": " +
                                      primitives_.status_text(status));
  error.with("device", name()).with("call", std::string(call));
  throw error.with("status", std::int64_t{status});
}

void Device::require(Primitive primitive) const {
  if (supports(primitives_, primitive)) return;
  throw Error(ErrorKind::kUnsupported,
              name() + ": the primitive '" + name_of(primitive) +
                  "' is not supported by devices of this kind; ask device.supports(\"" +
                  name_of(primitive) + "\") first")
      .with("device", name())
      .with("primitive", std::string(name_of(primitive)));
}

MemoryInfo Device::memory_info() const {
  require(Primitive::k_memory_info);
  MemoryInfo info{};
  check(primitives_.memory_info(ordinal_, &info), "memory_info");
  return info;
}

}  // namespace nbx
