"""Sleep: the memory of a tag goes to others for a while, and its tensors keep their addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nbxtensor import _core
from nbxtensor.memory._arguments import flag, tag_path


@dataclass(frozen=True)
class SleepReport:
    """What `sleep` or `wake` moved, or what `sleeping` found; in bytes but for `blocks`."""

    blocks: int  # count
    granted: int  # of the blocks: what left the account, or came back to it
    pages: int  # given to the driver, or put under the blocks again
    contents: int  # copied to the host, or back from it


def sleep(tag: str, device: Any = None, keep: bool = True) -> SleepReport:
    """Give the memory of a tag to others until `wake`; its tensors keep their addresses.

    Queued work is waited for, contents are copied to the host, and every page that holds nothing
    else goes back to the driver. The bytes leave the budget. A sleeping tensor raises ValueError
    when it is used, and may be dropped as any other. Reserved blocks sleep too, and keep their size
    until they wake. Tensors of up to 64 KiB share pages with others and stay awake. What sleeps
    already stays asleep, and what is allocated under the tag from now on is awake.

    Parameters
    ----------
    tag : str
        Path of the tag; tags below it sleep too. ``""`` is everything on the device.
    device : device or str, optional
        The default device if not given. It must have virtual memory.
    keep : bool
        Whether the contents come back; otherwise they are dropped at once, and undefined after
        `wake`.

    Returns
    -------
    SleepReport
        All zeros if nothing was awake.

    Raises
    ------
    UnsupportedError
        If the device has no virtual memory.
    DeviceError
        If a call of the driver failed; the tag is awake then, unless the error says otherwise.
    """
    path, kept = tag_path("sleep", tag), flag("sleep", "keep", keep)
    return SleepReport(*_core.memory_sleep(device, path, kept))


def wake(tag: str, device: Any = None) -> SleepReport:
    """Give a sleeping tag its memory and contents back, at the same addresses.

    All of the tag's tensors wake, or an error is raised and all sleep on.

    Parameters
    ----------
    tag : str
        Path of the tag; tags below it wake too.
    device : device or str, optional
        The default device if not given.

    Returns
    -------
    SleepReport
        All zeros if nothing slept.

    Raises
    ------
    OutOfMemoryError
        If a budget or the device has no room.
    """
    return SleepReport(*_core.memory_wake(device, tag_path("wake", tag)))


def sleeping(tag: str = "", device: Any = None) -> SleepReport:
    """Return what sleeps of a tag; `contents` are the bytes that the host keeps for it."""
    return SleepReport(*_core.memory_sleeping(device, tag_path("sleeping", tag)))
