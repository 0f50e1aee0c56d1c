// The error of a refused allocation: every figure, one sentence, one remedy that would work.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "heap/advice.h"

namespace nbx {

struct RefusalFigures {
  std::string device;
  std::string tag;  // path of the account that refused, or that asked
  std::uint64_t requested = 0;
  std::uint64_t granted = 0;  // requested, rounded to the granule
  std::uint64_t live = 0;     // granted bytes of live blocks of the device
  std::uint64_t parked = 0;   // free bytes inside segments
  std::uint64_t pending = 0;  // freed bytes whose work may still run
  std::uint64_t parked_blocks = 0;
  std::uint64_t live_blocks = 0;
  std::uint64_t largest_hole = 0;
  std::uint64_t unused = 0;  // bytes of segments without a live block: exchangeable for others
  // An account refused: `held` bytes of its `limit` were in use.
  bool over_budget = false;
  std::uint64_t limit = 0;
  std::uint64_t held = 0;
  std::optional<std::uint64_t> budget;       // none: unlimited
  std::optional<std::uint64_t> driver_free;  // none: the driver does not say
  std::optional<std::uint64_t> driver_total;
  std::optional<std::uint64_t> external;    // used on the device, not by this heap
  std::vector<NamedBytes> pending_streams;  // bytes that wait for the work of each
  bool inside_work = false;                 // host work asked, which waits for nothing
  std::optional<Advice> advice;             // none: the books could not be copied
};

/// The absent figures are left out of the error: unknown is never 0.
[[nodiscard]] Error refusal(const RefusalFigures& figures);

}  // namespace nbx
