"""A tensor runtime without torch."""

from __future__ import annotations

from nbxtensor import _core
from nbxtensor.dtype import *  # noqa: F403
from nbxtensor.tensor import (
    Tensor,
    asarray,
    from_dlpack,
    from_numpy,
    get_printoptions,
    printoptions,
    set_printoptions,
)
