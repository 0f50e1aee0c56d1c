"""Devices and streams, found and waited for."""

from __future__ import annotations

from typing import Any

from nbxtensor._core import (
    Device,
    Stream,
    device,
    report_kinds,
)
from nbxtensor.errors import DeviceError, InvalidTypeError, InvalidValueError
from nbxtensor.facts import facts_of

__all__ = [
    "default_device",
    "device_info",
    "devices",
    "is_available",
    "stream",
    "synchronize",
]


def devices(kind: str | None = None) -> list[Device]:
    """Return every device that can be used, opened, in the order of preference.

    Parameters
    ----------
    kind
        Only devices of this kind.
    """
    reports = report_kinds()
    known = [report["kind"] for report in reports]
    if kind is not None and kind not in known:
        raise InvalidValueError(f"devices: unknown kind {kind!r}; known are {', '.join(known)}")
    return [
        device(f"{report['kind']}:{index}")
        for report in reports
        if report["state"] == "ready" and kind in (None, report["kind"])
        for index in range(report["count"])
    ]


def default_device() -> Device:
    """Return the device that is used where none is named."""
    return device(None)


def is_available(name: str) -> bool:
    """Return whether the named device can be used; an unknown name is an error."""
    try:
        device(name)
    except DeviceError:
        return False
    return True


def device_info(name: Device | str | None = None) -> dict[str, Any]:
    """Return what the driver and the device file say about a device."""
    which = device(name)
    free, total = which.memory_info()
    return {
        **which.properties,
        "device": which.name,
        "kind": which.kind,
        "index": which.index,
        "free_bytes": free,
        "total_bytes": total,
        "facts": facts_of(which).as_dict(),
    }


def stream(which: Stream) -> Stream:
    """Return a context manager that makes the stream current on this thread."""
    if not isinstance(which, Stream):
        raise InvalidTypeError(f"stream: expected a Stream, got {type(which).__name__}")
    return which


def synchronize(what: Device | Stream | str | None = None) -> None:
    """Wait for all work of a stream or a device, the default one if none is named."""
    (what if isinstance(what, Stream) else device(what)).synchronize()
