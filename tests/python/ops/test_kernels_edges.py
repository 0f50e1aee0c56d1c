"""What samples do not reach of the kernels in Triton's language: the CPU is the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import _core
from nbxtensor.dtype import DTYPES, DType
from nbxtensor.kernels import specializations
from nbxtensor.ops import TABLE
from nbxtensor.ops.device.elementwise import GROUP_OF
from nbxtensor.ops.device.launches import Lowering, NotLowered
from nbxtensor.ops.device.layout import coalesce
from nbxtensor.ops.device.reduce import shape_of
from nbxtensor.ops.plan import Builder, Window, row_major

# The interpreter cuts bfloat16 off where devices round, and takes its subnormal numbers for 0.
REAL = [d for d in DTYPES if d.kind != "c" and d.bits >= 8 and d.name != "bfloat16"]
VALUES = (
    *(0.0, -0.0, 1.0, -1.5, 2.5, 126.5, 300.0, 448.0, 465.0, 65519.0, 65520.0, 7e4, -3e9, 5e9),
    *(1e20, -1e20, 3e38, 1e-8, 6e-8, -2e-40, np.inf, -np.inf, np.nan),
)
INTEGERS = (0, 1, -1, 127, 128, 255, 256, 2049, 65535, 2**24 + 1, 2**31 - 1, 2**53 + 1, 2**62 + 3)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plan with kernels in Triton's language, and let no plan outlive the test."""
    monkeypatch.setenv("NBX_SIM_KERNELS", "triton")
    _core.forget_plans()
    yield
    _core.forget_plans()


def bits(tensor: Any) -> Any:
    """Return what compares equal where the bits do, but for the payload of NaN."""
    host = tensor.to("cpu")
    return host.to("float64").numpy() if host.dtype.kind == "f" else host.numpy()


def same(result: Any, expected: Any, units: float = 0.0) -> None:
    assert result.dtype is expected.dtype
    assert result.shape == expected.shape
    got, wanted = bits(result), bits(expected)
    if result.dtype.kind != "f":
        np.testing.assert_array_equal(got, wanted)
        return
    eps = units * float(nbx.finfo(result.dtype).eps)
    np.testing.assert_allclose(got, wanted, rtol=eps, atol=0.0 if units == 0 else 1e-37)


def source(dtype: DType) -> Any:
    if dtype.kind == "f":
        return nbx.asarray(np.array(VALUES)).to(dtype)
    limits = np.iinfo(np.uint64 if dtype.kind == "b" else dtype.name)
    fits = [v for v in INTEGERS if limits.min <= v <= limits.max]
    values = np.array(fits, np.int64 if limits.min < 0 else np.uint64)
    return nbx.asarray(values).to(dtype)


@pytest.mark.parametrize("to", REAL, ids=str)
def test_casts_are_those_of_the_cpu(to: DType) -> None:
    for dtype in REAL:
        x = source(dtype)
        same(x.to("sim").to(to), x.to(to))


def op_names() -> list[str]:
    return [
        row.name
        for row in TABLE.values()
        if row.family == "elementwise" and any(k.startswith("elementwise:") for k in row.kernels)
    ]


# Inexact by more than the rest: the tails of functions that lose digits there on the CPU too.
UNITS = {"gelu": 64.0, "tan": 8.0, "exp2": 4.0}


@pytest.mark.parametrize("name", op_names())
@pytest.mark.filterwarnings("ignore:.*")
def test_special_values(name: str) -> None:
    row = TABLE[name]
    kinds = [dtype for dtype in row.dtypes if dtype in REAL]
    tensors = sum(1 for p in row.parameters if int(p.kind) in (0, 3))
    for dtype in (kinds[0], kinds[-1]):
        x = source(dtype)
        if name in ("pow", "left_shift", "right_shift") and dtype.kind in "iu":
            y = nbx.asarray(np.arange(x.shape[0]) % 70).to(dtype)
        else:
            y = x
        grids: list[Any] = [x]
        if tensors >= 2:
            grids = [x.unsqueeze(1), y.unsqueeze(0)]
        if tensors >= 3:
            grids = [x.unsqueeze(1), y.unsqueeze(0), nbx.ones((1, 1), dtype=dtype)]
        if name in ("where", "masked_fill"):
            mask = nbx.asarray(np.arange(x.shape[0]) % 2 == 0)
            grids = [mask, x, y] if name == "where" else [x, mask, 1]
        keywords = {"min": 0, "max": 2} if name == "clamp" else {}
        op = getattr(nbx, name)
        expected = op(*grids, **keywords)
        moved = [g.to("sim") if isinstance(g, nbx.Tensor) else g for g in grids]
        units = UNITS.get(name, 8.0 if dtype.bits >= 32 else 2.0)
        same(op(*moved, **keywords), expected, units)


def test_integers_of_both_signs_compare_as_numbers() -> None:
    signed = nbx.asarray(np.array([-1, 0, 5, 2**62], np.int64))
    unsigned = nbx.asarray(np.array([2**64 - 1, 0, 5, 2**63], np.uint64))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        op = getattr(nbx, name)
        pairs = [(signed, unsigned), (unsigned, signed), (signed, 2**64 - 1), (unsigned, 7)]
        for a, b in pairs:
            moved = [v.to("sim") if isinstance(v, nbx.Tensor) else v for v in (a, b)]
            same(op(*moved), op(a, b))


@pytest.mark.parametrize(
    ("shape", "axis"), [((2, 9001), 1), ((9001, 3), 0), ((3, 5, 2101), (0, 2))]
)
def test_long_rows_in_pieces(shape: Any, axis: Any, rng: np.random.Generator) -> None:
    x = nbx.asarray(rng.standard_normal(shape).astype(np.float32))
    there = x.to("sim")
    for name in ("sum", "mean", "var", "amax", "logsumexp"):
        op = getattr(nbx, name)
        same(op(there, axis=axis), op(x, axis=axis), 256)
    for name in ("argmax", "argmin"):
        op = getattr(nbx, name)
        if isinstance(axis, int):
            same(op(there, axis=axis), op(x, axis=axis))
            ties = nbx.round(x * 2)
            same(op(ties.to("sim"), axis=axis), op(ties, axis=axis))
    same(nbx.norm(there, ord=3.0, axis=axis), nbx.norm(x, ord=3.0, axis=axis), 64)
    same(nbx.norm(there, ord=np.inf, axis=axis), nbx.norm(x, ord=np.inf, axis=axis))
    same(nbx.all(there > -9, axis=axis), nbx.all(x > -9, axis=axis))


def test_a_piece_of_a_row_is_what_the_shape_says() -> None:
    window = Window(0, 0, nbx.float32, (2, 9001), (9001, 1))
    shape = shape_of(window, 1)
    assert shape.pieces > 1
    assert (shape.pieces - 1) * shape.piece < 9001 <= shape.pieces * shape.piece


def test_nan_wins_and_the_first_of_equals_is_found() -> None:
    x = np.array([[1, np.nan, 3, np.nan], [5, 5, -np.inf, 5], [-np.inf] * 4], np.float32)
    card = nbx.asarray(x).to("sim")
    assert nbx.argmax(card, axis=1).numpy().tolist() == [1, 0, 0]
    assert nbx.argmin(card, axis=1).numpy().tolist() == [1, 2, 0]
    assert np.isnan(nbx.amax(card, axis=1).numpy()).tolist() == [True, False, False]
    values, places = nbx.cummax(card, axis=1)
    assert places.numpy().tolist() == [[0, 1, 1, 3], [0, 1, 1, 3], [0, 1, 2, 3]]
    assert np.isnan(values.numpy()[0]).tolist() == [False, True, True, True]


def test_views_of_many_axes(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 2, 4, 2, 3, 2, 5)).astype(np.float32)
    axes = (6, 1, 4, 0, 3, 5, 2)
    there = nbx.asarray(x).to("sim").permute(*axes)[::-1, :, ::2]
    here = x.transpose(axes)[::-1, :, ::2]
    np.testing.assert_array_equal((there + there).numpy(), here + here)
    np.testing.assert_array_equal(there.contiguous().numpy(), here)
    np.testing.assert_allclose(nbx.sum(there, axis=(0, 3)).numpy(), here.sum((0, 3)), rtol=1e-5,
                               atol=1e-5)  # fmt: skip


def test_nine_axes_that_do_not_merge_are_refused() -> None:
    shape = (2,) * 9
    strides = row_major((3,) * 9)
    with pytest.raises(NotLowered, match="9 axes that do not merge, at most 8"):
        coalesce(shape, [strides])


def test_axes_merge_where_every_operand_allows() -> None:
    axes = coalesce((4, 5, 6), [(30, 6, 1), (0, 6, 1)])
    assert axes.extents == (30, 4)
    assert axes.strides == ((1, 30), (1, 0))
    assert coalesce((4, 1, 6), [(6, 99, 1)]).extents == (24,)
    assert coalesce((4, 6), [(1, 4)]).extents == (24,)
    assert coalesce((4, 6), [(1, 4)], reorder=False).extents == (6, 4)


def test_a_grid_past_the_devices_limits_is_refused() -> None:
    low = Lowering(Builder("any"))
    with pytest.raises(NotLowered, match="grid"):
        low.launch("any:any", (1, 65536), {}, {}, ())


def test_alignment_is_claimed_only_where_the_key_knows_it(rng: np.random.Generator) -> None:
    x = rng.standard_normal(257).astype(np.float32)
    card = nbx.asarray(x).to("sim")
    for start in (0, 1, 4, 1):
        np.testing.assert_array_equal((card[start:] * 2).numpy(), x[start:] * 2)


def test_a_wrong_index_is_told_and_forgotten() -> None:
    table = nbx.ones((5, 3), device="sim")
    bad = nbx.asarray(np.array([[0, -6], [1, 2]])).to("sim")
    with pytest.raises(
        IndexError, match="sim:0: index: index -6 is out of bounds for axis 0 with size 5"
    ):
        table[bad].numpy()
    good = nbx.asarray(np.array([4, -5])).to("sim")
    assert table[good].numpy().tolist() == [[1.0] * 3] * 2
    with pytest.raises(
        IndexError, match="embedding: index -1 is out of bounds for the table's rows 0 to 4"
    ):
        nbx.embedding(nbx.asarray(np.array([-1])).to("sim"), table).numpy()


def test_assignment_by_index_keeps_the_last_of_equals() -> None:
    x = nbx.zeros((10,), device="sim")
    places = nbx.asarray(np.array([1, 3, 1, 1])).to("sim")
    x[places] = nbx.asarray(np.array([1, 2, 3, 4], np.float32)).to("sim")
    assert x.numpy().tolist() == [0, 4, 0, 2, 0, 0, 0, 0, 0, 0]
    x[2:5] = 7
    x[::2] = nbx.asarray(np.arange(5)).to("sim")
    assert x.numpy().tolist() == [0, 4, 1, 7, 2, 0, 3, 0, 4, 0]


def test_complex_numbers_move_and_add_up(rng: np.random.Generator) -> None:
    x = (rng.standard_normal((4, 5)) + 1j * rng.standard_normal((4, 5))).astype(np.complex64)
    card = nbx.asarray(x).to("sim")
    np.testing.assert_array_equal(card.T.contiguous().numpy(), x.T)
    np.testing.assert_allclose(nbx.sum(card, axis=0).numpy(), x.sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(card.to("complex128").numpy(), x.astype(np.complex128))


def test_every_elementwise_kernel_of_the_cpu_has_a_group() -> None:
    known = {n.split(":")[1] for n in _core.host_kernel_names() if n.startswith("elementwise:")}
    assert known == set(GROUP_OF)


def test_specialisations_are_listed_once() -> None:
    listed = list(specializations("sm_90"))
    keys = {
        (n, repr(sorted(t.items())), repr(sorted(map(str, c.items()))), d)
        for n, t, c, d, _ in listed
    }
    assert len(keys) == len(listed)
    assert {"elementwise:contiguous", "reduce:rows", "matmul:dense", "attention:forward"} <= {
        name for name, *_ in listed
    }
    assert all(set(divisible) <= set(types) for _, types, _, divisible, _ in listed)
    assert not any(set(types) & set(fixed) for _, types, fixed, _, _ in listed)


def test_steps_of_no_kernel_stay_with_the_host() -> None:
    x = np.array([[1.0, -2.0] * 16], np.float32)
    blocks = nbx.quant.quantize(nbx.asarray(x).to("sim"), "q8_0")
    np.testing.assert_allclose(blocks.dequantize().numpy(), x, rtol=0.01)
    z = nbx.asarray(np.array([1 + 2j], np.complex64)).to("sim")
    assert (z * z).numpy().tolist() == [-3 + 4j]
