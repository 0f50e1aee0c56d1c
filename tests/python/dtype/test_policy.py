"""Mixed precision by class of op."""

from __future__ import annotations

import nbxtensor as nbx
import pytest
from nbxtensor.dtype import DTYPES, resolve
from nbxtensor.dtype.policy import op_classes

COMPUTE = {
    nbx.bool_,
    nbx.int64,
    nbx.uint64,
    nbx.float32,
    nbx.float64,
    nbx.complex64,
    nbx.complex128,
}


@pytest.mark.parametrize("op_class", op_classes())
def test_classes_cover_every_type_and_never_lose_precision(op_class: str) -> None:
    for dtype in DTYPES:
        compute, accumulate, output = resolve(op_class, dtype)
        if op_class != "matmul":
            assert compute in COMPUTE, dtype
        if dtype.kind == "f" and output.kind == "f":
            assert output is dtype
            assert accumulate.bits >= max(32, dtype.bits)
        if dtype.kind == "c" and output.kind == "c":
            assert output is dtype


def test_examples() -> None:
    assert resolve("sum", nbx.int8).output is nbx.int64
    assert resolve("sum", nbx.bfloat16) == (nbx.float32, nbx.float32, nbx.bfloat16)
    assert resolve("transcendental", nbx.int32).output is nbx.float32
    assert resolve("predicate", nbx.float64).output is nbx.bool_
    assert resolve("arithmetic", nbx.uint64).compute is nbx.uint64
    assert resolve("arithmetic", nbx.uint8).output is nbx.uint8
    assert resolve("sample", nbx.float16).compute is nbx.float64


def test_an_unknown_class_is_refused() -> None:
    with pytest.raises(ValueError, match="arithmetic"):
        resolve("nothing", nbx.int8)
