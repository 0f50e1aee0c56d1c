"""Quantised weights: formats of blocks, and tensors in them."""

from __future__ import annotations

from nbxtensor.quant._formats import FORMATS, Format
from nbxtensor.quant._tensor import QuantizedTensor, as_format, quantize

__all__ = ["FORMATS", "Format", "QuantizedTensor", "as_format", "quantize"]
