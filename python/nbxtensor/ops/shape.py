"""Joining, repeating and cutting to triangles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nbxtensor.ops import inputs
from nbxtensor.ops.plan import Builder, Window
from nbxtensor.ops.signature import static, tensor, tensor_list
from nbxtensor.ops.table import EVERY, Row, Sample, register

X = tensor("x", "input")
TENSORS = tensor_list("tensors", "arrays")
AXIS = static("axis", 0, "dim")


def _join(builder: Builder, windows: list[Window], axis: int) -> Window:
    first = windows[0]
    builder.check_unpacked(*(window.dtype for window in windows))
    for i, window in enumerate(windows):
        same = window.rank == first.rank and all(
            a == b
            for n, (a, b) in enumerate(zip(window.shape, first.shape, strict=True))
            if n != axis
        )
        if not same:
            raise builder.error(
                f"tensor {i} has shape {window.shape}, expected {first.shape} except along axis "
                f"{axis}"
            )
    shape = list(first.shape)
    shape[axis] = sum(window.shape[axis] for window in windows)
    out = builder.output(shape, builder.promote(*windows))
    start = 0
    for window in windows:
        stop = start + window.shape[axis]
        if window.size:
            builder.copy(out.slice(axis, start, stop), window)
        start = stop
    return out


def _plan_cat(builder: Builder, windows: list[Window], axis: Any) -> Window:
    if not windows:
        raise builder.error("got no tensors, expected one at least")
    if axis is None:
        return _join(builder, [builder.reshape(w, (w.size,)) for w in windows], 0)
    if windows[0].rank == 0:
        raise builder.error("tensors of shape () have no axis to join along; use stack")
    return _join(builder, windows, builder.axis(axis, windows[0].rank))


def _plan_stack(builder: Builder, windows: list[Window], axis: int) -> Window:
    if not windows:
        raise builder.error("got no tensors, expected one at least")
    for i, window in enumerate(windows):
        if window.shape != windows[0].shape:
            raise builder.error(
                f"tensor {i} has shape {window.shape}, expected {windows[0].shape} as the first"
            )
    index = builder.axis(axis, windows[0].rank + 1)
    return _join(builder, [window.insert(index) for window in windows], index)


def _triangle(*, upper: bool) -> Any:
    def plan(builder: Builder, x: Window, k: int) -> Window:
        if x.rank < 2:
            raise builder.error(f"x must have two axes at least, got shape {x.shape}")
        k = builder.integer(k, "k")
        builder.check_unpacked(x.dtype)
        out = builder.result(x.shape, x.dtype)
        batch = x.size // max(x.shape[-1] * x.shape[-2], 1)
        flat = (batch, *x.shape[-2:])
        source, target = x.reshape(flat), out.reshape(flat)
        if x.rank == 2:
            builder.step("fill:triangle", [out], [x], [k, upper])
            return out
        if source is None or target is None:
            source = builder.contiguous(x).reshape(flat)
            whole = builder.temporary(x.shape, x.dtype) if target is None else out
            target = whole.reshape(flat)
        else:
            whole = out
        assert source is not None
        assert target is not None
        for i in range(batch):
            one = [w.slice(0, i, i + 1).reshape(flat[1:]) for w in (target, source)]
            builder.step("fill:triangle", [_present(one[0])], [_present(one[1])], [k, upper])
        if whole is not out:
            builder.copy(out, whole)
        return out

    return plan


def _present(window: Window | None) -> Window:
    assert window is not None
    return window


def _plan_tile(builder: Builder, x: Window, repeats: Any) -> Window:
    given = tuple(repeats) if isinstance(repeats, (tuple, list)) else (repeats,)
    given = tuple(builder.integer(count, "repetitions") for count in given)
    if any(count < 0 for count in given):
        raise builder.error(f"repetitions must not be negative, got {given}")
    builder.check_unpacked(x.dtype)
    rank = max(x.rank, len(given))
    counts = (1,) * (rank - len(given)) + given
    shape = (1,) * (rank - x.rank) + x.shape
    out = builder.output([c * e for c, e in zip(counts, shape, strict=True)], x.dtype)
    if out.size == 0:
        return out
    both = [extent for pair in zip(counts, shape, strict=True) for extent in pair]
    target = out.reshape(tuple(both))
    assert target is not None
    source = x
    while source.rank < rank:
        source = source.insert(0)
    for i in range(rank):
        source = source.insert(2 * i)
    builder.copy(target, source.broadcast_to(target.shape))
    return out


def _plan_roll(builder: Builder, x: Window, shift: Any, axis: Any) -> Window:
    builder.check_unpacked(x.dtype)
    if axis is None:
        flat = builder.reshape(x, (x.size,))
        out = builder.output(x.shape, x.dtype)
        target = out.reshape(flat.shape)
        assert target is not None
        _roll_into(builder, target, flat, [(builder.integer(shift, "shift"), 0)])
        return out
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    shifts = shift if isinstance(shift, (tuple, list)) else (shift,) * len(axes)
    if len(shifts) != len(axes):
        raise builder.error(f"got {len(shifts)} shifts for {len(axes)} axes, expected as many")
    out = builder.output(x.shape, x.dtype)
    moves = [
        (builder.integer(s, "shift"), builder.axis(a, x.rank))
        for s, a in zip(shifts, axes, strict=True)
    ]
    _roll_into(builder, out, x, moves)
    return out


def _roll_into(builder: Builder, out: Window, x: Window, moves: list[tuple[int, int]]) -> None:
    """Copy blocks: each axis that moves cuts every block in two."""
    if x.size == 0:
        return
    blocks = [(out, x)]
    total: dict[int, int] = {}
    for shift, axis in moves:
        total[axis] = total.get(axis, 0) + shift
    for axis, shift in total.items():
        extent = x.shape[axis] if x.rank else 1
        by = shift % max(extent, 1)
        if by == 0:
            continue
        cut = []
        for target, source in blocks:
            cut.append((target.slice(axis, by, extent), source.slice(axis, 0, extent - by)))
            cut.append((target.slice(axis, 0, by), source.slice(axis, extent - by, extent)))
        blocks = cut
    for target, source in blocks:
        builder.copy(target, source)


def _cat_oracle(tensors: Any, axis: int | None = 0) -> Any:
    return np.concatenate(tensors, axis=axis)


def _cat_samples(generator: np.random.Generator) -> Iterator[Sample]:
    yield Sample((list(inputs.normal(generator, (3,), (4,), (0,))),))
    yield Sample((list(inputs.normal(generator, (2, 3), (2, 5))),), {"axis": 1})
    yield Sample((list(inputs.normal(generator, (2, 3, 4), (5, 3, 4))),), {"axis": -3})
    yield Sample((list(inputs.normal(generator, (2, 3), (5,))),), {"axis": None})
    yield Sample((list(inputs.normal(generator, (7, 1031), (7, 3), (7, 1))),), {"axis": -1})


def _stack_samples(generator: np.random.Generator) -> Iterator[Sample]:
    yield Sample((list(inputs.normal(generator, (), ())),))
    for axis in (0, 1, -1):
        yield Sample((list(inputs.normal(generator, (3, 5), (3, 5), (3, 5))),), {"axis": axis})


def _move_row(name: str, **fields: Any) -> None:
    register(Row(name=name, family="shape", dtypes=EVERY, tolerance=0.0, **fields))


_move_row(
    "concat",
    parameters=(TENSORS, AXIS),
    plan=_plan_cat,
    oracle=_cat_oracle,
    samples=_cat_samples,
    summary="Join tensors along an axis (None: flattened), in their common dtype.",
    kernels=("copy:strided",),
    aliases=("cat", "concatenate"),
)
_move_row(
    "stack",
    parameters=(TENSORS, AXIS),
    plan=_plan_stack,
    oracle=lambda tensors, axis=0: np.stack(tensors, axis=axis),
    samples=_stack_samples,
    summary="Join tensors of one shape along a new axis, in their common dtype.",
    kernels=("copy:strided",),
)
for _name, _oracle, _upper in (("tril", np.tril, False), ("triu", np.triu, True)):
    _move_row(
        _name,
        parameters=(X, static("k", 0, "diagonal")),
        plan=_triangle(upper=_upper),
        oracle=_oracle,
        samples=lambda g: [
            Sample(inputs.normal(g, shape), {"k": k})
            for shape in ((5, 7), (7, 5), (2, 3, 4), (0, 3))
            for k in (-2, 0, 1, 9)
        ],
        summary=f"The {'upper' if _upper else 'lower'} triangle of matrices from diagonal k, "
        "zeros elsewhere.",
        kernels=("fill:triangle",),
        methods=(_name,),
    )
_move_row(
    "tile",
    parameters=(X, static("repetitions", ..., "dims", "reps")),
    plan=_plan_tile,
    oracle=np.tile,
    samples=lambda g: [
        Sample((*inputs.normal(g, shape), times))
        for shape, times in (((), (2,)), ((3,), (2, 2)), ((2, 3), (2,)), ((2, 3), (0, 1)))
    ],
    summary="The tensor repeated along each axis.",
    kernels=("copy:strided",),
    methods=("tile",),
)
_move_row(
    "roll",
    parameters=(X, static("shift", ..., "shifts"), static("axis", None, "dims")),
    plan=_plan_roll,
    oracle=np.roll,
    samples=lambda g: [
        Sample((*inputs.normal(g, shape), shift, axis))
        for shape, shift, axis in (
            ((7,), 3, 0),
            ((5, 7), -2, 1),
            ((5, 7), 9, None),
            ((2, 3, 4), (1, 2), (0, 2)),
            ((0, 3), 1, 0),
            ((5,), 0, 0),
        )
    ],
    summary="Elements moved along axes, those that fall off an end coming in at the other.",
    kernels=("copy:strided",),
    methods=("roll",),
)
