// Copies, fills, host work and peers of simulated devices.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

#include "device/cpu/memory.h"
#include "device/sim/world.h"

namespace nbx::sim {
namespace {

/// A span that the work needs; `ordinal` -1 is host memory.
struct Span {
  std::int32_t ordinal;
  DeviceAddress address;
  std::uint64_t bytes;
};

constexpr std::int32_t kHost = -1;

bool usable(World& world, const Span& span) {
  return span.ordinal == kHost || world.addressable(span.ordinal, span.address, span.bytes);
}

class Copy : public Action {
 public:
  Copy(std::int32_t ordinal, const Span& destination, const Span& source)
      : ordinal_(ordinal), destination_(destination), source_(source) {}

  /// Takes the bytes now: the driver reads pageable memory before the call returns.
  void snapshot() {
    const std::byte* from = pointer_to(source_.address);
    bytes_.assign(from, from + source_.bytes);
    is_snapshot_ = true;
  }

  void run(World& world, Lock& /*lock*/) override {
    // Checked again: the memory may have been freed since.
    if (!usable(world, destination_) || (!is_snapshot_ && !usable(world, source_))) {
      world.device(ordinal_).sticky = kIllegalAddress;
      return;
    }
    const std::byte* from = is_snapshot_ ? bytes_.data() : pointer_to(source_.address);
    std::memmove(pointer_to(destination_.address), from, source_.bytes);
  }

 private:
  std::int32_t ordinal_;
  Span destination_;
  Span source_;
  std::vector<std::byte> bytes_;
  bool is_snapshot_ = false;
};

class Fill : public Action {
 public:
  Fill(const Span& span, std::uint32_t pattern, std::uint32_t pattern_bytes)
      : span_(span), pattern_(pattern), pattern_bytes_(pattern_bytes) {}

  void run(World& world, Lock& /*lock*/) override {
    if (!usable(world, span_)) {
      world.device(span_.ordinal).sticky = kIllegalAddress;
      return;
    }
    cpu::fill_pattern(pointer_to(span_.address), pattern_, pattern_bytes_,
                      span_.bytes / pattern_bytes_);
  }

 private:
  Span span_;
  std::uint32_t pattern_;
  std::uint32_t pattern_bytes_;
};

/// Runs without the lock: the work may take any lock of its own, Python's included.
class Host : public Action {
 public:
  Host(const HostWork& work, bool performed) : work_(work), performed_(performed) {}
  ~Host() override { work_.discard(work_.payload); }

  void run(World& /*world*/, Lock& lock) override {
    if (!performed_) return;
    lock.unlock();
    work_.run(work_.payload);
    lock.lock();
  }

 private:
  HostWork work_;
  bool performed_;
};

bool on_device(CopyKind kind, bool source) noexcept {
  if (kind == CopyKind::kDeviceToDevice) return true;
  return kind == (source ? CopyKind::kDeviceToHost : CopyKind::kHostToDevice);
}

/// The device that holds the span, this one first; kHost if none does.
std::int32_t holder_of(World& world, std::int32_t ordinal, DeviceAddress address,
                       std::uint64_t bytes) {
  if (world.addressable(ordinal, address, bytes)) return ordinal;
  for (std::size_t i = 0; i < world.devices.size(); ++i) {
    const auto other = static_cast<std::int32_t>(i);
    if (world.addressable(other, address, bytes)) return other;
  }
  return kHost;
}

/// Fills in who holds a device span, and refuses what this device may not reach.
Status locate(World& world, std::int32_t ordinal, Span* span) {
  span->ordinal = holder_of(world, ordinal, span->address, span->bytes);
  if (span->ordinal == kHost) return kInvalidValue;
  if (span->ordinal != ordinal && world.device(ordinal).peers.count(span->ordinal) == 0) {
    return kPeerNotEnabled;
  }
  return kSuccess;
}

double rate_of(World& world, CopyKind kind, const Span& destination, const Span& source) {
  if (kind == CopyKind::kDeviceToDevice) {
    return destination.ordinal == source.ordinal ? kDeviceRate : kPeerRate;
  }
  const Span& host = kind == CopyKind::kHostToDevice ? source : destination;
  return world.pinned(host.address, host.bytes) ? kPinnedRate : kPageableRate;
}

Status submit_copy(World& world, std::int32_t ordinal, const std::shared_ptr<SimStream>& stream,
                   const Span& destination, const Span& source, double rate) {
  std::shared_ptr<Copy> action;
  if (world.device(ordinal).backing == Backing::kReal) {
    action = std::make_shared<Copy>(ordinal, destination, source);
    // A graph reads its source at each replay.
    if (source.ordinal == kHost && stream->capture == nullptr &&
        !world.pinned(source.address, source.bytes)) {
      action->snapshot();
    }
  } else if (destination.ordinal == kHost) {
    std::memset(pointer_to(destination.address), 0, source.bytes);  // nothing lies there
  }
  return world.submit(stream, std::move(action), static_cast<double>(source.bytes) / rate);
}

Status copy(std::int32_t ordinal, DeviceAddress destination, DeviceAddress source,
            std::size_t bytes, CopyKind kind, StreamHandle handle) try {
  const Entry entry(ordinal, Primitive::k_copy, kLaunchCost);
  if (entry.status != kSuccess) return entry.status;
  World& world = entry.world();
  const auto stream = world.stream(ordinal, handle);
  if (stream == nullptr) return kInvalidHandle;
  if (bytes == 0) return kSuccess;
  if (destination == 0 || source == 0) return kInvalidValue;
  Span to{kHost, destination, bytes};
  Span from{kHost, source, bytes};
  for (Span* span : {&to, &from}) {
    if (!on_device(kind, span == &from)) continue;
    const Status status = locate(world, ordinal, span);
    if (status != kSuccess) return status;
  }
  return submit_copy(world, ordinal, stream, to, from, rate_of(world, kind, to, from));
} catch (const std::bad_alloc&) {
  return kSystemFailure;
}

Status copy_peer(std::int32_t destination_ordinal, DeviceAddress destination,
                 std::int32_t source_ordinal, DeviceAddress source, std::size_t bytes,
                 StreamHandle handle) {
  const Entry entry(destination_ordinal, Primitive::k_copy_peer, kLaunchCost);
  if (entry.status != kSuccess) return entry.status;
  World& world = entry.world();
  if (source_ordinal < 0 || static_cast<std::size_t>(source_ordinal) >= world.devices.size()) {
    return kInvalidDevice;
  }
  const auto stream = world.stream(destination_ordinal, handle);
  if (stream == nullptr) return kInvalidHandle;
  if (bytes == 0) return kSuccess;
  const Span to{destination_ordinal, destination, bytes};
  const Span from{source_ordinal, source, bytes};
  if (!usable(world, to) || !usable(world, from)) return kInvalidValue;
  // Without peer access the driver stages the copy through the host.
  const bool direct =
      destination_ordinal == source_ordinal || entry.device().peers.count(source_ordinal) != 0;
  return submit_copy(world, destination_ordinal, stream, to, from,
                     direct ? kPeerRate : kPinnedRate / 2);
}

Status fill(std::int32_t ordinal, DeviceAddress destination, std::uint32_t pattern,
            std::uint32_t pattern_bytes, std::size_t count, StreamHandle handle) {
  const Entry entry(ordinal, Primitive::k_fill, kLaunchCost);
  if (entry.status != kSuccess) return entry.status;
  if (pattern_bytes != 1 && pattern_bytes != 2 && pattern_bytes != 4) return kInvalidValue;
  const auto stream = entry.world().stream(ordinal, handle);
  if (stream == nullptr) return kInvalidHandle;
  if (count == 0) return kSuccess;
  if (count > static_cast<std::size_t>(-1) / pattern_bytes) return kInvalidValue;
  const Span span{ordinal, destination, std::uint64_t{count} * pattern_bytes};
  if (destination % pattern_bytes != 0 || !usable(entry.world(), span)) return kInvalidValue;
  std::shared_ptr<Action> action;
  if (entry.device().backing == Backing::kReal) {
    action = std::make_shared<Fill>(span, pattern, pattern_bytes);
  }
  return entry.world().submit(stream, std::move(action),
                              static_cast<double>(span.bytes) / kDeviceRate);
}

Status launch_host(std::int32_t ordinal, const HostWork* work, double seconds,
                   StreamHandle handle) {
  // Made before the lock and dropped after it: it owns the payload, whose clean-up may call back.
  std::shared_ptr<Action> action;
  const Entry entry(ordinal, Primitive::k_launch_host, kLaunchCost);
  const auto stream = entry.status == kSuccess ? entry.world().stream(ordinal, handle) : nullptr;
  const bool performed = entry.status == kSuccess && entry.device().backing == Backing::kReal;
  action = std::make_shared<Host>(*work, performed);
  if (entry.status != kSuccess) return entry.status;
  if (stream == nullptr) return kInvalidHandle;
  if (!(seconds >= 0.0)) return kInvalidValue;
  return entry.world().submit(stream, std::move(action), seconds);
}

Status peer_supported(std::int32_t ordinal, std::int32_t peer, bool* supported) {
  const Entry entry(ordinal, Primitive::k_peer_supported, kTrivialCost);
  if (entry.status != kSuccess) return entry.status;
  if (peer < 0 || static_cast<std::size_t>(peer) >= entry.world().devices.size()) {
    return kInvalidDevice;
  }
  *supported = peer != ordinal;
  return kSuccess;
}

Status peer_enable(std::int32_t ordinal, std::int32_t peer) {
  const Entry entry(ordinal, Primitive::k_peer_enable, kTrivialCost);
  if (entry.status != kSuccess) return entry.status;
  if (peer < 0 || static_cast<std::size_t>(peer) >= entry.world().devices.size() ||
      peer == ordinal) {
    return kInvalidDevice;
  }
  entry.device().peers.insert(peer);  // enabling twice is no error
  return kSuccess;
}

Primitives make_table() {
  Primitives table{};
  table.kind = DeviceKind::kSim;
  table.kind_name = "sim";
  set_memory_entries(&table);
  set_page_entries(&table);
  set_queue_entries(&table);
  set_work_entries(&table);
  set_kernel_entries(&table);
  set_graph_entries(&table);
  return table;
}

}  // namespace

void set_work_entries(Primitives* table) {
#define NBX_SET(name) table->name = &name;
  NBX_SET(copy)
  NBX_SET(copy_peer)
  NBX_SET(fill)
  NBX_SET(launch_host)
  NBX_SET(peer_supported)
  NBX_SET(peer_enable)
#undef NBX_SET
}

const Primitives* primitives() {
  static const Primitives table = make_table();
  return &table;
}

}  // namespace nbx::sim
