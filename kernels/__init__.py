"""Triton kernels by family, installed as ``nbxtensor.kernels``."""

from __future__ import annotations

from nbxtensor.ops.device.catalog import specializations

__all__ = ["specializations"]

if __name__ != "nbxtensor.kernels":
    raise ImportError(f"import nbxtensor.kernels, not {__name__!r}: this folder is only its source")
