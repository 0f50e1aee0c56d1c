"""No op writes to read-only memory, neither on its first call nor with a plan that is known."""

from __future__ import annotations

from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor.ops.table import OPS

IN_PLACE = sorted(
    name for name in dir(nbx.Tensor) if name.endswith("_") and not name.startswith("_")
)
# "x" stands for a tensor like the one that is written, "m" for a mask.
ARGUMENTS = ((), (1,), ("x",), ("m", 1), ("x", "x"), ("x", "x", 2), ("x", 0.5), (0.0, 1.0))


def locked(array: np.ndarray[Any, Any]) -> Any:
    array = array.copy()
    array.flags.writeable = False
    return nbx.from_numpy(array)


def arguments_of(name: str, array: np.ndarray[Any, Any]) -> tuple[Any, ...] | None:
    """Arguments that the method takes for such an array, None if there are none here."""
    for form in ARGUMENTS:
        tensors = {"x": nbx.asarray(array, copy=True), "m": nbx.asarray(array > 0.5)}
        given = tuple(tensors.get(a, a) if isinstance(a, str) else a for a in form)
        try:
            getattr(nbx.asarray(array, copy=True), name)(*given)
        except (TypeError, ValueError):
            continue
        return given
    return None


@pytest.mark.parametrize("name", IN_PLACE)
def test_methods(name: str, rng: np.random.Generator) -> None:
    array = rng.uniform(0.1, 0.9, (3, 7)).astype(np.float32)
    given = arguments_of(name, array)
    if given is None:
        array = rng.integers(1, 4, (3, 7))
        given = arguments_of(name, array)
    assert given is not None
    tensor = locked(array)
    for _ in range(2):
        for view in (tensor, tensor[:], locked(np.repeat(array, 2, 0))[::2]):
            with pytest.raises(ValueError, match="read-only"):
                getattr(view, name)(*given)
    np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize(
    ("name", "rest", "dtype"),
    [
        ("fill_value", (1,), np.float32),
        ("random_uniform", (1, 2, 0.0, 1.0), np.float32),
        ("random_normal", (1, 2, 0.0, 1.0), np.float32),
        ("random_integers", (1, 2, 0, 5), np.int64),
        ("kv_append", (np.ones((1, 2, 1, 4), np.float32), 0), np.float32),
    ],
)
def test_rows(name: str, rest: tuple[Any, ...], dtype: Any) -> None:
    array = np.zeros((1, 2, 8, 4), dtype)
    tensor = locked(array)
    given = [nbx.asarray(a) if isinstance(a, np.ndarray) else a for a in rest]
    for _ in range(2):
        with pytest.raises(ValueError, match="read-only"):
            OPS[name](tensor, *given)
        OPS[name](nbx.asarray(array, copy=True), *given)
    np.testing.assert_array_equal(tensor.numpy(), array)
