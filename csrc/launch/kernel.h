// Kernel records: a kernel is found by its text name, "family:function", on every device.
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor_view.h"

namespace nbx {

enum class ScalarKind : std::uint8_t { kNone, kBoolean, kInteger, kReal, kComplex };

/// A number from the caller. `integer` holds booleans and integers (unsigned 64-bit ones by bit
/// pattern, with `is_unsigned`), `real`/`imaginary` the rest; `real` is always filled.
struct Scalar {
  ScalarKind kind = ScalarKind::kNone;
  bool is_unsigned = false;
  std::int64_t integer = 0;
  double real = 0.0;
  double imaginary = 0.0;

  [[nodiscard]] bool none() const noexcept { return kind == ScalarKind::kNone; }
};

/// One call of a host kernel: operands in the order that the kernel documents (outputs first),
/// layouts already broadcast to what the kernel expects.
struct KernelCall {
  const TensorView* tensors;
  std::size_t tensor_count;
  const Scalar* scalars;
  std::size_t scalar_count;
  void* context;  // of the record that registered the kernel, usually null
};

/// Runs on the calling thread and may use the worker pool. Throws Error (index out of range,
/// unsupported dtype); outputs are then undefined.
using HostKernel = void (*)(const KernelCall& call);

/// Registers at static initialisation: `static const HostKernelRegistration r{"norm:rms", &rms};`
/// Names are unique; a second registration of a name aborts with both places named.
class HostKernelRegistration {
 public:
  HostKernelRegistration(const char* name, HostKernel kernel, const char* file = __builtin_FILE(),
                         int line = __builtin_LINE());
};

/// Null if there is none of this name.
[[nodiscard]] HostKernel find_host_kernel(const std::string& name) noexcept;
[[nodiscard]] std::vector<std::string> host_kernel_names();

}  // namespace nbx
