#include "stub/engine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

namespace stub {
namespace {

std::uint64_t number(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

bool inside(const std::map<std::uintptr_t, std::uint64_t>& spans, std::uintptr_t address,
            std::uint64_t bytes) {
  auto after = spans.upper_bound(address);
  if (after == spans.begin()) return false;
  --after;
  return address - after->first + bytes <= after->second;
}

}  // namespace

double seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::shared_ptr<Node> Graph::find(const void* node) const {
  for (const auto& known : nodes) {
    if (known.get() == node) return known;
  }
  return nullptr;
}

Engine::Engine() {
  for (std::uint64_t i = 0; i < number("STUB_DEVICES", 2); ++i) {
    devices.push_back(std::make_unique<Device>());
    devices.back()->total = number("STUB_MEMORY", std::uint64_t{1} << 30);
    devices.back()->default_stream.device = static_cast<int>(i);
  }
}

Engine& engine() {
  static auto* const instance = std::make_unique<Engine>().release();
  return *instance;
}

// ---- memory
// --------------------------------------------------------------------------------------

int Engine::allocate(int ordinal, std::uint64_t bytes, std::uintptr_t* address) {
  Device& device = *devices[static_cast<std::size_t>(ordinal)];
  if (bytes == 0) return kInvalidValue;
  if (device.sticky != kFine) return device.sticky;
  if (bytes > device.total - device.used) return kOutOfMemory;
  void* const made = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (made == nullptr) return kOutOfMemory;
  *address = reinterpret_cast<std::uintptr_t>(made);
  device.allocations[*address] = bytes;
  device.used += bytes;
  return kFine;
}

int Engine::free(std::uintptr_t address) {
  for (const auto& device : devices) {
    const auto found = device->allocations.find(address);
    if (found == device->allocations.end()) continue;
    device->used -= found->second;
    device->allocations.erase(found);
    std::free(pointer(address));
    return kFine;
  }
  return kInvalidValue;
}

bool Engine::usable(int ordinal, std::uintptr_t address, std::uint64_t bytes) {
  if (inside(host, address, bytes) || inside(registered, address, bytes)) return true;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const bool near = static_cast<int>(i) == ordinal;
    const bool peer = devices[static_cast<std::size_t>(ordinal)]->peers.count(static_cast<int>(i));
    if ((near || peer) && inside(devices[i]->allocations, address, bytes)) return true;
    const auto& mappings = devices[i]->mappings;
    std::uintptr_t at = address;
    while (at < address + bytes) {
      auto mapping = mappings.upper_bound(at);
      if (mapping == mappings.begin()) break;
      --mapping;
      if (at - mapping->first >= mapping->second.bytes) break;
      if (mapping->second.accessors.count(ordinal) == 0) break;
      at = mapping->first + mapping->second.bytes;
    }
    if (at >= address + bytes) return true;
  }
  return false;
}

// ---- pages
// ---------------------------------------------------------------------------------------

int Engine::reserve(int ordinal, std::uint64_t bytes, std::uintptr_t* base) {
  if (bytes == 0 || bytes % kGranule != 0) return kInvalidValue;
  void* const made = mmap(nullptr, bytes + kGranule, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return kOutOfMemory;
  const auto first = reinterpret_cast<std::uintptr_t>(made);
  *base = (first + kGranule - 1) / kGranule * kGranule;
  if (*base != first) munmap(made, *base - first);
  munmap(pointer(*base + bytes), first + kGranule - *base);
  devices[static_cast<std::size_t>(ordinal)]->ranges[*base] = bytes;
  return kFine;
}

int Engine::unreserve(std::uintptr_t base, std::uint64_t bytes) {
  Device* const device = owner(base);
  if (device == nullptr) return kInvalidValue;
  const auto found = device->ranges.find(base);
  if (found == device->ranges.end() || found->second != bytes) return kInvalidValue;
  const auto mapping = device->mappings.lower_bound(base);
  if (mapping != device->mappings.end() && mapping->first < base + bytes) return kInvalidValue;
  munmap(pointer(base), bytes);
  device->ranges.erase(found);
  return kFine;
}

Device* Engine::owner(std::uintptr_t address) {
  for (const auto& device : devices) {
    if (inside(device->ranges, address, 1)) return device.get();
  }
  return nullptr;
}

int Engine::create(int ordinal, std::uint64_t bytes, Page** page) {
  Device& device = *devices[static_cast<std::size_t>(ordinal)];
  if (bytes == 0 || bytes % kGranule != 0) return kInvalidValue;
  if (device.sticky != kFine) return device.sticky;
  if (bytes > device.total - device.used) return kOutOfMemory;
  const int file = memfd_create("stub page", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return kOutOfMemory;
  device.used += bytes;
  auto made = std::make_unique<Page>(Page{ordinal, file, bytes, 1});
  *page = made.release();
  pages.insert(*page);
  return kFine;
}

void Engine::drop(Page* page) {
  if (--page->users != 0) return;
  devices[static_cast<std::size_t>(page->device)]->used -= page->bytes;
  close(page->file);
  const std::unique_ptr<Page> gone(page);
}

int Engine::release(Page* page) {
  if (pages.erase(page) == 0) return kInvalidValue;
  drop(page);
  return kFine;
}

int Engine::map(std::uintptr_t address, std::uint64_t bytes, Page* page) {
  Device* const device = owner(address);
  if (device == nullptr || pages.count(page) == 0 || bytes != page->bytes) return kInvalidValue;
  if (!inside(device->ranges, address, bytes) || address % kGranule != 0) return kInvalidValue;
  const auto next = device->mappings.lower_bound(address);
  if (next != device->mappings.end() && next->first < address + bytes) return kInvalidValue;
  if (next != device->mappings.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.bytes > address) return kInvalidValue;
  }
  if (mmap(pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, page->file, 0) ==
      MAP_FAILED) {
    return kOutOfMemory;
  }
  ++page->users;
  device->mappings[address] = Mapping{bytes, page, {}};
  return kFine;
}

int Engine::unmap(std::uintptr_t address, std::uint64_t bytes) {
  Device* const device = owner(address);
  if (device == nullptr) return kInvalidValue;
  const std::uintptr_t end = address + bytes;
  for (std::uintptr_t at = address; at < end;) {
    const auto found = device->mappings.find(at);
    if (found == device->mappings.end() || at + found->second.bytes > end) return kInvalidValue;
    at += found->second.bytes;
  }
  if (mmap(pointer(address), bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    return kOutOfMemory;
  }
  for (auto found = device->mappings.find(address);
       found != device->mappings.end() && found->first < end;) {
    drop(found->second.page);
    found = device->mappings.erase(found);
  }
  return kFine;
}

int Engine::access(std::uintptr_t address, std::uint64_t bytes, const std::vector<int>& accessors) {
  Device* const device = owner(address);
  if (device == nullptr) return kInvalidValue;
  for (std::uintptr_t at = address; at < address + bytes;) {
    const auto found = device->mappings.find(at);
    if (found == device->mappings.end()) return kInvalidValue;
    found->second.accessors.insert(accessors.begin(), accessors.end());
    if (mprotect(pointer(at), found->second.bytes, PROT_READ | PROT_WRITE) != 0) {
      return kInvalidValue;
    }
    at += found->second.bytes;
  }
  return kFine;
}

// ---- streams
// -------------------------------------------------------------------------------------

Stream* Engine::stream(int device, void* handle) {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number <= 1) return &devices[static_cast<std::size_t>(device)]->default_stream;
  auto* const made = static_cast<Stream*>(handle);
  return streams.count(made) == 0 ? nullptr : made;
}

void Engine::start(Stream* stream) {
  stream->started = true;
  std::thread([this, stream] {
    Lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return !stream->queue.empty(); });
      {
        const std::function<void()> work = std::move(stream->queue.front());
        stream->queue.pop_front();
        lock.unlock();
        if (work) work();
      }
      lock.lock();
      ++stream->completed;
      changed.notify_all();
    }
  }).detach();
}

int Engine::submit(Stream* stream, std::function<void()> work, std::shared_ptr<Node> node) {
  const int sticky = devices[static_cast<std::size_t>(stream->device)]->sticky;
  if (sticky != kFine) return sticky;
  if (stream->capture != nullptr) {
    if (node == nullptr) node = std::make_shared<Node>();
    node->run = std::move(work);
    node->dependencies = stream->newest;
    stream->newest = {node.get()};
    stream->capture->nodes.push_back(std::move(node));
    return kFine;
  }
  if (!stream->started) start(stream);
  stream->queue.push_back(std::move(work));
  ++stream->submitted;
  changed.notify_all();
  return kFine;
}

void Engine::wait(Lock& lock, Stream* stream, std::uint64_t mark) {
  changed.wait(lock, [&] { return stream->completed >= mark; });
}

void Engine::wait_all(Lock& lock) {
  for (const auto& device : devices) {
    wait(lock, &device->default_stream, device->default_stream.submitted);
  }
  const std::set<Stream*> known = streams;
  for (Stream* stream : known) wait(lock, stream, stream->submitted);
}

std::function<void()> Engine::launch_work(int device, Launch launch) {
  return [this, device, launch = std::move(launch)] {
    std::vector<void*> arguments;
    for (const std::string& value : launch.arguments) {
      arguments.push_back(const_cast<char*>(value.data()));
    }
    KernelFunction function = nullptr;
    {
      const Lock lock(mutex);
      if (devices[static_cast<std::size_t>(device)]->sticky != kFine) return;
      launches.push_back(launch);
      const auto found = functions.find(launch.name);
      if (found != functions.end()) function = found->second;
    }
    if (function != nullptr) function(launch.grid, launch.block, arguments.data());
  };
}

}  // namespace stub
