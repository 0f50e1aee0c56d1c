"""Building of plans: what a row's planner writes down once for a key of layouts and dtypes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from nbxtensor import _core
from nbxtensor.dtype import DType, float32, iinfo, promote_types, with_scalar
from nbxtensor.ops.signature import Kind, Parameter

_ARGUMENT: Final = 0
_OUTPUT: Final = 1
_TEMPORARY: Final = 2

Shape = tuple[int, ...]

_KIND_ORDER: Final = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


def row_major(shape: Sequence[int]) -> Shape:
    """Return the strides, in elements, of a tensor of this shape without gaps."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    if step >= 1 << 63 and 0 in shape:
        return (1,) * len(strides)  # of no elements; the others multiply past 64 bits
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class Window:
    """What a step sees of an argument, an output or a temporary."""

    source: int
    index: int
    dtype: DType
    shape: Shape
    strides: Shape
    offset: int = 0  # bytes from the source's first element
    aligned: bool = True  # whether the source's first element lies at a multiple of 16 bytes

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie in row-major order without gaps."""
        if self.size == 0:
            return True
        expected = row_major(self.shape)
        return all(
            extent == 1 or stride == wanted
            for extent, stride, wanted in zip(self.shape, self.strides, expected, strict=True)
        )

    def broadcast_to(self, shape: Shape) -> Window:
        """Return the window repeated to `shape` without a copy."""
        missing = len(shape) - self.rank
        strides = [0] * missing
        for own, wanted, stride in zip(self.shape, shape[missing:], self.strides, strict=True):
            strides.append(stride if own == wanted else 0)
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def permute(self, axes: Sequence[int]) -> Window:
        """Return the window with its axes in another order."""
        return replace(
            self,
            shape=tuple(self.shape[axis] for axis in axes),
            strides=tuple(self.strides[axis] for axis in axes),
        )

    def swap(self, first: int, second: int) -> Window:
        """Return the window with two axes exchanged."""
        axes = list(range(self.rank))
        axes[first], axes[second] = axes[second], axes[first]
        return self.permute(axes)

    def last(self, axis: int) -> Window:
        """Return the window with `axis` moved to the end."""
        return self.permute([*(a for a in range(self.rank) if a != axis), axis])

    def slice(self, axis: int, start: int, stop: int) -> Window:
        """Return the elements start..stop of one axis."""
        shape = list(self.shape)
        shape[axis] = stop - start
        offset = self.offset + start * self.strides[axis] * self.dtype.itemsize
        return replace(self, shape=tuple(shape), offset=offset)

    def shifted(self, offset: int) -> Window:
        """Return the window some bytes further on."""
        return replace(self, offset=self.offset + offset)

    def as_dtype(self, dtype: DType) -> Window:
        """Return the window as elements of another dtype of the same width."""
        return replace(self, dtype=dtype)

    def insert(self, axis: int) -> Window:
        """Return the window with a new axis of extent 1."""
        shape, strides = list(self.shape), list(self.strides)
        shape.insert(axis, 1)
        strides.insert(axis, 0)
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def reshape(self, shape: Shape) -> Window | None:
        """Return the window under another shape, or None where that needs a copy."""
        if self.contiguous:
            return replace(self, shape=tuple(shape), strides=row_major(shape))
        return None


@dataclass(frozen=True, slots=True)
class Number:
    """A number of the call: its place and its type, never its value."""

    index: int
    kind: type
    name: str = "the number"
    unsigned: bool = False  # an integer past the range of int64

    @property
    def none(self) -> bool:
        """Whether None was given."""
        return self.kind is type(None)


Value = Window | Number | None


@dataclass(frozen=True, slots=True)
class Step:
    """A run of a kernel of the host, or of a function over NumPy arrays."""

    kernel: Any
    operands: tuple[Window | None, ...]
    scalars: tuple[Any, ...]
    written: int

    def windows(self) -> list[Window]:
        """Return the operands of a step that has no absent ones."""
        present = [window for window in self.operands if window is not None]
        assert len(present) == len(self.operands)
        return present

    def window(self, place: int) -> Window:
        """Return an operand that is never absent."""
        window = self.operands[place]
        assert window is not None
        return window

    def as_tuple(self) -> tuple[Any, ...]:
        """Return the step as a plan takes it."""
        return (
            self.kernel,
            [None if window is None else operand_tuple(window) for window in self.operands],
            [(v.index,) if isinstance(v, Number) else v for v in self.scalars],
            self.written,
        )


class Builder:
    """Collects the outputs, temporaries and steps of one plan.

    Parameters
    ----------
    name : str
        Name of the op, which starts every error text.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._outputs: list[tuple[DType, Shape]] = []
        self._temporaries: list[tuple[DType, Shape]] = []
        self._steps: list[Step] = []
        self._device: Any = None
        self._guards: list[tuple[int, int, int, str, str, str]] = []
        self._written: Window | None = None

    def bind(self, parameters: Sequence[Parameter], values: Iterable[Any]) -> list[Any]:
        """Return windows and numbers for a call's values, counted as the core counts them."""
        tensors = numbers = 0
        bound: list[Any] = []
        for parameter, value in zip(parameters, values, strict=True):
            if parameter.kind is Kind.STATIC:
                bound.append(value)
            elif parameter.kind is Kind.TENSOR_LIST:
                windows = [self._argument(tensors + i, item) for i, item in enumerate(value)]
                tensors += len(windows)
                bound.append(windows)
            elif isinstance(value, _core.TensorBase):
                bound.append(self._argument(tensors, value))
                tensors += 1
                if parameter.kind is Kind.WRITTEN:
                    self._written = bound[-1]
            elif value is None and parameter.kind is not Kind.SCALAR:
                bound.append(None)
            else:
                if value is None and parameter.default is not None:
                    raise self.type_error(f"{parameter.name} must be a number, got None")
                unsigned = isinstance(value, int) and value >= 1 << 63
                bound.append(Number(numbers, _kind_of(value), parameter.name, unsigned))
                numbers += 1
        return bound

    def _argument(self, index: int, tensor: Any) -> Window:
        self._device = tensor.device
        aligned = tensor.data_ptr() % 16 == 0
        return Window(_ARGUMENT, index, tensor.dtype, tensor.shape, tensor.strides, aligned=aligned)

    def error(self, text: str) -> ValueError:
        """Return a ValueError that starts with the op's name."""
        return ValueError(f"{self.name}: {text}")

    def type_error(self, text: str) -> TypeError:
        """Return a TypeError that starts with the op's name."""
        return TypeError(f"{self.name}: {text}")

    def output(self, shape: Sequence[int], dtype: DType) -> Window:
        """Return a new tensor that the call may return."""
        self._check_extents(shape)
        self._outputs.append((dtype, tuple(shape)))
        index = len(self._outputs) - 1
        return Window(_OUTPUT, index, dtype, tuple(shape), row_major(shape))

    def _check_extents(self, shape: Sequence[int]) -> None:
        # The core counts elements; an extent that it cannot hold never reaches it.
        if any(extent >= 1 << 63 for extent in shape):
            raise OverflowError(
                f"{self.name}: the result would have shape {tuple(shape)}, expected extents below "
                "2^63"
            )

    def result(self, shape: Sequence[int], dtype: DType) -> Window:
        """Return a new output, or in the in-place form the tensor to write, checked."""
        target = self._written
        if target is None:
            return self.output(shape, dtype)
        if target.shape != tuple(shape):
            raise self.error(
                f"the result has shape {tuple(shape)}, which cannot be written to a tensor of "
                f"shape {target.shape}"
            )
        if _KIND_ORDER[dtype.kind] > _KIND_ORDER[target.dtype.kind]:
            raise self.type_error(
                f"the result has dtype {dtype}, which cannot be written to a tensor of "
                f"{target.dtype}; convert the tensor first"
            )
        self.check_writable(target)
        return target

    def check_writable(self, target: Window) -> None:
        """Refuse to write a window whose elements share memory."""
        for extent, stride in zip(target.shape, target.strides, strict=True):
            if extent > 1 and stride == 0:
                raise self.error(
                    f"several elements of the tensor share memory (strides {target.strides}); "
                    "clone() it before writing"
                )

    def temporary(self, shape: Sequence[int], dtype: DType) -> Window:
        """Return a new tensor that lives as long as the call."""
        self._check_extents(shape)
        self._temporaries.append((dtype, tuple(shape)))
        index = len(self._temporaries) - 1
        return Window(_TEMPORARY, index, dtype, tuple(shape), row_major(shape))

    def step(
        self,
        kernel: str | Callable[..., None],
        outputs: Sequence[Window],
        inputs: Sequence[Value] = (),
        scalars: Sequence[Any] = (),
    ) -> None:
        """Add a run of a kernel, or of a function that gets NumPy arrays and then the scalars.

        Numbers among the inputs become absent operands whose values follow the scalars, as the
        table of kernels says.
        """
        operands: list[Window | None] = list(outputs)
        values = list(scalars)
        for value in inputs:
            operands.append(value if isinstance(value, Window) else None)
            if isinstance(value, Number):
                values.append(value)
        self._steps.append(Step(kernel, tuple(operands), tuple(values), len(outputs)))

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps so far."""
        return tuple(self._steps)

    def copy(self, target: Window, source: Window) -> None:
        """Add a copy that also converts; shapes must be equal."""
        self.step("copy:strided", [target], [source])

    def contiguous(self, window: Window, dtype: DType | None = None) -> Window:
        """Return the window itself, or a temporary copy where layout or dtype differ."""
        wanted = window.dtype if dtype is None else dtype
        if window.contiguous and wanted is window.dtype:
            return window
        copy = self.temporary(window.shape, wanted)
        self.copy(copy, window)
        return copy

    def cast(self, window: Window, dtype: DType) -> Window:
        """Return the window itself, or a temporary of another dtype."""
        return window if window.dtype is dtype else self.contiguous(window, dtype)

    def reshape(self, window: Window, shape: Shape) -> Window:
        """Return the window under another shape, through a copy where it must."""
        viewed = window.reshape(shape)
        if viewed is None:
            viewed = self.contiguous(window).reshape(shape)
        assert viewed is not None
        return viewed

    def guard(self, number: Number, low: int, high: int, name: str) -> None:
        """Refuse, at each call, a number outside low..high before anything is allocated."""
        self._guard(number, low, high, name, "index", "")

    def guard_fit(self, dtype: DType, *values: Value) -> None:
        """Refuse, at each call, integers among the values that an integer dtype does not hold."""
        if dtype.kind not in "iu":
            return
        limits = iinfo(dtype)
        for value in values:
            if isinstance(value, Number) and value.kind is int:
                reason = f"which does not fit in {dtype}"
                self._guard(value, limits.min, limits.max, value.name, "overflow", reason)

    def guard_value(self, number: Number, low: int, high: int, reason: str) -> None:
        """Refuse, at each call, a number outside low..high for a reason."""
        self._guard(number, low, high, number.name, "value", reason)

    def _guard(
        self, number: Number, low: int, high: int, name: str, error: str, reason: str
    ) -> None:
        self._guards.append((number.index, low, high, name, error, reason))

    def check_unpacked(self, *dtypes: DType) -> None:
        """Refuse dtypes of which several elements share a byte."""
        for dtype in dtypes:
            if dtype.bits < 8:
                raise self.type_error(
                    f"elements of packed {dtype} have no address of their own; convert to int8"
                )

    def integer(self, value: Any, name: str) -> int:
        """Return a static argument that must be an integer."""
        try:
            return operator.index(value)
        except TypeError:
            raise self.type_error(
                f"{name} must be an integer, got {type(value).__name__}"
            ) from None

    def axis(self, axis: int, rank: int, name: str = "axis") -> int:
        """Return the axis counted from the front."""
        index = self.integer(axis, name)
        limit = max(rank, 1)
        if not -limit <= index < limit:
            raise IndexError(
                f"{self.name}: {name} must be in [{-limit}, {limit - 1}] for {rank} axes, "
                f"got {index}"
            )
        return index % limit

    def axes(self, axes: Any, rank: int) -> Shape:
        """Return axes (one, several, or None for all) counted from the front, without repeats."""
        if axes is None:
            return tuple(range(rank))
        given = axes if isinstance(axes, (tuple, list)) else (axes,)
        found = tuple(self.axis(axis, rank) for axis in given)
        if len(set(found)) != len(found):
            raise self.error(f"axis {tuple(given)} names an axis twice")
        return tuple(axis for axis in found if axis < rank)

    def broadcast(self, *shapes: Shape) -> Shape:
        """Return the common shape of several."""
        rank = max((len(shape) for shape in shapes), default=0)
        common = [1] * rank
        for shape in shapes:
            for i, extent in enumerate(shape, rank - len(shape)):
                if common[i] == 1:
                    common[i] = extent
                elif extent not in (1, common[i]):
                    listed = " and ".join(map(str, shapes))
                    raise self.error(
                        f"shapes {listed} cannot be broadcast together: axis {i - rank} is "
                        f"{common[i]} and {extent}, expected equal extents or 1"
                    )
        return tuple(common)

    def promote(self, *operands: Value) -> DType:
        """Return the common dtype of windows and numbers; absent ones do not count."""
        common: DType | None = None
        for operand in operands:
            if isinstance(operand, Window):
                dtype = operand.dtype
                common = dtype if common is None else promote_types(common, dtype)
        common = float32 if common is None else common
        for kind in (bool, int, float, complex):
            if any(isinstance(value, Number) and value.kind is kind for value in operands):
                common = with_scalar(common, kind)
        return common

    def check_kind(self, dtype: DType, kinds: str) -> None:
        """Refuse dtypes of other kinds than those in `kinds` (letters of ``biufc``)."""
        if dtype.kind not in kinds or dtype.bits < 8:
            raise self.type_error(f"dtype {dtype} is not supported, expected {_named(kinds)}")

    def finish(self, results: Any, lower: Lower | None = None) -> _core.Plan:
        """Return the plan; `results` are the windows that the call returns.

        Parameters
        ----------
        lower
            ``lower(builder, device, steps)`` returns the steps as the plan takes them: on some
            devices a step becomes launches of compiled kernels.
        """
        windows = [results] if isinstance(results, Window) else list(results)
        steps = (
            [step.as_tuple() for step in self._steps]
            if lower is None
            else list(lower(self, self._device, self._steps))  # may add temporaries
        )
        return _core.Plan(
            self._outputs,
            self._temporaries,
            steps,
            [(window.source, window.index) for window in windows],
            self._guards,
        )


Lower = Callable[[Builder, Any, Sequence[Step]], Iterable[tuple[Any, ...]]]


def operand_tuple(window: Window) -> tuple[Any, ...]:
    """Return the window as a plan takes it."""
    return (
        window.source,
        window.index,
        window.dtype,
        window.offset,
        window.shape,
        window.strides,
    )


def _kind_of(value: Any) -> type:
    for kind in (type(None), bool, int, float, complex):
        if isinstance(value, kind):
            return kind
    raise TypeError(f"expected a number, got {type(value).__name__}")


def _named(kinds: str) -> str:
    names = {"b": "bool", "i": "signed", "u": "unsigned", "f": "floating", "c": "complex"}
    return ", ".join(names[kind] for kind in kinds)
