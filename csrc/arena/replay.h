// Replay of allocation traces on a heap of its own: what a workload would hold, map and cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "account/account.h"
#include "device/device.h"

namespace nbx {

/// The columns of a trace, in the order of its events; borrowed.
struct ReplayTrace {
  std::size_t count = 0;
  const std::int8_t* ops = nullptr;       // 1: the event allocates, -1: it frees
  const std::int64_t* ids = nullptr;      // unique among what is live; used again after a free
  const std::int64_t* bytes = nullptr;    // of allocations; a free's are not looked at
  const std::int64_t* streams = nullptr;  // any numbers, of allocations; null: one stream
  const double* seconds = nullptr;        // never decreasing; null: as fast as the host can
};

struct ReplayOptions {
  std::uint64_t budget = kUnlimited;
  double slack = 0.0;  // share of the peak that may be mapped before pages are taken elsewhere
  std::uint32_t streams = 0;  // allocations are split over this many streams; 0: as the trace says
  std::optional<std::uint64_t> seed;  // of a random split; none: in turns
  std::uint32_t repeat = 1;           // passes over the trace, the heap's state kept
  // Work that follows every allocation on its stream, in seconds; 0: as much for each of several
  // streams as keeps it about as busy as the host that submits it, and none for a single one.
  double work_seconds = 0.0;
  bool virtual_memory = true;  // false: segments, as on devices without it
};

/// One pass over the trace. Bytes unless the name says otherwise.
struct ReplayPass {
  std::uint64_t allocations = 0;  // admitted ones
  std::uint64_t peak_live = 0;    // as requested
  std::uint64_t peak_granted = 0;
  std::uint64_t peak_mapped = 0;
  double ratio = 1.0;        // peak_mapped / peak_live
  std::uint64_t remaps = 0;  // allocations that took pages from elsewhere
  std::uint64_t driver_calls = 0;
  std::uint64_t stolen_bytes = 0;
  std::uint64_t created_bytes = 0;  // new pages and segments
  std::uint64_t waits = 0;          // waits of one stream for another that the heap inserted
  std::uint64_t refused = 0;        // allocations
  double alloc_ns_p50 = 0.0;        // host time of one allocation
  double alloc_ns_p99 = 0.0;
  double virtual_seconds = 0.0;  // of simulated devices
};

struct ReplayRefusal {
  std::size_t event = 0;  // of the trace, from 0
  std::uint32_t pass = 0;
  std::uint64_t requested = 0;
  std::string why;
};

struct ReplayReport {
  std::string device;
  std::uint64_t memory = 0;
  std::uint64_t budget = kUnlimited;
  std::uint32_t streams = 0;
  std::vector<ReplayPass> passes;
  std::optional<ReplayRefusal> first_refusal;
};

/// Bytes that the allocations of a trace hold at most at one time. Throws Error(kValue) naming the
/// event that allocates a live id, frees an unknown one, or has a size or a time out of range.
[[nodiscard]] std::uint64_t peak_of(const ReplayTrace& trace);

/// Replays on an opened device, beside what it holds already.
[[nodiscard]] ReplayReport replay(Device& device, const ReplayTrace& trace,
                                  const ReplayOptions& options);

/// Replays on a simulated device of `memory` bytes without backing (none: twice the peak of the
/// trace); its former memory and backing return afterwards. The device must hold nothing.
[[nodiscard]] ReplayReport replay_simulated(std::int32_t ordinal,
                                            std::optional<std::uint64_t> memory,
                                            const ReplayTrace& trace, const ReplayOptions& options);

}  // namespace nbx
