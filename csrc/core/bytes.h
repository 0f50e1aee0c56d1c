// Sizes as people write them: "2 GiB", "80%", 1048576.
#pragma once

#include <cstdint>
#include <string>

namespace nbx {

/// Bytes named by `text`: a number with an optional unit (B; kB, MB, GB, TB are powers of 1000;
/// KiB, MiB, GiB, TiB and the bare letters K, M, G, T powers of 1024; any case), or a percentage of
/// `total`. Fractions round down. Throws Error(kValue) with the text and what is allowed,
/// Error(kOverflow) past 2^63 - 1.
[[nodiscard]] std::uint64_t parse_bytes(const std::string& text, std::uint64_t total);

/// "512 B", "1.5 GiB": at most two decimals, powers of 1024.
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);

}  // namespace nbx
