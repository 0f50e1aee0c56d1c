"""What a row is: one definition of an op, from which everything about it comes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nbxtensor import _core
from nbxtensor.dtype import (
    DType,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from nbxtensor.ops.device import lower
from nbxtensor.ops.plan import Builder
from nbxtensor.ops.signature import OUT, REQUIRED, Parameter

FLOATS = (float32, float64, float16, bfloat16)
INTEGERS = (int8, int16, int32, int64, uint8, uint16, uint32, uint64)
COMPLEX = (complex64, complex128)
REAL = (*FLOATS, int8, int32, int64, uint8, uint32)
NUMERIC = (*REAL, *COMPLEX)
EVERY = (*NUMERIC, int16, uint16, uint64, bool_)

Planner = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """Arguments of one generated test.

    Arrays of float64 stand for the dtype under test and are converted to it; arrays of other types
    and everything else are passed as they are.
    """

    arguments: tuple[Any, ...]
    keywords: dict[str, Any] = field(default_factory=dict)


Samples = Callable[[np.random.Generator], Iterable[Sample]]


@dataclass(frozen=True, slots=True)
class Row:
    """One op.

    Parameters
    ----------
    name, family : str
        Name in the namespace; file of this folder that defines it.
    parameters : tuple of Parameter
        The call's form.
    plan : callable
        ``plan(builder, *bound)``: checks the arguments, writes down steps, returns the results.
    oracle : callable
        The same in NumPy, on float64 (complex128, int64) arrays.
    samples : callable
        ``samples(generator)``: inputs of the generated tests.
    summary : str
        What it computes: one sentence, then more where needed.
    kernels : tuple of str
        Kernels that the planner may name.
    dtypes : tuple of DType
        Dtypes of the generated tests.
    methods, aliases : tuple of str
        Names on Tensor; further names in the namespace.
    operator, reflected, in_place, in_place_operator : str, optional
        Special methods, and the names of the forms that write their first argument.
    result : type, optional
        Named tuple of several results.
    positional : int
        How many parameters may be given by position; -1: all.
    tolerance : float
        Allowed error of the tests, in units in the last place of the result's dtype.
    flops : callable, optional
        Floating-point operations of a call, from the shapes of its tensors.
    bench : tuple
        Shapes of the tensor arguments of the benchmarks; empty where the first sample serves.
    differs : str
        Where the result differs from torch or NumPy on purpose.
    """

    name: str
    family: str
    parameters: tuple[Parameter, ...]
    plan: Planner
    oracle: Callable[..., Any]
    samples: Samples
    summary: str
    kernels: tuple[str, ...]
    dtypes: tuple[DType, ...] = FLOATS
    methods: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    operator: str | None = None
    reflected: str | None = None
    in_place: str | None = None
    in_place_operator: str | None = None
    result: Any = None
    positional: int = -1
    tolerance: float = 4.0
    flops: Callable[..., float] | None = None
    bench: tuple[tuple[tuple[int, ...], ...], ...] = ()
    differs: str = ""

    def call_form(self, takes_out: bool | None = None) -> inspect.Signature:
        """Return the signature, for help() and editors; by default that of the function."""
        limit = len(self.parameters) if self.positional < 0 else self.positional
        kinds = inspect.Parameter
        listed = [
            kinds(
                parameter.name,
                kinds.POSITIONAL_OR_KEYWORD if i < limit else kinds.KEYWORD_ONLY,
                default=kinds.empty if parameter.default is REQUIRED else parameter.default,
            )
            for i, parameter in enumerate(self.parameters)
        ]
        if self.in_place if takes_out is None else takes_out:
            listed.append(kinds(OUT.name, kinds.KEYWORD_ONLY, default=OUT.default))
        return inspect.Signature(listed)

    def docstring(self) -> str:
        """Return the documentation of the function."""
        lines = [self.summary]
        named = [p for p in self.parameters if p.aliases]
        if named:
            also = "; ".join(f"`{p.name}` as {', '.join(p.aliases)}" for p in named)
            lines += ["", f"Keywords go by other names too: {also}."]
        others = (*self.aliases, *([self.in_place] if self.in_place else []))
        if self.in_place:
            lines += ["", "With `out` the result is written to that tensor, which is returned."]
        if others:
            lines += ["", f"Also: {', '.join(others)}."]
        if self.differs:
            lines += ["", self.differs]
        return "\n".join(lines)


TABLE: dict[str, Row] = {}
# The op of each row.
OPS: dict[str, Any] = {}
# Every name that the namespace gets: rows, their aliases and their in-place forms.
NAMES: dict[str, Any] = {}
# Names that Tensor gets.
METHODS: dict[str, Any] = {}


def _planner(row: Row, name: str, parameters: tuple[Parameter, ...]) -> Callable[..., _core.Plan]:
    own = len(row.parameters)

    def plan(*values: Any) -> _core.Plan:
        builder = Builder(name)
        return builder.finish(row.plan(builder, *builder.bind(parameters, values)[:own]), lower)

    return plan


def _op(row: Row, name: str, *, writes: bool = False, **switches: bool) -> Any:
    parameters = row.parameters
    positional = row.positional
    if writes:
        parameters = (parameters[0].written(), *parameters[1:])
    elif row.in_place and not switches:
        positional = len(parameters) if positional < 0 else positional
        parameters = (*parameters, OUT)
    op = _core.Op(
        name,
        [parameter.as_tuple() for parameter in parameters],
        _planner(row, name, parameters),
        positional=positional,
        result_type=row.result,
        **switches,
    )
    op.__doc__ = row.docstring()
    op.__module__ = "nbxtensor"
    op.row = row
    return op


def register(row: Row) -> Row:
    """Add a row: its function, its methods and its in-place and operator forms.

    Raises
    ------
    ValueError
        If the name is taken or the row has no oracle, sample or summary.
    """
    if row.name in TABLE or row.name in NAMES:
        raise ValueError(f"row {row.name!r}: the name is already taken")
    if row.oracle is None or row.samples is None or not row.summary:
        raise ValueError(f"row {row.name!r}: expected an oracle, samples and a summary")
    TABLE[row.name] = row
    op = OPS[row.name] = _op(row, row.name)
    # The rows of creation write tensors that its functions have made.
    for name in (row.name, *row.aliases) if row.family != "creation" else ():
        NAMES[name] = op
    for name in row.methods:
        METHODS[name] = op
    if row.operator:
        METHODS[row.operator] = _op(row, row.name, is_operator=True)
    if row.reflected:
        METHODS[row.reflected] = _op(row, row.name, is_operator=True, is_reflected=True)
    if row.in_place:
        METHODS[row.in_place] = _op(row, row.in_place, writes=True)
    if row.in_place_operator:
        METHODS[row.in_place_operator] = _op(row, row.name, writes=True, is_operator=True)
    return row
