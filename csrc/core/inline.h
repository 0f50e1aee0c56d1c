// For functions whose cost is that of a call: hot paths of a few nanoseconds, kernels' inner loops.
#pragma once

#define NBX_INLINE inline __attribute__((always_inline))

namespace nbx {

/// The same pointer, kept in one register: the compiler forgets what it was computed from, which it
/// would keep in several to add it up again at each use.
template <class T>
NBX_INLINE T* whole(T* pointer) noexcept {
  asm("" : "+r"(pointer));
  return pointer;
}

}  // namespace nbx
