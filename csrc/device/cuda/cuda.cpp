#include "device/cuda/cuda.h"

#include <string>

#include "core/dynamic_library.h"
#include "core/environment.h"
#include "device/cuda/api.h"
#include "device/gpu/table.h"

namespace nbx::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";
constexpr unsigned long long kLegacyDefaultStream = 1;

using Find = int (*)(const char* name, void** function, int version, unsigned long long flags,
                     int* status);

template <class Function>
bool find(Find search, const char* name, int version, Function* function) {
  void* found = nullptr;
  int status = 0;
  const int code = search(name, &found, version, kLegacyDefaultStream, &status);
  if (code != 0 || status != 0) found = nullptr;
  *function = reinterpret_cast<Function>(found);
  return found != nullptr;
}

}  // namespace

Probe Api::load() {
  const std::string chosen = environment_text("NBX_CUDA_LIBRARY");
  const DynamicLibrary library{chosen.empty() ? kLibrary : chosen.c_str()};
  if (!library.loaded()) return {Availability::kLibraryAbsent, 0, library.reason()};
  const auto search = library.function<Find>("cuGetProcAddress_v2");
  if (search == nullptr) {
    return {Availability::kNoDevice, 0,
            "libcuda lacks cuGetProcAddress_v2: the driver is older than CUDA 12.0; install a "
            "newer one"};
  }
  std::string missing;
#define NBX_FIND(member, symbol, version, needed, ...) \
  if (!find(search, #symbol, version, &member) && (needed)) missing += " " #symbol;
  NBX_CUDA_FUNCTIONS(NBX_FIND)
#undef NBX_FIND
  if (capture_info_edges == nullptr && capture_info_plain == nullptr) {
    missing += " cuStreamGetCaptureInfo";
  }
  if (!missing.empty()) {
    return {
        Availability::kNoDevice, 0,
        "libcuda lacks" + missing + ": the driver is older than CUDA 12.0; install a newer one"};
  }
  return {Availability::kReady, 0, {}};
}

const Primitives* primitives() {
  static const Primitives table = gpu::make_table<Api>();
  return &table;
}

const Probe& probe() { return gpu::driver<Api>().probe; }

}  // namespace nbx::cuda
