// The memory of each device, and the tag that new storages are counted under.
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/environment.h"
#include "storage/storage.h"

namespace nbx {
namespace {

constexpr std::size_t kQuickOrdinals = 16;

/// Never destroyed: storages may die after static destructors have run.
struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<DeviceMemory>> memories;
  std::atomic<DeviceMemory*> quick[kDeviceKindCount][kQuickOrdinals] = {};
};

void prepare_fork();
void parent_forked();
void child_forked();

Registry& registry() {
  static Registry* instance = [] {
    pthread_atfork(prepare_fork, parent_forked, child_forked);
    return new Registry;
  }();
  return *instance;
}

// Locks are held across a fork, so that the child's copy of the books is whole.
void prepare_fork() {
  registry().mutex.lock();
  for (const auto& memory : registry().memories) {
    memory->root.before_fork();
    memory->heap.before_fork();
  }
}
void forked(bool child) {
  for (const auto& memory : registry().memories) {
    memory->heap.after_fork(child);
    memory->root.after_fork(child);
  }
  registry().mutex.unlock();
}
void parent_forked() { forked(false); }
void child_forked() { forked(true); }

/// Account trees that are gone: what a tag led to may be among them.
std::atomic<std::uint64_t> ended_trees{0};

}  // namespace

DeviceMemory::DeviceMemory(Device& opened)
    : device(opened),
      root(opened.name(), nullptr),
      tensors(root.child("device")),
      mapped(root.child("mapped")),
      pinned(root.child("pinned")),
      heap(opened, &root.tree_lock()) {
  const std::uint64_t total = opened.properties().total_bytes;
  // The system bounds the host by itself, and mapped files need no memory there. A budget of the
  // whole device bounds nothing either: its driver does.
  if (!opened.properties().integrated_work && opened.primitives().budget != nullptr) {
    std::uint64_t own = 0;
    opened.check(opened.primitives().budget(opened.ordinal(), &own), "budget");
    if (own < total) root.set_limit(own);
  }
  if (!environment_text("NBX_MEMORY_BUDGET").empty()) {
    root.set_limit(environment_bytes("NBX_MEMORY_BUDGET", total));
  }
}

DeviceMemory::~DeviceMemory() { ended_trees.fetch_add(1, std::memory_order_release); }

DeviceMemory& memory_of(Device& device) {
  Registry& all = registry();
  const auto kind = static_cast<std::size_t>(device.kind());
  const auto ordinal = static_cast<std::size_t>(device.ordinal());
  if (ordinal < kQuickOrdinals) {
    DeviceMemory* known = all.quick[kind][ordinal].load(std::memory_order_acquire);
    if (known != nullptr && &known->device == &device) return *known;
  }
  const std::lock_guard<std::mutex> guard(all.mutex);
  for (const auto& memory : all.memories) {
    if (&memory->device == &device) return *memory;
  }
  all.memories.push_back(std::make_unique<DeviceMemory>(device));
  DeviceMemory* made = all.memories.back().get();
  if (ordinal < kQuickOrdinals) {
    all.quick[kind][ordinal].store(made, std::memory_order_release);
  }
  return *made;
}

// ---- tags ----------------------------------------------------------------------------------

namespace {

/// A thread's tag, with the accounts it led to so far: an unchanged tag costs one comparison.
struct Tag {
  struct Resolved {
    Account* kind = nullptr;
    Account* account = nullptr;
  };
  std::string path;
  std::vector<std::string> parts;
  std::array<Resolved, 4> resolved{};
  std::uint64_t trees = 0;  // value of `ended_trees` that `resolved` is good for
  std::size_t next = 0;
};
constinit thread_local Tag* tag = nullptr;  // null: untagged

std::vector<std::string> split_path(const std::string& path) {
  std::vector<std::string> parts;
  std::size_t start = 0;
  while (start <= path.size()) {
    const std::size_t end = std::min(path.find('/', start), path.size());
    if (end == start) {
      throw Error(ErrorKind::kValue, "tag: '" + path +
                                         "' has an empty part; write names joined by single "
                                         "slashes, as in 'weights/layer.3'");
    }
    parts.push_back(path.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

/// The tags of a thread, kept so that setting one again costs one lookup.
struct Tags {
  std::map<std::string, Tag, std::less<>> known;
  ~Tags() { tag = nullptr; }
};

}  // namespace

Account& tagged_account(Account& kind) {
  if (tag == nullptr) return kind;
  const std::uint64_t trees = ended_trees.load(std::memory_order_acquire);
  if (tag->trees != trees) {
    tag->resolved = {};
    tag->trees = trees;
  }
  for (const Tag::Resolved& known : tag->resolved) {
    if (known.kind == &kind) return *known.account;
  }
  Account* account = &kind;
  for (const std::string& part : tag->parts) account = &account->child(part);
  tag->resolved[tag->next] = Tag::Resolved{&kind, account};
  tag->next = (tag->next + 1) % tag->resolved.size();
  return *account;
}

Account& account_at(Account& kind, const std::string& path) {
  if (path.empty()) return kind;
  Account* account = &kind;
  for (const std::string& part : split_path(path)) account = &account->child(part);
  return *account;
}

std::string set_tag(std::string path) {
  static thread_local Tags tags;
  std::string former = tag == nullptr ? std::string() : tag->path;
  if (path.empty()) {
    tag = nullptr;
    return former;
  }
  auto found = tags.known.find(path);
  if (found == tags.known.end()) {
    Tag made;
    made.parts = split_path(path);
    made.path = path;
    found = tags.known.emplace(std::move(path), std::move(made)).first;
  }
  tag = &found->second;
  return former;
}

}  // namespace nbx
