#include "storage/storage.h"

#include <algorithm>
#include <mutex>
#include <new>

#include "core/error.h"
#include "core/log.h"
#include "heap/blocking.h"
#include "storage/capture.h"
#include "storage/late.h"
#include "stream/callback.h"
#include "stream/fault.h"

namespace nbx {
namespace {

/// Memory of dead storages, kept per thread: a storage costs no trip to malloc.
struct Pool {
  struct Spare {
    Spare* next;
  };
  Spare* first = nullptr;
  int count = 0;
  bool registered = false;
  bool closed = false;  // the thread is ending
};
constinit thread_local Pool pool;
constexpr int kPoolLimit = 256;

struct PoolCloser {
  ~PoolCloser() {
    while (pool.first != nullptr) {
      Pool::Spare* next = pool.first->next;
      ::operator delete(pool.first);
      pool.first = next;
    }
    pool.closed = true;
  }
};

void* take_object(std::size_t bytes) {
  if (pool.first == nullptr) return ::operator new(bytes);
  Pool::Spare* object = pool.first;
  pool.first = object->next;
  --pool.count;
  return object;
}

void give_object(void* object) noexcept {
  if (pool.closed || pool.count >= kPoolLimit) {
    ::operator delete(object);
    return;
  }
  if (!pool.registered) {
    static thread_local PoolCloser closer;
    static_cast<void>(&closer);
    pool.registered = true;
  }
  pool.first = new (object) Pool::Spare{pool.first};
  ++pool.count;
}

void no_finalizer(void* /*owner*/) noexcept {}

/// A use that cannot be noted must be over before anybody reads or frees the memory.
void finish_unnoted(const Stream& stream, const char* reason) noexcept {
  const BlockingScope scope;
  const Device& device = stream.device();
  const Status status = device.primitives().synchronize(device.ordinal());
  log(LogLevel::kError, std::string("touch: ") + reason +
                            "; the device was synchronized instead, status " +
                            std::to_string(status));
}

[[noreturn]] void refuse_orphan(const DeviceMemory& memory) {
  throw Error(ErrorKind::kDevice,
              "allocate: " + memory.device.name() +
                  " was opened before this process was forked, and belongs to the parent; start "
                  "the child afresh (multiprocessing's \"spawn\"), or use the cpu")
      .with("device", memory.device.name());
}

}  // namespace

Reference<Storage> Storage::allocate(DeviceMemory& memory, std::uint64_t bytes) {
  if (memory.orphaned()) [[unlikely]]
    refuse_orphan(memory);
  Account& account = tagged_account(memory.tensors);
  Stream& stream = current_stream(memory.device);
  void* place = take_object(sizeof(Storage));
  Block block;
  try {
    if (memory.checker == nullptr) [[likely]] {
      block = memory.heap.allocate(bytes, kTensorAlignment, stream, account, thread_lifetime());
    } else {
      // It tries twice, and reclaimers may set another tag in between.
      const AccountHold held(account);
      block = memory.checker->allocate(bytes, kTensorAlignment, stream, account);
    }
  } catch (...) {
    give_object(place);
    throw;
  }
  auto* storage = new (place) Storage(memory);
  storage->account_ = &account;
  storage->heap_ = &memory.heap;
  storage->block_ = block;
  storage->bytes_ = bytes;
  if (const StreamId name = stream.id(); is_capture(name)) [[unlikely]]
    storage->capture_ = name;
  return Reference<Storage>::adopt(storage);
}

/// Memory that is no block of a heap, made inside a capture: the graph keeps it.
void Storage::begin_in(StreamId name) {
  if (!is_capture(name)) [[likely]]
    return;
  capture_ = name;
  keep_for_capture(name, Reference<Storage>::share(this));
}

Reference<Storage> Storage::allocate_pinned(DeviceMemory& locker, std::uint64_t bytes) {
  if (locker.orphaned()) refuse_orphan(locker);
  Account& account = tagged_account(locker.pinned);
  DeviceMemory& host = memory_of(open_device(DeviceKind::kCpu, 0));
  PinnedPool& locked = locker.pinned_pool();
  void* place = take_object(sizeof(Storage));
  Block block;
  try {
    block = locked.allocate(bytes, kTensorAlignment, account);
  } catch (...) {
    give_object(place);
    throw;
  }
  auto* storage = new (place) Storage(host);
  storage->account_ = &account;
  storage->heap_ = &locked.heap();
  storage->block_ = block;
  storage->bytes_ = bytes;
  storage->pinned_ = true;
  return Reference<Storage>::adopt(storage);
}

Reference<Storage> Storage::borrow(DeviceMemory& memory, DeviceAddress address, std::uint64_t bytes,
                                   std::uint64_t counted, bool writable, void* owner,
                                   Finalizer finalizer) {
  // What is not counted here keeps no account.
  Account& account = counted != 0 ? tagged_account(memory.mapped) : memory.mapped;
  void* place = take_object(sizeof(Storage));
  try {
    if (counted != 0) memory.heap.recount(account, 0, counted);
  } catch (...) {
    give_object(place);
    throw;
  }
  auto* storage = new (place) Storage(memory);
  storage->account_ = &account;
  storage->block_.address = address;
  storage->bytes_ = bytes;
  storage->counted_ = counted;
  storage->writable_ = writable;
  storage->owner_ = owner;
  storage->finalizer_ = finalizer != nullptr ? finalizer : no_finalizer;
  auto made = Reference<Storage>::adopt(storage);
  made->begin_in(current_stream(memory.device).id());
  return made;
}

Reference<Storage> Storage::view(DeviceMemory& memory, std::shared_ptr<ReservedBlock> block,
                                 std::uint64_t offset, std::uint64_t bytes) {
  void* place = take_object(sizeof(Storage));
  try {
    block->open_view(offset, bytes);
  } catch (...) {
    give_object(place);
    throw;
  }
  auto* storage = new (place) Storage(memory);
  storage->account_ = &block->account();
  storage->block_.address = block->address() + offset;
  storage->bytes_ = bytes;
  storage->reserved_ = std::move(block);
  auto made = Reference<Storage>::adopt(storage);
  made->begin_in(current_stream(memory.device).id());
  return made;
}

// ---- uses ----------------------------------------------------------------------------------

/// True if the stream had not used it.
bool Storage::note(const BlockUse& use) {
  const std::lock_guard<ShortLock> guard(uses_lock_);
  if (use_.stream == kNoStream) {
    use_ = use;
    used_.store(true, std::memory_order_release);
    return true;
  }
  if (use_.stream == use.stream) {
    use_.ticket = std::max(use_.ticket, use.ticket);
    return false;
  }
  for (BlockUse& known : more_uses_) {
    if (known.stream != use.stream) continue;
    known.ticket = std::max(known.ticket, use.ticket);
    return false;
  }
  // A use that is over makes room: the list is as long as the streams that are behind.
  const auto over = [](const BlockUse& known) {
    return is_capture(known.stream) ? is_spent_capture(known.stream)
                                    : known_completed(known.stream) >= known.ticket;
  };
  if (over(use_)) {
    use_ = use;
    return true;
  }
  for (BlockUse& known : more_uses_) {
    if (!over(known)) continue;
    known = use;
    return true;
  }
  more_uses_.push_back(use);
  return true;
}

std::vector<BlockUse> Storage::uses() const {
  const std::lock_guard<ShortLock> guard(uses_lock_);
  std::vector<BlockUse> all = more_uses_;
  all.push_back(use_);
  return all;
}

void Storage::hold_for(StreamId capture) {
  if (!note(BlockUse{capture, 0}) || capture == capture_) return;
  captured_.store(true, std::memory_order_release);
  watch_for_capture(capture, *this);
}

void Storage::let_go_of(StreamId capture) noexcept {
  const BlockUse last = resolved(BlockUse{capture, 0});
  const std::lock_guard<ShortLock> guard(uses_lock_);
  if (use_.stream == capture) use_ = last;
  for (BlockUse& known : more_uses_) {
    if (known.stream == capture) known = last;
  }
}

void Storage::note_use(Stream& stream) {
  const StreamId name = stream.id();
  if (is_capture(name)) [[unlikely]]
    return hold_for(name);
  if (stream.device().properties().integrated_work) return;
  note(stream.use());
  run_late_owners();
}

void Storage::record_use(Stream& stream) {
  note_use(stream);
  note_captured_range(stream, address(), bytes_);
}

void Storage::touch(Stream& stream) noexcept {
  try {
    note_use(stream);
  } catch (const std::exception& error) {
    finish_unnoted(stream, error.what());
  }
}

void Storage::touch(Stream& stream, const BlockUse& use) noexcept {
  try {
    if (is_capture(use.stream)) [[unlikely]]
      return hold_for(use.stream);
    note(use);
  } catch (const std::exception& error) {
    finish_unnoted(stream, error.what());
  }
}

void Storage::refuse_asleep() const {
  throw Error(ErrorKind::kValue, "tensor: the memory of " + account_->path() +
                                     " is asleep; call nbx.memory.wake() for its tag first");
}

void Storage::refuse_captured() const {
  throw Error(ErrorKind::kValue,
              "tensor: its values are asked for inside a capture of " + device().name() +
                  " that uses them, and captured work runs when the graph is launched; read them "
                  "after a launch, or before the capture");
}

void Storage::refuse_ended() const {
  throw Error(ErrorKind::kValue,
              "storage: its memory is of epoch " + std::to_string(memory_->epoch) + " of " +
                  device().name() +
                  ", which ended when a new one began; make the tensor again from its source");
}

void Storage::wait() {
  require_awake();
  if (!used_.load(std::memory_order_acquire)) return;
  for (const BlockUse& use : uses()) {
    if (is_capture(use.stream) && is_open_capture(use.stream)) [[unlikely]]
      refuse_captured();
    const BlockUse work = resolved(use);
    if (work.ticket != 0) wait_for(work);
  }
  run_late_owners();
  raise_fault(device());
}

bool Storage::is_idle() {
  if (!used_.load(std::memory_order_acquire)) return true;
  for (const BlockUse& use : uses()) {
    if (is_capture(use.stream) && is_open_capture(use.stream)) [[unlikely]]
      return false;
    const BlockUse work = resolved(use);
    if (work.ticket != 0 && completed_ticket(work.stream, work.ticket) < work.ticket) return false;
  }
  return true;
}

// ---- the end -------------------------------------------------------------------------------

void Storage::finish_borrowed() noexcept {
  LateOwner late{owner_, finalizer_, account_, counted_, {}};
  if (used_.load(std::memory_order_acquire)) {
    try {
      late.uses = uses();
      // The owner must not have its memory back while queued work still uses it. A callback of a
      // driver may not wait, nor call it.
      if (!inside_callback()) {
        const BlockingScope scope;
        wait();
        late.uses.clear();
      }
      late.uses.erase(std::remove_if(late.uses.begin(), late.uses.end(),
                                     [](const BlockUse& use) {
                                       const BlockUse work = resolved(use);
                                       return known_completed(work.stream) >= work.ticket;
                                     }),
                      late.uses.end());
    } catch (const std::exception& error) {
      log(LogLevel::kDebug, std::string("storage: finalized later: ") + error.what());
    }
  }
  finish_owner(std::move(late));
}

/// The block learns of the work that still runs, and waits for it when it shrinks.
void Storage::finish_view() noexcept {
  const std::uint64_t offset = block_.address - reserved_->address();
  try {
    const std::vector<BlockUse> known = uses();
    reserved_->close_view(offset, bytes_, known.data(), known.size());
    if (!inside_callback()) return;
    // The last view ends the block, which calls the driver: not from a callback of it.
    auto* last = new std::shared_ptr<ReservedBlock>(std::move(reserved_));
    finish_owner(LateOwner{
        last,
        [](void* owner) noexcept { delete static_cast<std::shared_ptr<ReservedBlock>*>(owner); },
        account_, 0, known});
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("storage: the reserved memory is kept: ") + error.what());
  }
}

void Storage::finish_checked() noexcept {
  try {
    const std::vector<BlockUse> all = uses();
    memory_->checker->free(block_, bytes_, *account_, all.data(), all.size());
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("storage: the memory is kept: ") + error.what());
  }
}

/// Graphs whose work would read or write it learn that it is gone.
void Storage::forget_captures() noexcept {
  try {
    for (const BlockUse& use : uses()) {
      if (is_capture(use.stream)) lose_for_capture(use.stream, *this);
    }
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("storage: a graph does not know its end: ") + error.what());
  }
}

void Storage::destroy() noexcept {
  if (captured_.load(std::memory_order_acquire)) [[unlikely]]
    forget_captures();
  if (reserved_ != nullptr) {
    finish_view();
  } else if (finalizer_ != nullptr) {
    finish_borrowed();
  } else if (memory_->checker != nullptr && !pinned_) [[unlikely]] {
    finish_checked();
  } else if (more_uses_.empty()) {
    heap_->free(block_, bytes_, *account_, use_.stream, use_.ticket);
  } else {
    try {
      more_uses_.push_back(use_);
      heap_->free_after(block_, bytes_, *account_, more_uses_.data(), more_uses_.size());
    } catch (const std::exception& error) {
      log(LogLevel::kError, std::string("storage: the memory is kept: ") + error.what());
    }
  }
  this->~Storage();
  give_object(this);
}

}  // namespace nbx
