"""Tensors from other objects: numbers, lists, NumPy arrays, buffers and other array libraries."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from nbxtensor import _core
from nbxtensor.dtype import as_dtype, complex64, float32, iinfo, numpy_dtype

if TYPE_CHECKING:
    from nbxtensor.tensor._tensor import Tensor

_SCALARS = (bool, int, float, complex)


def from_numpy(array: np.ndarray[Any, Any], dtype: Any = None) -> Tensor:
    """Return a tensor over a NumPy array's memory, without a copy.

    Parameters
    ----------
    array : numpy.ndarray
        Any strides that are multiples of the item size; read-only arrays give read-only tensors.
    dtype : DType, optional
        What the bits are, where NumPy has no name for it (``bfloat16`` in a ``uint16`` array). It
        must have the width of the array's items.

    Raises
    ------
    TypeError
        If `array` is no array, its dtype has no counterpart or the other byte order.
    ValueError
        If the widths differ, or the strides or the alignment do not fit: copy the array first.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy: expected a numpy.ndarray, got {type(array).__name__}")
    target = as_dtype(array.dtype if dtype is None else dtype)
    if target.itemsize != array.dtype.itemsize:
        raise ValueError(
            f"from_numpy: {target!r} has {target.bits} bits, items of {array.dtype} have "
            f"{8 * array.dtype.itemsize}"
        )
    if not array.dtype.isnative:
        raise TypeError(f"from_numpy: {array.dtype} has the other byte order; convert it first")
    if not array.flags.aligned or not _whole_strides(array):
        raise ValueError(
            f"from_numpy: strides {array.strides} of {array.dtype} or the address are not "
            "multiples of the item size; copy the array first"
        )
    # Types of ml_dtypes refuse the buffer protocol, their bits do not.
    carrier = array if array.dtype.type.__module__ == "numpy" else array.view(f"u{target.itemsize}")
    return _core.from_buffer(carrier, target, "cpu")


def _whole_strides(array: np.ndarray[Any, Any]) -> bool:
    size = array.dtype.itemsize
    return all(
        extent < 2 or stride % size == 0
        for extent, stride in zip(array.shape, array.strides, strict=True)
    )


def _first_leaf(values: Any) -> Any:
    while isinstance(values, (list, tuple)) and values:
        values = values[0]
    return values


def _default_dtype(values: Any, array: np.ndarray[Any, Any]) -> Any:
    """Return the type that Python's own numbers get; others keep theirs."""
    leaf = _first_leaf(values)
    if isinstance(leaf, np.generic) or not isinstance(leaf, (*_SCALARS, list, tuple)):
        return None
    kind = array.dtype.kind
    return {"f": float32, "c": complex64}.get(kind)


def _plain(values: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Return values as an array of a type that NumPy itself has."""
    target = None
    if dtype is not None and dtype.bits >= 8 and "." not in dtype.numpy:
        target = numpy_dtype(dtype)
    array = np.asarray(values, dtype=target)
    if array.dtype.kind == "O" and all(isinstance(value, int) for value in array.flat):
        raise OverflowError(
            f"asarray: {type(values).__name__} holds integers that do not fit in 64 bits; give "
            "floats"
        )
    if array.dtype.kind not in "biufcV":
        raise TypeError(
            f"asarray: {type(values).__name__} gives NumPy's {array.dtype}; expected numbers, "
            "nested lists of numbers of equal lengths, arrays or buffers"
        )
    return array


def asarray(
    obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None
) -> Tensor:
    """Return `obj` as a tensor.

    Parameters
    ----------
    obj : Tensor, number, nested sequence, array, buffer or DLPack producer
        Python's numbers become bool, int64, float32 or complex64; everything else keeps its type.
    dtype : DType, optional
        Element type of the result.
    device : Device or str, optional
        Where the result lives; a tensor stays where it is by default, other objects go to the
        default device.
    copy : bool, optional
        True always copies, False never does (and raises if it must), None copies where needed.

    Raises
    ------
    TypeError
        If there is no such element type.
    ValueError
        If `copy` is False and a copy is needed.
    """
    wanted = None if dtype is None else as_dtype(dtype)
    owned = False
    if isinstance(obj, _core.TensorBase):
        source: Any = obj
        where = obj.device if device is None else device
    else:
        where = _core.empty((0,), device=device).device
        if isinstance(obj, np.ndarray):
            fits = obj.dtype.isnative and obj.flags.aligned and _whole_strides(obj)
            owned = not fits
            source = from_numpy(obj if fits else obj.astype(obj.dtype.newbyteorder("=")))
        elif hasattr(obj, "__dlpack__") and not isinstance(obj, np.generic):
            source = _core.from_dlpack(obj)
        else:
            array = _plain(obj, wanted)
            source = from_numpy(array)
            owned = not _is_buffer(obj)
            wanted = wanted or _default_dtype(obj, array)
    return _placed(source, wanted, where, copy, owned)


def _is_buffer(obj: Any) -> bool:
    if isinstance(obj, (list, tuple, *_SCALARS, np.generic)):
        return False
    try:
        memoryview(obj).release()
    except TypeError:
        return False
    return True


def _placed(source: Any, dtype: Any, device: Any, copy: bool | None, owned: bool) -> Tensor:
    """Convert and move; `owned` memory was made here and still has to be counted."""
    dtype = source.dtype if dtype is None else dtype
    changes = dtype is not source.dtype or str(device) != str(source.device)
    if copy is False and (changes or owned):
        raise ValueError(
            f"asarray: {source.dtype} on {source.device} as {dtype} on {device} needs a copy, and "
            "copy=False forbids it"
        )
    placed: Tensor = source.to(dtype=dtype, device=device, copy=bool(copy) or owned)
    return placed


def as_tensor(obj: Any, device: Any, dtype: Any) -> Any:
    """Return assigned values with the precision they came in; the core calls this.

    Lists hold Python's numbers, so those that an integer `dtype` does not hold are refused as
    single numbers are; arrays have a type of their own and are cast.
    """
    if isinstance(obj, np.ndarray) or hasattr(obj, "__dlpack__"):
        return asarray(obj, device=device)
    array = _plain(obj, None)
    if dtype.kind in "iu" and not _is_buffer(obj):
        _check_fit(array, dtype)
    return asarray(array, device=device)


def _check_fit(array: np.ndarray[Any, Any], dtype: Any) -> None:
    if array.size == 0 or array.dtype.kind not in "iuf":
        return
    if np.isnan(array).any():
        raise ValueError(f"assignment: nan cannot be converted to {dtype}")
    limits = iinfo(dtype)
    for value in (array.min().item(), array.max().item()):
        if math.isinf(value) or not limits.min <= math.trunc(value) <= limits.max:
            raise OverflowError(
                f"assignment: {value} is out of range for {dtype} ({limits.min} to {limits.max})"
            )


def index_tensor(obj: Any, device: Any) -> Any:
    """Return a list or array used as an index; the core calls this.

    Raises
    ------
    IndexError
        If it holds neither integers nor booleans.
    """
    if hasattr(obj, "__dlpack__") and not isinstance(obj, (np.ndarray, np.generic)):
        return _core.from_dlpack(obj, device=device)
    array = np.asarray(obj)
    if array.size == 0 and not isinstance(obj, np.ndarray):
        array = array.astype(np.int64)
    if array.dtype.kind not in "biu":
        raise IndexError(
            f"index: got {type(obj).__name__} ({array.dtype}); expected integers, slices, None, "
            "Ellipsis, or arrays of integers or booleans"
        )
    return asarray(array, device=device)


def array_interface(tensor: Any) -> dict[str, Any]:
    """Return the version 3 description for CUDA libraries; the core calls this."""
    size = tensor.itemsize
    return {
        "shape": tensor.shape,
        "typestr": numpy_dtype(tensor.dtype).str,
        "data": (tensor.data_ptr(), tensor.is_read_only()),
        "strides": tuple(stride * size for stride in tensor.strides),
        "version": 3,
    }


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """Return a tensor over the memory of another array library's object.

    Parameters
    ----------
    x : object
        Has ``__dlpack__``, or is a capsule of one.
    device : Device or str, optional
        Moves the result there if it lives elsewhere.
    copy : bool, optional
        True always copies; False refuses what needs a copy.
    """
    return _core.from_dlpack(x, device=device, copy=copy)


_core.register_hooks(
    as_dtype=as_dtype,
    as_tensor=as_tensor,
    index_tensor=index_tensor,
    array_interface=array_interface,
)

__all__ = ["asarray", "from_dlpack", "from_numpy"]
