"""``memory``: who holds the memory of every device, and what its driver has left."""

from __future__ import annotations

from nbxtensor import _core, memory, runtime


def device_text(device: runtime.Device) -> str:
    """Return the report of one device with the figures of its driver."""
    figures = memory.stats(device)
    free, total = (_core.format_bytes(n) for n in (figures.device_free, figures.device_total))
    return f"{memory.report(device)}\ndriver: {free} of {total} free"


def show(names: list[str]) -> int:
    """Print the report of the named devices, or of all."""
    devices = [runtime.device(name) for name in names] or runtime.devices()
    print("\n\n".join(device_text(device) for device in devices))
    return 0
