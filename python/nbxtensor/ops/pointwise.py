"""Planning of elementwise ops: one kernel each, any layouts, broadcast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nbxtensor.dtype import DType, complex64, float32, float64, resolve
from nbxtensor.ops import inputs
from nbxtensor.ops.plan import Builder, Number, Value, Window
from nbxtensor.ops.signature import Parameter, operand, tensor
from nbxtensor.ops.table import FLOATS, REAL, Planner, Row, Samples, register

X = tensor("x", "input")
OPERAND_X = operand("x", "input", "x1")
OPERAND_Y = operand("y", "other", "x2")


def compute_dtype(policy: str, common: DType, operands: tuple[Value, ...]) -> DType:
    """Return the dtype in which a kernel computes.

    Integers compared with a real number are compared in float64, which holds both exactly in the
    range where it matters.
    """
    compute = resolve(policy, common).compute
    if policy == "predicate" and common is float32:
        tensors = [value for value in operands if isinstance(value, Window)]
        if any(window.dtype.kind in "iu" and window.dtype.bits > 16 for window in tensors):
            return float64
    return compute


def elementwise(
    kernel: str, policy: str, kinds: str = "biufc", *, real_result: bool = False
) -> Any:
    """Return the planner of a kernel over operands that broadcast together, then static extras."""

    def plan(builder: Builder, *values: Any) -> Window:
        operands = tuple(v for v in values if isinstance(v, (Window, Number)))
        extras = [v for v in values if not isinstance(v, (Window, Number))]
        common = builder.promote(*operands)
        builder.check_kind(common, kinds)
        shape = builder.broadcast(*(v.shape for v in operands if isinstance(v, Window)))
        dtype = resolve(policy, common).output
        if real_result and common.kind == "c":
            dtype = float32 if common is complex64 else float64
        out = builder.result(shape, dtype)
        if policy != "predicate":
            builder.guard_fit(common, *operands)
        windows = [v.broadcast_to(shape) if isinstance(v, Window) else v for v in operands]
        scalars = [compute_dtype(policy, common, operands), *extras]
        builder.step(f"elementwise:{kernel}", [out], windows, scalars)
        return out

    return plan


def unary(
    name: str,
    oracle: Callable[..., Any],
    summary: str,
    *,
    policy: str = "transcendental",
    kinds: str = "biufc",
    dtypes: tuple[DType, ...] = FLOATS,
    domain: inputs.Domain = inputs.anything,
    extras: tuple[Parameter, ...] = (),
    samples: Samples | None = None,
    kernel: str = "",
    planner: Planner | None = None,
    aliases: tuple[str, ...] = (),
    writes: bool = True,
    **fields: Any,
) -> Row:
    """Register an op of one tensor."""
    kernel = kernel or name
    return register(
        Row(
            name=name,
            family="elementwise",
            parameters=(X, *extras),
            plan=planner or elementwise(kernel, policy, kinds),
            oracle=oracle,
            samples=samples or inputs.unary(domain),
            summary=summary,
            kernels=(kernel if ":" in kernel else f"elementwise:{kernel}",),
            dtypes=dtypes,
            methods=(name, *aliases),
            aliases=aliases,
            in_place=f"{name}_" if writes else None,
            bench=(((4096, 4096),),),
            **fields,
        )
    )


def binary(
    name: str,
    oracle: Callable[..., Any],
    summary: str,
    *,
    policy: str = "arithmetic",
    kinds: str = "biufc",
    dtypes: tuple[DType, ...] = REAL,
    samples: Samples | None = None,
    kernel: str = "",
    aliases: tuple[str, ...] = (),
    special: str = "",
    writes: bool = True,
    planner: Planner | None = None,
    **fields: Any,
) -> Row:
    """Register an op of two operands; `special` is the stem of its operators (``add``)."""
    kernel = kernel or name
    comparison = policy == "predicate" and special in ("eq", "ne", "lt", "le", "gt", "ge")
    arithmetic = bool(special) and not comparison
    return register(
        Row(
            name=name,
            family="elementwise",
            parameters=(OPERAND_X, OPERAND_Y),
            plan=planner or elementwise(kernel, policy, kinds),
            oracle=oracle,
            samples=samples or inputs.binary(),
            summary=summary,
            kernels=(kernel if ":" in kernel else f"elementwise:{kernel}",),
            dtypes=dtypes,
            methods=(name, *aliases),
            aliases=aliases,
            operator=f"__{special}__" if special else None,
            reflected=f"__r{special}__" if arithmetic else None,
            in_place=f"{name}_" if writes else None,
            in_place_operator=f"__i{special}__" if arithmetic and writes else None,
            bench=(((4096, 4096), (4096, 4096)),),
            **fields,
        )
    )
