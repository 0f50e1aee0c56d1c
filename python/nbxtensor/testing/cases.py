"""Cases of generated tests: dtypes x inputs x layouts x devices, against a NumPy oracle."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from nbxtensor.dtype import DType, finfo, numpy_dtype
from nbxtensor.ops.signature import Kind
from nbxtensor.ops.table import OPS, TABLE, Row, Sample
from nbxtensor.tensor import Tensor, from_numpy

Array = np.ndarray[Any, Any]

LAYOUTS: Final = ("contiguous", "transposed", "stepped", "reversed")


@dataclass(frozen=True, slots=True)
class Case:
    """One generated test: a row with one dtype on one device."""

    row: Row
    dtype: DType
    device: str

    def __str__(self) -> str:
        return f"{self.row.name}-{self.dtype}-{self.device}"


def cases_of(family: str, devices: tuple[str, ...]) -> list[Case]:
    """Return every case of a family's rows."""
    return [
        Case(row, dtype, device)
        for row in TABLE.values()
        if row.family == family
        for dtype in row.dtypes
        for device in devices
    ]


def to_domain(values: Array, dtype: DType) -> Array:
    """Return normally distributed values as values of a dtype, exactly representable in it."""
    if dtype.kind == "b":
        return np.asarray(values > 0)
    if dtype.kind in "iu":
        scaled = np.rint(np.nan_to_num(values, nan=3, posinf=7, neginf=-7) * 4)
        if dtype.kind == "u":
            scaled = np.abs(scaled)
        return np.asarray(scaled.astype(numpy_dtype(dtype)))
    if dtype.kind == "c":
        turned = values - 0.5j * np.flip(np.nan_to_num(values, nan=1, posinf=2, neginf=3))
        return turned.astype(numpy_dtype(dtype))
    return values.astype(numpy_dtype(dtype))


def to_numpy(tensor: Tensor) -> Array:
    """Return a tensor's values in the widest NumPy type of their kind."""
    values = np.asarray(tensor.numpy())
    wide = {"f": np.float64, "c": np.complex128}.get(tensor.dtype.kind)
    return values if wide is None else values.astype(wide)


def _wide(values: Array, dtype: DType) -> Array:
    if dtype.kind == "f":
        return values.astype(np.float64)
    return values.astype(np.complex128) if dtype.kind == "c" else values


def as_layout(values: Array, layout: str, device: str) -> Tensor:
    """Return a tensor of these values whose strides are those of a kind of view."""
    rank = values.ndim
    if layout == "transposed":
        axes = tuple(reversed(range(rank)))
        return (
            _upload(values.transpose(axes), device).permute(*axes)
            if rank
            else _upload(values, device)
        )
    if layout == "stepped" and rank:
        wide = np.zeros((*values.shape[:-1], 2 * values.shape[-1] + 1), values.dtype)
        wide[..., 1::2] = values
        tensor: Tensor = _upload(wide, device)[..., 1::2]
        return tensor
    if layout == "reversed" and rank:
        backwards = (slice(None, None, -1),) * rank
        tensor = _upload(values[backwards], device)[backwards]
        return tensor
    return _upload(values, device)


def _upload(values: Array, device: str) -> Tensor:
    tensor: Tensor = from_numpy(np.array(values, order="C")).to(device)
    return tensor


def allowed_error(row: Row, dtype: DType) -> tuple[float, float]:
    """Return the relative and absolute error that a result of this dtype may have."""
    if dtype.kind not in "fc":
        return 0.0, 0.0
    eps = finfo(dtype).eps
    # Narrow types round once more than the computation in float32 that they come from.
    units = row.tolerance if dtype.bits >= 32 else min(row.tolerance, 4.0)
    return units * eps, units * eps


@dataclass(slots=True)
class _Built:
    """One sample as the op and as the oracle take it."""

    given: list[Any]
    expected: list[Any]
    keywords: dict[str, Any]
    expected_keywords: dict[str, Any]
    largest: float


def _build(sample: Sample, dtype: DType, layout: str, device: str) -> _Built:
    built = _Built([], [], {}, {}, 1.0)

    def both(value: Any) -> tuple[Any, Any]:
        if isinstance(value, list):
            pairs = [both(item) for item in value]
            return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        if isinstance(value, np.generic):
            value = np.asarray(value)
        if not isinstance(value, np.ndarray):
            return value, value
        if value.dtype == np.float64:
            rounded = to_domain(value, dtype)
            wide = _wide(rounded, dtype)
            finite = np.abs(wide[np.isfinite(wide)]) if dtype.kind in "fc" else np.abs(wide)
            built.largest = max(built.largest, float(np.max(finite, initial=0)))
            return as_layout(rounded, layout, device), wide
        # Ids, masks and packed blocks keep their dtype; blocks also their layout.
        kept = "contiguous" if value.dtype == np.uint8 else layout
        return as_layout(value, kept, device), value

    for argument in sample.arguments:
        given, expected = both(argument)
        built.given.append(given)
        built.expected.append(expected)
    for name, value in sample.keywords.items():
        built.keywords[name], built.expected_keywords[name] = both(value)
    return built


def _samples(row: Row, seed: int) -> Iterator[tuple[int, Sample]]:
    yield from enumerate(row.samples(np.random.default_rng(seed)))


def _compare(row: Row, result: Tensor, expected: Any, built: _Built, where: str) -> None:
    wanted = np.asarray(expected)
    assert result.shape == wanted.shape, f"{where}: shape {result.shape}, expected {wanted.shape}"
    got = to_numpy(result)
    relative, absolute = allowed_error(row, result.dtype)
    if relative == 0.0:
        if result.dtype.kind in "iu":
            # The oracle's integers wrap around as ours do.
            wanted = wanted.astype(got.dtype)
        np.testing.assert_array_equal(got, wanted, err_msg=where)
        return
    absolute *= built.largest
    # Past its greatest number a narrow type gives infinity, where the oracle has a number.
    with np.errstate(over="ignore"):
        wanted = wanted.astype(numpy_dtype(result.dtype)).astype(got.dtype)
    np.testing.assert_allclose(got, wanted, rtol=relative, atol=absolute, err_msg=where)


def check_case(case: Case, seed: int, layouts: tuple[str, ...] = LAYOUTS) -> int:
    """Run a row on all its samples and layouts and compare with the oracle; return how many.

    Raises
    ------
    AssertionError
        Naming row, sample, layout and seed, where a shape or a value is wrong.
    """
    op = OPS[case.row.name]
    writes = case.row.parameters[0].kind is Kind.WRITTEN
    count = 0
    for (number, sample), layout in itertools.product(_samples(case.row, seed), layouts):
        built = _build(sample, case.dtype, layout, case.device)
        where = f"{case} sample {number} {layout} seed {seed}"
        with np.errstate(all="ignore"):
            expected = case.row.oracle(*built.expected, **built.expected_keywords)
        result = op(*built.given, **built.keywords)
        if writes:
            assert result is built.given[0], f"{where}: expected the written tensor back"
        pairs = (
            zip(result, expected, strict=True)
            if isinstance(result, tuple)
            else ((result, expected),)
        )
        for one, wanted in pairs:
            _compare(case.row, one, wanted, built, where)
        count += 1
    return count
