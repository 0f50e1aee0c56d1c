"""Check mode: what guards, poison and the record of uses have found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbxtensor._core import check_memory

if TYPE_CHECKING:
    from nbxtensor.runtime import Device

__all__ = ["check"]


def check(device: Device | str | None = None) -> list[str]:
    """Look at the guards of every block of a device, and return all findings so far.

    Findings are also logged when they are made, and raised by the next wait for the device.

    Parameters
    ----------
    device
        The default device if none is given.

    Raises
    ------
    InvalidValueError
        If check mode is off; ``NBX_MEMORY_CHECK=1`` turns it on.
    """
    return check_memory(device)
