#include "arena/replay.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "arena/replay_clock.h"
#include "core/error.h"
#include "core/log.h"
#include "device/sim/sim.h"
#include "heap/heap.h"
#include "stream/stream.h"

namespace nbx {
namespace {

constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kSimGranule = std::uint64_t{2} << 20;
/// Virtual time between two launches of one host thread, nearly.
constexpr double kHostSeconds = 4e-6;
/// As many launches as a driver queues before the host has to wait.
constexpr Ticket kQueueDepth = 1024;

// ---- the trace, checked and renumbered -------------------------------------------------------

/// An event whose id and stream are places in tables. Every allocation has a place of its own.
struct Step {
  std::uint64_t bytes;
  std::uint32_t slot;
  std::uint32_t stream;
  bool allocates;
};

struct Steps {
  std::vector<Step> steps;
  std::uint32_t slots = 0;
  std::uint32_t streams = 1;
  std::uint64_t peak = 0;
};

[[noreturn]] void refuse(const ReplayTrace& trace, std::size_t event, const std::string& what) {
  const char* kind = trace.ops[event] >= 0 ? "allocation" : "free";
  throw Error(ErrorKind::kValue, "replay: event " + std::to_string(event) + " (" + kind +
                                     " of id " + std::to_string(trace.ids[event]) + "): " + what);
}

void check_event(const ReplayTrace& trace, std::size_t i) {
  const std::int8_t op = trace.ops[i];
  if (op != 1 && op != -1) {
    refuse(trace, i, "its kind is " + std::to_string(op) + "; give 1 (allocate) or -1 (free)");
  }
  if (op == 1 && trace.bytes[i] < 0) {
    refuse(trace, i, "its size is " + std::to_string(trace.bytes[i]) + "; give 0 bytes or more");
  }
  if (trace.seconds != nullptr &&
      !(std::isfinite(trace.seconds[i]) && (i == 0 || trace.seconds[i] >= trace.seconds[i - 1]))) {
    refuse(
        trace, i,
        "its time is " + std::to_string(trace.seconds[i]) + "; give seconds that never decrease");
  }
}

/// Well mixed bits of a number (the finaliser of splitmix64).
std::uint64_t mixed(std::uint64_t value) noexcept {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

Steps prepare(const ReplayTrace& trace, const ReplayOptions& options) {
  Steps result;
  result.steps.reserve(trace.count);
  std::unordered_map<std::int64_t, Step> live;
  std::unordered_map<std::int64_t, std::uint32_t> streams;
  std::uint64_t held = 0;
  for (std::size_t i = 0; i < trace.count; ++i) {
    check_event(trace, i);
    if (trace.ops[i] < 0) {
      const auto found = live.find(trace.ids[i]);
      if (found == live.end()) refuse(trace, i, "nothing of this id is live; allocate it first");
      result.steps.push_back(found->second);
      result.steps.back().allocates = false;
      held -= found->second.bytes;
      live.erase(found);
      continue;
    }
    Step step{static_cast<std::uint64_t>(trace.bytes[i]), result.slots, 0, true};
    if (options.streams != 0) {
      const std::uint64_t number =
          options.seed ? mixed(*options.seed ^ mixed(step.slot)) : step.slot;
      step.stream = static_cast<std::uint32_t>(number % options.streams);
    } else if (trace.streams != nullptr) {
      const auto known = static_cast<std::uint32_t>(streams.size());
      step.stream = streams.emplace(trace.streams[i], known).first->second;
    }
    if (!live.emplace(trace.ids[i], step).second) {
      refuse(trace, i, "this id is live already; free it first or give another");
    }
    if (step.bytes > UINT64_MAX / 4 - held) refuse(trace, i, "the live bytes pass 2**62");
    held += step.bytes;
    result.peak = std::max(result.peak, held);
    ++result.slots;
    result.steps.push_back(step);
  }
  result.streams = options.streams != 0
                       ? options.streams
                       : std::max<std::uint32_t>(1, static_cast<std::uint32_t>(streams.size()));
  return result;
}

// ---- replaying -------------------------------------------------------------------------------

class Replayer {
 public:
  Replayer(Device& device, const Steps& steps, const ReplayTrace& trace,
           const ReplayOptions& options)
      : device_(device),
        steps_(steps),
        trace_(trace),
        // A free stands where the memory became reusable: one stream has no work to wait for.
        queues_work_(!device.properties().integrated_work &&
                     (steps.streams > 1 || options.work_seconds > 0.0)),
        work_seconds_(options.work_seconds > 0.0 ? options.work_seconds
                                                 : kHostSeconds * steps.streams),
        root_("replay", nullptr),
        heap_(device, &root_.tree_lock(), options.virtual_memory),
        held_(steps.slots) {
    root_.set_limit(options.budget);
    HeapOptions heap_options;
    heap_options.slack = options.slack;
    heap_.set_options(heap_options);
    if (queues_work_) device.require(Primitive::k_launch_host);
    for (std::uint32_t i = 0; i < steps.streams; ++i) {
      streams_.push_back(queues_work_ ? create_stream(device, 0)
                                      : std::make_shared<Stream>(device, 0, false));
    }
  }
  ~Replayer() {
    try {
      free_live();
    } catch (const std::exception& error) {
      log(LogLevel::kWarning, std::string("replay: blocks stay live: ") + error.what());
    }
  }
  Replayer(const Replayer&) = delete;
  Replayer& operator=(const Replayer&) = delete;

  ReplayPass pass(std::uint32_t number, std::optional<ReplayRefusal>* first_refusal);
  void finish() {
    device_.check(device_.primitives().synchronize(device_.ordinal()), "synchronize");
  }

 private:
  struct Held {
    Block block;
    bool live = false;
  };
  void allocate(std::size_t event, std::uint32_t number, ReplayPass* pass,
                std::optional<ReplayRefusal>* first_refusal);
  void free(const Step& step);
  void free_live();
  void launch(Stream& stream);
  void pace(std::size_t event, double start) const;

  Device& device_;
  const Steps& steps_;
  const ReplayTrace& trace_;
  const bool queues_work_;
  const double work_seconds_;
  std::vector<std::shared_ptr<Stream>> streams_;  // outlive the heap, which asks for their tickets
  Account root_;
  Heap heap_;
  std::vector<Held> held_;
  std::uint64_t live_ = 0;  // as requested
  LatencySamples samples_;
};

ReplayPass Replayer::pass(std::uint32_t number, std::optional<ReplayRefusal>* first_refusal) {
  ReplayPass result;
  heap_.reset_peak();
  const HeapStatistics before = heap_.statistics();
  const bool simulated = device_.kind() == DeviceKind::kSim;
  const double start = simulated ? sim::seconds() : 0.0;
  samples_.start(steps_.slots);
  for (std::size_t event = 0; event < steps_.steps.size(); ++event) {
    if (trace_.seconds != nullptr && simulated) pace(event, start);
    if (steps_.steps[event].allocates) {
      allocate(event, number, &result, first_refusal);
    } else {
      free(steps_.steps[event]);
    }
  }
  samples_.finish();
  free_live();
  const HeapStatistics after = heap_.statistics();
  result.peak_granted = after.peak_live;
  result.peak_mapped = after.peak_mapped;
  if (result.peak_live != 0) {
    result.ratio = static_cast<double>(result.peak_mapped) / static_cast<double>(result.peak_live);
  }
  result.driver_calls = after.driver_calls - before.driver_calls;
  result.remaps = after.remaps - before.remaps;
  result.stolen_bytes = after.stolen_bytes - before.stolen_bytes;
  result.created_bytes = after.created_bytes - before.created_bytes;
  result.waits = after.inserted_waits - before.inserted_waits;
  result.alloc_ns_p50 = samples_.quantile(0.5);
  result.alloc_ns_p99 = samples_.quantile(0.99);
  if (simulated) result.virtual_seconds = sim::seconds() - start;
  return result;
}

void Replayer::allocate(std::size_t event, std::uint32_t number, ReplayPass* pass,
                        std::optional<ReplayRefusal>* first_refusal) {
  const Step& step = steps_.steps[event];
  Stream& stream = *streams_[step.stream];
  Held& held = held_[step.slot];
  try {
    const std::uint64_t start = LatencySamples::ticks();
    held.block = heap_.allocate(step.bytes, kAlignment, stream, root_);
    samples_.add(LatencySamples::ticks() - start);
    held.live = true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kOutOfMemory) throw;
    ++pass->refused;
    if (!first_refusal->has_value()) {
      *first_refusal = ReplayRefusal{event, number, step.bytes, error.what()};
    }
    return;
  }
  ++pass->allocations;
  live_ += step.bytes;
  pass->peak_live = std::max(pass->peak_live, live_);
  if (queues_work_) launch(stream);
}

void Replayer::free(const Step& step) {
  Held& held = held_[step.slot];
  if (!held.live) return;  // it was refused
  Stream& stream = *streams_[step.stream];
  heap_.free(held.block, step.bytes, root_, stream.id(), queues_work_ ? stream.submitted() : 0);
  held.live = false;
  live_ -= step.bytes;
}

/// What a trace leaves live dies with the pass.
void Replayer::free_live() {
  for (const Step& step : steps_.steps) {
    if (step.allocates) free(step);
  }
}

void Replayer::launch(Stream& stream) {
  const HostWork work{[](void*) {}, [](void*) {}, nullptr};
  device_.check(
      device_.primitives().launch_host(device_.ordinal(), &work, work_seconds_, stream.handle()),
      "launch_host");
  const Ticket submitted = stream.submitted();
  if (submitted > kQueueDepth) stream.wait(submitted - kQueueDepth);
}

void Replayer::pace(std::size_t event, double start) const {
  const double due = start + (trace_.seconds[event] - trace_.seconds[0]);
  const double now = sim::seconds();
  if (due > now) sim::advance(due - now);
}

void check_options(const ReplayOptions& options) {
  if (options.repeat == 0) {
    throw Error(ErrorKind::kValue, "replay: repeat is 0; give 1 pass or more");
  }
  if (!(options.work_seconds >= 0.0) || !std::isfinite(options.work_seconds)) {
    throw Error(ErrorKind::kValue, "replay: work_seconds is " +
                                       std::to_string(options.work_seconds) +
                                       "; give 0 (a default) or more");
  }
}

/// The size and the backing of a simulated device, put back when a replay is over.
class SimulatedSettings {
 public:
  explicit SimulatedSettings(std::int32_t ordinal)
      : ordinal_(ordinal),
        memory_(sim::books(ordinal).total_bytes),
        backing_(sim::backing(ordinal)) {}
  SimulatedSettings(const SimulatedSettings&) = delete;
  SimulatedSettings& operator=(const SimulatedSettings&) = delete;
  ~SimulatedSettings() {
    try {
      sim::set_memory(ordinal_, memory_);
      sim::set_backing(ordinal_, backing_);
    } catch (const std::exception& error) {
      log(LogLevel::kWarning, std::string("replay: ") + error.what());
    }
  }

 private:
  std::int32_t ordinal_;
  std::uint64_t memory_;
  sim::Backing backing_;
};

/// A view of a simulated device that knows its present size. Lives until exit, as opened devices
/// do: the names of its streams refer to it.
Device& simulated_device(std::int32_t ordinal) {
  static std::mutex mutex;
  static auto* const devices = std::make_unique<std::vector<std::unique_ptr<Device>>>().release();
  const Primitives& table = *sim::primitives();
  DeviceProperties properties{};
  const Status status = table.properties(ordinal, &properties);
  if (status != kSuccess) {
    throw Error(ErrorKind::kDevice,
                "replay: sim:" + std::to_string(ordinal) + ": " + table.status_text(status));
  }
  const std::lock_guard<std::mutex> guard(mutex);
  devices->push_back(std::make_unique<Device>(table, ordinal, properties));
  return *devices->back();
}

}  // namespace

std::uint64_t peak_of(const ReplayTrace& trace) { return prepare(trace, {}).peak; }

ReplayReport replay(Device& device, const ReplayTrace& trace, const ReplayOptions& options) {
  check_options(options);
  const Steps steps = prepare(trace, options);
  ReplayReport report;
  report.device = device.name();
  report.memory = device.properties().total_bytes;
  report.budget = options.budget;
  report.streams = steps.streams;
  Replayer replayer(device, steps, trace, options);
  for (std::uint32_t number = 0; number < options.repeat; ++number) {
    report.passes.push_back(replayer.pass(number, &report.first_refusal));
  }
  replayer.finish();
  return report;
}

ReplayReport replay_simulated(std::int32_t ordinal, std::optional<std::uint64_t> memory,
                              const ReplayTrace& trace, const ReplayOptions& options) {
  const std::uint64_t bytes = memory ? *memory : 2 * peak_of(trace);
  const SimulatedSettings former(ordinal);
  if (sim::backing(ordinal) != sim::Backing::kNone) sim::set_backing(ordinal, sim::Backing::kNone);
  sim::set_memory(ordinal,
                  std::max(kSimGranule, (bytes + kSimGranule - 1) / kSimGranule * kSimGranule));
  return replay(simulated_device(ordinal), trace, options);
}

}  // namespace nbx
