// The table of a vendor's devices.
#pragma once

#include "device/gpu/devices.h"
#include "device/gpu/graphs.h"
#include "device/gpu/memory.h"
#include "device/gpu/pages.h"
#include "device/gpu/streams.h"
#include "device/gpu/work.h"

namespace nbx::gpu {

template <class Api>
Primitives make_table() {
  Primitives table{};
  table.kind = Api::kKind;
  table.kind_name = Api::kKindName;
#define NBX_SET(group, name) table.name = &group<Api>::name;
  NBX_SET(Devices, device_count)
  NBX_SET(Devices, properties)
  NBX_SET(Devices, open)
  NBX_SET(Devices, synchronize)
  NBX_SET(Devices, memory_info)
  NBX_SET(Devices, budget)
  NBX_SET(Devices, last_error)
  NBX_SET(Devices, status_text)
  NBX_SET(Memory, allocate)
  NBX_SET(Memory, free)
  NBX_SET(Memory, host_allocate)
  NBX_SET(Memory, host_free)
  NBX_SET(Memory, map_host)
  NBX_SET(Memory, unmap_host)
  NBX_SET(Memory, device_address)
  NBX_SET(Memory, resolve)
  NBX_SET(Memory, peer_supported)
  NBX_SET(Memory, peer_enable)
  NBX_SET(Memory, ipc_export)
  NBX_SET(Memory, ipc_open)
  NBX_SET(Memory, ipc_close)
  NBX_SET(Pages, range_reserve)
  NBX_SET(Pages, range_release)
  NBX_SET(Pages, page_create)
  NBX_SET(Pages, page_release)
  NBX_SET(Pages, page_map)
  NBX_SET(Pages, page_unmap)
  NBX_SET(Pages, page_access)
  NBX_SET(Work, copy)
  NBX_SET(Work, copy_peer)
  NBX_SET(Work, fill)
  NBX_SET(Work, launch_host)
  NBX_SET(Work, module_load)
  NBX_SET(Work, module_unload)
  NBX_SET(Work, kernel_find)
  NBX_SET(Work, kernel_attributes)
  NBX_SET(Work, launch)
  NBX_SET(Streams, stream_create)
  NBX_SET(Streams, stream_destroy)
  NBX_SET(Streams, stream_synchronize)
  NBX_SET(Streams, stream_wait_event)
  NBX_SET(Streams, submitted_ticket)
  NBX_SET(Streams, completed_ticket)
  NBX_SET(Streams, wait_ticket)
  NBX_SET(Streams, event_create)
  NBX_SET(Streams, event_destroy)
  NBX_SET(Streams, event_record)
  NBX_SET(Streams, event_query)
  NBX_SET(Streams, event_synchronize)
  NBX_SET(Streams, event_elapsed)
  NBX_SET(Graphs, capture_begin)
  NBX_SET(Graphs, capture_end)
  NBX_SET(Graphs, capture_node)
  NBX_SET(Graphs, graph_create)
  NBX_SET(Graphs, graph_add_kernel)
  NBX_SET(Graphs, graph_finish)
  NBX_SET(Graphs, graph_set_kernel)
  NBX_SET(Graphs, graph_launch)
  NBX_SET(Graphs, graph_destroy)
#undef NBX_SET
  return table;
}

}  // namespace nbx::gpu
