"""Steps of one shape become chains: one pass over memory instead of one for each step."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from nbxtensor import _core
from nbxtensor.dtype import DType, complex128, float64
from nbxtensor.ops.plan import Builder, Number, Shape, Step, Window

__all__ = ["chained"]

# A value of a plan: source and index of its windows.
Value = tuple[int, int]


class Combination(NamedTuple):
    """How reductions of the pieces of a long row become that of the row."""

    piece: str  # kernel of each piece
    whole: str  # kernel over the pieces
    widens: bool = False  # whether pieces of floats are kept in float64
    divides: bool = False  # whether the whole is divided by the number of elements


COMBINATIONS = {
    "reduce:sum": Combination("reduce:sum", "reduce:sum", widens=True),
    "reduce:prod": Combination("reduce:prod", "reduce:prod", widens=True),
    "reduce:mean": Combination("reduce:sum", "reduce:sum", widens=True, divides=True),
    "reduce:amax": Combination("reduce:amax", "reduce:amax"),
    "reduce:amin": Combination("reduce:amin", "reduce:amin"),
    "reduce:all": Combination("reduce:all", "reduce:all"),
    "reduce:any": Combination("reduce:any", "reduce:any"),
    "reduce:count_nonzero": Combination("reduce:count_nonzero", "reduce:sum"),
}


def value_of(window: Window) -> Value:
    """Return which value of the plan the window shows."""
    return window.source, window.index


def is_whole(window: Window, shape: Shape) -> bool:
    """Whether the window shows its value element by element in row-major order."""
    return window.offset == 0 and window.shape == shape and window.contiguous


def is_pointwise(step: Step) -> bool:
    """Whether each element of the step's result comes from one of each operand's."""
    if not isinstance(step.kernel, str) or step.written != 1:
        return False
    if not step.kernel.startswith("elementwise:") and step.kernel != "copy:strided":
        return False
    out = step.window(0)
    same = all(window is None or window.shape == out.shape for window in step.operands)
    return same and is_whole(out, out.shape) and out.size > 0 and out.rank > 0


def reduced_axes(step: Step, shape: Shape) -> int:
    """Return how many trailing axes of a value of this shape a chain may reduce by it; 0: none."""
    if not isinstance(step.kernel, str) or not step.kernel.startswith("reduce:"):
        return 0
    if len(step.operands) != 2 or not is_whole(step.window(1), shape):
        return 0
    axes = int(step.scalars[1])
    return axes if step.kernel in COMBINATIONS or pieces_of(shape, axes) == 1 else 0


def pieces_of(shape: Shape, axes: int) -> int:
    """Return in how many pieces a chain reduces the last `axes` axes."""
    return int(_core.Chain(shape, [], [], axes).pieces)


class Group(NamedTuple):
    """Steps that run as one: pointwise ones of a shape, then perhaps a reduction."""

    steps: tuple[Step, ...]
    shape: Shape
    reduced: int = 0


def groups_of(steps: Sequence[Step]) -> Iterator[Group]:
    """Yield the steps in order, as long as they agree together."""
    run: list[Step] = []
    for step in steps:
        if run:
            shape = run[-1].window(0).shape
            if is_pointwise(step) and step.window(0).shape == shape and not _reads_askew(step, run):
                run.append(step)
                continue
            count = reduced_axes(step, shape)
            if count and value_of(step.window(1)) in {value_of(s.window(0)) for s in run}:
                yield Group((*run, step), shape, count)
                run = []
                continue
            yield Group(tuple(run), shape)
            run = []
        if is_pointwise(step):
            run.append(step)
        else:
            yield Group((step,), ())
    if run:
        yield Group(tuple(run), run[-1].window(0).shape)


def _reads_askew(step: Step, run: Sequence[Step]) -> bool:
    """Whether the step sees a value of the run otherwise than element by element."""
    made = {value_of(s.window(0)) for s in run}
    return any(
        window is not None and value_of(window) in made and not is_whole(window, window.shape)
        for window in step.operands[1:]
    )


def chained(builder: Builder, steps: Sequence[Step], needed: Collection[Value]) -> list[Step]:
    """Return the steps with those that go together as chains.

    Parameters
    ----------
    needed
        The values that the plan returns.
    """
    groups = list(groups_of(steps))
    result: list[Step] = []
    for place, group in enumerate(groups):
        if len(group.steps) == 1:
            result += group.steps
            continue
        later = {
            value_of(window)
            for other in groups[place + 1 :]
            for step in other.steps
            for window in step.operands
            if window is not None
        }
        result += _chain(builder, group, later | set(needed))
    return result


class _Operands:
    """The windows that a chain is called with, and the blocks that only it sees."""

    def __init__(self, steps: Sequence[Step], written: Sequence[Window]) -> None:
        self.windows = list(written)
        self.scratch: list[DType] = []
        outside = {value_of(window) for window in written}
        self._inside = {value_of(step.window(0)) for step in steps} - outside
        self._blocks: dict[Value, int] = {}
        self._free: list[int] = []
        self._last = {
            value_of(window): place
            for place, step in enumerate(steps)
            for window in step.operands
            if window is not None
        }

    def place_of(self, window: Window | None) -> tuple[str, int] | None:
        """Return where a step finds the window."""
        if window is None:
            return None
        if value_of(window) in self._inside:
            return "scratch", self._block(window)
        if window not in self.windows:
            self.windows.append(window)
        return "call", self.windows.index(window)

    def _block(self, window: Window) -> int:
        value = value_of(window)
        if value not in self._blocks:
            same = [block for block in self._free if self.scratch[block] is window.dtype]
            if same:
                self._free.remove(same[0])
            else:
                self.scratch.append(window.dtype)
            self._blocks[value] = same[0] if same else len(self.scratch) - 1
        return self._blocks[value]

    def leave(self, place: int) -> None:
        """Take the blocks back that no step after this one reads."""
        self._free += [b for value, b in self._blocks.items() if self._last[value] == place]


def _chain(builder: Builder, group: Group, kept: Collection[Value]) -> list[Step]:
    pointwise = group.steps[:-1] if group.reduced else group.steps
    written = [step.window(0) for step in pointwise if value_of(step.window(0)) in kept]
    after: list[Step] = []
    steps = group.steps
    if group.reduced:
        reduction, after = _reduction(builder, group)
        written.append(reduction.window(0))
        steps = (*pointwise, reduction)
    operands = _Operands(steps, written)
    numbers: list[Number] = []
    described = []
    for place, step in enumerate(steps):
        bound = [operands.place_of(window) for window in step.operands]
        described.append((step.kernel, bound, [_scalar(value, numbers) for value in step.scalars]))
        operands.leave(place)
    chain = _core.Chain(group.shape, operands.scratch, described, group.reduced)
    return [Step(chain, tuple(operands.windows), tuple(numbers), len(written)), *after]


def _scalar(value: Any, numbers: list[Number]) -> Any:
    """Return a scalar as a chain takes it: a number of the call by its place in `numbers`."""
    if not isinstance(value, Number):
        return value
    if value not in numbers:
        numbers.append(value)
    return (numbers.index(value),)


def _reduction(builder: Builder, group: Group) -> tuple[Step, list[Step]]:
    """Return the reduction as the chain's last step, and what makes the result of its pieces."""
    step = group.steps[-1]
    pieces = pieces_of(group.shape, group.reduced)
    if pieces == 1:
        return step, []
    rule = COMBINATIONS[str(step.kernel)]
    out, source = step.window(0), step.window(1)
    wide = {"f": float64, "c": complex128}.get(source.dtype.kind) if rule.widens else None
    dtype = out.dtype if wide is None else wide
    partial = builder.temporary((*out.shape, pieces), dtype)
    compute = dtype if wide is not None or rule.piece != rule.whole else step.scalars[0]
    first = Step(rule.piece, (partial, source), step.scalars, 1)
    if not rule.divides:
        return first, [Step(rule.whole, (out, partial), (compute, 1), 1)]
    total = builder.temporary(out.shape, dtype)
    count = math.prod(group.shape[len(group.shape) - group.reduced :])
    return first, [
        Step(rule.whole, (total, partial), (compute, 1), 1),
        Step("elementwise:div", (out, total, None), (dtype, float(count)), 1),
    ]
