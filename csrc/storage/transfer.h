// Moving contiguous bytes between devices and the host, in stream order.
#pragma once

#include <cstdint>

#include "storage/tensor.h"

namespace nbx {

/// Copies host bytes into a contiguous tensor on its device's current stream. The source may be
/// reused when this returns. Throws Error(kDevice).
void copy_from_host(const TensorMeta& destination, const void* source, std::uint64_t bytes);
/// Copies a contiguous tensor to the host; complete when it returns. Callers that hold the Python
/// lock release it first unless the storage is idle.
void copy_to_host(const TensorMeta& source, void* destination, std::uint64_t bytes);
/// Copies between contiguous tensors of equal byte size, on any two devices. A page-locked source
/// may be written to again when this returns, unless it is not `waited` for.
void copy_across(const TensorMeta& destination, const TensorMeta& source, bool waited = true);

}  // namespace nbx
