#include "device/probe.h"

#include "core/dynamic_library.h"

namespace nbx {
namespace {

Probe look_for_metal() {
#ifdef __APPLE__
  const DynamicLibrary library{"/System/Library/Frameworks/Metal.framework/Metal"};
  if (!library.loaded()) return {Availability::kLibraryAbsent, 0, library.reason()};
  const auto create = library.function<void* (*)()>("MTLCreateSystemDefaultDevice");
  if (create == nullptr) {
    return {Availability::kLibraryAbsent, 0, "Metal.framework lacks MTLCreateSystemDefaultDevice"};
  }
  if (create() == nullptr) {
    return {Availability::kNoDevice, 0, "MTLCreateSystemDefaultDevice reports no device"};
  }
  return {Availability::kNoDevice, 0,
          "a device is present, but this version of nbxtensor does not drive metal devices yet"};
#else
  return {Availability::kLibraryAbsent, 0, "Metal.framework exists on macOS only"};
#endif
}

}  // namespace

const Probe& probe_metal() {
  static const Probe probe = look_for_metal();
  return probe;
}

}  // namespace nbx
