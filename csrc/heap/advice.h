// What would have let a refused request through, tried on a copy of the books.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "account/account.h"
#include "heap/space.h"

namespace nbx {

/// A request that was refused, and what it could have had.
struct TrialRequest {
  Reach reach;
  std::uint32_t home = Space::kSharedHome;
  std::uint64_t bytes = 0;  // whole granules
  std::uint64_t alignment = 1;
  std::uint64_t spare = 0;           // bytes that the driver would give, and those in the bank
  std::uint64_t room = kUnlimited;   // bytes that the limits on the request's account leave
  const Account* refused = nullptr;  // the account whose limit refused, if one did
};

using NamedBytes = std::pair<std::string, std::uint64_t>;

struct Advice {
  std::uint64_t would_fit = 0;      // bytes of the largest request that would have been served
  std::vector<NamedBytes> tags;     // live bytes by tag, the ten largest
  std::vector<NamedBytes> fits_if;  // the request fits once this tag holds at most so much: tried
                                    // by freeing its largest blocks
  std::uint64_t frozen = 0;         // bytes of graphs with which it would fit; 0 if it would not
};

/// `space` is only read; the lock of its heap is held, so that it is of one moment. `accounts`: the
/// tags, each with those below it.
[[nodiscard]] Advice advise(const Space& space, const TrialRequest& request,
                            const std::vector<Account*>& accounts);

}  // namespace nbx
