"""What the namespace can do and where, as the array API asks it."""

from __future__ import annotations

from typing import Any

from nbxtensor import _core, runtime
from nbxtensor import dtype as _dtype
from nbxtensor._core import Device
from nbxtensor.dtype import DType, default_dtype, isdtype

# The standard's names; `bool` is a Python word here, so that the module calls it bool_.
_NAMES = {
    "bool": _dtype.bool_,
    "int8": _dtype.int8,
    "int16": _dtype.int16,
    "int32": _dtype.int32,
    "int64": _dtype.int64,
    "uint8": _dtype.uint8,
    "uint16": _dtype.uint16,
    "uint32": _dtype.uint32,
    "uint64": _dtype.uint64,
    "float32": _dtype.float32,
    "float64": _dtype.float64,
    "complex64": _dtype.complex64,
    "complex128": _dtype.complex128,
}


class NamespaceInfo:
    """Answers about capabilities, devices and dtypes."""

    def capabilities(self) -> dict[str, Any]:
        """Return what the standard leaves open."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": _core.MAXIMUM_RANK,
        }

    def default_device(self) -> Device:
        """Return the device of tensors that name none."""
        return runtime.default_device()

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """Return the dtypes of tensors that name none."""
        return {
            "real floating": default_dtype("float"),
            "complex floating": default_dtype("complex"),
            "integral": default_dtype("int"),
            "indexing": _dtype.int64,
        }

    def devices(self) -> list[Device]:
        """Return all devices that can be used."""
        return runtime.devices()

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """Return the standard's dtypes, by default all, or those of a kind of `isdtype`."""
        if kind is None:
            return dict(_NAMES)
        return {name: dtype for name, dtype in _NAMES.items() if isdtype(dtype, kind)}


def __array_namespace_info__() -> NamespaceInfo:  # noqa: N807 - the standard's name
    """Return an object that answers about capabilities, devices and dtypes."""
    return NamespaceInfo()


__all__ = ["NamespaceInfo", "__array_namespace_info__"]
