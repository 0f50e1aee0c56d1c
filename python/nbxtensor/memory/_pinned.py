"""Page-locked host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nbxtensor import _core
from nbxtensor.dtype import DType, float32

if TYPE_CHECKING:
    from nbxtensor.tensor import Tensor


def pinned(shape: int | Sequence[int], dtype: DType | str = float32, device: Any = None) -> Tensor:
    """Return a cpu tensor of undefined contents in memory that is page-locked for a device.

    Copies between it and the device run at full rate, and with ``non_blocking=True`` they run
    beside other work. The memory comes from a pool, since a driver needs most of a millisecond to
    lock a MiB; a block that a copy still reads is not handed out again before the copy is done. It
    is counted under ``pinned`` in the device's account, and in its budget.

    Parameters
    ----------
    shape : int or sequence of int
        Extents.
    dtype : DType or str
        Element type.
    device : device or str, optional
        The device that copies; the default device if not given.

    Examples
    --------
    >>> staging = memory.pinned((4096, 4096), nbx.float16, device="cuda:0")
    >>> staging.copy_(block)
    >>> weights = staging.to("cuda:0", non_blocking=True)
    """
    return _core.memory_pinned(shape, dtype, device)  # type: ignore[no-any-return]


def is_pinned(tensor: Tensor) -> bool:
    """Return whether a tensor lies in page-locked memory that `pinned` made."""
    return _core.memory_is_pinned(tensor)
