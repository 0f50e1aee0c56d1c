#include "cpu/stream.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace nbx::cpu {

#if defined(__x86_64__)

namespace {

constexpr std::size_t kLine = 64;

/// Measured: streaming wins once a result takes a tenth of the last cache, which the operands and
/// other processes share, and never within a few of a core's own caches.
std::int64_t cache_limit() noexcept {
  constexpr std::int64_t kLeast = 4 << 20;
  std::int64_t second = 0;
  std::int64_t last = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE) && defined(_SC_LEVEL3_CACHE_SIZE)
  second = sysconf(_SC_LEVEL2_CACHE_SIZE);
  last = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
  return std::max({kLeast, 4 * second, last / 10});
}

}  // namespace

bool outgrows_cache(std::int64_t bytes) noexcept {
  static const std::int64_t limit = cache_limit();
  return bytes >= limit;
}

void stream_bytes(void* to, const void* from, std::size_t bytes) noexcept {
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const std::size_t odd = reinterpret_cast<std::uintptr_t>(target) % kLine;
  const std::size_t head = odd == 0 ? 0 : std::min(kLine - odd, bytes);
  std::memcpy(target, source, head);
  std::size_t i = head;
  for (; i + kLine <= bytes; i += kLine) {
    const auto* vectors = reinterpret_cast<const __m128i*>(source + i);
    auto* line = reinterpret_cast<__m128i*>(target + i);
    const __m128i a = _mm_loadu_si128(vectors);
    const __m128i b = _mm_loadu_si128(vectors + 1);
    const __m128i c = _mm_loadu_si128(vectors + 2);
    const __m128i d = _mm_loadu_si128(vectors + 3);
    _mm_stream_si128(line, a);
    _mm_stream_si128(line + 1, b);
    _mm_stream_si128(line + 2, c);
    _mm_stream_si128(line + 3, d);
  }
  std::memcpy(target + i, source + i, bytes - i);
}

void stream_fence() noexcept { _mm_sfence(); }

#else

bool outgrows_cache(std::int64_t /*bytes*/) noexcept { return false; }
void stream_bytes(void* to, const void* from, std::size_t bytes) noexcept {
  std::memcpy(to, from, bytes);
}
void stream_fence() noexcept {}

#endif

}  // namespace nbx::cpu
