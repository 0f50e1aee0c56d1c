"""Reserved blocks: addresses of their own, under which memory grows and shrinks in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbxtensor import _core
from nbxtensor.dtype import as_dtype
from nbxtensor.memory._arguments import extents, flag, whole
from nbxtensor.tensor import Tensor


class Reserved:
    """Bytes at one address, the first `committed` of which have memory.

    Made by `reserve`. Growing moves nothing, so every tensor of it stays valid. The bytes are
    counted under the tag that was set when it was made.
    """

    def __init__(self, max_bytes: int, device: Any, steady: bool) -> None:
        size = whole("reserve", "max_bytes", max_bytes, 1)
        self._core = _core.Reserved(device, size, flag("reserve", "steady", steady))

    @property
    def device(self) -> str:
        """Name of the device."""
        return self._core.device

    @property
    def address(self) -> int:
        """Address of the first byte; it never changes."""
        return self._core.address

    @property
    def capacity(self) -> int:
        """Bytes of addresses: `max_bytes`, rounded up to pages."""
        return self._core.capacity

    @property
    def committed(self) -> int:
        """Bytes that have memory, from the first on."""
        return self._core.committed

    @property
    def asleep(self) -> bool:
        """Whether it sleeps with its tag: its tensors raise when used, and its size stays."""
        return self._core.asleep

    @property
    def granule(self) -> int:
        """Bytes of a page: what memory comes and goes in."""
        return self._core.granule

    @property
    def tensors(self) -> int:
        """Count of live storages over it."""
        return self._core.views

    @property
    def account(self) -> str:
        """Path of the account that it is counted under."""
        return self._core.account

    def commit(self, nbytes: int) -> int:
        """Put memory under at least the first `nbytes` bytes.

        Parameters
        ----------
        nbytes : int
            Bytes from the start of the block; fewer than are committed change nothing.

        Returns
        -------
        int
            The committed bytes: `nbytes` rounded up to pages.

        Raises
        ------
        OutOfMemoryError
            If a budget or the device has no room; nothing has changed then.
        """
        return self._core.commit(whole("commit", "nbytes", nbytes))

    def decommit(self, keep: int = 0) -> int:
        """Leave memory under no more than the first `keep` bytes, rounded up to pages.

        Work that was queued on tensors that are gone is waited for.

        Parameters
        ----------
        keep : int
            Bytes from the start of the block.

        Returns
        -------
        int
            The committed bytes.

        Raises
        ------
        ValueError
            If a tensor lies beyond; drop it first.
        """
        return self._core.decommit(whole("decommit", "keep", keep))

    def tensor(self, shape: int | Sequence[int], dtype: Any, offset: int = 0) -> Tensor:
        """Return a contiguous tensor of the committed bytes from `offset` on.

        Parameters
        ----------
        shape : int or sequence of int
            Its extents.
        dtype : dtype or str
            Its dtype.
        offset : int
            Bytes from the start of the block, a multiple of 64.

        Raises
        ------
        ValueError
            If not all of its bytes are committed.
        """
        start = whole("tensor", "offset", offset)
        tensor: Tensor = self._core.tensor(list(extents("tensor", shape)), as_dtype(dtype), start)
        return tensor

    def __repr__(self) -> str:
        return f"<Reserved on {self.device}: {self.committed} of {self.capacity} bytes committed>"


def reserve(max_bytes: int, device: Any = None, *, steady: bool = False) -> Reserved:
    """Reserve addresses for memory that grows in place, such as a cache of keys and values.

    Nothing is held until `Reserved.commit`. The device must have virtual memory, as the CPU,
    simulated and CUDA devices do.

    Parameters
    ----------
    max_bytes : int
        The most that will ever be committed, rounded up to pages.
    device : device or str, optional
        The default device if not given.
    steady : bool
        Take memory in few large pieces: faster to commit, but `Reserved.decommit` then cuts only
        at their ends.

    Returns
    -------
    Reserved

    Raises
    ------
    UnsupportedError
        If the device has no virtual memory.

    Examples
    --------
    >>> keys = memory.reserve(1 << 30, "cpu")
    >>> keys.commit(4096 * 128 * 2)
    2097152
    >>> view = keys.tensor((4096, 128), "float16")
    """
    return Reserved(max_bytes, device, steady)
