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
from nbxtensor.runtime.kernels import kernel, prepare

__all__ = [
    "Capture",
    "Device",
    "DeviceKernel",
    "Event",
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
    "prepare",
    "stream",
    "synchronize",
]
