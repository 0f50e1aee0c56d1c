// The table of a vendor's devices.
#pragma once

#include "device/gpu/devices.h"
#include "device/gpu/graphs.h"
#include "device/gpu/memory.h"
#include "device/gpu/pages.h"
#include "device/gpu/streams.h"
#include "device/gpu/work.h"

namespace nbx::gpu {

#define NBX_SET(name) table->name = &Group::name;
template <class Group>
void set_devices(Primitives* table) {
  NBX_SET(device_count)
  NBX_SET(properties)
  NBX_SET(open)
  NBX_SET(synchronize)
  NBX_SET(memory_info)
  NBX_SET(budget)
  NBX_SET(last_error)
  NBX_SET(status_text)
}

template <class Group>
void set_memory(Primitives* table) {
  NBX_SET(allocate)
  NBX_SET(free)
  NBX_SET(host_allocate)
  NBX_SET(host_free)
  NBX_SET(map_host)
  NBX_SET(unmap_host)
  NBX_SET(device_address)
  NBX_SET(resolve)
  NBX_SET(peer_supported)
  NBX_SET(peer_enable)
  NBX_SET(ipc_export)
  NBX_SET(ipc_open)
  NBX_SET(ipc_close)
}

template <class Group>
void set_pages(Primitives* table) {
  NBX_SET(range_reserve)
  NBX_SET(range_release)
  NBX_SET(page_create)
  NBX_SET(page_release)
  NBX_SET(page_map)
  NBX_SET(page_unmap)
  NBX_SET(page_access)
}

template <class Group>
void set_work(Primitives* table) {
  NBX_SET(copy)
  NBX_SET(copy_peer)
  NBX_SET(fill)
  NBX_SET(launch_host)
  NBX_SET(module_load)
  NBX_SET(module_unload)
  NBX_SET(kernel_find)
  NBX_SET(kernel_attributes)
  NBX_SET(launch)
}

template <class Group>
void set_streams(Primitives* table) {
  NBX_SET(stream_create)
  NBX_SET(stream_destroy)
  NBX_SET(stream_synchronize)
  NBX_SET(stream_wait_event)
  NBX_SET(submitted_ticket)
  NBX_SET(completed_ticket)
  NBX_SET(wait_ticket)
  NBX_SET(event_create)
  NBX_SET(event_destroy)
  NBX_SET(event_record)
  NBX_SET(event_query)
  NBX_SET(event_synchronize)
  NBX_SET(event_elapsed)
}

template <class Group>
void set_graphs(Primitives* table) {
  NBX_SET(capture_begin)
  NBX_SET(capture_end)
  NBX_SET(capture_node)
  NBX_SET(graph_create)
  NBX_SET(graph_add_kernel)
  NBX_SET(graph_finish)
  NBX_SET(graph_set_kernel)
  NBX_SET(graph_launch)
  NBX_SET(graph_destroy)
}

#undef NBX_SET

template <class Api>
Primitives make_table() {
  Primitives table{};
  table.kind = Api::kKind;
  table.kind_name = Api::kKindName;
  set_devices<Devices<Api>>(&table);
  set_memory<Memory<Api>>(&table);
  set_pages<Pages<Api>>(&table);
  set_work<Work<Api>>(&table);
  set_streams<Streams<Api>>(&table);
  set_graphs<Graphs<Api>>(&table);
  return table;
}

}  // namespace nbx::gpu
