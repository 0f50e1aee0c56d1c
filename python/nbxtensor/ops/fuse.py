"""``fuse``: a function of tensors becomes one op, whose elementwise chains are one pass each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from nbxtensor import _core
from nbxtensor.dtype import DType, as_dtype
from nbxtensor.errors import InvalidIndexError, InvalidValueError, RangeError
from nbxtensor.ops.chain import Value, chained, value_of
from nbxtensor.ops.device import lower
from nbxtensor.ops.plan import Builder, Number, Shape, Step, Window
from nbxtensor.ops.signature import REQUIRED, Kind, Parameter
from nbxtensor.ops.table import METHODS, TABLE, Row

__all__ = ["Traced", "answer", "fuse"]

_OUTPUT = 1
_TEMPORARY = 2


def fuse(function: Callable[..., Any], *, static: Sequence[str] = ()) -> Any:
    """Return an op that computes what `function` does, in as few passes over memory as it can.

    The function is traced once for each key of dtypes, shapes and strides, as any op is planned. On
    the cpu, elementwise ops, conversions and broadcasts that follow one another on one shape run
    block by block, each block through all of them while it lies in the cache, and a reduction over
    trailing axes takes the blocks from there: the values between are never written to memory. Every
    other op of the function runs as it is. On other devices all ops run one after the other.

    Results are those of the ops one by one, to the bit; a sum, product or mean over rows of more
    than 32,768 elements is added up in other pieces, in float64.

    Parameters
    ----------
    function : callable
        Takes tensors, and numbers as operands of ops; returns a tensor, or a tuple of several. It
        sees no values: branches may depend on shapes and dtypes, not on elements. Tensors from
        outside must be given as arguments. May serve as a decorator.
    static : sequence of str
        Names of parameters that are neither tensors nor numbers of ops: axes, modes. Their values
        are part of the key and must be hashable.

    Returns
    -------
    op
        Callable like `function`; ``op.clear_plans()`` forgets what was traced.

    Raises
    ------
    TypeError
        If the function takes ``*args`` or ``**kwargs``, or a name in `static` is no parameter; when
        it is called, if it reads elements, or uses a tensor that is no argument.

    Examples
    --------
    >>> import nbxtensor as nbx
    >>> scaled = nbx.fuse(lambda x, y: ((x - y) * 0.5).square().sum(-1))
    >>> scaled(nbx.ones((2, 3)), nbx.zeros((2, 3)))
    tensor([0.75, 0.75])
    """
    name = getattr(function, "__name__", type(function).__name__)
    form = inspect.signature(function)
    parameters = _parameters(name, form, static)

    def plan(*values: Any) -> _core.Plan:
        builder = _FuseBuilder(name)
        bound = builder.bind(parameters, values)
        traced = [Traced(builder, v) if isinstance(v, (Window, Number)) else v for v in bound]
        places = dict(zip(form.parameters, traced, strict=True))
        return builder.close(function(**places))

    op = _core.Op(name, [parameter.as_tuple() for parameter in parameters], plan)
    functools.update_wrapper(op, function, assigned=("__module__", "__doc__"), updated=())
    op.row = _Form(form)
    return op


class _Form:
    """What an op asks for when somebody wants its signature."""

    def __init__(self, signature: inspect.Signature) -> None:
        self.signature = signature

    def call_form(self, _: bool | None = None) -> inspect.Signature:
        """Return the function's signature."""
        return self.signature


def _parameters(name: str, form: inspect.Signature, static: Sequence[str]) -> list[Parameter]:
    unknown = set(static) - form.parameters.keys()
    if unknown:
        raise TypeError(f"fuse: static names {sorted(unknown)}, which {name}{form} does not take")
    parameters = []
    for parameter in form.parameters.values():
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            raise TypeError(
                f"fuse: {name} takes {parameter}; expected plain parameters, each a tensor, a "
                "number or named in static"
            )
        default = REQUIRED if parameter.default is parameter.empty else parameter.default
        kind = Kind.STATIC if parameter.name in static else Kind.OPTIONAL_OPERAND
        parameters.append(Parameter(parameter.name, kind, default))
    return parameters


# ---- what the function sees --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Constant(Number):
    """A number that the function itself holds."""

    value: Any = None


class Traced:
    """A tensor or number while a function is traced: it has a shape and a dtype, but no elements.

    Every op and every method of an op takes it; of the views it has those below.
    """

    __slots__ = ("_builder", "_seen")

    def __init__(self, builder: _FuseBuilder, seen: Window | Number) -> None:
        self._builder = builder
        self._seen = seen

    @property
    def _window(self) -> Window:
        if isinstance(self._seen, Number):
            raise self._builder.type_error(
                f"{self._seen.name} is a number, expected a tensor; numbers are operands of ops"
            )
        return self._seen

    @property
    def shape(self) -> Shape:
        """Extents of the axes."""
        return self._window.shape

    @property
    def dtype(self) -> DType:
        """Type of the elements."""
        return self._window.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._window.rank

    @property
    def device(self) -> Any:
        """Device of the arguments."""
        return self._builder.device

    def _view(self, window: Window) -> Traced:
        return Traced(self._builder, window)

    def to(self, dtype: Any) -> Traced:
        """Return the values converted to another dtype."""
        wanted = as_dtype(dtype)
        return (
            self if wanted is self.dtype else self._view(self._builder.copied(self._window, wanted))
        )

    astype = to

    def reshape(self, *shape: Any) -> Traced:
        """Return the elements under another shape; one extent may be -1."""
        given = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        wanted = self._builder.extents(given, self._window.size)
        return self._view(self._builder.reshape(self._window, wanted))

    view = reshape

    def broadcast_to(self, shape: Iterable[int]) -> Traced:
        """Return the tensor repeated to `shape`."""
        wanted = tuple(shape)
        if self._builder.broadcast(self.shape, wanted) != wanted:
            raise self._builder.error(f"shape {self.shape} cannot be broadcast to {wanted}")
        return self._view(self._window.broadcast_to(wanted))

    def unsqueeze(self, axis: int) -> Traced:
        """Return the tensor with a new axis of extent 1."""
        return self._view(self._window.insert(self._builder.axis(axis, self.ndim + 1)))

    def permute(self, *axes: Any) -> Traced:
        """Return the tensor with its axes in another order."""
        given = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        order = self._builder.axes(tuple(given), self.ndim)
        if len(order) != self.ndim:
            raise self._builder.error(f"permute: expected {self.ndim} axes, got {tuple(given)}")
        return self._view(self._window.permute(order))

    def transpose(self, first: int, second: int) -> Traced:
        """Return the tensor with two axes exchanged."""
        axis = self._builder.axis
        return self._view(self._window.swap(axis(first, self.ndim), axis(second, self.ndim)))

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{self._builder.name}: a tensor under fuse has no {name!r}; it has shape, dtype, "
            "ndim, device, to, reshape, broadcast_to, unsqueeze, permute, transpose and the "
            "methods of ops"
        )

    def _refuse(self, *_: Any) -> NoReturn:
        raise self._builder.type_error(
            "a tensor under fuse has no elements while the function is traced; branch on shapes "
            "and dtypes, or use where"
        )

    __bool__ = __int__ = __float__ = __complex__ = __index__ = __len__ = __iter__ = _refuse
    __array__ = __getitem__ = _refuse


def _method(op: Any, *, reflected: bool = False) -> Callable[..., Any]:
    row = op.row

    def method(self: Traced, *arguments: Any, **keywords: Any) -> Any:
        given = (*arguments, self) if reflected else (self, *arguments)
        return self._builder.call(row, given, keywords)

    return method


for _row in TABLE.values():
    for _name in _row.methods:
        setattr(Traced, _name, _method(METHODS[_name]))
    if _row.operator:
        setattr(Traced, _row.operator, _method(METHODS[_row.operator]))
    if _row.reflected:
        setattr(Traced, _row.reflected, _method(METHODS[_row.reflected], reflected=True))


def answer(op: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Answer for a call of an op with traced tensors, else NotImplemented."""
    given = (*arguments, *keywords.values())
    parts = [part for v in given for part in (v if isinstance(v, (list, tuple)) else (v,))]
    traced = next((part for part in parts if isinstance(part, Traced)), None)
    if traced is None:
        return NotImplemented
    return traced._builder.call(op.row, arguments, keywords)


# ---- how it is planned -------------------------------------------------------------------------


class _FuseBuilder(Builder):
    """Collects the steps of all ops that the function calls."""

    @property
    def device(self) -> Any:
        """Device of the arguments."""
        return self._device

    def call(self, row: Row, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Plan one op of the function; return what it returns, traced."""
        names = {alias: p.name for p in row.parameters for alias in p.aliases}
        known = {names.get(name, name): value for name, value in keywords.items()}
        form = row.call_form(takes_out=False).bind(*arguments, **known)
        form.apply_defaults()
        values = [self._bound(p, form.arguments[p.name]) for p in row.parameters]
        outer, self.name = self.name, f"{self.name}: {row.name}"
        try:
            results = row.plan(self, *values)
        finally:
            self.name = outer
        if isinstance(results, Window):
            return Traced(self, results)
        traced = [Traced(self, window) for window in results]
        return row.result(*traced) if row.result is not None else tuple(traced)

    def _bound(self, parameter: Parameter, value: Any) -> Any:
        if parameter.kind is Kind.STATIC:
            return value
        if parameter.kind is Kind.TENSOR_LIST:
            return [self._bound(replace(parameter, kind=Kind.TENSOR), item) for item in value]
        if isinstance(value, Traced):
            takes_number = parameter.kind in (Kind.OPERAND, Kind.OPTIONAL_OPERAND, Kind.SCALAR)
            return value._seen if takes_number else value._window
        if isinstance(value, _core.TensorBase):
            raise self.type_error(
                f"{parameter.name} is a tensor from outside the function; give it as an argument"
            )
        if value is None and parameter.kind is not Kind.SCALAR:
            return None
        if parameter.kind not in (Kind.OPERAND, Kind.OPTIONAL_OPERAND, Kind.SCALAR):
            raise self.type_error(f"{parameter.name} must be a tensor, got {type(value).__name__}")
        return _constant(value, parameter.name)

    def step(
        self,
        kernel: str | Callable[..., None],
        outputs: Sequence[Window],
        inputs: Sequence[Any] = (),
        scalars: Sequence[Any] = (),
    ) -> None:
        """Add a step; numbers that the function holds become constants of it."""
        super().step(kernel, outputs, inputs, scalars)
        last = self._steps[-1]
        known = [v.value if isinstance(v, _Constant) else v for v in last.scalars]
        self._steps[-1] = replace(last, scalars=tuple(known))

    def _guard(
        self, number: Number, low: int, high: int, name: str, error: str, reason: str
    ) -> None:
        if not isinstance(number, _Constant):
            super()._guard(number, low, high, name, error, reason)
        elif not number.none:
            _check(f"{self.name}: {name}", number.value, low, high, error, reason)

    def copied(self, window: Window, dtype: DType) -> Window:
        """Return a new value of another dtype."""
        out = self.output(window.shape, dtype)
        self.copy(out, window)
        return out

    def extents(self, given: Iterable[int], size: int) -> Shape:
        """Return the extents of a reshape, the one that is -1 filled in."""
        wanted = [self.integer(extent, "shape") for extent in given]
        known = 1
        for extent in wanted:
            known *= 1 if extent == -1 else extent
        if wanted.count(-1) == 1 and known > 0 and size % known == 0:
            wanted[wanted.index(-1)] = size // known
            known = size
        if known != size or min(wanted, default=0) < 0:
            raise self.error(f"{size} elements have no shape {tuple(wanted)}")
        return tuple(wanted)

    def close(self, returned: Any) -> _core.Plan:
        """Return the plan of all steps, chained where the device runs them on the host."""
        parts = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        if not parts or not all(isinstance(part, Traced) for part in parts):
            raise self.type_error(
                f"the function returned {type(returned).__name__}; expected a tensor that its ops "
                "made, or a tuple of them"
            )
        results: list[Window] = []
        for part in parts:
            window = part._window
            fresh = window.source == _OUTPUT and window.offset == 0 and window.contiguous
            whole = fresh and window.size == _size(self._outputs[window.index][1])
            if not whole or value_of(window) in map(value_of, results):
                window = self.copied(window, window.dtype)
            results.append(window)
        kept = {value_of(window) for window in results}
        steps = chained(self, self._steps, kept) if self.device.kind == "cpu" else self._steps
        return self._numbered(results, list(steps))

    def _numbered(self, results: list[Window], steps: list[Step]) -> _core.Plan:
        """Make outputs of what the plan returns, temporaries of what its steps still use."""
        made = {_OUTPUT: self._outputs, _TEMPORARY: self._temporaries}
        outputs = [(w.dtype, w.shape) for w in results]
        places: dict[Value, Value] = {
            value_of(w): (_OUTPUT, number) for number, w in enumerate(results)
        }
        temporaries: list[tuple[DType, Shape]] = []
        for step in steps:
            for window in step.operands:
                if window is None or window.source not in made or value_of(window) in places:
                    continue
                places[value_of(window)] = (_TEMPORARY, len(temporaries))
                temporaries.append(made[window.source][window.index])

        def moved(window: Window | None) -> Window | None:
            if window is None or value_of(window) not in places:
                return window
            source, index = places[value_of(window)]
            return replace(window, source=source, index=index)

        self._outputs, self._temporaries = outputs, temporaries
        self._steps = [replace(s, operands=tuple(map(moved, s.operands))) for s in steps]
        return self.finish(
            [replace(w, source=_OUTPUT, index=i) for i, w in enumerate(results)], lower
        )


_ERRORS = {"index": InvalidIndexError, "overflow": RangeError, "value": InvalidValueError}


def _check(what: str, value: Any, low: int, high: int, error: str, reason: str) -> None:
    """Refuse a number of the function's as the core refuses one of a call."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be an integer")
    if low <= value <= high:
        return
    if reason:
        expected = f"{reason}; expected [{low}, {high}], or convert the tensor first"
        raise _ERRORS[error](f"{what} is {value}, {expected}")
    raise _ERRORS[error](f"{what} must be in [{low}, {high}], got {value}")


def _constant(value: Any, name: str) -> _Constant:
    for kind in (type(None), bool, int, float, complex):
        if isinstance(value, kind):
            unsigned = isinstance(value, int) and value >= 1 << 63
            return _Constant(0, kind, name, unsigned, value)
    raise TypeError(f"{name}: expected a number or a traced tensor, got {type(value).__name__}")


def _size(shape: Shape) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size
