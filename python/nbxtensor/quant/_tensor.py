"""Weights in quantised blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbxtensor.dtype import DType, float32, uint8
from nbxtensor.quant._formats import FORMATS, Format
from nbxtensor.quant._rows import dequantize_blocks, quantize_blocks
from nbxtensor.tensor import Tensor

_BY_NAME = {form.name: form for form in FORMATS}


def as_format(value: Format | str) -> Format:
    """Return the format of that name.

    Raises
    ------
    ValueError
        If there is none; the text lists what is known.
    """
    form = _BY_NAME.get(value.name if isinstance(value, Format) else value)
    if form is None:
        raise ValueError(f"format: got {value!r}; expected one of {', '.join(_BY_NAME)}")
    return form


class QuantizedTensor:
    """A matrix of weights in quantised blocks.

    ``linear``, ``embedding`` and ``x @ weight.T`` take it where they take a matrix, and read the
    blocks as they are. It cannot be written.

    Parameters
    ----------
    parts : sequence of Tensor
        For the formats of today one part: uint8 blocks of shape (rows, bytes of a row).
    format : Format or str
        How blocks are laid out: an entry of ``FORMATS``, or its name.
    logical_shape : tuple of int
        Rows and columns of the matrix.

    Raises
    ------
    ValueError
        If the parts do not hold a matrix of that shape.
    """

    __slots__ = ("_format", "_logical_shape", "_parts", "_transposed")

    def __init__(
        self, parts: Sequence[Tensor], format: Format | str, logical_shape: Sequence[int]
    ) -> None:
        self._format = as_format(format)
        self._parts = tuple(parts)
        self._logical_shape = tuple(int(extent) for extent in logical_shape)
        self._transposed = False
        self._check()

    def _check(self) -> None:
        form, shape = self._format, self._logical_shape
        if len(shape) != 2 or min(shape) < 0:
            raise ValueError(f"logical_shape: got {shape}; expected two extents (rows, columns)")
        if len(self._parts) != 1:
            raise ValueError(f"parts: got {len(self._parts)}; {form.name} has one, its blocks")
        if shape[1] % form.block:
            raise ValueError(
                f"logical_shape: got {shape[1]} columns; {form.name} needs a multiple of "
                f"{form.block}"
            )
        (blocks,) = self._parts
        if not isinstance(blocks, Tensor):
            raise TypeError(f"parts[0]: got {type(blocks).__name__}; expected a Tensor")
        expected = (shape[0], shape[1] // form.block * form.bytes)
        if blocks.dtype is not uint8 or blocks.shape != expected or not blocks.is_contiguous():
            layout = "contiguous" if blocks.is_contiguous() else "strided"
            raise ValueError(
                f"parts[0]: got {layout} {blocks.dtype} of shape {blocks.shape}; {form.name} of "
                f"shape {shape} needs contiguous uint8 of shape {expected}"
            )

    def __repr__(self) -> str:
        return (
            f"QuantizedTensor(shape={self.shape}, format={self._format.name}, device={self.device})"
        )

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The tensors that hold the weights."""
        return self._parts

    @property
    def blocks(self) -> Tensor:
        """The uint8 blocks, of shape (rows, bytes of a row)."""
        return self._parts[0]

    @property
    def format(self) -> Format:
        """How blocks are laid out."""
        return self._format

    @property
    def logical_shape(self) -> tuple[int, ...]:
        """Rows and columns as stored, whether or not this is the transpose."""
        return self._logical_shape

    @property
    def transposed(self) -> bool:
        """Whether columns and rows are exchanged."""
        return self._transposed

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        return self._logical_shape[::-1] if self._transposed else self._logical_shape

    @property
    def ndim(self) -> int:
        """Number of axes: 2."""
        return 2

    @property
    def size(self) -> int:
        """Number of weights."""
        return self._logical_shape[0] * self._logical_shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self._parts)

    @property
    def dtype(self) -> DType:
        """Type in which the weights multiply and expand: float32."""
        return float32

    @property
    def device(self) -> Any:
        """Device of all parts."""
        return self.blocks.device

    def _with(self, parts: tuple[Tensor, ...], transposed: bool) -> QuantizedTensor:
        other = QuantizedTensor(parts, self._format, self._logical_shape)
        other._transposed = transposed
        return other

    @property
    def T(self) -> QuantizedTensor:
        """The transpose, which shares the parts."""
        return self._with(self._parts, not self._transposed)

    @property
    def mT(self) -> QuantizedTensor:
        """The transpose, which shares the parts."""
        return self.T

    def t(self) -> QuantizedTensor:
        """Return the transpose, which shares the parts."""
        return self.T

    def to(self, device: Any) -> QuantizedTensor:
        """Return the weights on a device: self where they are there already."""
        parts = tuple(part.to(device) for part in self._parts)
        if all(new is old for new, old in zip(parts, self._parts, strict=True)):
            return self
        return self._with(parts, self._transposed)

    def cpu(self) -> QuantizedTensor:
        """Return the weights on the cpu."""
        return self.to("cpu")

    def dequantize(self, dtype: Any = None) -> Tensor:
        """Return the weights as a plain matrix, in float32 unless `dtype` says otherwise."""
        rows: Tensor = dequantize_blocks(
            self.blocks, self._format.code, self._logical_shape[1], dtype
        )
        return rows.T if self._transposed else rows


def quantize(tensor: Tensor, format: Format | str) -> QuantizedTensor:
    """Return a matrix in quantised blocks.

    Parameters
    ----------
    tensor : Tensor
        A floating matrix whose columns fill whole blocks.
    format : Format or str
        An entry of ``FORMATS``, or its name.

    Raises
    ------
    ValueError
        If the columns do not fill blocks, or a number is not finite in float16.
    """
    form = as_format(format)
    return QuantizedTensor((quantize_blocks(tensor, form.code),), form, tuple(tensor.shape))
