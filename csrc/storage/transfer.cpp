#include "storage/transfer.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>

#include "core/error.h"
#include "storage/capture.h"

namespace nbx {
namespace {

/// Staging for device pairs that have no common copy.
constexpr std::uint64_t kStagingBytes = std::uint64_t{4} << 20;

DeviceAddress address_of(const void* pointer) noexcept {
  return static_cast<DeviceAddress>(reinterpret_cast<std::uintptr_t>(pointer));
}

void* pointer_to(DeviceAddress address) noexcept {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

void submit(const TensorMeta& meta, DeviceAddress destination, DeviceAddress source,
            std::uint64_t bytes, CopyKind kind) {
  Device& device = meta.device();
  Stream& stream = current_stream(device);
  meta.storage->require_awake();
  const bool writes = kind != CopyKind::kDeviceToHost;
  meta.storage->check_launch(meta.data, bytes, stream, writes);
  device.require(Primitive::k_copy);
  device.check(device.primitives().copy(device.ordinal(), destination, source,
                                        static_cast<std::size_t>(bytes), kind, stream.handle()),
               "copy");
  meta.storage->touch(stream);
  meta.storage->note_launch(meta.data, bytes, stream, writes);
  note_captured_range(stream, meta.data, bytes);
}

[[noreturn]] void refuse_captured(Device& from, Device& to) {
  throw Error(ErrorKind::kValue, "copy: a stream of " + from.name() +
                                     " is captured, and a copy to " + to.name() +
                                     " would have to run now; captured work runs when the graph is "
                                     "launched: copy before the capture, or after a launch");
}

/// A window of the same bytes for the staged path; only `data` matters to the copies above.
TensorMeta at_offset(const TensorMeta& meta, std::uint64_t offset) {
  TensorMeta part;
  part.storage = meta.storage;
  part.data = meta.data + offset;
  part.dtype = meta.dtype;
  return part;
}

}  // namespace

void copy_from_host(const TensorMeta& destination, const void* source, std::uint64_t bytes) {
  if (bytes == 0) return;
  if (const Stream& stream = current_stream(destination.device()); stream.is_captured())
      [[unlikely]] {
    // The values of now are what every launch copies.
    source = kept_for_capture(stream.id(), source, bytes);
    return submit(destination, destination.data, address_of(source), bytes,
                  CopyKind::kHostToDevice);
  }
  if (destination.device().host_readable()) {
    destination.storage->wait();
    std::memcpy(pointer_to(destination.data), source, static_cast<std::size_t>(bytes));
    return;
  }
  submit(destination, destination.data, address_of(source), bytes, CopyKind::kHostToDevice);
  // The driver takes the bytes of other memory before it returns.
  if (is_pinned(address_of(source))) destination.storage->wait();
}

void copy_to_host(const TensorMeta& source, void* destination, std::uint64_t bytes) {
  if (bytes == 0) return source.storage->wait();
  if (source.device().host_readable()) {
    source.storage->wait();
    std::memcpy(destination, pointer_to(source.data), static_cast<std::size_t>(bytes));
    return;
  }
  if (current_stream(source.device()).is_captured()) [[unlikely]]
    refuse_captured(source.device(), open_device(DeviceKind::kCpu, 0));
  submit(source, address_of(destination), source.data, bytes, CopyKind::kDeviceToHost);
  source.storage->wait();
}

void copy_across(const TensorMeta& destination, const TensorMeta& source, bool waited) {
  const std::uint64_t bytes = bytes_of(source.dtype, source.layout.element_count());
  Device& from = source.device();
  Device& to = destination.device();
  if (bytes == 0) {
    // Nothing moves, but whoever reads the result still learns of failed work before it.
    if (&from != &to) source.storage->wait();
    return;
  }
  if (&from == &to) {
    source.storage->require_awake();
    source.storage->check_launch(source.data, bytes, current_stream(to), false);
    submit(destination, destination.data, source.data, bytes, CopyKind::kDeviceToDevice);
    source.storage->touch(current_stream(to));
    source.storage->note_launch(source.data, bytes, current_stream(to), false);
    note_captured_range(current_stream(to), source.data, bytes);
  } else if (current_stream(to).is_captured() && !from.host_readable()) {
    refuse_captured(to, from);
  } else if (current_stream(from).is_captured() && !to.host_readable()) {
    refuse_captured(from, to);
  } else if (source.storage->pinned() && !to.host_readable() &&
             !(waited && current_stream(to).is_captured())) {
    submit(destination, destination.data, source.data, bytes, CopyKind::kHostToDevice);
    source.storage->touch(current_stream(to));
    if (waited) source.storage->wait();
  } else if (from.host_readable()) {
    source.storage->wait();
    copy_from_host(destination, pointer_to(source.data), bytes);
  } else if (to.host_readable()) {
    destination.storage->wait();
    copy_to_host(source, pointer_to(destination.data), bytes);
  } else if (from.kind() == to.kind() && supports(to.primitives(), Primitive::k_copy_peer)) {
    Stream& stream = current_stream(to);
    source.storage->wait();
    destination.storage->require_awake();
    destination.storage->check_launch(destination.data, bytes, stream, true);
    to.check(to.primitives().copy_peer(to.ordinal(), destination.data, from.ordinal(), source.data,
                                       static_cast<std::size_t>(bytes), stream.handle()),
             "copy_peer");
    destination.storage->touch(stream);
    destination.storage->note_launch(destination.data, bytes, stream, true);
    // The source's storage knows only streams of its own device, so its owner may free it now.
    stream.wait(stream.submitted());
  } else {
    const std::uint64_t piece = std::min(bytes, kStagingBytes);
    const auto staging = std::make_unique<std::byte[]>(static_cast<std::size_t>(piece));
    for (std::uint64_t done = 0; done < bytes; done += piece) {
      const std::uint64_t now = std::min(piece, bytes - done);
      copy_to_host(at_offset(source, done), staging.get(), now);
      copy_from_host(at_offset(destination, done), staging.get(), now);
    }
    destination.storage->wait();
  }
}

}  // namespace nbx
