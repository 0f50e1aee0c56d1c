// Copies, casts, fills and reads of elements: what several files of the tensor type use.
#pragma once

#include "bindings/arguments.h"

namespace nbx::python {

/// Throws unless the tensor may be written: read-only memory, or elements that share memory.
void require_writable(const char* function, const TensorMeta& meta);

struct NamedKernel {
  const char* name;
  HostKernel kernel;
};
/// The registered kernel of this name; throws Error(kUnsupported). Look up once, not per call.
[[nodiscard]] NamedKernel required_kernel(const char* name);

/// Sets the function (name, tensors, scalars) that runs a kernel's step on devices of compiled
/// kernels; takes over the reference, null for none.
void set_kernel_hook(PyObject* hook) noexcept;

/// Runs a kernel on the tensors' device; the first one is written. Other Python threads run
/// meanwhile when `bytes` is large.
void run_on_device(const NamedKernel& kernel, TensorMeta* const* tensors, std::size_t count,
                   const Scalar* scalars, std::size_t scalar_count, std::uint64_t bytes);

/// The tensor itself if it is contiguous, else a contiguous copy.
[[nodiscard]] TensorMeta contiguous(const TensorMeta& meta);
[[nodiscard]] TensorMeta cloned(const TensorMeta& meta);
/// Another dtype and device; the tensor itself when nothing changes and `copy` is false. Copies
/// from page-locked memory may go on when this returns, unless they are `waited` for.
[[nodiscard]] TensorMeta converted(const TensorMeta& meta, DType dtype, Device& device, bool copy,
                                   bool waited = true);
/// Contiguous elements that the host may read; waits for them.
[[nodiscard]] TensorMeta readable(const TensorMeta& meta);

/// destination[...] = source: broadcast, cast and moved between devices as needed. A source that
/// overlaps the destination is copied first. `waited` as in `converted`.
void assign(const char* function, TensorMeta& destination, const TensorMeta& source,
            bool waited = true);
/// Checks the number against the dtype (range, NaN, complex), as NumPy's assignment does.
void fill(const char* function, TensorMeta& destination, Scalar value);

/// The only element of a tensor.
[[nodiscard]] Scalar element_of(const TensorMeta& meta, const char* function);
/// Element `index` of contiguous host memory.
[[nodiscard]] Scalar load_element(DType dtype, const std::byte* data, std::int64_t index) noexcept;
[[nodiscard]] PyObject* number_of(const Scalar& scalar);

}  // namespace nbx::python
