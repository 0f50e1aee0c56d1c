// The memory of each device, and the tag that new storages are counted under.
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "account/recorder.h"
#include "core/environment.h"
#include "core/log.h"
#include "heap/blocking.h"
#include "storage/storage.h"

namespace nbx {
namespace {

constexpr std::size_t kQuickOrdinals = 16;

/// Never destroyed: storages may die after static destructors have run.
struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<DeviceMemory>> memories;
  std::atomic<DeviceMemory*> quick[kDeviceKindCount][kQuickOrdinals] = {};
  std::atomic<bool> any_pinned{false};

  /// The memory that serves its device from here on; the mutex is held.
  DeviceMemory& add(std::unique_ptr<DeviceMemory> memory) {
    const Device& device = memory->device;
    const auto ordinal = static_cast<std::size_t>(device.ordinal());
    memories.push_back(std::move(memory));
    DeviceMemory* added = memories.back().get();
    if (ordinal < kQuickOrdinals) {
      quick[static_cast<std::size_t>(device.kind())][ordinal].store(added,
                                                                    std::memory_order_release);
    }
    return *added;
  }
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
/// Every heap, those of page-locked memory included.
std::vector<Heap*> all_heaps() {
  std::vector<Heap*> heaps;
  for (const auto& memory : registry().memories) {
    heaps.push_back(&memory->heap);
    if (PinnedPool* pool = memory->known_pinned_pool()) heaps.push_back(&pool->heap());
  }
  return heaps;
}

/// False, and nothing is held, if a heap is at work.
bool try_prepare_fork() {
  registry().mutex.lock();
  for (const auto& memory : registry().memories) memory->root.before_fork();
  const std::vector<Heap*> heaps = all_heaps();
  std::size_t held = 0;
  while (held < heaps.size() && heaps[held]->try_before_fork()) ++held;
  if (held == heaps.size()) return true;
  while (held-- > 0) heaps[held]->after_fork(false);
  for (const auto& memory : registry().memories) memory->root.after_fork();
  registry().mutex.unlock();
  return false;
}

void prepare_fork() {
  while (!try_prepare_fork()) {
    // The heap's thread may be in a reclaimer, which waits for the language's lock.
    const BlockingScope scope;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}
void forked(bool child) {
  std::vector<Heap*> heaps = all_heaps();
  for (auto heap = heaps.rbegin(); heap != heaps.rend(); ++heap) (*heap)->after_fork(child);
  for (const auto& memory : registry().memories) {
    memory->root.after_fork(child);
    if (child) memory->orphan();
  }
  registry().mutex.unlock();
}
void parent_forked() { forked(false); }
void child_forked() { forked(true); }

/// Account trees that are gone: what a tag led to may be among them.
std::atomic<std::uint64_t> ended_trees{0};

}  // namespace

DeviceMemory::DeviceMemory(Device& opened, std::uint32_t number)
    : device(opened),
      root(opened.name(), nullptr),
      tensors(root.child("device")),
      mapped(root.child("mapped")),
      pinned(root.child("pinned")),
      external(root.child("external")),
      heap(opened, &root.tree_lock()),
      epoch(number) {
  for (const Account* kind : {&tensors, &mapped, &pinned, &external}) kind->hold();
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
  HeapOptions options;
  options.slack = environment_real("NBX_MEMORY_SLACK");
  if (!(options.slack >= 0.0 && options.slack <= 1.0)) {
    throw Error(ErrorKind::kValue, "NBX_MEMORY_SLACK: got '" +
                                       environment_text("NBX_MEMORY_SLACK") +
                                       "'; give a share of the peak, from 0 to 1, or unset it");
  }
  heap.set_options(options);
}

DeviceMemory::~DeviceMemory() { ended_trees.fetch_add(1, std::memory_order_release); }

std::uint64_t DeviceMemory::trim(std::uint64_t keep) {
  if (keep == 0 && checker != nullptr) checker->flush();  // what it keeps is free to others
  std::uint64_t released = heap.trim(keep);
  if (PinnedPool* pool = known_pinned_pool()) released += pool->heap().trim(keep);
  root.prune();
  return released;
}

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
    if (&memory->device == &device && !memory->ended()) return *memory;
  }
  return all.add(std::make_unique<DeviceMemory>(device));
}

// ---- epochs and pinned memory --------------------------------------------------------------

namespace {

/// The limits of a tree, on the accounts of the same paths in another one.
void carry_limits(const Account& from, Account& to) {
  const std::size_t name = from.name().size();
  for (const AccountStatistics& row : from.report()) {
    if (row.limit == kUnlimited && row.soft_limit == kUnlimited) continue;
    const AccountHold account =
        account_at(to, row.path.size() == name ? "" : row.path.substr(name + 1));
    account->set_limit(row.limit);
    account->set_soft_limit(row.soft_limit);
  }
}

}  // namespace

DeviceMemory& begin_epoch(Device& device) {
  if (device.properties().integrated_work) {
    throw Error(ErrorKind::kUnsupported,
                "new_epoch: the memory of " + device.name() +
                    " is the host's, and arrays of others may lie in it; name another device");
  }
  DeviceMemory& former = memory_of(device);
  auto made = std::make_unique<DeviceMemory>(device, former.epoch + 1);
  made->root.set_limit(former.root.limit());
  carry_limits(former.root, made->root);
  made->heap.set_options(former.heap.options());
  Device* const opened = &device;
  // Storages that are still alive hold memory of the former heap until they die.
  made->heap.add_reclaimer(0.0, [opened](std::uint64_t /*bytes*/) { return trim_ended(*opened); });
  Registry& all = registry();
  DeviceMemory* result = nullptr;
  {
    const std::lock_guard<std::mutex> guard(all.mutex);
    if (former.ended()) {
      throw Error(ErrorKind::kDevice, "new_epoch: two threads began one on " + device.name() +
                                          " at the same time; let one thread do it");
    }
    result = &all.add(std::move(made));
    former.end();
    if (former.checker != nullptr) former.checker->end_epoch(former.epoch);
  }
  result->heap.note_epoch(result->epoch);
  trim_ended(device);
  return *result;
}

std::uint64_t trim_ended(Device& device) {
  std::vector<DeviceMemory*> ended;
  {
    Registry& all = registry();
    const std::lock_guard<std::mutex> guard(all.mutex);
    for (const auto& memory : all.memories) {
      if (&memory->device == &device && memory->ended()) ended.push_back(memory.get());
    }
  }
  std::uint64_t released = 0;
  for (DeviceMemory* memory : ended) {
    try {
      released += memory->trim(0);
    } catch (const Error& error) {
      log(LogLevel::kDebug, std::string("epoch: ") + error.what());
    }
  }
  return released;
}

PinnedPool& DeviceMemory::pinned_pool() {
  if (PinnedPool* known = known_pinned_pool()) return *known;
  const BlockingScope scope;
  const std::lock_guard<std::mutex> guard(pool_mutex_);
  if (pool_ == nullptr) {
    pool_ = std::make_unique<PinnedPool>(device);
    // Its bytes count in the device's budget, and they are the host's.
    pool_->heap().ask_also(heap);
    DeviceMemory& host = memory_of(open_device(DeviceKind::kCpu, 0));
    if (&host != this) pool_->heap().ask_also(host.heap);
    quick_pool_.store(pool_.get(), std::memory_order_release);
    registry().any_pinned.store(true, std::memory_order_release);
  }
  return *pool_;
}

bool is_pinned(DeviceAddress address) noexcept {
  Registry& all = registry();
  if (!all.any_pinned.load(std::memory_order_acquire)) return false;
  const std::lock_guard<std::mutex> guard(all.mutex);
  for (const auto& memory : all.memories) {
    const PinnedPool* pool = memory->known_pinned_pool();
    if (pool != nullptr && pool->holds(address)) return true;
  }
  return false;
}

// ---- tags ----------------------------------------------------------------------------------

namespace {

/// A thread's tag, with the accounts it led to so far: an unchanged tag costs one comparison.
/// While it is the thread's tag its accounts are held; afterwards they may end.
struct Tag {
  struct Resolved {
    Account* kind = nullptr;
    Account* account = nullptr;
    std::uint64_t version = 0;  // of the tree (Account::descend)
    bool held = false;
  };
  std::string path;
  std::vector<std::string> parts;
  std::array<Resolved, 4> resolved{};
  std::uint32_t recorded = 0;  // Recorder::intern of the path; 0: not asked yet
  std::uint64_t trees = 0;     // value of `ended_trees` that `resolved` is good for
  std::size_t next = 0;

  void let_go(Resolved* known) const noexcept {
    if (known->held && trees == ended_trees.load(std::memory_order_acquire)) known->account->drop();
    known->held = false;
  }
  void let_go() noexcept {
    for (Resolved& known : resolved) let_go(&known);
  }
  /// The account below `kind`, held from here on.
  Account& resolve(Account& kind) {
    for (Resolved& known : resolved) {
      if (known.kind != &kind || !kind.hold_again(known.account, known.version)) continue;
      known.held = true;
      return *known.account;
    }
    Resolved found{&kind, nullptr, 0, true};
    const AccountHold account = kind.descend(parts, &found.version);
    found.account = account.get();
    Resolved* place = &resolved[next];
    for (Resolved& known : resolved) {
      if (known.kind == &kind) place = &known;
    }
    if (place == &resolved[next]) next = (next + 1) % resolved.size();
    let_go(place);
    found.account->hold();
    *place = found;
    return *found.account;
  }
};
constinit thread_local Tag* tag = nullptr;  // null: untagged
constinit thread_local Lifetime lifetime_of_thread = Lifetime::kTransient;

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

/// The tags of a thread, kept so that setting one again costs one lookup: the newest ones.
struct Tags {
  static constexpr std::size_t kMost = 64;
  std::map<std::string, Tag, std::less<>> known;
  ~Tags() {
    if (tag != nullptr) tag->let_go();
    tag = nullptr;
  }
  Tag& open(std::string path) {
    const auto found = known.find(path);
    if (found != known.end()) return found->second;
    Tag made;
    made.parts = split_path(path);
    made.path = path;
    if (known.size() >= kMost) {
      for (auto entry = known.begin(); entry != known.end();) {
        entry = &entry->second == tag ? std::next(entry) : known.erase(entry);
      }
    }
    return known.emplace(std::move(path), std::move(made)).first->second;
  }
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
    if (known.kind == &kind && known.held) return *known.account;
  }
  return tag->resolve(kind);
}

AccountHold account_at(Account& kind, const std::string& path) {
  return path.empty() ? AccountHold(kind) : kind.descend(split_path(path));
}

std::string set_tag(std::string path) {
  static thread_local Tags tags;
  std::string former = tag == nullptr ? std::string() : tag->path;
  Tag* const found = path.empty() ? nullptr : &tags.open(std::move(path));
  if (found == tag) return former;
  if (tag != nullptr) tag->let_go();
  tag = found;
  if (!Recorder::enabled()) return former;
  if (tag != nullptr && tag->recorded == 0) tag->recorded = Recorder::intern(tag->path);
  Recorder::note(RecordedAction::kTag, 0, 0, 0, kNoStream, 0, 0,
                 tag == nullptr ? 0 : tag->recorded);
  return former;
}

Lifetime thread_lifetime() noexcept { return lifetime_of_thread; }

Lifetime set_thread_lifetime(Lifetime lifetime) noexcept {
  return std::exchange(lifetime_of_thread, lifetime);
}

}  // namespace nbx
