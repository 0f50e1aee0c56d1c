"""The element types themselves, one object each."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from nbxtensor.dtype._table import ALIASES, ROWS


class DType:
    """An element type. There is one object of each type, so `is` and `==` agree.

    Attributes
    ----------
    name : str
        Name in this package, in the array API and in `repr`.
    code : int
        Number of the type in the core.
    itemsize : int
        Bytes of one element; 0 for packed types narrower than a byte.
    bits : int
        Bits of one element.
    kind : str
        One of ``b`` (bool), ``i``, ``u`` (integers), ``f`` and ``c`` (real and complex floating).
    numpy : str
        Name of the NumPy type, with ``ml_dtypes.`` in front where NumPy has none of its own; empty
        where neither has one.
    triton, safetensors : str
        Names there; empty where there is none.
    gguf : int
        Type code in a GGUF file, or -1.
    dlpack : tuple of int
        Type code and bits of DLPack.
    """

    __slots__ = (
        "bits",
        "code",
        "dlpack",
        "gguf",
        "itemsize",
        "kind",
        "name",
        "numpy",
        "safetensors",
        "triton",
    )

    name: str
    code: int
    itemsize: int
    bits: int
    kind: str
    numpy: str
    triton: str
    safetensors: str
    gguf: int
    dlpack: tuple[int, int]

    def __init__(self, code: int) -> None:
        name, bits, kind, numpy, triton, safetensors, gguf, dlpack = ROWS[code]
        for field, value in (
            ("name", name),
            ("code", code),
            ("itemsize", bits // 8),
            ("bits", bits),
            ("kind", kind),
            ("numpy", numpy),
            ("triton", triton),
            ("safetensors", safetensors),
            ("gguf", gguf),
            ("dlpack", dlpack),
        ):
            object.__setattr__(self, field, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self!r} cannot be changed: element types are shared")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{self!r} cannot be changed: element types are shared")

    def __repr__(self) -> str:
        return f"nbxtensor.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return as_dtype, (self.name,)

    @property
    def is_floating_point(self) -> bool:
        """Whether elements are real floating-point numbers."""
        return self.kind == "f"

    @property
    def is_complex(self) -> bool:
        """Whether elements are complex numbers."""
        return self.kind == "c"

    @property
    def is_signed(self) -> bool:
        """Whether elements may be negative."""
        return self.kind in "ifc"


DTYPES: Final[tuple[DType, ...]] = tuple(DType(code) for code in range(len(ROWS)))
_BY_NAME: Final[dict[str, DType]] = {dtype.name: dtype for dtype in DTYPES}

# Named `bool_` here and `bool` in the package: the builtin is used all over the modules.
bool_: Final = _BY_NAME["bool"]
int4: Final = _BY_NAME["int4"]
int8: Final = _BY_NAME["int8"]
int16: Final = _BY_NAME["int16"]
int32: Final = _BY_NAME["int32"]
int64: Final = _BY_NAME["int64"]
uint8: Final = _BY_NAME["uint8"]
uint16: Final = _BY_NAME["uint16"]
uint32: Final = _BY_NAME["uint32"]
uint64: Final = _BY_NAME["uint64"]
float16: Final = _BY_NAME["float16"]
bfloat16: Final = _BY_NAME["bfloat16"]
float32: Final = _BY_NAME["float32"]
float64: Final = _BY_NAME["float64"]
float8_e4m3fn: Final = _BY_NAME["float8_e4m3fn"]
float8_e5m2: Final = _BY_NAME["float8_e5m2"]
complex64: Final = _BY_NAME["complex64"]
complex128: Final = _BY_NAME["complex128"]

_LOOKUP: Final[dict[object, DType]] = {
    **{dtype.name: dtype for dtype in DTYPES},
    **{alias: _BY_NAME[name] for alias, name in ALIASES.items()},
    "bool_": bool_,
    bool: bool_,
    int: int64,
    float: float64,
    complex: complex128,
}
# NumPy scalar types and dtypes, by the name that NumPy and ml_dtypes give them.
_BY_NUMPY_NAME: Final[dict[str, DType]] = {
    dtype.numpy.rpartition(".")[2]: dtype for dtype in DTYPES if dtype.numpy
}


def as_dtype(value: Any) -> DType:
    """Return the element type that `value` names.

    Parameters
    ----------
    value : DType, str, numpy.dtype or type
        An element type, its name or alias (``"half"``), a NumPy type (also those of ml_dtypes), or
        one of Python's ``bool``, ``int``, ``float``, ``complex`` (64-bit types, as in NumPy).

    Raises
    ------
    TypeError
        If `value` names none; the text lists what is known.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, (str, type)):
        known = _LOOKUP.get(value)
        if known is not None:
            return known
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        numpy = np.dtype(value)
        if numpy.isnative and numpy.name in _BY_NUMPY_NAME:
            return _BY_NUMPY_NAME[numpy.name]
        if not numpy.isnative:
            raise TypeError(
                f"dtype: {numpy} has the other byte order; expected native order, convert with "
                "array.astype(array.dtype.newbyteorder('='))"
            )
    names = ", ".join(_BY_NAME)
    raise TypeError(
        f"dtype: got {value!r}; expected one of {names}, an alias of one ({', '.join(ALIASES)}), "
        "or a NumPy dtype of the same name"
    )


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the NumPy type of an element type.

    Raises
    ------
    TypeError
        If there is none, or if it needs ml_dtypes and that package is not installed.
    """
    module, _, name = dtype.numpy.rpartition(".")
    if not module:
        if not name:
            raise TypeError(f"{dtype!r} has no NumPy type; convert first, for example to int8")
        native: np.dtype[Any] = np.dtype(name)
        return native
    try:
        import ml_dtypes
    except ImportError as error:
        raise TypeError(
            f"{dtype!r} in NumPy needs the package ml_dtypes, which is not installed; "
            "install nbxtensor[ml], or convert to float32 first"
        ) from error
    extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return extended
