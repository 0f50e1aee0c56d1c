// A driver for tests: every function that the tables of device/cuda and device/hip call, over the
// engine. Built twice: with NBX_STUB_HIP as libamdhip64, without as libcuda.
//
// STUB_DEVICES, STUB_MEMORY (bytes of each device) and STUB_FAIL ("cuMemCreate:3:2": the third call
// gives 2) are read from the environment; tests reach the rest through stub_control.h.
#include "stub/stub_gpu.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

namespace {

using stub::engine;
using stub::Engine;
using stub::Lock;

thread_local int current_device = 0;
thread_local int capture_mode = 0;
thread_local int last_error = 0;

enum class Call {
#define STUB_ENUMERATE(member, ...) k_##member,
  STUB_FUNCTIONS(STUB_ENUMERATE)
#undef STUB_ENUMERATE
      kCount
};

const char* const kNames[] = {
#define STUB_NAME(member, symbol, ...) #symbol,
    STUB_FUNCTIONS(STUB_NAME)
#undef STUB_NAME
};

struct Plan {
  std::uint64_t calls = 0;
  std::uint64_t fail_at = 0;  // counted like `calls`; 0 never
  int code = 0;
};

struct Plans {
  std::mutex mutex;
  Plan plans[static_cast<std::size_t>(Call::kCount)];
  Plans() {
    const char* text = std::getenv("STUB_FAIL");
    char name[64] = {};
    unsigned long long at = 0;
    int code = 0;
    if (text != nullptr && std::sscanf(text, "%63[^:]:%llu:%d", name, &at, &code) == 3) {
      if (Plan* const plan = find(name)) *plan = Plan{0, at, code};
    }
  }
  Plan* find(const char* name) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(Call::kCount); ++i) {
      if (std::strcmp(kNames[i], name) == 0) return &plans[i];
    }
    return nullptr;
  }
};

Plans& plans() {
  static auto* const instance = std::make_unique<Plans>().release();
  return *instance;
}

int done(int code) {
  if (code != 0 && code != stub::kNotReady) last_error = code;
  return code;
}

/// Counts a call and says what it is to fail with.
int planned(Call call) {
  const std::lock_guard<std::mutex> guard(plans().mutex);
  Plan& plan = plans().plans[static_cast<std::size_t>(call)];
  ++plan.calls;
  return plan.calls == plan.fail_at ? done(plan.code) : 0;
}

stub::Device& here() { return *engine().devices[static_cast<std::size_t>(current_device)]; }
bool exists(int device) {
  return device >= 0 && static_cast<std::size_t>(device) < engine().devices.size();
}
std::uintptr_t number(Pointer pointer) { return (std::uintptr_t)pointer; }
Pointer pointer(std::uintptr_t address) { return (Pointer)address; }

/// Work on memory, which must be usable when it runs.
int submit_bytes(Handle handle, std::vector<std::pair<std::uintptr_t, std::size_t>> spans,
                 std::function<void()> work) {
  const Lock lock(engine().mutex);
  stub::Stream* const stream = engine().stream(current_device, handle);
  if (stream == nullptr) return done(stub::kInvalidHandle);
  const int device = current_device;
  return done(engine().submit(stream, [device, spans = std::move(spans), work = std::move(work)] {
    {
      const Lock guard(engine().mutex);
      for (const auto& [address, bytes] : spans) {
        if (engine().usable(device, address, bytes)) continue;
        engine().devices[static_cast<std::size_t>(device)]->sticky = stub::kIllegalAddress;
        return;
      }
    }
    work();
  }));
}

template <class Value>
int fill(Pointer to, Value value, std::size_t count, Handle stream) {
  const std::uintptr_t address = number(to);
  return submit_bytes(stream, {{address, count * sizeof(Value)}}, [address, value, count] {
    std::fill_n(reinterpret_cast<Value*>(address), count, value);
  });
}

/// Pageable host memory is read and written before the call returns.
int copy(std::uintptr_t to, std::uintptr_t from, std::size_t bytes, Handle handle, bool to_device,
         bool from_device) {
  std::vector<std::pair<std::uintptr_t, std::size_t>> spans;
  if (to_device) spans.emplace_back(to, bytes);
  if (from_device) spans.emplace_back(from, bytes);
  std::shared_ptr<std::string> staged;
  Lock lock(engine().mutex);
  stub::Stream* const stream = engine().stream(current_device, handle);
  if (stream == nullptr) return done(stub::kInvalidHandle);
  const bool captured = stream->capture != nullptr;
  if (!from_device && !captured && !engine().usable(current_device, from, bytes)) {
    staged = std::make_shared<std::string>(reinterpret_cast<const char*>(from), bytes);
  }
  const bool waits = !to_device && !captured && !engine().usable(current_device, to, bytes);
  lock.unlock();
  const int code =
      submit_bytes(handle, std::move(spans), [to, from, bytes, staged = std::move(staged)] {
        std::memmove(reinterpret_cast<void*>(to),
                     staged == nullptr ? reinterpret_cast<const void*>(from) : staged->data(),
                     bytes);
      });
  if (code != 0 || !waits) return code;
  lock.lock();
  engine().wait(lock, stream, stream->submitted);
  return done(here().sticky);
}

stub::Launch launch_of(const stub::Kernel& kernel, const unsigned* grid, const unsigned* block,
                       unsigned shared_bytes, void** arguments) {
  stub::Launch launch{
      kernel.name, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared_bytes, {},
      {}};
  for (const std::uint32_t bytes : kernel.argument_bytes) {
    launch.arguments.emplace_back(static_cast<const char*>(*arguments++), bytes);
  }
  return launch;
}

bool launchable(const stub::Kernel& kernel, const stub::Launch& launch) {
  const unsigned threads = launch.block[0] * launch.block[1] * launch.block[2];
  const unsigned blocks = launch.grid[0] * launch.grid[1] * launch.grid[2];
  return threads != 0 && threads <= 1024 && blocks != 0 &&
         launch.shared_bytes <= static_cast<unsigned>(kernel.dynamic_shared);
}

int run(Handle function, stub::Launch launch, Handle handle) {
  const auto& kernel = *static_cast<stub::Kernel*>(function);
  if (!launchable(kernel, launch)) return done(stub::kInvalidValue);
  const Lock lock(engine().mutex);
  stub::Stream* const stream = engine().stream(current_device, handle);
  if (stream == nullptr) return done(stub::kInvalidHandle);
  const auto node = std::make_shared<stub::Node>();
  node->is_kernel = true;
  return done(
      engine().submit(stream, engine().launch_work(current_device, std::move(launch)), node));
}

int parse_module(const char* image, Handle* module) {
  std::unique_ptr<stub::Kernel> kernel = std::make_unique<stub::Kernel>();
  char name[64] = {};
  int read = 0;
  if (std::sscanf(image, "stub %63s %n", name, &read) != 1) return done(stub::kInvalidImage);
  kernel->name = name;
  for (const char* at = image + read; *at != '\0';) {
    char* end = nullptr;
    kernel->argument_bytes.push_back(static_cast<std::uint32_t>(std::strtoul(at, &end, 10)));
    at = *end == ',' ? end + 1 : end;
  }
  const Lock lock(engine().mutex);
  *module = kernel.get();
  engine().modules[*module] = std::move(kernel);
  return 0;
}

int find_kernel(Handle* function, Handle module, const char* name) {
  const Lock lock(engine().mutex);
  const auto found = engine().modules.find(module);
  if (found == engine().modules.end()) return done(stub::kInvalidHandle);
  if (found->second->name != name) return done(stub::kNotFound);
  *function = found->second.get();
  return 0;
}

int unload(Handle module) {
  const Lock lock(engine().mutex);
  // Kept, as kernels may still run.
  return done(engine().modules.count(module) == 1 ? 0 : stub::kInvalidHandle);
}

}  // namespace

#define STUB(member, ...) extern "C" int stub_##member(__VA_ARGS__)
#define PLANNED(member) \
  if (const int planned_code = planned(Call::k_##member)) return planned_code

// ---- devices
// -------------------------------------------------------------------------------------

STUB(init, unsigned) {
  PLANNED(init);
  return engine().devices.empty() ? done(stub::kNoDevice) : 0;
}
STUB(get_version, int* version) {
  PLANNED(get_version);
  *version = STUB_VERSION;
  return 0;
}
STUB(get_count, int* count) {
  PLANNED(get_count);
  *count = static_cast<int>(engine().devices.size());
  return 0;
}
STUB(get_attribute, int* value, int id, int device) {
  PLANNED(get_attribute);
  if (!exists(device)) return done(stub::kInvalidDevice);
  return stub_attribute(id, value) ? 0 : done(stub::kInvalidValue);
}
STUB(get_name, char* name, int bytes, int device) {
  PLANNED(get_name);
  if (!exists(device)) return done(stub::kInvalidDevice);
  std::snprintf(name, static_cast<std::size_t>(bytes), "Stub %d", device);
  return 0;
}
STUB(get_total, std::size_t* bytes, int device) {
  PLANNED(get_total);
  if (!exists(device)) return done(stub::kInvalidDevice);
  *bytes = engine().devices[static_cast<std::size_t>(device)]->total;
  return 0;
}
STUB(synchronize) {
  PLANNED(synchronize);
  Lock lock(engine().mutex);
  for (const stub::Stream* stream : engine().streams) {
    if (stream->capture != nullptr) return done(stub::kNotCapturable);
  }
  engine().wait_all(lock);
  return done(here().sticky);
}
STUB(priority_range, int* least, int* greatest) {
  PLANNED(priority_range);
  *least = 0;
  *greatest = -5;
  return 0;
}
STUB(memory_info, std::size_t* free, std::size_t* total) {
  PLANNED(memory_info);
  const Lock lock(engine().mutex);
  *free = here().total - here().used;
  *total = here().total;
  return done(here().sticky);
}

// ---- memory
// --------------------------------------------------------------------------------------

STUB(allocate, Pointer* result, std::size_t bytes) {
  PLANNED(allocate);
  const Lock lock(engine().mutex);
  std::uintptr_t address = 0;
  const int code = engine().allocate(current_device, bytes, &address);
  if (code == 0) *result = pointer(address);
  return done(code);
}
STUB(free, Pointer memory) {
  PLANNED(free);
  Lock lock(engine().mutex);
  engine().wait_all(lock);
  return done(engine().free(number(memory)));
}
STUB(address_range, Pointer* base, std::size_t* bytes, Pointer within) {
  PLANNED(address_range);
  const Lock lock(engine().mutex);
  const auto& known = here().allocations;
  auto found = known.upper_bound(number(within));
  if (found == known.begin()) return done(stub::kNotFound);
  --found;
  if (number(within) - found->first >= found->second) return done(stub::kNotFound);
  *base = pointer(found->first);
  *bytes = found->second;
  return 0;
}
STUB(host_allocate, void** result, std::size_t bytes, unsigned) {
  PLANNED(host_allocate);
  const Lock lock(engine().mutex);
  void* const made = bytes > (std::size_t{1} << 40) ? nullptr : std::malloc(bytes);
  if (made == nullptr) return done(stub::kOutOfMemory);
  engine().host[reinterpret_cast<std::uintptr_t>(made)] = bytes;
  *result = made;
  return 0;
}
STUB(host_free, void* memory) {
  PLANNED(host_free);
  Lock lock(engine().mutex);
  engine().wait_all(lock);
  if (engine().host.erase(reinterpret_cast<std::uintptr_t>(memory)) == 0) {
    return done(stub::kInvalidValue);
  }
  std::free(memory);
  return 0;
}
STUB(host_register, void* memory, std::size_t bytes, unsigned) {
  PLANNED(host_register);
  const Lock lock(engine().mutex);
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  if (!engine().registered.emplace(address, bytes).second) return done(stub::kHostRegistered);
  return 0;
}
STUB(host_unregister, void* memory) {
  PLANNED(host_unregister);
  const Lock lock(engine().mutex);
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  return engine().registered.erase(address) == 1 ? 0 : done(stub::kInvalidValue);
}
STUB(host_pointer, Pointer* result, void* memory, unsigned) {
  PLANNED(host_pointer);
  const Lock lock(engine().mutex);
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  for (const auto* spans : {&engine().host, &engine().registered}) {
    auto found = spans->upper_bound(address);
    if (found == spans->begin()) continue;
    --found;
    if (address - found->first >= found->second) continue;
    *result = pointer(address);
    return 0;
  }
  return done(stub::kInvalidValue);
}

// ---- pages
// ---------------------------------------------------------------------------------------

STUB(range_reserve, Pointer* base, std::size_t bytes, std::size_t, Pointer, unsigned long long) {
  PLANNED(range_reserve);
  const Lock lock(engine().mutex);
  std::uintptr_t address = 0;
  const int code = engine().reserve(current_device, bytes, &address);
  if (code == 0) *base = pointer(address);
  return done(code);
}
STUB(range_free, Pointer base, std::size_t bytes) {
  PLANNED(range_free);
  const Lock lock(engine().mutex);
  return done(engine().unreserve(number(base), bytes));
}
STUB(page_create, abi::Page* result, std::size_t bytes, const abi::PageProperties* properties,
     unsigned long long) {
  PLANNED(page_create);
  if (properties->type != 1 || properties->location.type != 1) return done(stub::kInvalidValue);
  if (!exists(properties->location.id)) return done(stub::kInvalidDevice);
  const Lock lock(engine().mutex);
  stub::Page* page = nullptr;
  const int code = engine().create(properties->location.id, bytes, &page);
  if (code == 0) *result = (abi::Page)page;
  return done(code);
}
STUB(page_release, abi::Page page) {
  PLANNED(page_release);
  const Lock lock(engine().mutex);
  return done(engine().release((stub::Page*)page));
}
STUB(page_map, Pointer address, std::size_t bytes, std::size_t offset, abi::Page page,
     unsigned long long) {
  PLANNED(page_map);
  if (offset != 0) return done(stub::kInvalidValue);
  const Lock lock(engine().mutex);
  return done(engine().map(number(address), bytes, (stub::Page*)page));
}
STUB(page_unmap, Pointer address, std::size_t bytes) {
  PLANNED(page_unmap);
  const Lock lock(engine().mutex);
  return done(engine().unmap(number(address), bytes));
}
STUB(page_access, Pointer address, std::size_t bytes, const abi::PageAccess* access,
     std::size_t count) {
  PLANNED(page_access);
  std::vector<int> accessors;
  for (std::size_t i = 0; i < count; ++i) {
    if (access[i].location.type != 1 || access[i].flags != 3 || !exists(access[i].location.id)) {
      return done(stub::kInvalidValue);
    }
    accessors.push_back(access[i].location.id);
  }
  const Lock lock(engine().mutex);
  return done(engine().access(number(address), bytes, accessors));
}
STUB(page_granularity, std::size_t* bytes, const abi::PageProperties*, int) {
  PLANNED(page_granularity);
  *bytes = stub::kGranule;
  return 0;
}

// ---- copies and fills
// ----------------------------------------------------------------------------

STUB(copy_to_device, Pointer to, const void* from, std::size_t bytes, Handle stream) {
  PLANNED(copy_to_device);
  return copy(number(to), reinterpret_cast<std::uintptr_t>(from), bytes, stream, true, false);
}
STUB(copy_to_host, void* to, Pointer from, std::size_t bytes, Handle stream) {
  PLANNED(copy_to_host);
  return copy(reinterpret_cast<std::uintptr_t>(to), number(from), bytes, stream, false, true);
}
STUB(copy_on_device, Pointer to, Pointer from, std::size_t bytes, Handle stream) {
  PLANNED(copy_on_device);
  return copy(number(to), number(from), bytes, stream, true, true);
}
STUB(fill8, Pointer to, unsigned char value, std::size_t count, Handle stream) {
  PLANNED(fill8);
  return fill(to, value, count, stream);
}
STUB(fill16, Pointer to, unsigned short value, std::size_t count, Handle stream) {
  PLANNED(fill16);
  return fill(to, value, count, stream);
}
STUB(fill32, Pointer to, Word value, std::size_t count, Handle stream) {
  PLANNED(fill32);
  return fill(to, value, count, stream);
}

// ---- streams and events
// --------------------------------------------------------------------------

STUB(stream_create, Handle* result, unsigned flags, int priority) {
  PLANNED(stream_create);
  const Lock lock(engine().mutex);
  auto made = std::make_unique<stub::Stream>();
  made->device = current_device;
  made->flags = flags;
  made->priority = priority;
  *result = made.get();
  engine().streams.insert(made.release());
  return 0;
}
STUB(stream_synchronize, Handle handle) {
  PLANNED(stream_synchronize);
  Lock lock(engine().mutex);
  stub::Stream* const stream = engine().stream(current_device, handle);
  if (stream == nullptr) return done(stub::kInvalidHandle);
  if (stream->capture != nullptr) return done(stub::kNotCapturable);
  engine().wait(lock, stream, stream->submitted);
  return done(engine().devices[static_cast<std::size_t>(stream->device)]->sticky);
}
STUB(stream_query, Handle handle) {
  PLANNED(stream_query);
  const Lock lock(engine().mutex);
  const stub::Stream* const stream = engine().stream(current_device, handle);
  if (stream == nullptr) return done(stub::kInvalidHandle);
  return done(stream->completed == stream->submitted ? 0 : stub::kNotReady);
}
STUB(stream_wait, Handle handle, Handle event_handle, unsigned) {
  PLANNED(stream_wait);
  const Lock lock(engine().mutex);
  stub::Stream* const stream = engine().stream(current_device, handle);
  auto* const event = static_cast<stub::Event*>(event_handle);
  if (stream == nullptr || engine().events.count(event) == 0) return done(stub::kInvalidHandle);
  if (event->capture != nullptr) {
    if (stream->capture != nullptr && stream->capture != event->capture) {
      return done(stub::kCaptureInvalid);
    }
    if (stream->capture == nullptr) event->capture->streams.push_back(stream);
    stream->capture = event->capture;
    for (void* node : event->newest) {
      if (std::find(stream->newest.begin(), stream->newest.end(), node) == stream->newest.end()) {
        stream->newest.push_back(node);
      }
    }
    return 0;
  }
  if (stream->capture != nullptr) return done(stub::kCaptureInvalid);
  if (event->stream == nullptr) return 0;
  return done(engine().submit(stream, [source = event->stream, mark = event->mark] {
    Lock guard(engine().mutex);
    engine().wait(guard, source, mark);
  }));
}
STUB(event_create, Handle* result, unsigned flags) {
  PLANNED(event_create);
  const Lock lock(engine().mutex);
  auto made = std::make_unique<stub::Event>();
  made->timing = (flags & 2) == 0;
  *result = made.get();
  engine().events.insert(made.release());
  return 0;
}
STUB(event_record, Handle event_handle, Handle handle) {
  PLANNED(event_record);
  const Lock lock(engine().mutex);
  stub::Stream* const stream = engine().stream(current_device, handle);
  auto* const event = static_cast<stub::Event*>(event_handle);
  if (stream == nullptr || engine().events.count(event) == 0) return done(stub::kInvalidHandle);
  event->capture = stream->capture;
  event->newest = stream->newest;
  if (stream->capture != nullptr) return 0;
  const int code = engine().submit(stream, [event] {
    const Lock guard(engine().mutex);
    event->seconds = stub::seconds();
  });
  if (code != 0) return done(code);
  event->stream = stream;
  event->mark = stream->submitted;
  return 0;
}
STUB(event_query, Handle handle) {
  PLANNED(event_query);
  const Lock lock(engine().mutex);
  auto* const event = static_cast<stub::Event*>(handle);
  if (engine().events.count(event) == 0) return done(stub::kInvalidHandle);
  if (here().sticky != 0) return done(here().sticky);
  if (event->capture != nullptr) return done(stub::kCaptureInvalid);
  if (event->stream == nullptr) return 0;
  return done(event->stream->completed >= event->mark ? 0 : stub::kNotReady);
}
STUB(event_synchronize, Handle handle) {
  PLANNED(event_synchronize);
  Lock lock(engine().mutex);
  auto* const event = static_cast<stub::Event*>(handle);
  if (engine().events.count(event) == 0) return done(stub::kInvalidHandle);
  if (event->capture != nullptr) return done(stub::kCaptureInvalid);
  if (event->stream != nullptr) engine().wait(lock, event->stream, event->mark);
  return done(here().sticky);
}
STUB(event_elapsed, float* milliseconds, Handle from, Handle to) {
  PLANNED(event_elapsed);
  const Lock lock(engine().mutex);
  auto* const start = static_cast<stub::Event*>(from);
  auto* const end = static_cast<stub::Event*>(to);
  for (stub::Event* const event : {start, end}) {
    if (engine().events.count(event) == 0 || !event->timing || event->stream == nullptr) {
      return done(stub::kInvalidHandle);
    }
    if (event->stream->completed < event->mark) return done(stub::kNotReady);
  }
  *milliseconds = static_cast<float>((end->seconds - start->seconds) * 1e3);
  return 0;
}
STUB(launch_host, Handle handle, void (*function)(void*), void* payload) {
  PLANNED(launch_host);
  const Lock lock(engine().mutex);
  stub::Stream* const stream = engine().stream(current_device, handle);
  if (stream == nullptr) return done(stub::kInvalidHandle);
  return done(engine().submit(stream, [function, payload] { function(payload); }));
}

// ---- other processes
// -----------------------------------------------------------------------------

STUB(ipc_get, abi::IpcMemory* handle, Pointer memory) {
  PLANNED(ipc_get);
  const Lock lock(engine().mutex);
  if (here().allocations.count(number(memory)) == 0) return done(stub::kInvalidValue);
  const std::uintptr_t address = number(memory);
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle->bytes, &address, sizeof(address));
  return 0;
}
STUB(ipc_map, Pointer* result, abi::IpcMemory handle, unsigned) {
  PLANNED(ipc_map);
  std::uintptr_t address = 0;
  std::memcpy(&address, handle.bytes, sizeof(address));
  if (address == 0) return done(stub::kInvalidValue);
  *result = pointer(address);
  return 0;
}
STUB(ipc_unmap, Pointer memory) {
  PLANNED(ipc_unmap);
  return memory == Pointer{} ? done(stub::kInvalidValue) : 0;
}

// ---- graphs
// --------------------------------------------------------------------------------------

STUB(exchange_capture_mode, int* mode) {
  PLANNED(exchange_capture_mode);
  std::swap(*mode, capture_mode);
  return 0;
}
STUB(capture_begin, Handle handle, int) {
  PLANNED(capture_begin);
  const Lock lock(engine().mutex);
  stub::Stream* const stream = engine().stream(current_device, handle);
  if (stream == nullptr) return done(stub::kInvalidHandle);
  if (stream == &here().default_stream || stream->capture != nullptr) {
    return done(stub::kNotCapturable);
  }
  auto graph = std::make_unique<stub::Graph>();
  graph->origin = stream;
  graph->streams = {stream};
  stream->newest.clear();
  stream->capture = graph.get();
  engine().graphs.insert(graph.release());
  return 0;
}
STUB(capture_end, Handle handle, Handle* result) {
  PLANNED(capture_end);
  const Lock lock(engine().mutex);
  stub::Stream* const stream = engine().stream(current_device, handle);
  if (stream == nullptr) return done(stub::kInvalidHandle);
  stub::Graph* const graph = stream->capture;
  if (graph == nullptr || graph->origin != stream) return done(stub::kCaptureInvalid);
  for (stub::Stream* const joined : graph->streams) joined->capture = nullptr;
  *result = graph;
  return 0;
}
STUB(is_capturing, Handle handle, int* status) {
  PLANNED(is_capturing);
  const Lock lock(engine().mutex);
  const stub::Stream* const stream = engine().stream(current_device, handle);
  if (stream == nullptr) return done(stub::kInvalidHandle);
  *status = stream->capture != nullptr ? 1 : 0;
  return 0;
}
STUB(capture_info_plain, Handle handle, int* status, unsigned long long* id, Handle* graph,
     const Handle** nodes, std::size_t* count) {
  PLANNED(capture_info_plain);
  const Lock lock(engine().mutex);
  stub::Stream* const stream = engine().stream(current_device, handle);
  if (stream == nullptr) return done(stub::kInvalidHandle);
  *status = stream->capture != nullptr ? 1 : 0;
  *id = 1;
  *graph = stream->capture;
  *nodes = stream->newest.data();
  *count = stream->newest.size();
  return 0;
}
STUB(object_create, Handle* result, void* payload, void (*destroy)(void*), unsigned, unsigned) {
  PLANNED(object_create);
  *result = std::make_unique<stub::Object>(destroy, payload).release();
  return 0;
}
STUB(graph_retain, Handle handle, Handle object, unsigned, unsigned) {
  PLANNED(graph_retain);
  const Lock lock(engine().mutex);
  static_cast<stub::Graph*>(handle)->objects.emplace_back(static_cast<stub::Object*>(object));
  return 0;
}
STUB(graph_create, Handle* result, unsigned) {
  PLANNED(graph_create);
  const Lock lock(engine().mutex);
  auto made = std::make_unique<stub::Graph>();
  *result = made.get();
  engine().graphs.insert(made.release());
  return 0;
}
STUB(graph_destroy, Handle handle) {
  PLANNED(graph_destroy);
  auto* const graph = static_cast<stub::Graph*>(handle);
  std::unique_ptr<stub::Graph> gone;  // after the lock: objects call back
  const Lock lock(engine().mutex);
  if (engine().graphs.erase(graph) == 0) return done(stub::kInvalidHandle);
  gone.reset(graph);
  return 0;
}
STUB(graph_add_kernel, Handle* result, Handle handle, const Handle* dependencies, std::size_t count,
     const abi::KernelNode* parameters) {
  PLANNED(graph_add_kernel);
  const auto& kernel = *static_cast<const stub::Kernel*>(parameters->function);
  const stub::Launch launch = launch_of(kernel, grid_of(*parameters), block_of(*parameters),
                                        parameters->shared_bytes, parameters->arguments);
  if (!launchable(kernel, launch)) return done(stub::kInvalidValue);
  const Lock lock(engine().mutex);
  auto* const graph = static_cast<stub::Graph*>(handle);
  for (std::size_t i = 0; i < count; ++i) {
    if (graph->find(dependencies[i]) == nullptr) return done(stub::kInvalidValue);
  }
  auto node = std::make_shared<stub::Node>();
  node->is_kernel = true;
  node->dependencies.assign(dependencies, dependencies + count);
  node->run = engine().launch_work(current_device, launch);
  *result = node.get();
  graph->nodes.push_back(std::move(node));
  return 0;
}
STUB(graph_instantiate, Handle* result, Handle handle, unsigned long long) {
  PLANNED(graph_instantiate);
  const Lock lock(engine().mutex);
  const auto* const graph = static_cast<stub::Graph*>(handle);
  auto made = std::make_unique<stub::Executable>();
  made->originals = graph->nodes;
  made->objects = graph->objects;
  for (const auto& node : graph->nodes) made->steps.push_back(node->run);
  *result = made.get();
  engine().executables.insert(made.release());
  return 0;
}
STUB(graph_set_kernel, Handle handle, Handle node, const abi::KernelNode* parameters) {
  PLANNED(graph_set_kernel);
  const auto& kernel = *static_cast<const stub::Kernel*>(parameters->function);
  const stub::Launch launch = launch_of(kernel, grid_of(*parameters), block_of(*parameters),
                                        parameters->shared_bytes, parameters->arguments);
  if (!launchable(kernel, launch)) return done(stub::kInvalidValue);
  const Lock lock(engine().mutex);
  auto& executable = *static_cast<stub::Executable*>(handle);
  for (std::size_t i = 0; i < executable.originals.size(); ++i) {
    if (executable.originals[i].get() != node) continue;
    if (!executable.originals[i]->is_kernel) return done(stub::kInvalidValue);
    executable.steps[i] = engine().launch_work(current_device, launch);
    return 0;
  }
  return done(stub::kInvalidValue);
}
STUB(graph_launch, Handle handle, Handle stream_handle) {
  PLANNED(graph_launch);
  const Lock lock(engine().mutex);
  auto* const executable = static_cast<stub::Executable*>(handle);
  stub::Stream* const stream = engine().stream(current_device, stream_handle);
  if (engine().executables.count(executable) == 0 || stream == nullptr) {
    return done(stub::kInvalidHandle);
  }
  return done(engine().submit(stream, [steps = executable->steps, objects = executable->objects] {
    for (const auto& step : steps) step();
  }));
}
STUB(exec_destroy, Handle handle) {
  PLANNED(exec_destroy);
  auto* const executable = static_cast<stub::Executable*>(handle);
  std::unique_ptr<stub::Executable> gone;  // after the lock: objects call back
  const Lock lock(engine().mutex);
  if (engine().executables.erase(executable) == 0) return done(stub::kInvalidHandle);
  gone.reset(executable);
  return 0;
}

#ifdef NBX_STUB_HIP
#include "stub/stub_hip.inc"
#else
#include "stub/stub_cuda.inc"
#endif

// ---- what tests ask and tell
// ----------------------------------------------------------------------

extern "C" {

std::uint64_t stub_calls(const char* symbol) {
  const std::lock_guard<std::mutex> guard(plans().mutex);
  const Plan* const plan = plans().find(symbol);
  return plan == nullptr ? 0 : plan->calls;
}
void stub_fail(const char* symbol, std::uint64_t call, int code) {
  const std::lock_guard<std::mutex> guard(plans().mutex);
  if (Plan* const plan = plans().find(symbol)) {
    plan->fail_at = plan->calls + call;
    plan->code = code;
  }
}
void stub_function(const char* name, stub::KernelFunction function) {
  const Lock lock(engine().mutex);
  engine().functions[name] = function;
}
std::uint64_t stub_launches() {
  const Lock lock(engine().mutex);
  return engine().launches.size();
}
/// Of the newest launch: grid, block, shared bytes.
void stub_geometry(unsigned* seven) {
  const Lock lock(engine().mutex);
  const stub::Launch& launch = engine().launches.back();
  for (int i = 0; i < 3; ++i) seven[i] = launch.grid[i];
  for (int i = 0; i < 3; ++i) seven[3 + i] = launch.block[i];
  seven[6] = launch.shared_bytes;
}
/// The first word of an attribute of the newest launch; -1 if it was not asked for.
int stub_attribute_of_launch(int id) {
  const Lock lock(engine().mutex);
  const auto& attributes = engine().launches.back().attributes;
  const auto found = attributes.find(id);
  int value = -1;
  if (found != attributes.end()) std::memcpy(&value, found->second.data(), sizeof(value));
  return value;
}
/// Bytes that the device holds.
std::uint64_t stub_used(int device) {
  const Lock lock(engine().mutex);
  return engine().devices[static_cast<std::size_t>(device)]->used;
}
void stub_break(int device, int code) {
  const Lock lock(engine().mutex);
  engine().devices[static_cast<std::size_t>(device)]->sticky = code;
}

}  // extern "C"
