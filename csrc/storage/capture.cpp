#include "storage/capture.h"

#include <string>

#include "core/log.h"
#include "device/host_status.h"

namespace nbx {
namespace {

void release(DeviceMemory& memory, StreamId capture, const BlockUse& use) noexcept {
  try {
    memory.heap.release_capture(capture, use);
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("capture: its memory is kept: ") + error.what());
  }
}

void destroy_graph(const Device& device, GraphHandle graph) noexcept {
  const Status status = device.primitives().graph_destroy(device.ordinal(), graph);
  if (status != kSuccess && status != kForkedChild) {
    log(LogLevel::kError, std::string("graph_destroy: ") + device.primitives().status_text(status));
  }
}

}  // namespace

CapturedGraph::~CapturedGraph() {
  const BlockUse last = resolved(BlockUse{capture_, 0});
  destroy_graph(memory_.device, graph_);
  release(memory_, capture_, last);
}

void CapturedGraph::launch(Stream& stream) {
  const Device& device = memory_.device;
  if (&stream.device() != &device) {
    throw Error(ErrorKind::kValue, "launch: the graph is of " + device.name() +
                                       " and the stream of " + stream.device().name() +
                                       "; launch it on a stream of its device");
  }
  device.check(device.primitives().graph_launch(device.ordinal(), graph_, stream.handle()),
               "graph_launch");
  note_replay(capture_, stream.use());
}

CaptureScope::CaptureScope(DeviceMemory& memory, Stream& stream)
    : memory_(memory), stream_(stream.handle()) {
  const Device& device = memory.device;
  if (&stream.device() != &device) {
    throw Error(ErrorKind::kValue, "capture: the memory is of " + device.name() +
                                       " and the stream of " + stream.device().name() +
                                       "; capture a stream of its device");
  }
  for (const Primitive needed : {Primitive::k_capture_begin, Primitive::k_capture_end,
                                 Primitive::k_graph_launch, Primitive::k_graph_destroy}) {
    device.require(needed);
  }
  capture_ = memory.heap.begin_capture(stream);
  const Status status = device.primitives().capture_begin(device.ordinal(), stream_);
  if (status == kSuccess) return;
  release(memory_, capture_, BlockUse{});
  device.check(status, "capture_begin");
}

CaptureScope::~CaptureScope() {
  if (!open_) return;
  const Device& device = memory_.device;
  GraphHandle graph = 0;
  const Status status = device.primitives().capture_end(device.ordinal(), stream_, &graph);
  if (status == kSuccess) {
    destroy_graph(device, graph);
  } else if (status != kForkedChild) {
    log(LogLevel::kError, std::string("capture_end: ") + device.primitives().status_text(status));
  }
  release(memory_, capture_, BlockUse{});
}

std::unique_ptr<CapturedGraph> CaptureScope::finish() {
  if (!open_) {
    throw Error(ErrorKind::kValue, "capture: finished already; begin another one");
  }
  const Device& device = memory_.device;
  GraphHandle graph = 0;
  const Status status = device.primitives().capture_end(device.ordinal(), stream_, &graph);
  open_ = false;
  if (status != kSuccess) {
    release(memory_, capture_, BlockUse{});
    device.check(status, "capture_end");
  }
  memory_.heap.end_capture(capture_);
  return std::make_unique<CapturedGraph>(memory_, graph, capture_);
}

}  // namespace nbx
