#include "arena/carve.h"

#include <algorithm>
#include <cstdio>

#include "core/error.h"
#include "core/log.h"

namespace nbx {

namespace {

std::string hexadecimal(DeviceAddress address) {
  char text[24];
  static_cast<void>(
      std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address)));
  return text;
}

}  // namespace

Carver::Carver(std::string name, Heap& heap, Account& account, Stream& stream,
               std::uint64_t capacity)
    : name_(std::move(name)),
      heap_(heap),
      account_(account),
      device_(stream.device()),
      capacity_(carve_bytes(capacity)) {
  if (capacity == 0 || capacity > (std::uint64_t{1} << 56)) {
    throw Error(ErrorKind::kValue,
                name_ + ": capacity is " + std::to_string(capacity) + " bytes; give 1 up to 2**56");
  }
  block_ = heap.allocate(capacity_, kCarveAlignment, stream, account, Lifetime::kSteady);
  base_ = block_.address;
  try {
    streams_.push_back(stream.id());
  } catch (...) {
    release();
    throw;
  }
}

Carver::~Carver() { release(); }

std::string Carver::title() const { return name_ + " of " + device_.name(); }

std::uint64_t Carver::used() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return used_;
}
std::uint64_t Carver::peak() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return peak_;
}
std::uint64_t Carver::generation() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return generation_;
}
std::uint64_t Carver::tensors() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return tensor_count_;
}
bool Carver::closed() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return closed_;
}
std::uint64_t Carver::stale_gives() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return stale_;
}

void Carver::require_open(const char* action) const {
  if (!closed_) return;
  throw Error(ErrorKind::kValue,
              title() + ": " + action + " after it was freed; make a new one for more memory");
}

bool Carver::carve(std::uint64_t bytes, Stream& stream, Carving* carving, std::uint64_t origin) {
  const std::lock_guard<std::mutex> guard(lock_);
  if (!falls_through_) require_open("alloc");
  *carving = Carving{0, bytes, generation_, 0};
  if (bytes == 0) return true;
  const StreamId id = stream.id();
  if (std::find(streams_.begin(), streams_.end(), id) == streams_.end()) streams_.push_back(id);
  carving->number = carved_ + 1;
  if (bytes > (std::uint64_t{1} << 56)) bytes = std::uint64_t{1} << 56;  // fits nowhere
  if (!take(bytes, origin, carving)) return false;
  ++carved_;
  return true;
}

void Carver::give(DeviceAddress address) {
  if (address == 0) return;
  const std::lock_guard<std::mutex> guard(lock_);
  if (contains(address)) {
    if (put(address)) return;
    if (was_carved(address)) {
      ++stale_;
      return;
    }
  }
  throw Error(ErrorKind::kValue,
              title() + ": free of " + hexadecimal(address) +
                  ", where no carving starts: it was freed before, or is of other memory");
}

void Carver::tensor_made(const void* key, const Carving& carving) {
  const std::lock_guard<std::mutex> guard(lock_);
  tensors_[key] = carving;
  ++tensor_count_;
}

void Carver::tensor_returned(const void* key, const Carving& carving) noexcept {
  const std::lock_guard<std::mutex> guard(lock_);
  // A later tensor may stand at the same key already.
  const auto found = tensors_.find(key);
  if (found != tensors_.end() && found->second.number == carving.number) tensors_.erase(found);
  --tensor_count_;
  if (carving.generation == generation_) {
    put_tensor(carving);
  } else {
    ++stale_;
  }
  if (closed_ && tensor_count_ == 0) release();
}

void Carver::require_tensor(const void* key, DeviceAddress address) const {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto found = tensors_.find(key);
  if (found == tensors_.end()) {
    throw Error(ErrorKind::kValue,
                title() + ": the tensor at " + hexadecimal(address) + " was not carved from it");
  }
  if (found->second.generation == generation_) return;
  throw Error(ErrorKind::kValue,
              title() + ": the tensor at " + hexadecimal(address) + " was carved before reset " +
                  std::to_string(found->second.generation + 1) + ", and " +
                  std::to_string(generation_) +
                  " resets have happened: its memory belongs to others by now. Copy what must "
                  "outlive a reset");
}

void Carver::close() {
  if (closed()) return;
  try {
    before_close();
  } catch (...) {
    const std::lock_guard<std::mutex> guard(lock_);
    end();
    throw;
  }
  const std::lock_guard<std::mutex> guard(lock_);
  end();
}

void Carver::end() noexcept {
  closed_ = true;
  if (tensor_count_ == 0) release();
}

/// Work submitted so far to every stream that memory was carved for.
std::vector<BlockUse> Carver::uses() const {
  std::vector<BlockUse> result;
  for (const StreamId stream : streams_) {
    result.push_back(BlockUse{stream, is_capture(stream) ? 0 : submitted_ticket(stream)});
  }
  return result;
}

void Carver::release() noexcept {
  // A child process has the parent's books but not its memory.
  if (block_.id == 0 || fork_ != fork_generation()) return;
  try {
    const std::vector<BlockUse> all = uses();
    heap_.free_after(block_, capacity_, account_, all.data(), all.size());
  } catch (const std::exception& error) {
    // Nobody can have the block then, and nothing that uses it is hurt.
    log(LogLevel::kError, title() + ": the block is kept: " + error.what());
  }
  block_ = Block{};
}

}  // namespace nbx
