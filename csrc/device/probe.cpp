#include "device/probe.h"

#include "core/dynamic_library.h"

namespace nbx {
namespace {

Probe absent(const std::string& reason) { return {Availability::kLibraryAbsent, 0, reason}; }
Probe no_device(const std::string& reason) { return {Availability::kNoDevice, 0, reason}; }

std::string failed(const char* call, int status) {
  return std::string(call) + " failed with status " + std::to_string(status);
}

Probe counted(int count, const char* kind, const char* call) {
  if (count == 0) return no_device(std::string(call) + " reports no device");
  return no_device(std::to_string(count) +
                   " device(s) present, but this version of nbxtensor does "
                   "not drive " +
                   kind + " devices yet");
}

Probe look_for_cuda() {
  const DynamicLibrary library{"libcuda.so.1"};
  if (!library.loaded()) return absent(library.reason());
  const auto init = library.function<int (*)(unsigned)>("cuInit");
  const auto count_devices = library.function<int (*)(int*)>("cuDeviceGetCount");
  if (init == nullptr || count_devices == nullptr) {
    return absent("libcuda.so.1 lacks cuInit or cuDeviceGetCount");
  }
  if (const int status = init(0); status != 0) return no_device(failed("cuInit", status));
  int count = 0;
  if (const int status = count_devices(&count); status != 0) {
    return no_device(failed("cuDeviceGetCount", status));
  }
  return counted(count, "cuda", "cuDeviceGetCount");
}

Probe look_for_hip() {
  const DynamicLibrary library{"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"};
  if (!library.loaded()) return absent(library.reason());
  const auto init = library.function<int (*)(unsigned)>("hipInit");
  const auto count_devices = library.function<int (*)(int*)>("hipGetDeviceCount");
  if (init == nullptr || count_devices == nullptr) {
    return absent("libamdhip64.so lacks hipInit or hipGetDeviceCount");
  }
  if (const int status = init(0); status != 0) return no_device(failed("hipInit", status));
  int count = 0;
  if (const int status = count_devices(&count); status != 0) {
    return no_device(failed("hipGetDeviceCount", status));
  }
  return counted(count, "hip", "hipGetDeviceCount");
}

Probe look_for_metal() {
#ifdef __APPLE__
  const DynamicLibrary library{"/System/Library/Frameworks/Metal.framework/Metal"};
  if (!library.loaded()) return absent(library.reason());
  const auto create = library.function<void* (*)()>("MTLCreateSystemDefaultDevice");
  if (create == nullptr) return absent("Metal.framework lacks MTLCreateSystemDefaultDevice");
  return counted(create() == nullptr ? 0 : 1, "metal", "MTLCreateSystemDefaultDevice");
#else
  return absent("Metal.framework exists on macOS only");
#endif
}

}  // namespace

const Probe& probe_cuda() {
  static const Probe probe = look_for_cuda();
  return probe;
}

const Probe& probe_hip() {
  static const Probe probe = look_for_hip();
  return probe;
}

const Probe& probe_metal() {
  static const Probe probe = look_for_metal();
  return probe;
}

}  // namespace nbx
