// A CUDA driver whose calls return at once: what is left of a launch's time is this library's.
#include <cstdlib>
#include <cstring>

#include "device/cuda/abi.h"

using namespace nbx::cuda;

namespace {

template <class Signature>
struct Idle;
template <class Result, class... Arguments>
struct Idle<Result(Arguments...)> {
  static Result call(Arguments... /*arguments*/) { return Result{}; }
};

int one_device(int* count) {
  *count = 1;
  return 0;
}
int version(int* value) {
  *value = 13000;
  return 0;
}
int attribute(int* value, int id, int /*device*/) {
  // Compute capability 9.0; no virtual memory, so that memory comes in segments.
  *value = id == 75 ? 9 : id == 76 || id == 102 ? 0 : id == 97 ? 232448 : 1024;
  return 0;
}
int name(char* text, int size, int /*device*/) {
  std::strncpy(text, "idle", static_cast<std::size_t>(size));
  return 0;
}
int total(std::size_t* bytes, int /*device*/) {
  *bytes = std::size_t{8} << 30;
  return 0;
}
int memory_info(std::size_t* free_bytes, std::size_t* total_bytes) {
  *free_bytes = *total_bytes = std::size_t{8} << 30;
  return 0;
}
int context(Handle* handle) {
  static int place;
  *handle = reinterpret_cast<Handle>(&place);
  return 0;
}
int retain(Handle* handle, int /*device*/) { return context(handle); }
int library(Handle* handle, const void* /*image*/, void* /*options*/, void** /*values*/,
            unsigned /*count*/, void* /*more*/, void** /*more_values*/, unsigned /*more_count*/) {
  return context(handle);
}
int kernel(Handle* handle, Handle /*library*/, const char* /*name*/) { return context(handle); }
int function(Handle* handle, Handle /*kernel*/) { return context(handle); }
int allocate(Pointer* pointer, std::size_t bytes) {
  *pointer = reinterpret_cast<Pointer>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
  return 0;
}
int stream(Handle* handle, unsigned /*flags*/, int /*priority*/) {
  static char places[64];
  static int next = 0;
  *handle = &places[next++ % 64];
  return 0;
}
int end_capture(Handle /*stream*/, Handle* graph) { return context(graph); }
int instantiate(Handle* executable, Handle /*graph*/, unsigned long long /*flags*/) {
  return context(executable);
}
int capture_info(Handle /*stream*/, int* state, unsigned long long* id, Handle* graph,
                 const Handle** nodes, const void** edges, std::size_t* count) {
  static Handle node;
  *state = 1;
  *id = 1;
  *edges = nullptr;
  *nodes = &node;
  *count = 1;
  return context(graph) | context(&node);
}
int text(int /*status*/, const char** words) {
  *words = "idle";
  return 0;
}
int not_capturing(Handle /*stream*/, int* state) {
  *state = 0;
  return 0;
}

void* override_of(const char* wanted) {
  struct Row {
    const char* name;
    void* function;
  };
  const Row rows[] = {
      {"cuDeviceGetCount", reinterpret_cast<void*>(&one_device)},
      {"cuDriverGetVersion", reinterpret_cast<void*>(&version)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(&attribute)},
      {"cuDeviceGetName", reinterpret_cast<void*>(&name)},
      {"cuDeviceTotalMem", reinterpret_cast<void*>(&total)},
      {"cuMemGetInfo", reinterpret_cast<void*>(&memory_info)},
      {"cuCtxGetCurrent", reinterpret_cast<void*>(&context)},
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(&retain)},
      {"cuLibraryLoadData", reinterpret_cast<void*>(&library)},
      {"cuLibraryGetKernel", reinterpret_cast<void*>(&kernel)},
      {"cuKernelGetFunction", reinterpret_cast<void*>(&function)},
      {"cuMemAlloc", reinterpret_cast<void*>(&allocate)},
      {"cuGetErrorName", reinterpret_cast<void*>(&text)},
      {"cuGetErrorString", reinterpret_cast<void*>(&text)},
      {"cuStreamCreateWithPriority", reinterpret_cast<void*>(&stream)},
      {"cuStreamEndCapture", reinterpret_cast<void*>(&end_capture)},
      {"cuGraphInstantiateWithFlags", reinterpret_cast<void*>(&instantiate)},
      {"cuStreamGetCaptureInfo", reinterpret_cast<void*>(&capture_info)},
      {"cuStreamIsCapturing", reinterpret_cast<void*>(&not_capturing)},
  };
  for (const Row& row : rows) {
    if (std::strcmp(row.name, wanted) == 0) return row.function;
  }
  return nullptr;
}

}  // namespace

extern "C" int cuGetProcAddress_v2(const char* wanted, void** function, int /*version*/,
                                   unsigned long long /*flags*/, int* status) {
  if (status != nullptr) *status = 0;
  *function = override_of(wanted);
  if (*function != nullptr) return 0;
#define IDLE(field, symbol, symbol_version, required, ...)         \
  if (std::strcmp(wanted, #symbol) == 0) {                         \
    *function = reinterpret_cast<void*>(&Idle<__VA_ARGS__>::call); \
    return 0;                                                      \
  }
  NBX_CUDA_FUNCTIONS(IDLE)
#undef IDLE
  return 500;
}
