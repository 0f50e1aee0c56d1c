// Copies, fills, host work and kernels in stream order.
#pragma once

#include "device/gpu/streams.h"

namespace nbx::gpu {

/// Host work on its way through the driver.
struct QueuedWork {
  HostWork work;

  static void run_once(void* payload) {
    const std::unique_ptr<QueuedWork> queued(static_cast<QueuedWork*>(payload));
    queued->work.run(queued->work.payload);
    queued->work.discard(queued->work.payload);
  }
  static void run_again(void* payload) {
    const HostWork& work = static_cast<QueuedWork*>(payload)->work;
    work.run(work.payload);
  }
  static void discard(void* payload) {
    const std::unique_ptr<QueuedWork> queued(static_cast<QueuedWork*>(payload));
    queued->work.discard(queued->work.payload);
  }
};

template <class Api>
struct Work {
  static Status copy(std::int32_t ordinal, DeviceAddress destination, DeviceAddress source,
                     std::size_t bytes, CopyKind kind, StreamHandle stream) {
    const Entry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    StreamState* const state = stream_state<Api>(ordinal, stream);
    if (state == nullptr) return kInvalidHandle;
    if (bytes == 0) return kSuccess;
    if (destination == 0 || source == 0) return kInvalidValue;
    void* const handle = raw(stream);
    switch (kind) {
      case CopyKind::kHostToDevice:
        return submitted(
            state, Api::copy_to_device(pointer<Api>(destination), raw(source), bytes, handle));
      case CopyKind::kDeviceToHost:
        return submitted(state,
                         Api::copy_to_host(raw(destination), pointer<Api>(source), bytes, handle));
      case CopyKind::kDeviceToDevice:
        return submitted(state, Api::copy_on_device(pointer<Api>(destination), pointer<Api>(source),
                                                    bytes, handle));
      case CopyKind::kHostToHost:
        return submitted(state, Api::copy_unified(pointer<Api>(destination), pointer<Api>(source),
                                                  bytes, handle));
    }
    return kInvalidValue;
  }

  static Status copy_peer(std::int32_t destination_ordinal, DeviceAddress destination,
                          std::int32_t source_ordinal, DeviceAddress source, std::size_t bytes,
                          StreamHandle stream) {
    if (const Entry<Api> other(source_ordinal); other.status != kSuccess) return other.status;
    const Entry<Api> entry(destination_ordinal);
    if (entry.status != kSuccess) return entry.status;
    StreamState* const state = stream_state<Api>(destination_ordinal, stream);
    if (state == nullptr) return kInvalidHandle;
    if (bytes == 0) return kSuccess;
    if (destination == 0 || source == 0) return kInvalidValue;
    return submitted(
        state, Api::copy_peer(pointer<Api>(destination), destination_ordinal, pointer<Api>(source),
                              source_ordinal, bytes, raw(stream)));
  }

  static Status fill(std::int32_t ordinal, DeviceAddress destination, std::uint32_t pattern,
                     std::uint32_t pattern_bytes, std::size_t count, StreamHandle stream) {
    const Entry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    if (pattern_bytes != 1 && pattern_bytes != 2 && pattern_bytes != 4) return kInvalidValue;
    StreamState* const state = stream_state<Api>(ordinal, stream);
    if (state == nullptr) return kInvalidHandle;
    if (count == 0) return kSuccess;
    if (destination == 0 || destination % pattern_bytes != 0) return kInvalidValue;
    const auto to = pointer<Api>(destination);
    void* const handle = raw(stream);
    if (pattern_bytes == 1) {
      return submitted(state,
                       Api::fill8(to, static_cast<unsigned char>(pattern & 0xff), count, handle));
    }
    if (pattern_bytes == 2) {
      return submitted(
          state, Api::fill16(to, static_cast<unsigned short>(pattern & 0xffff), count, handle));
    }
    return submitted(state,
                     Api::fill32(to, static_cast<typename Api::Word>(pattern), count, handle));
  }

  /// Work that is captured is run by every replay, and discarded with the last of the graph.
  static Status launch_host(std::int32_t ordinal, const HostWork* work, double seconds,
                            StreamHandle stream) {
    auto queued = std::unique_ptr<QueuedWork, Discarded>(
        std::make_unique<QueuedWork>(QueuedWork{*work}).release());
    const Entry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    StreamState* const state = stream_state<Api>(ordinal, stream);
    if (state == nullptr) return kInvalidHandle;
    if (!(seconds >= 0.0)) return kInvalidValue;
    int capture = 0;
    int code = Api::is_capturing(raw(stream), &capture);
    if (code != 0) return answered<Api>(code);
    if (capture != 0) return capture_host(queued.release(), state);
    code = Api::launch_host(raw(stream), &QueuedWork::run_once, queued.get());
    if (code == 0) static_cast<void>(queued.release());
    return submitted(state, code);
  }

  // ---- kernels ---------------------------------------------------------------------------------

  static Status module_load(std::int32_t ordinal, const void* image, std::size_t bytes,
                            ModuleHandle* module) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    if (image == nullptr || bytes == 0) return kInvalidValue;
    // Text ends where its zero is, which the caller's bytes need not have.
    const std::string copy(static_cast<const char*>(image), bytes);
    void* made = nullptr;
    const int code = Api::load_module(&made, copy.c_str());
    if (code != 0) return answered<Api>(code);
    *module = address_of(made);
    const std::lock_guard<std::mutex> guard(entry.device->mutex);
    entry.device->modules.insert(*module);
    return kSuccess;
  }

  static Status module_unload(std::int32_t ordinal, ModuleHandle module) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    const std::lock_guard<std::mutex> guard(entry.device->mutex);
    if (entry.device->modules.erase(module) == 0) return kInvalidHandle;
    return answered<Api>(Api::unload_module(raw(module)));
  }

  static Status kernel_find(std::int32_t ordinal, ModuleHandle module, const char* name,
                            std::uint32_t dynamic_shared_bytes, KernelHandle* kernel) {
    const FreeEntry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    const std::lock_guard<std::mutex> guard(entry.device->mutex);
    if (entry.device->modules.count(module) == 0) return kInvalidHandle;
    void* function = nullptr;
    int code = Api::find_function(&function, raw(module), name);
    if (code == 0) {
      code = Api::prepare_function(ordinal, function, dynamic_shared_bytes,
                                   entry.device->has_clusters);
    }
    if (code == 0) *kernel = address_of(function);
    return answered<Api>(code);
  }

  static Status kernel_attributes(std::int32_t ordinal, KernelHandle kernel,
                                  KernelAttributes* attributes) {
    const Entry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    if (kernel == 0) return kInvalidHandle;
    constexpr std::array kIds = {4, 3, 1, 0};  // the same for both vendors
    std::array<int, kIds.size()> values{};
    for (std::size_t i = 0; i < kIds.size(); ++i) {
      const int code = Api::function_attribute(&values[i], kIds[i], raw(kernel));
      if (code != 0) return answered<Api>(code);
    }
    *attributes = KernelAttributes{
        static_cast<std::uint32_t>(values[0]), static_cast<std::uint32_t>(values[1]),
        static_cast<std::uint32_t>(values[2]), static_cast<std::uint32_t>(values[3])};
    return kSuccess;
  }

  static Status launch(std::int32_t ordinal, KernelHandle kernel, const LaunchGeometry* geometry,
                       void* const* arguments, std::size_t /*argument_count*/,
                       StreamHandle stream) {
    const Entry<Api> entry(ordinal);
    if (entry.status != kSuccess) return entry.status;
    StreamState* const state = stream_state<Api>(ordinal, stream);
    if (state == nullptr || kernel == 0) return kInvalidHandle;
    return submitted(
        state, Api::launch(raw(kernel), *geometry, const_cast<void**>(arguments), raw(stream)));
  }

 private:
  struct Discarded {
    void operator()(QueuedWork* queued) const { QueuedWork::discard(queued); }
  };

  /// The graph that is being captured owns the payload from the first moment on.
  static Status capture_host(QueuedWork* queued, StreamState* state) {
    void* graph = nullptr;
    void* node = nullptr;
    std::size_t count = 0;
    void* object = nullptr;
    int code = Api::capture_state(raw(state->handle), &graph, &node, &count);
    if (code == 0) code = Api::object_create(&object, queued, &QueuedWork::discard, 1, 1);
    if (code != 0) {
      QueuedWork::discard(queued);
      return answered<Api>(code);
    }
    constexpr unsigned kMove = 1;  // the graph takes over the one reference
    code = Api::graph_retain(graph, object, 1, kMove);
    if (code == 0) code = Api::launch_host(raw(state->handle), &QueuedWork::run_again, queued);
    return submitted(state, code);
  }
};

}  // namespace nbx::gpu
