"""The tensor: its class, where tensors come from, and how they are written."""

from __future__ import annotations

from nbxtensor._core import record_use
from nbxtensor.tensor._tensor import API_VERSIONS, Tensor
from nbxtensor.tensor.interchange import asarray, from_dlpack, from_numpy
from nbxtensor.tensor.printing import PrintOptions, get_printoptions, printoptions, set_printoptions

__all__ = [
    "API_VERSIONS",
    "PrintOptions",
    "Tensor",
    "asarray",
    "from_dlpack",
    "from_numpy",
    "get_printoptions",
    "printoptions",
    "record_use",
    "set_printoptions",
]
