#include "storage/storage.h"

#include <mutex>
#include <new>

#include "core/log.h"
#include "heap/blocking.h"
#include "stream/fault.h"

namespace nbx {
namespace {

// Every tensor of every device starts here: whole cache lines on the host, and what vector loads
// want elsewhere.
constexpr std::uint64_t kAlignment = 64;

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

}  // namespace

Reference<Storage> Storage::allocate(DeviceMemory& memory, std::uint64_t bytes) {
  Account& account = tagged_account(memory.tensors);
  Stream& stream = current_stream(memory.device);
  void* place = take_object(sizeof(Storage));
  Block block;
  try {
    block = memory.heap.allocate(bytes, kAlignment, stream, account);
  } catch (...) {
    give_object(place);
    throw;
  }
  auto* storage = new (place) Storage(memory);
  storage->account_ = &account;
  storage->block_ = block;
  storage->bytes_ = bytes;
  return Reference<Storage>::adopt(storage);
}

Reference<Storage> Storage::borrow(DeviceMemory& memory, DeviceAddress address, std::uint64_t bytes,
                                   std::uint64_t counted, bool writable, void* owner,
                                   Finalizer finalizer) {
  Account& account = tagged_account(memory.mapped);
  void* place = take_object(sizeof(Storage));
  if (counted != 0) {
    if (Account* refused = account.reserve(counted, counted)) {
      give_object(place);
      throw memory.heap.over_budget(counted, *refused);
    }
  }
  auto* storage = new (place) Storage(memory);
  storage->account_ = &account;
  storage->block_.address = address;
  storage->bytes_ = bytes;
  storage->counted_ = counted;
  storage->writable_ = writable;
  storage->owner_ = owner;
  storage->finalizer_ = finalizer != nullptr ? finalizer : no_finalizer;
  return Reference<Storage>::adopt(storage);
}

void Storage::note(const BlockUse& use) {
  const std::lock_guard<ShortLock> guard(uses_lock_);
  if (use_.ticket == 0 || use_.stream == use.stream) {
    use_ = use;
    return;
  }
  for (BlockUse& known : more_uses_) {
    if (known.stream != use.stream) continue;
    known.ticket = use.ticket;
    return;
  }
  more_uses_.push_back(use);
}

void Storage::touch(Stream& stream) noexcept {
  if (device().properties().integrated_work) return;
  try {
    note(BlockUse{stream.id(), stream.submitted()});
  } catch (const std::exception& error) {
    // A use that cannot be noted must be over before anybody reads or frees the memory.
    const BlockingScope scope;
    const Status status = device().primitives().synchronize(device().ordinal());
    log(LogLevel::kError, std::string("touch: ") + error.what() +
                              "; the device was synchronized instead, status " +
                              std::to_string(status));
  }
}

void Storage::wait() {
  if (device().properties().integrated_work) return;
  std::vector<BlockUse> uses;
  {
    const std::lock_guard<ShortLock> guard(uses_lock_);
    if (use_.ticket == 0 && more_uses_.empty()) return;
    uses = more_uses_;
    uses.push_back(use_);
  }
  for (const BlockUse& use : uses) {
    if (use.ticket != 0) wait_for(use);
  }
  raise_fault(device());
}

bool Storage::is_idle() {
  if (device().properties().integrated_work) return true;
  std::vector<BlockUse> uses;
  {
    const std::lock_guard<ShortLock> guard(uses_lock_);
    if (use_.ticket == 0 && more_uses_.empty()) return true;
    uses = more_uses_;
    uses.push_back(use_);
  }
  for (const BlockUse& use : uses) {
    if (use.ticket != 0 && completed_ticket(use.stream, use.ticket) < use.ticket) return false;
  }
  return true;
}

void Storage::destroy() noexcept {
  if (finalizer_ != nullptr) {
    try {
      // The owner must not have its memory back while queued work still uses it.
      if (use_.ticket != 0) {
        const BlockingScope scope;
        wait();
      }
    } catch (const std::exception& error) {
      log(LogLevel::kError, std::string("storage: ") + error.what());
    }
    if (counted_ != 0) account_->release(counted_, counted_);
    finalizer_(owner_);
  } else if (more_uses_.empty()) {
    memory_->heap.free(block_, bytes_, *account_, use_.stream, use_.ticket);
  } else {
    try {
      more_uses_.push_back(use_);
      memory_->heap.free_after(block_, bytes_, *account_, more_uses_.data(), more_uses_.size());
    } catch (const std::exception& error) {
      log(LogLevel::kError, std::string("storage: the memory is kept: ") + error.what());
    }
  }
  this->~Storage();
  give_object(this);
}

}  // namespace nbx
