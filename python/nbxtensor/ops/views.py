"""Functions over the tensor's own methods: other windows on the same memory, and conversions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbxtensor.dtype import as_dtype
from nbxtensor.tensor import Tensor

Axes = int | Sequence[int]


def reshape(x: Tensor, /, shape: Sequence[int], *, copy: bool | None = None) -> Tensor:
    """Return the elements under another shape; a view unless the layout or `copy` needs more.

    Raises
    ------
    ValueError
        If `copy` is False and the layout needs a copy.
    """
    if copy is False:
        return x.view(*shape)
    changed = x.reshape(*shape)
    return changed.clone() if copy and changed.shares_storage(x) else changed


def permute_dims(x: Tensor, /, axes: Sequence[int]) -> Tensor:
    """Return a view with the axes in another order."""
    return x.permute(*axes)


def moveaxis(x: Tensor, source: Axes, destination: Axes, /) -> Tensor:
    """Return a view with axes moved to other places."""
    return x.movedim(source, destination)


def swapaxes(x: Tensor, axis0: int, axis1: int, /) -> Tensor:
    """Return a view with two axes exchanged."""
    return x.transpose(axis0, axis1)


def matrix_transpose(x: Tensor, /) -> Tensor:
    """Return a view with the last two axes exchanged."""
    return x.mT


def expand_dims(x: Tensor, /, axis: Axes = 0) -> Tensor:
    """Return a view with new axes of extent 1, which are counted in the result.

    Raises
    ------
    ValueError
        If an axis is named twice.
    """
    if isinstance(axis, int):
        return x.unsqueeze(axis)
    rank = x.ndim + len(axis)
    places = sorted(one + rank if one < 0 else one for one in axis)
    if len(set(places)) != len(places):
        raise ValueError(f"expand_dims: axis {tuple(axis)} names an axis twice")
    for place in places:
        if not 0 <= place < rank:
            raise IndexError(
                f"expand_dims: axes must be in [{-rank}, {rank - 1}] for {rank} axes, got "
                f"{tuple(axis)}"
            )
        x = x.unsqueeze(place)
    return x


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """Return a view with a new axis of extent 1, as torch calls it."""
    return x.unsqueeze(dim)


def squeeze(x: Tensor, /, axis: Axes | None = None) -> Tensor:
    """Return a view without axes of extent 1.

    Raises
    ------
    ValueError
        If a named axis has another extent.
    """
    if axis is not None:
        for one in (axis,) if isinstance(axis, int) else axis:
            if x.shape[one] != 1:
                raise ValueError(
                    f"squeeze: axis {one} of shape {x.shape} has extent {x.shape[one]}, expected 1"
                )
    return x.squeeze(axis)


def flip(x: Tensor, /, *, axis: Axes | None = None) -> Tensor:
    """Return a view with the elements of some axes (None: all) in reverse."""
    if axis is None:
        return x.flip()
    return x.flip(axis)


def broadcast_to(x: Tensor, /, shape: Sequence[int]) -> Tensor:
    """Return a view repeated to a shape."""
    return x.expand(*shape)


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the common shape of several.

    Raises
    ------
    ValueError
        If there is none.
    """
    rank = max(map(len, shapes), default=0)
    common = [1] * rank
    for shape in shapes:
        for i, extent in enumerate(shape, rank - len(shape)):
            if common[i] == 1:
                common[i] = extent
            elif extent not in (1, common[i]):
                listed = " and ".join(str(tuple(one)) for one in shapes)
                raise ValueError(f"broadcast_shapes: {listed} cannot be broadcast together")
    return tuple(common)


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Return views of tensors, all of their common shape."""
    shape = broadcast_shapes(*(one.shape for one in arrays))
    return [broadcast_to(one, shape) for one in arrays]


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return views of the tensor at every place of an axis."""
    return x.unbind(axis)


def astype(x: Tensor, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """Return the elements in another dtype, on another device where one is given.

    Without `copy` the tensor itself is returned where nothing changes.

    Raises
    ------
    TypeError
        If a complex tensor would lose its imaginary part.
    """
    wanted = as_dtype(dtype)
    if x.dtype.kind == "c" and wanted.kind != "c":
        raise TypeError(f"astype: {x.dtype} does not convert to {wanted}; take real(x) first")
    return x.to(dtype=wanted, device=x.device if device is None else device, copy=copy)


def real(x: Tensor, /) -> Tensor:
    """Return a view of the real parts."""
    return x.real


def imag(x: Tensor, /) -> Tensor:
    """Return a view of the imaginary parts."""
    return x.imag


VIEWS = {
    function.__name__: function
    for function in (
        astype,
        broadcast_arrays,
        broadcast_shapes,
        broadcast_to,
        expand_dims,
        flip,
        imag,
        matrix_transpose,
        moveaxis,
        permute_dims,
        real,
        reshape,
        squeeze,
        swapaxes,
        unsqueeze,
        unstack,
    )
}
