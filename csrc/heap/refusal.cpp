#include "heap/refusal.h"

#include <algorithm>

#include "core/bytes.h"

namespace nbx {
namespace {

constexpr std::uint64_t kUnknown = ~std::uint64_t{0};

std::int64_t figure(std::uint64_t bytes) {
  return static_cast<std::int64_t>(std::min<std::uint64_t>(bytes, INT64_MAX));
}

/// Bytes that are missing for the request to be served.
std::uint64_t shortfall_of(const RefusalFigures& f) {
  // A budget may have been set below what was held.
  if (f.over_budget && f.held > f.limit) return f.granted + (f.held - f.limit);
  const std::uint64_t room = f.over_budget ? f.limit - f.held : f.driver_free.value_or(0);
  return f.granted > room ? f.granted - room : 0;
}

/// The largest request that would have been served instead, nothing released.
std::uint64_t would_fit(const RefusalFigures& f) {
  if (f.advice) return f.advice->would_fit;
  std::uint64_t bytes = std::max(f.largest_hole, f.driver_free.value_or(0) + f.unused);
  if (f.over_budget) bytes = std::min(bytes, f.limit > f.held ? f.limit - f.held : 0);
  return bytes;
}

std::string budget_sentence(const RefusalFigures& f) {
  return "the budget of " + f.tag + " is " + format_bytes(f.limit) + " and " +
         format_bytes(f.held) + " of it are in use";
}

std::string device_sentence(const RefusalFigures& f) {
  std::string text = format_bytes(f.live) + " are live";
  if (f.driver_free && f.driver_total) {
    text += ", the driver has " + format_bytes(*f.driver_free) + " of " +
            format_bytes(*f.driver_total) + " free";
  }
  return text + ", and the largest hole is " + format_bytes(f.largest_hole);
}

/// One thing that would have let this request through.
std::string remedy(const RefusalFigures& f, std::uint64_t shortfall) {
  const std::uint64_t total = f.driver_total.value_or(kUnknown);
  if (f.granted > total) {
    return "no release can help: ask for at most " + format_bytes(total) + " at a time on " +
           f.device;
  }
  if (f.over_budget) {
    if (f.granted <= f.limit) {
      return "release " + format_bytes(shortfall) + " under " + f.tag +
             ", or raise its budget by that much";
    }
    return "raise the budget of " + f.tag + " to at least " + format_bytes(f.held + f.granted) +
           ", or ask for at most " + format_bytes(f.limit);
  }
  if (f.inside_work && f.pending != 0) {
    return "host work of a stream may not wait for the " + format_bytes(f.pending) +
           " that queued work keeps: allocate before the work is queued";
  }
  if (f.parked + f.driver_free.value_or(0) >= f.granted) {
    return "the free bytes are in pieces between live tensors: release neighbours, or ask for at "
           "most " +
           format_bytes(std::max(f.largest_hole, f.driver_free.value_or(0))) + " at a time";
  }
  if (f.live < shortfall && f.external.value_or(0) > 0) {
    return format_bytes(f.external.value_or(0)) + " are held by others on " + f.device +
           ": end another process, or use another device";
  }
  return "release at least " + format_bytes(std::max<std::uint64_t>(shortfall, 1)) + " on " +
         f.device;
}

/// What was tried on a copy of the books and let the request through; empty if nothing did.
std::string proven(const RefusalFigures& f) {
  if (!f.advice) return "";
  std::string text;
  const auto add = [&](const std::string& part) {
    text += (text.empty() ? "it fits " : ", or ") + part;
  };
  const auto freed = [&](const NamedBytes& limit) {
    for (const NamedBytes& tag : f.advice->tags) {
      if (tag.first == limit.first) return tag.second - limit.second;
    }
    return kUnknown;
  };
  // The tag that has to give up least.
  const NamedBytes* least = nullptr;
  for (const NamedBytes& limit : f.advice->fits_if) {
    if (least == nullptr || freed(limit) < freed(*least)) least = &limit;
  }
  if (least != nullptr) {
    add("if " + least->first + " holds at most " + format_bytes(least->second));
  }
  if (f.advice->frozen != 0) {
    add("once the graphs that keep " + format_bytes(f.advice->frozen) + " are released");
  }
  if (const std::uint64_t piece = f.advice->would_fit; piece != 0 && piece < f.granted) {
    const std::uint64_t pieces = f.granted / piece + (f.granted % piece != 0 ? 1 : 0);
    add("in " + std::to_string(pieces) + " pieces of " +
        format_bytes((f.requested + pieces - 1) / pieces));
  }
  return text;
}

FigureTable table(const std::vector<NamedBytes>& rows) {
  FigureTable result;
  for (const auto& [name, bytes] : rows) result.emplace_back(name, figure(bytes));
  return result;
}

}  // namespace

Error refusal(const RefusalFigures& f) {
  const std::uint64_t shortfall = shortfall_of(f);
  const std::string tried = proven(f);
  Error error(ErrorKind::kOutOfMemory,
              "allocate: " + format_bytes(f.requested) + " do not fit on " + f.device + ": " +
                  (f.over_budget ? budget_sentence(f) : device_sentence(f)) + "; " +
                  remedy(f, shortfall) + (tried.empty() ? "" : "; " + tried));
  error.with("requested", figure(f.requested))
      .with("granted", figure(f.granted))
      .with("device", f.device)
      .with("tag", f.tag)
      .with("live", figure(f.live))
      .with("parked", figure(f.parked))
      .with("pool_cached", figure(f.parked))
      .with("pool_blocks", figure(f.parked_blocks))
      .with("blocks", figure(f.live_blocks))
      .with("pending", figure(f.pending))
      .with("largest_hole", figure(f.largest_hole));
  if (f.over_budget) error.with("held", figure(f.held));
  if (f.driver_free) error.with("would_fit", figure(would_fit(f)));
  if (f.over_budget || f.driver_free) error.with("shortfall", figure(shortfall));
  if (f.over_budget) {
    error.with("budget", figure(f.limit));
  } else if (f.budget) {
    error.with("budget", figure(*f.budget));
  }
  if (f.driver_free) error.with("driver_free", figure(*f.driver_free));
  if (f.driver_total) error.with("driver_total", figure(*f.driver_total));
  if (f.external) error.with("external", figure(*f.external));
  error.with("pending_streams", table(f.pending_streams));
  if (f.advice) {
    error.with("tags", table(f.advice->tags)).with("fits_if", table(f.advice->fits_if));
  }
  return error;
}

}  // namespace nbx
