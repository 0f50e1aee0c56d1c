"""Functions under fuse give what their ops give one by one, to the bit, in fewer passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest

FLOATS = ("float32", "float64", "float16", "bfloat16")
SHAPES = ((), (1,), (7,), (0, 3), (5, 1), (3, 8191), (3, 8193), (20011,), (2, 3, 4, 5), (70, 300))


def made(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> nbx.Tensor:
    values = rng.standard_normal(shape) * 3
    return nbx.asarray(np.asarray(values, np.float32)).to(dtype)


def bits(x: nbx.Tensor) -> np.ndarray:
    unsigned = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}[x.dtype.itemsize]
    return x.contiguous().view(unsigned).numpy()


def agree(got: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            agree(one, other)
        return
    assert (got.shape, got.dtype, got.device) == (expected.shape, expected.dtype, expected.device)
    np.testing.assert_array_equal(bits(got), bits(expected))


# Each is called with tensors under fuse and with tensors as they are.
CHAINS: dict[str, Callable[..., Any]] = {
    "gate": lambda x, y: nbx.silu(x) * y,
    "residual": lambda x, y: x + 0.5 * nbx.gelu(y) - 1,
    "reflected": lambda x, y: 2 - (3 / (y.abs() + 1)) ** 2 + x,
    "choice": lambda x, y: nbx.where((x > y) & (y != 0), x.exp(), -y),
    "clamped": lambda x, y: x.clamp(-1.0, 1.0).maximum(y).tanh(),
    "converted": lambda x, y: (x.to("float32") * y.to("float32")).to(x.dtype) + x,
    "two": lambda x, y: (x * y, (x * y + 1).sqrt()),
    "shared": lambda x, y: ((s := x + y), s * s, s - x),
    "rounded": lambda x, y: nbx.floor(x * 4) + nbx.round(y) % 3,
    "given back": lambda x, y: (x, x + y, x + y),
    "compared": lambda x, y: ((x < y) | ~(x == y)).to("int8") * 3 + 1,
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", CHAINS)
def test_chains_give_what_their_ops_give(name: str, dtype: str, rng: np.random.Generator) -> None:
    function = CHAINS[name]
    fused = nbx.fuse(function)
    for shape in SHAPES:
        x, y = made(rng, shape, dtype), made(rng, shape, dtype)
        agree(fused(x, y), function(x, y))


REDUCTIONS = ("sum", "prod", "mean", "amax", "amin", "var", "logsumexp", "argmax", "norm")


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [None, -1, 0, (0, 1), (-2, -1)])
def test_reductions_follow(name: str, axis: Any, rng: np.random.Generator) -> None:
    def function(x: Any, y: Any) -> Any:
        method = getattr((x * 0.25 + y).square(), name)
        return method(axis=axis) if axis is not None else method()

    if name == "argmax" and isinstance(axis, tuple):
        return
    fused = nbx.fuse(function)
    for shape in ((3, 5), (9, 4000), (2, 3, 1200), (4, 1, 6)):
        x, y = made(rng, shape, "float32"), made(rng, (shape[-1],), "float32")
        agree(fused(x, y), function(x, y))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "name", ["sum", "mean", "prod", "amax", "amin", "all", "any", "count_nonzero"]
)
def test_long_rows_are_reduced_in_pieces(name: str, dtype: str, rng: np.random.Generator) -> None:
    fused = nbx.fuse(lambda x, y: getattr(x * y, name)(axis=-1))
    values = rng.standard_normal((3, 100_003)) * 0.01 + (1.0 if name == "prod" else 0.3)
    x = nbx.asarray(values.astype(np.float32)).to(dtype)
    y = nbx.ones((), dtype=dtype)
    exact = x.to("float64").numpy()
    function = {"amax": np.max, "amin": np.min}.get(name) or getattr(np, name)
    expected = function(exact, -1)
    got = fused(x, y)
    assert got.dtype == getattr(x, name)(axis=-1).dtype
    if got.dtype.kind in "bi":
        np.testing.assert_array_equal(got.numpy(), expected)
    else:
        tolerance = {"float64": 1e-12, "float32": 2e-7}.get(dtype, 2.0**-8)
        np.testing.assert_allclose(got.to("float64").numpy(), expected, rtol=tolerance)


def test_integers_and_broadcasts(rng: np.random.Generator) -> None:
    def function(x: Any, y: Any, z: Any) -> Any:
        return ((x * y) // z + (x ^ y)).sum(-1), x.unsqueeze(0) - z

    fused = nbx.fuse(function)
    for shapes in (((4, 1, 5), (3, 1), (5,)), ((1000, 1), (1, 77), ())):
        x, y, z = (nbx.asarray(rng.integers(1, 90, shape)) for shape in shapes)
        agree(fused(x, y, z), function(x, y, z))


def test_layouts_of_arguments(rng: np.random.Generator) -> None:
    def function(x: Any, y: Any) -> Any:
        return (x.transpose(0, 1) * y + y.permute(1, 0).transpose(1, 0)).reshape(-1) * 2

    fused = nbx.fuse(function)
    wide = made(rng, (120, 190), "float32")
    for x, y in (
        (wide, made(rng, (190, 120), "float32")),
        (wide[::2, 1::3], made(rng, (63, 60), "float32")),
        (wide.T.flip(0), wide.flip(1)),
    ):
        agree(fused(x, y), function(x, y))


def test_other_ops_run_between_chains(rng: np.random.Generator) -> None:
    def function(x: Any, w: Any) -> Any:
        h = nbx.rms_norm(x * 2 + 1) @ w
        gate, up = nbx.silu(h) * h, nbx.softmax(h - 1, axis=-1)
        return (gate + up).cumsum(axis=-1) * 0.5 + 1, (gate * up).sum()

    fused = nbx.fuse(function)
    x, w = made(rng, (33, 64), "float32"), made(rng, (64, 96), "float32")
    agree(fused(x, w), function(x, w))


def test_results_do_not_depend_on_threads(rng: np.random.Generator) -> None:
    fused = nbx.fuse(lambda x, y: ((x * y).exp().sum(), (x - y).mean(-1), x / (y + 9)))
    x, y = made(rng, (50, 40_000), "float32"), made(rng, (40_000,), "float32")
    before = nbx.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            nbx.set_num_threads(count)
            results.append(fused(x, y))
    finally:
        nbx.set_num_threads(before)
    agree(results[1], results[0])
    agree(results[2], results[0])


def test_numbers_are_operands_and_need_no_new_plan(rng: np.random.Generator) -> None:
    @nbx.fuse
    def scaled(x: Any, factor: Any, offset: Any = 1.5) -> Any:
        return x * factor + offset

    x = made(rng, (100,), "float32")
    for factor in (2.0, -3.25, 0.0):
        agree(scaled(x, factor), x * factor + 1.5)
        agree(scaled(x, factor, offset=factor), x * factor + factor)
    assert scaled.cached_plans == 1
    agree(scaled(x, x, x), x * x + x)
    assert scaled.cached_plans == 2
    with pytest.raises(OverflowError, match="factor"):
        scaled(nbx.ones((3,), dtype="int8"), 300)


def test_static_arguments_choose_a_plan(rng: np.random.Generator) -> None:
    def function(x: Any, axis: int, mode: str = "sum") -> Any:
        y = x.abs() + 1
        return y.log().sum(axis) if mode == "sum" else y.log().amax(axis)

    fused = nbx.fuse(function, static=("axis", "mode"))
    x = made(rng, (6, 7, 8), "float32")
    for axis in (0, 1, 2, -1):
        for mode in ("sum", "greatest"):
            agree(fused(x, axis, mode), function(x, axis, mode))


def test_values_between_take_no_memory(rng: np.random.Generator) -> None:
    def function(x: Any, y: Any) -> Any:
        return (((x + y) * x - y).exp() * 0.5).sum()

    x, y = made(rng, (1 << 20,), "float32"), made(rng, (1 << 20,), "float32")
    fused = nbx.fuse(function)
    fused(x, y)
    with nbx.memory.peak(device="cpu") as held:
        pass
    with nbx.memory.peak(device="cpu") as eager:
        function(x, y)
    with nbx.memory.peak(device="cpu") as chained:
        fused(x, y)
    assert eager.bytes - held.bytes >= 2 * x.nbytes
    assert chained.bytes - held.bytes < 4096


def test_on_the_simulated_card(rng: np.random.Generator) -> None:
    function = CHAINS["residual"]
    fused = nbx.fuse(lambda x, y: (function(x, y), function(x, y).sum(-1)))
    x, y = made(rng, (30, 50), "float32"), made(rng, (30, 50), "float32")
    far = fused(x.to("sim"), y.to("sim"))
    agree(tuple(part.to("cpu") for part in far), fused(x, y))


def test_it_is_an_op(rng: np.random.Generator) -> None:
    def area(width: Any, height: Any) -> Any:
        """Return the areas."""
        return width * height

    fused = nbx.fuse(area)
    assert (fused.__name__, fused.__doc__) == ("area", "Return the areas.")
    assert str(fused.__signature__) == "(width: 'Any', height: 'Any') -> 'Any'"
    graph = nbx.Graph.capture(fused, made(rng, (4,), "float32"), made(rng, (4,), "float32"))
    x, y = made(rng, (4,), "float32"), made(rng, (4,), "float32")
    agree(graph(x, y), x * y)


outside = nbx.ones((3,))


def reads(x: Any) -> Any:
    return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (reads, TypeError, "has no elements"),
        (lambda x: x + outside, TypeError, "give it as an argument"),
        (lambda x: x.item(), AttributeError, "has no 'item'"),
        (lambda x: x[0], TypeError, "has no elements"),
        (lambda x: 5, TypeError, "returned int"),
        (lambda x: x.reshape(2, 2), ValueError, r"3 elements have no shape \(2, 2\)"),
        (lambda x: x.broadcast_to((2, 4)), ValueError, "cannot be broadcast"),
        (lambda x: nbx.exp(x, 3), TypeError, "takes at most 1 positional"),
        (lambda x: nbx.matmul(x, 2), TypeError, "must be a tensor, got int"),
        (lambda x: x.sum(axis=4), IndexError, "axis must be in"),
        (lambda x: x & 1.5, TypeError, "not supported"),
        (lambda x: x.to("int8") + 300, nbx.errors.RangeError, "300, which does not fit in int8"),
        (lambda x: x.to("int8") ** -1, nbx.errors.InvalidValueError, "no negative powers"),
    ],
)
def test_what_a_trace_cannot_have_is_named(
    function: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        nbx.fuse(function)(nbx.ones((3,)))


def test_parameters_are_plain() -> None:
    with pytest.raises(TypeError, match="plain parameters"):
        nbx.fuse(lambda *x: x)
    with pytest.raises(TypeError, match=r"static names \['z'\]"):
        nbx.fuse(lambda x: x, static=("z",))
    with pytest.raises(TypeError):
        nbx.fuse(lambda x: x + 1)(3.0)
