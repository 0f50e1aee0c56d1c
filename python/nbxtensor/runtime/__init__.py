"""Devices, streams, and kernels."""

from __future__ import annotations

from nbxtensor._core import (
    Capture,
    Device,
    DeviceKernel,
    Event,
    Stream,
    current_stream,
    default_stream,
    device,
)
from nbxtensor.runtime.devices import (
    capture,
    default_device,
    device_info,
    devices,
    is_available,
    stream,
    synchronize,
)
from nbxtensor.runtime.kernels import (
    Kernel,
    Launch,
    kernel,
    launch,
    observe_launches,
    prepare,
)

__all__ = [
    "Capture",
    "Device",
    "DeviceKernel",
    "Event",
    "Kernel",
    "Launch",
    "Stream",
    "capture",
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
