"""Arenas, slabs and layouts: memory that many tensors share, carved from one block."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from nbxtensor import _core
from nbxtensor.dtype import as_dtype
from nbxtensor.errors import InvalidTypeError
from nbxtensor.memory._arguments import extents, flag, listed, parts, shown, text, whole
from nbxtensor.tensor import Tensor

ALIGNMENT = 256


def _nbytes(shape: tuple[int, ...], dtype: Any) -> int:
    return int((math.prod(shape) * as_dtype(dtype).bits + 7) // 8)


def _named(kind: str, name: str) -> str:
    return text(kind, "name", name, "such as 'decoder'")


class Resolved(NamedTuple):
    """What an interior address belongs to."""

    start: int  # address of the carving
    nbytes: int  # of it
    offset: int  # of the address in it
    generation: int


class _Carved:
    """What every carver has: one block, counted under the tag it was made under."""

    _core: _core.Carver

    @property
    def name(self) -> str:
        """What it is called in errors."""
        return self._core.name

    @property
    def device(self) -> Any:
        """The device that holds the block."""
        return self._core.device

    @property
    def capacity(self) -> int:
        """Bytes of the block."""
        return self._core.capacity

    @property
    def base(self) -> int:
        """Address of its first byte."""
        return self._core.base

    @property
    def used(self) -> int:
        """Bytes carved and not recycled, in multiples of 256."""
        return self._core.used

    @property
    def peak(self) -> int:
        """The most bytes that were used at one time."""
        return self._core.peak

    @property
    def tensors(self) -> int:
        """Count of tensors in the block that are alive."""
        return self._core.tensors

    @property
    def closed(self) -> bool:
        """Whether nothing more can be carved."""
        return self._core.closed

    @property
    def stale_frees(self) -> int:
        """Count of frees of what was carved before the last reset; they are ignored."""
        return self._core.stale_frees

    def free(self) -> None:
        """Carve nothing more, and give the block back.

        While tensors in the block are alive it stays; it goes back with the last of them. Work that
        is queued on the streams it was carved for is waited for in stream order.
        """
        self._core.close()

    def check(self, tensor: Tensor) -> None:
        """Raise ValueError unless the tensor's memory is still its own.

        Parameters
        ----------
        tensor : Tensor
            One that `empty` gave, or a view of it.

        Raises
        ------
        ValueError
            If the tensor was carved before the last reset, or somewhere else.
        """
        self._core.check(tensor)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.used} of {self.capacity} bytes used"
        return f"<{self.name} on {self.device}: {state}>"


class Arena(_Carved):
    """One block and a pointer that only rises: many tensors, one allocation.

    Every carving starts at a multiple of 256 bytes. `reset` recycles all of them at once: addresses
    that were issued before it are void, which `check` and `resolve` tell by name.

    Parameters
    ----------
    capacity : int
        Bytes of the block.
    device : device or str, optional
        The default device if not given.
    name : str
        What it is called in errors.
    guarded : bool, optional
        Put a pattern behind every carving, into its padding and 256 bytes more; `verify`, `reset`
        and `free` raise ValueError if one was overwritten, and wait for the device to see it. As
        ``NBX_MEMORY_CHECK`` says if not given.

    Examples
    --------
    >>> arena = memory.Arena(1 << 20, "cpu", name="decoder")
    >>> x = arena.empty((128, 64), "float32")
    >>> arena.used
    32768
    """

    def __init__(
        self,
        capacity: int,
        device: Any = None,
        *,
        name: str = "unnamed",
        guarded: bool | None = None,
    ) -> None:
        size = whole("Arena", "capacity", capacity, 1)
        if guarded is not None:
            flag("Arena", "guarded", guarded)
        self._arena = _core.Arena(_named("Arena", name), size, device, guarded)
        self._core = self._arena

    @property
    def generation(self) -> int:
        """Count of resets so far."""
        return self._core.generation

    def alloc(self, nbytes: int) -> int:
        """Return the address of `nbytes` new bytes; 0 for zero bytes.

        Raises
        ------
        ValueError
            If there is no room; the error has `requested`, `used` and `capacity`.
        """
        return self._arena.alloc(whole("alloc", "nbytes", nbytes))

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> Tensor:
        """Return a tensor of undefined contents in the arena, which it keeps alive."""
        tensor: Tensor = self._core.empty(extents("empty", shape), as_dtype(dtype))
        return tensor

    def resolve(self, address: int) -> Resolved:
        """Return what an address in the arena belongs to, the middle of a carving included.

        Raises
        ------
        ValueError
            If no carving of this generation holds it.
        """
        return Resolved(
            *self._arena.resolve(whole("resolve", "address", address, what="as the address"))
        )

    def verify(self) -> None:
        """Raise ValueError if something was written past the end of a carving."""
        self._arena.verify()

    def reset(self) -> None:
        """Recycle everything: what was carved before is void."""
        self._arena.reset()

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *error: object) -> None:
        self.free()


class _Slab(_Carved):
    """A carver that leaves to the heap what it has no room for."""

    _kind: type[Any]
    _slab: Any

    def __init__(self, capacity: int, device: Any = None, *, name: str = "unnamed") -> None:
        kind = type(self).__name__
        size = whole(kind, "capacity", capacity, 1)
        self._slab = self._kind(_named(kind, name), size, device)
        self._core = self._slab

    def alloc(self, nbytes: int) -> int | None:
        """Return the address of `nbytes` new bytes, or None if there is no room."""
        address: int | None = self._core.alloc(whole("alloc", "nbytes", nbytes))
        return address

    def release(self, address: int) -> None:
        """Take back what `alloc` gave.

        Raises
        ------
        ValueError
            If no carving starts at the address: it was freed before, or is other memory.
        """
        self._core.free(whole("release", "address", address, what="as the address"))

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> Tensor:
        """Return a tensor of undefined contents: in the slab, or the heap if there is no room."""
        return self._empty(shape, dtype)

    def _empty(self, shape: int | Sequence[int], dtype: Any, origin: int = 0) -> Tensor:
        lengths, element = extents("empty", shape), as_dtype(dtype)
        tensor = self._core.empty(lengths, element, origin)
        if tensor is None:
            tensor = _core.empty(lengths, dtype=element, device=self.device)
        result: Tensor = tensor
        return result


class ReplaySlab(_Slab):
    """One block with holes, best fit: for memory that comes and goes while a graph is recorded.

    Where something lies depends on what was returned before it, and so on when finalizers ran. What
    needs the same address every time belongs in a `StepSlab`.

    Parameters
    ----------
    capacity : int
        Bytes of the block.
    device : device or str, optional
        The default device if not given.
    name : str
        What it is called in errors.
    """

    _kind = _core.ReplaySlab
    _slab: _core.ReplaySlab

    @property
    def shortfall(self) -> int:
        """Bytes that it had no room for, summed."""
        return self._slab.shortfall

    @property
    def holes(self) -> int:
        """Count of free pieces."""
        return self._slab.holes

    @property
    def largest_hole(self) -> int:
        """Bytes of the largest free piece."""
        return self._slab.largest_hole

    def retire(self) -> None:
        """Carve nothing more, and give the block back when the last carving in it returns.

        Until then, and after it, `empty` takes memory of the heap.
        """
        self._slab.retire()


class StepSlab(_Slab):
    """Steps that carve the same sizes in the same order get the same addresses.

    Memory is carved by a pointer that only rises; what is returned in a step is absorbed, so that
    it does not matter when a finalizer runs. `reset` starts the next step at the first byte.

    Parameters
    ----------
    capacity : int
        Bytes of the block. `StepSlab.capacity_for(total)` says how many steps need that carve
        `total` bytes in all: a quarter and 64 MiB more. Measure the steps that will run, not those
        of another sequence: a slab that is too small is left for the heap.
    device : device or str, optional
        The default device if not given.
    name : str
        What it is called in errors.
    """

    _kind = _core.StepSlab
    _slab: _core.StepSlab

    @staticmethod
    def capacity_for(total: int) -> int:
        """Return the bytes of a slab for steps that carve `total` bytes in all."""
        return _core.StepSlab.capacity_for(whole("capacity_for", "total", total))

    @property
    def generation(self) -> int:
        """Count of steps before this one."""
        return self._core.generation

    @property
    def shortfall(self) -> int:
        """Bytes that it had no room for, summed over all steps."""
        return self._slab.shortfall

    @property
    def carve_sizes(self) -> list[int]:
        """Bytes of what this step carved so far, in order; what did not fit included."""
        return self._slab.carve_sizes

    @property
    def former_sizes(self) -> list[int]:
        """The same of the step before."""
        return self._slab.former_sizes

    @property
    def first_difference(self) -> int | None:
        """Which carving of this step first left the sizes of the one before, if any did."""
        found = self._slab.first_difference
        return None if found < 0 else found

    def reset(self) -> bool:
        """Start the next step.

        Returns
        -------
        bool
            Whether the step that ends carved exactly the sizes of the one before it; addresses
            are the same then. False for the first one.
        """
        return self._slab.reset()


class Layout:
    """Where named tensors lie in one block.

    Examples
    --------
    >>> block = memory.Layout()
    >>> block.add("weight", (64, 64), "float16")
    0
    >>> block.add("bias", (64,), "float16")
    8192
    >>> block.total
    8448
    """

    def __init__(self, alignment: int = ALIGNMENT) -> None:
        self._layout = _core.BlockLayout()
        self._alignment = whole("layout", "alignment", alignment, 1)
        self._types: dict[str, tuple[tuple[int, ...], Any]] = {}

    def add(
        self,
        name: str,
        shape: int | Sequence[int],
        dtype: Any = "uint8",
        alignment: int | None = None,
    ) -> int:
        """Put a tensor behind the others and return its offset.

        Raises
        ------
        ValueError
            For a name that is there already, a negative extent, or an alignment that is not a power
            of two.
        """
        text("layout", "name", name, "such as 'weight'")
        lengths = extents("layout", shape)
        nbytes = whole("layout", f"the size of {name!r}", _nbytes(lengths, dtype))
        step = self._alignment if alignment is None else whole("layout", "alignment", alignment, 1)
        offset = self._layout.add(name, nbytes, step)
        self._types[name] = (lengths, as_dtype(dtype))
        return offset

    def offset(self, name: str) -> int:
        """Return the offset of an entry; ValueError if there is none of that name."""
        return self._layout.find(text("layout", "name", name, "that of an entry"))[0]

    def nbytes(self, name: str) -> int:
        """Return the bytes of an entry, without padding."""
        return self._layout.find(text("layout", "name", name, "that of an entry"))[1]

    @property
    def names(self) -> list[str]:
        """The entries, in order."""
        return [name for name, _, _ in self._layout.entries]

    @property
    def total(self) -> int:
        """Bytes of the whole block, padded so that blocks can follow each other."""
        return self._layout.total

    def tensors(self, block: Tensor) -> dict[str, Tensor]:
        """Return the entries as views of a block of bytes.

        Parameters
        ----------
        block : Tensor
            A contiguous uint8 tensor of at least `total` elements.
        """
        if not isinstance(block, Tensor):
            raise InvalidTypeError(f"layout: block is {shown(block)}; give a tensor of bytes")
        if block.dtype != as_dtype("uint8") or block.ndim != 1 or block.shape[0] < self.total:
            raise ValueError(
                f"layout: got a block of dtype {block.dtype} and shape {tuple(block.shape)}; give "
                f"a uint8 tensor of one axis with at least {self.total} elements"
            )
        views: dict[str, Tensor] = {}
        for name, (shape, dtype) in self._types.items():
            offset, nbytes = self._layout.find(name)
            views[name] = _core.from_bytes(block[offset : offset + nbytes], shape, dtype)
        return views

    def __len__(self) -> int:
        return len(self._types)

    def __repr__(self) -> str:
        return f"<layout of {len(self)} tensors in {self.total} bytes>"


def layout(
    entries: Iterable[tuple[str, int | Sequence[int], Any]], alignment: int = ALIGNMENT
) -> Layout:
    """Return the layout of (name, shape, dtype) entries, one behind the other."""
    made = Layout(alignment)
    for index, entry in enumerate(
        listed("layout", "entries", entries, "(name, shape, dtype) each")
    ):
        made.add(*parts("layout", f"entry {index}", entry, 3, "name, shape and dtype"))
    return made
