// A GPU in host memory for the stubs of the drivers: allocations and pages with a limit, streams
// that are threads, events, graphs, and kernels that are recorded.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace stub {

inline constexpr std::uint64_t kGranule = std::uint64_t{2} << 20;

// Codes that both vendors give the same number.
enum Code : int {
  kFine = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kPeerEnabled = 704,
  kHostRegistered = 712,
  kNotCapturable = 900,
  kCaptureInvalid = 901,
};

struct Graph;
using Lock = std::unique_lock<std::mutex>;

struct Stream {
  int device = 0;
  int priority = 0;
  unsigned flags = 0;
  std::deque<std::function<void()>> queue;
  std::uint64_t submitted = 0;
  std::uint64_t completed = 0;
  bool started = false;
  Graph* capture = nullptr;
  std::vector<void*> newest;  // nodes that the next captured work depends on
};

struct Event {
  bool timing = true;
  Stream* stream = nullptr;
  std::uint64_t mark = 0;
  double seconds = 0.0;
  Graph* capture = nullptr;
  std::vector<void*> newest;
};

struct Node {
  std::vector<void*> dependencies;
  std::function<void()> run;
  bool is_kernel = false;
  std::map<int, std::string> attributes;
};

class Object {
 public:
  Object(void (*destroy)(void*), void* payload) : destroy_(destroy), payload_(payload) {}
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  ~Object() { destroy_(payload_); }

 private:
  void (*destroy_)(void*);
  void* payload_;
};

struct Graph {
  std::vector<std::shared_ptr<Node>> nodes;
  std::vector<std::shared_ptr<Object>> objects;
  std::vector<Stream*> streams;
  Stream* origin = nullptr;
  [[nodiscard]] std::shared_ptr<Node> find(const void* node) const;
};

/// What a graph was when it was instantiated, with kernels that can be changed.
struct Executable {
  std::vector<std::shared_ptr<Node>> originals;
  std::vector<std::function<void()>> steps;
  std::vector<std::shared_ptr<Object>> objects;
};

struct Page {
  int device = 0;
  int file = -1;
  std::uint64_t bytes = 0;
  int users = 1;  // its owner, and mappings
};

struct Mapping {
  std::uint64_t bytes = 0;
  Page* page = nullptr;
  std::set<int> accessors;
};

struct Device {
  std::uint64_t total = 0;
  std::uint64_t used = 0;
  std::map<std::uintptr_t, std::uint64_t> allocations;
  std::map<std::uintptr_t, std::uint64_t> ranges;
  std::map<std::uintptr_t, Mapping> mappings;
  std::set<int> peers;
  Stream default_stream;
  int sticky = kFine;
};

/// As the image says: "stub NAME BYTES,BYTES,...".
struct Kernel {
  std::string name;
  std::vector<std::uint32_t> argument_bytes;
  int dynamic_shared = 49152;
};

using KernelFunction = void (*)(const unsigned* grid, const unsigned* block, void** arguments);

struct Launch {
  std::string name;
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  std::vector<std::string> arguments;
  std::map<int, std::string> attributes;
};

class Engine {
 public:
  Engine();
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::unique_ptr<Device>> devices;
  std::set<Stream*> streams;  // made ones
  std::set<Event*> events;
  std::set<Graph*> graphs;
  std::set<Executable*> executables;
  std::set<Page*> pages;
  std::map<void*, std::shared_ptr<Kernel>> modules;
  std::map<std::uintptr_t, std::uint64_t> host;        // pinned here
  std::map<std::uintptr_t, std::uint64_t> registered;  // made by the caller
  std::map<std::string, KernelFunction> functions;
  std::vector<Launch> launches;

  // ---- memory
  int allocate(int device, std::uint64_t bytes, std::uintptr_t* address);
  int free(std::uintptr_t address);
  /// True if work of the device may use the whole span.
  [[nodiscard]] bool usable(int device, std::uintptr_t address, std::uint64_t bytes);

  // ---- pages
  int reserve(int device, std::uint64_t bytes, std::uintptr_t* base);
  int unreserve(std::uintptr_t base, std::uint64_t bytes);
  int create(int device, std::uint64_t bytes, Page** page);
  int release(Page* page);
  int map(std::uintptr_t address, std::uint64_t bytes, Page* page);
  int unmap(std::uintptr_t address, std::uint64_t bytes);
  int access(std::uintptr_t address, std::uint64_t bytes, const std::vector<int>& accessors);

  // ---- streams; the lock is held
  /// Null if the handle names nothing.
  Stream* stream(int device, void* handle);
  int submit(Stream* stream, std::function<void()> work, std::shared_ptr<Node> node = nullptr);
  void wait(Lock& lock, Stream* stream, std::uint64_t mark);
  void wait_all(Lock& lock);

  /// The work of a launch, with copies of the arguments.
  std::function<void()> launch_work(int device, Launch launch);

 private:
  void start(Stream* stream);
  void drop(Page* page);
  Device* owner(std::uintptr_t address);
};

/// Never destroyed: its threads run until the process ends.
Engine& engine();

[[nodiscard]] double seconds();

}  // namespace stub
