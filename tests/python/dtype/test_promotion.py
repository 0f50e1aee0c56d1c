"""Common types, against NumPy's where both agree in principle, and by their own laws."""

from __future__ import annotations

import itertools

import ml_dtypes
import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor.dtype import DTYPES, numpy_dtype, promote_types, result_type

PAIRS = list(itertools.product(DTYPES, DTYPES))
# bool, int and float mix by torch's rule: the higher kind keeps its width.
RANK = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=str)
def test_promotion_is_symmetric_and_keeps_the_higher_kind(
    first: nbx.DType, second: nbx.DType
) -> None:
    common = promote_types(first, second)
    assert promote_types(second, first) is common
    assert promote_types(common, first) is common or first.name == "uint64" or second.kind == "u"
    assert promote_types(first, first) is first
    if RANK[first.kind] > RANK[second.kind] and first.kind == "f":
        assert common is first
    if {first.kind, second.kind} == {"i", "u"} and nbx.uint64 in (first, second):
        assert common is nbx.float64


SAME_AS_NUMPY = [
    (a, b) for a, b in PAIRS if a.numpy and b.numpy and RANK[a.kind] == RANK[b.kind]
] + [(a, b) for a, b in PAIRS if {a.kind, b.kind} == {"f", "c"} and a.numpy and b.numpy]


@pytest.mark.parametrize(("first", "second"), SAME_AS_NUMPY, ids=str)
def test_within_a_kind_promotion_is_numpys(first: nbx.DType, second: nbx.DType) -> None:
    extended = [d for d in (first, second) if d.numpy.startswith("ml_dtypes")]
    if extended and first is not second:
        # NumPy knows no rules between these: the common type has to hold both exactly.
        common = promote_types(first, second)
        numpy = numpy_dtype(common)
        for dtype in (first, second):
            if dtype.bits <= 16:
                values = np.arange(2**dtype.bits).astype(f"u{dtype.itemsize}")
                values = values.view(numpy_dtype(dtype))
                with np.errstate(invalid="ignore"):  # signalling NaNs
                    back = values.astype(numpy).real.astype(np.float64)
                    assert np.array_equal(back, values.astype(np.float64), True)
        return
    expected = np.promote_types(numpy_dtype(first), numpy_dtype(second))
    assert numpy_dtype(promote_types(first, second)) == expected


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        ((nbx.int32, 2), nbx.int32),
        ((nbx.int32, 2.5), nbx.float32),
        ((nbx.int8, 1000), nbx.int8),
        ((nbx.float16, 2.5), nbx.float16),
        ((nbx.float64, 1), nbx.float64),
        ((nbx.bool_, True), nbx.bool_),
        ((nbx.bool_, 1), nbx.int64),
        ((nbx.bool_, 1.0), nbx.float32),
        ((nbx.float32, 1j), nbx.complex64),
        ((nbx.float64, 1j), nbx.complex128),
        ((nbx.int64, 1j), nbx.complex64),
        ((nbx.complex64, 1.0), nbx.complex64),
        ((1, 2), nbx.int64),
        ((1, 2.0), nbx.float32),
        ((True,), nbx.bool_),
        ((1, 2j), nbx.complex64),
        ((nbx.float16, nbx.bfloat16), nbx.float32),
        ((nbx.int64, nbx.float16), nbx.float16),
        ((nbx.uint8, nbx.int8, 3), nbx.int16),
        ((nbx.int4, nbx.uint8), nbx.int16),
        ((nbx.float8_e4m3fn, nbx.float8_e5m2), nbx.float16),
        ((nbx.float32, nbx.complex64, nbx.float64), nbx.complex128),
        (("int8", np.dtype("float32")), nbx.float32),
    ],
)
def test_result_types(operands: tuple[object, ...], expected: nbx.DType) -> None:
    assert result_type(*operands) is expected
    assert result_type(*reversed(operands)) is expected


def test_tensors_count_by_their_type() -> None:
    x = nbx.zeros((2,), dtype=nbx.bfloat16)
    assert result_type(x, 1.5) is nbx.bfloat16
    assert nbx.can_cast(x, nbx.float32)


def test_result_type_refuses_nothing_and_nonsense() -> None:
    with pytest.raises(TypeError, match="at least one"):
        result_type()
    with pytest.raises(TypeError, match="expected one of"):
        result_type(nbx.float32, "no type")


def test_can_cast() -> None:
    assert nbx.can_cast(nbx.int8, nbx.int16)
    assert not nbx.can_cast(nbx.int16, nbx.int8)
    assert not nbx.can_cast(nbx.int8, nbx.uint64)
    assert not nbx.can_cast(nbx.float16, nbx.bfloat16)
    assert nbx.can_cast("float32", "complex64")


def test_isdtype() -> None:
    kinds = {
        "bool": "b",
        "signed integer": "i",
        "unsigned integer": "u",
        "integral": "iu",
        "real floating": "f",
        "complex floating": "c",
        "numeric": "iufc",
    }
    for dtype in DTYPES:
        for kind, letters in kinds.items():
            assert nbx.isdtype(dtype, kind) == (dtype.kind in letters)
        assert nbx.isdtype(dtype, dtype)
        assert nbx.isdtype(dtype, ("bool", "numeric"))
    assert not nbx.isdtype(nbx.int8, (nbx.int16, "real floating"))
    with pytest.raises(ValueError, match="'real floating'"):
        nbx.isdtype(nbx.int8, "floating")


def test_finfo() -> None:
    for dtype in DTYPES:
        if dtype.kind not in "fc":
            with pytest.raises(TypeError, match="iinfo"):
                nbx.finfo(dtype)
            continue
        got = nbx.finfo(dtype)
        expected = ml_dtypes.finfo(numpy_dtype(dtype))
        assert got.bits == expected.bits
        for field in ("eps", "max", "min", "smallest_normal", "smallest_subnormal", "tiny"):
            assert getattr(got, field) == float(getattr(expected, field)), (dtype, field)
        assert got.dtype.kind == "f"


def test_iinfo() -> None:
    for dtype in DTYPES:
        if dtype.kind not in "iu":
            with pytest.raises(TypeError, match="finfo"):
                nbx.iinfo(dtype)
            continue
        expected = ml_dtypes.iinfo(ml_dtypes.int4) if dtype is nbx.int4 else np.iinfo(dtype.numpy)
        got = nbx.iinfo(dtype)
        assert (got.bits, got.min, got.max) == (expected.bits, expected.min, expected.max)
