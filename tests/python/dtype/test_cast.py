"""Casts through tensors, exhaustively where the type is narrow, against NumPy and ml_dtypes."""

from __future__ import annotations

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor.dtype import numpy_dtype

NARROW = [nbx.float16, nbx.bfloat16, nbx.float8_e4m3fn, nbx.float8_e5m2]


def every_pattern(dtype: nbx.DType) -> np.ndarray:
    return np.arange(2**dtype.bits).astype(f"u{dtype.itemsize}").view(numpy_dtype(dtype))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_every_narrow_number_widens_exactly(dtype: nbx.DType) -> None:
    values = every_pattern(dtype)
    for wide in (nbx.float32, nbx.float64):
        got = nbx.from_numpy(values).to(wide).numpy()
        with np.errstate(invalid="ignore"):  # signalling NaNs
            expected = values.astype(wide.name)
        np.testing.assert_array_equal(got, expected)
        assert np.array_equal(np.signbit(got), np.signbit(expected))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_numbers_around_every_midpoint_round_to_even(
    dtype: nbx.DType, rng: np.random.Generator
) -> None:
    with np.errstate(invalid="ignore"):
        exact = every_pattern(dtype).astype(np.float64)
    exact = np.unique(exact[np.isfinite(exact)])
    middle = exact[:-1] + np.diff(exact) / 2
    near = np.concatenate(
        [exact, middle, np.nextafter(middle, -np.inf), np.nextafter(middle, 9e99)]
    )
    random = rng.standard_normal(20000) * 10.0 ** rng.integers(-12, 12, 20000)
    values = np.concatenate([near, random, [np.nan, np.inf, -np.inf, 1e300, -1e300, -0.0]])
    single = values[np.abs(values) < 3e38].astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = single.astype(numpy_dtype(dtype))
    got = nbx.from_numpy(single).to(dtype).numpy()
    same_bits(got, expected)
    # From double in one rounding, which ml_dtypes does not offer for every type.
    with np.errstate(over="ignore", invalid="ignore"):
        expected = to_odd(values).astype(numpy_dtype(dtype))
    same_bits(nbx.from_numpy(values).to(dtype).numpy(), expected)


def to_odd(values: np.ndarray) -> np.ndarray:
    """Round doubles to float32 so that the second rounding cannot meet a tie made by the first."""
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = values.astype(np.float32)
        toward = np.where(
            np.abs(nearest.astype(np.float64)) > np.abs(values),
            np.nextafter(nearest, np.float32(0)),
            nearest,
        )
    inexact = (toward.astype(np.float64) != values) & ~np.isnan(values)
    bits = toward.view(np.uint32) | inexact.astype(np.uint32)
    return bits.view(np.float32)


def same_bits(got: np.ndarray, expected: np.ndarray) -> None:
    """Compare bit patterns, any NaN for any NaN."""
    unsigned = f"u{expected.itemsize}"
    nan = np.isnan(expected.astype(np.float64))
    assert np.array_equal(nan, np.isnan(got.astype(np.float64)))
    np.testing.assert_array_equal(got.view(unsigned)[~nan], expected.view(unsigned)[~nan])


INTEGERS = [nbx.int8, nbx.int16, nbx.int32, nbx.int64]
INTEGERS += [nbx.uint8, nbx.uint16, nbx.uint32, nbx.uint64]


@pytest.mark.parametrize("source", INTEGERS, ids=str)
@pytest.mark.parametrize("target", INTEGERS, ids=str)
def test_integers_wrap(source: nbx.DType, target: nbx.DType, rng: np.random.Generator) -> None:
    info = np.iinfo(source.name)
    values = rng.integers(info.min, info.max, 3000, dtype=source.name, endpoint=True)
    np.testing.assert_array_equal(
        nbx.from_numpy(values).to(target).numpy(), values.astype(target.name)
    )


@pytest.mark.parametrize("source", [nbx.float32, nbx.float64, *NARROW], ids=str)
@pytest.mark.parametrize("target", INTEGERS, ids=str)
def test_floats_saturate(source: nbx.DType, target: nbx.DType, rng: np.random.Generator) -> None:
    values = (rng.standard_normal(2000) * 10.0 ** rng.integers(-2, 22, 2000)).astype(np.float32)
    special = np.array([np.nan, np.inf, -np.inf, -0.5, 0.99, 2.0**31, 2.0**63, 2.0**64, -(2.0**63)])
    tensor = nbx.from_numpy(np.concatenate([values, special.astype(np.float32)])).to(source)
    exact = [float(v) for v in tensor.to(nbx.float64).numpy()]
    info = np.iinfo(target.name)
    expected = [
        0 if v != v else info.max if v >= info.max else info.min if v <= info.min else int(v)
        for v in exact
    ]
    assert tensor.to(target).tolist() == expected


def test_anything_but_zero_is_true() -> None:
    values = np.array([0.0, -0.0, 0.5, np.nan, np.inf, 1e-45], np.float32)
    assert nbx.from_numpy(values).to(nbx.bool_).tolist() == [False, False, True, True, True, True]


def test_complex_drops_its_imaginary_part() -> None:
    values = np.array([1 + 2j, -3.5 - 1j], np.complex64)
    assert nbx.from_numpy(values).to(nbx.float64).tolist() == [1.0, -3.5]
    assert nbx.from_numpy(values).to(nbx.complex128).tolist() == [1 + 2j, -3.5 - 1j]
    assert nbx.from_numpy(np.array([2], np.int8)).to(nbx.complex64).tolist() == [2 + 0j]


def test_int4_packs_two_a_byte() -> None:
    values = np.arange(-8, 8, dtype=np.int8)
    packed = nbx.from_numpy(values).to(nbx.int4)
    assert packed.nbytes == 8
    assert packed.to(nbx.int8).tolist() == values.tolist()
    assert packed.to(nbx.float32).tolist() == values.tolist()
