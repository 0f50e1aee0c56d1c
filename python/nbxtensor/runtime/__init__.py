"""Devices, streams, and kernels."""

from __future__ import annotations

from nbxtensor._core import (
    Device,
    DeviceKernel,
    Event,
    Stream,
    current_stream,
    default_stream,
    device,
)
from nbxtensor.runtime.graph import Graph, GraphNode
from nbxtensor.runtime.kernels import (
    Kernel,
    Launch,
    kernel,
    launch,
    observe_launches,
    prepare,
)
from nbxtensor.runtime.queries import (
    default_device,
    device_info,
    devices,
    is_available,
    stream,
    synchronize,
)

__all__ = [
    "Device",
    "DeviceKernel",
    "Event",
    "Graph",
    "GraphNode",
    "Kernel",
    "Launch",
    "Stream",
    "current_stream",
    "default_device",
    "default_stream",
    "device",
    "device_info",
    "devices",
    "is_available",
    "kernel",
    "launch",
    "observe_launches",
    "prepare",
    "stream",
    "synchronize",
]
