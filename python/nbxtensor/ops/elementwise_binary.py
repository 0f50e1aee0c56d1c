"""Elementwise ops of two and three operands."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbxtensor.dtype import bool_, resolve
from nbxtensor.ops import inputs
from nbxtensor.ops.plan import Builder, Number, Value, Window
from nbxtensor.ops.pointwise import OPERAND_X, OPERAND_Y, X, binary, elementwise
from nbxtensor.ops.signature import operand, optional_operand, scalar, tensor
from nbxtensor.ops.table import COMPLEX, EVERY, FLOATS, INTEGERS, REAL, Row, Sample, register

WITH_COMPLEX = (*REAL, *COMPLEX)

_oracle: Any


def _power(x: Any, y: Any) -> Any:
    if np.issubdtype(np.asarray(x).dtype, np.integer):
        return np.power(x, y)
    with np.errstate(all="ignore"):
        return np.power(x, y)


def _small(values: Any) -> Any:
    """Map integers into 0..4 and keep reals small: exponents and shifts."""
    return np.clip(np.abs(values), 0, 1.2)


for _name, _oracle, _summary, _aliases, _special in (
    ("add", np.add, "Sum.", (), "add"),
    ("mul", np.multiply, "Product.", ("multiply",), "mul"),
):
    binary(
        _name,
        _oracle,
        _summary,
        dtypes=(*WITH_COMPLEX, bool_),
        aliases=_aliases,
        special=_special,
    )
binary(
    "sub",
    np.subtract,
    "Difference.",
    kinds="iufc",
    dtypes=WITH_COMPLEX,
    aliases=("subtract",),
    special="sub",
)
binary(
    "div",
    np.true_divide,
    "Quotient; of integers a real number.",
    policy="transcendental",
    dtypes=WITH_COMPLEX,
    samples=inputs.binary(second=inputs.nonzero),
    aliases=("divide", "true_divide"),
    special="truediv",
)
binary(
    "floor_divide",
    np.floor_divide,
    "Quotient, rounded down; integers divided by zero give 0, quotients with an infinity stay as "
    "they are.",
    kinds="iuf",
    samples=inputs.binary(second=inputs.nonzero),
    special="floordiv",
)
binary(
    "remainder",
    np.remainder,
    "Remainder with the sign of the divisor; of integers divided by zero 0.",
    kinds="iuf",
    samples=inputs.binary(second=inputs.nonzero),
    special="mod",
    tolerance=16.0,
)
binary(
    "fmod",
    np.fmod,
    "Remainder with the sign of the dividend.",
    kinds="iuf",
    samples=inputs.binary(second=inputs.nonzero),
    tolerance=16.0,
)


def _plan_pow(builder: Builder, x: Value, y: Value) -> Any:
    if isinstance(y, Number) and y.kind is int and builder.promote(x, y).kind in "iu":
        builder.guard_value(y, 0, 2**63 - 1, "and integers have no negative powers")
    return elementwise("pow", "arithmetic", "iufc")(builder, x, y)


binary(
    "pow",
    _power,
    "x to the power y; integers exactly.",
    kinds="iufc",
    dtypes=REAL,
    samples=inputs.binary(inputs.positive, _small, 2),
    planner=_plan_pow,
    aliases=("power",),
    special="pow",
)
for _name, _oracle, _summary, _domain in (
    ("atan2", np.arctan2, "Angle of the point (y, x), in the right quadrant.", inputs.nonzero),
    ("hypot", np.hypot, "sqrt(x^2 + y^2) without overflow.", inputs.anything),
    ("copysign", np.copysign, "x with the sign of y.", inputs.nonzero),
    ("logaddexp", np.logaddexp, "log(exp(x) + exp(y)) without overflow.", inputs.anything),
):
    binary(
        _name,
        _oracle,
        _summary,
        policy="transcendental",
        kinds="biuf",
        dtypes=FLOATS,
        samples=inputs.binary(_domain, _domain),
    )
for _name, _oracle, _summary in (
    ("maximum", np.maximum, "The greater element; NaN wins."),
    ("minimum", np.minimum, "The lesser element; NaN wins."),
):
    binary(_name, _oracle, _summary, kinds="biuf", dtypes=(*REAL, bool_))
for _name, _oracle, _summary, _alias in (
    ("eq", np.equal, "Whether elements are equal.", "equal"),
    ("ne", np.not_equal, "Whether elements differ.", "not_equal"),
    ("lt", np.less, "Whether x < y.", "less"),
    ("le", np.less_equal, "Whether x <= y.", "less_equal"),
    ("gt", np.greater, "Whether x > y.", "greater"),
    ("ge", np.greater_equal, "Whether x >= y.", "greater_equal"),
):
    _ordered = _name not in ("eq", "ne")
    binary(
        _name,
        _oracle,
        _summary,
        policy="predicate",
        kinds="biuf" if _ordered else "biufc",
        dtypes=(*REAL, bool_) if _ordered else EVERY,
        aliases=(_alias,),
        special=_name,
        writes=False,
    )
for _name, _oracle, _summary in (
    ("logical_and", np.logical_and, "Whether both are nonzero."),
    ("logical_or", np.logical_or, "Whether one of both is nonzero."),
    ("logical_xor", np.logical_xor, "Whether exactly one of both is nonzero."),
):
    binary(
        _name,
        _oracle,
        _summary,
        policy="predicate",
        dtypes=(*REAL, bool_),
        samples=inputs.binary(
            lambda v: np.where(v > 0, v, 0), lambda v: np.where(v > 0.3, v, 0), 0
        ),
        writes=False,
    )
for _name, _oracle, _summary, _special in (
    ("bitwise_and", np.bitwise_and, "Bits set in both.", "and"),
    ("bitwise_or", np.bitwise_or, "Bits set in one of both.", "or"),
    ("bitwise_xor", np.bitwise_xor, "Bits set in exactly one of both.", "xor"),
):
    binary(
        _name,
        _oracle,
        _summary,
        kinds="biu",
        dtypes=(*INTEGERS, bool_),
        special=_special,
    )
for _name, _oracle, _summary, _special, _alias in (
    ("left_shift", np.left_shift, "x * 2**y.", "lshift", "bitwise_left_shift"),
    ("right_shift", np.right_shift, "x / 2**y, rounded down.", "rshift", "bitwise_right_shift"),
):
    binary(
        _name,
        _oracle,
        _summary,
        kinds="iu",
        dtypes=INTEGERS,
        samples=inputs.binary(inputs.anything, _small, 2),
        aliases=(_alias,),
        special=_special,
    )


def _plan_where(builder: Builder, condition: Window, x: Value, y: Value) -> Window:
    if condition.dtype is not bool_:
        raise builder.type_error(
            f"condition must have dtype bool, got {condition.dtype}; compare it with 0 first"
        )
    common = builder.promote(x, y)
    builder.check_unpacked(common)
    builder.guard_fit(common, x, y)
    operands = [condition, x, y]
    shape = builder.broadcast(*(v.shape for v in operands if isinstance(v, Window)))
    out = builder.output(shape, common)
    windows = [v.broadcast_to(shape) if isinstance(v, Window) else v for v in operands]
    builder.step("elementwise:where", [out], windows, [resolve("arithmetic", common).compute])
    return out


def _plan_clamp(builder: Builder, x: Window, low: Value, high: Value) -> Window:
    common = builder.promote(x, low, high)
    builder.check_kind(common, "iuf")
    if low is None and high is None:
        out = builder.result(x.shape, x.dtype)
        builder.copy(out, x)
        return out
    builder.guard_fit(common, low, high)
    operands = [x, low, high]
    shape = builder.broadcast(*(v.shape for v in operands if isinstance(v, Window)))
    out = builder.result(shape, common)
    windows = [v.broadcast_to(shape) if isinstance(v, Window) else None for v in operands]
    numbers = [v for v in (low, high) if not isinstance(v, Window)]
    scalars = [resolve("arithmetic", common).compute, *numbers]
    builder.step("elementwise:clamp", [out], windows, scalars)
    return out


def _plan_addcmul(builder: Builder, x: Window, y: Window, z: Window, value: Number) -> Window:
    common = builder.promote(x, y, z)
    builder.check_kind(common, "iufc")
    if common.kind in "iu" and value.kind not in (bool, int):
        raise builder.type_error(
            f"value must be an integer for {common}, got a {value.kind.__name__}"
        )
    shape = builder.broadcast(x.shape, y.shape, z.shape)
    out = builder.result(shape, common)
    windows = [v.broadcast_to(shape) for v in (x, y, z)]
    builder.guard_fit(common, value)
    scalars = [resolve("arithmetic", common).compute, value]
    builder.step("elementwise:addcmul", [out], windows, scalars)
    return out


def _plan_nan_to_num(
    builder: Builder, x: Window, nan: Number, posinf: Number, neginf: Number
) -> Window:
    builder.check_kind(x.dtype, "biuf")
    out = builder.result(x.shape, x.dtype)
    scalars = [resolve("arithmetic", x.dtype).compute, nan, posinf, neginf]
    builder.step("elementwise:nan_to_num", [out], [x], scalars)
    return out


def _where_samples(generator: np.random.Generator) -> Any:
    for shapes in (((), (), ()), ((5, 1), (1, 7), (5, 7)), ((0,), (1,), (0,)), ((1031,),) * 3):
        condition, x, y = inputs.normal(generator, *shapes)
        yield Sample((condition > 0, x, y))
    condition, x = inputs.normal(generator, (4, 5), (5,))
    yield Sample((condition > 0, x, 2))
    yield Sample((condition > 0, 1, x))


def _clamp_samples(generator: np.random.Generator) -> Any:
    x, low = inputs.normal(generator, (5, 7), (7,))
    yield Sample((x, 0, 1))
    yield Sample((x,), {"min": 0})
    yield Sample((x,), {"max": 1})
    yield Sample((x, low, low + 2))
    yield Sample((x, low, 3))


register(
    Row(
        name="where",
        family="elementwise",
        parameters=(tensor("condition"), OPERAND_X, OPERAND_Y),
        plan=_plan_where,
        oracle=np.where,
        samples=_where_samples,
        summary="x where the condition holds, y elsewhere.",
        kernels=("elementwise:where",),
        dtypes=EVERY,
        bench=(((4096, 4096),) * 3,),
    )
)


def _plan_masked_fill(builder: Builder, x: Window, mask: Window, value: Value) -> Window:
    if mask.dtype is not bool_:
        raise builder.type_error(f"mask must have dtype bool, got {mask.dtype}")
    common = builder.promote(x, value)
    builder.check_unpacked(common)
    builder.guard_fit(common, value)
    operands = [mask, value, x]
    shape = builder.broadcast(*(v.shape for v in operands if isinstance(v, Window)))
    out = builder.result(shape, common)
    windows = [v.broadcast_to(shape) if isinstance(v, Window) else v for v in operands]
    builder.step("elementwise:where", [out], windows, [resolve("arithmetic", common).compute])
    return out


register(
    Row(
        name="masked_fill",
        family="elementwise",
        parameters=(X, tensor("mask"), operand("value")),
        plan=_plan_masked_fill,
        oracle=lambda x, mask, value: np.where(mask, value, x),
        samples=lambda g: [
            Sample((x, mask > 0, 1))
            for x, mask in (inputs.normal(g, (5, 7), (7,)), inputs.normal(g, (3,), (2, 3)))
        ],
        summary="x with `value` where the mask holds.",
        kernels=("elementwise:where",),
        dtypes=EVERY,
        methods=("masked_fill",),
        in_place="masked_fill_",
    )
)
register(
    Row(
        name="clamp",
        family="elementwise",
        parameters=(X, optional_operand("min", "min_val"), optional_operand("max", "max_val")),
        plan=_plan_clamp,
        oracle=lambda x, min=None, max=None: np.clip(x, min, max),
        samples=_clamp_samples,
        summary="Limit elements to [min, max]; either limit may be None, or both for a copy.",
        kernels=("elementwise:clamp", "copy:strided"),
        dtypes=REAL,
        methods=("clamp", "clip"),
        aliases=("clip",),
        in_place="clamp_",
        bench=(((4096, 4096),),),
    )
)
register(
    Row(
        name="lerp",
        family="elementwise",
        parameters=(X, tensor("end"), operand("weight")),
        plan=elementwise("lerp", "transcendental", "biuf"),
        oracle=lambda x, end, weight: x + weight * (end - x),
        samples=lambda g: [
            Sample(inputs.normal(g, (5, 7), (7,), (5, 1))),
            Sample((*inputs.normal(g, (5, 7), (5, 7)), 0.25)),
        ],
        summary="x + weight (end - x).",
        kernels=("elementwise:lerp",),
        methods=("lerp",),
        in_place="lerp_",
        tolerance=16.0,
    )
)
register(
    Row(
        name="addcmul",
        family="elementwise",
        parameters=(X, tensor("tensor1"), tensor("tensor2"), scalar("value", 1)),
        plan=_plan_addcmul,
        oracle=lambda x, y, z, value=1: x + value * y * z,
        samples=lambda g: [
            Sample(inputs.normal(g, (5, 7), (7,), (5, 1))),
            Sample(inputs.normal(g, (31,), (31,), (31,)), {"value": 2}),
        ],
        summary="x + value tensor1 tensor2.",
        kernels=("elementwise:addcmul",),
        dtypes=REAL,
        methods=("addcmul",),
        in_place="addcmul_",
        tolerance=16.0,
    )
)
register(
    Row(
        name="nan_to_num",
        family="elementwise",
        parameters=(X, scalar("nan", 0.0), scalar("posinf", None), scalar("neginf", None)),
        plan=_plan_nan_to_num,
        oracle=lambda x, nan=0.0, posinf=None, neginf=None: np.nan_to_num(
            x, nan=nan, posinf=posinf, neginf=neginf
        ),
        samples=lambda g: [
            Sample(
                (np.where(x > 1, np.inf, np.where(x < -1, -np.inf, np.where(x > 0, np.nan, x))),),
                {"nan": 2.0, "posinf": 8.0, "neginf": -8.0},
            )
            for x in inputs.normal(g, (64,), (5, 7))
        ],
        summary="Replace NaN and infinities; by default with 0 and the largest finite numbers.",
        kernels=("elementwise:nan_to_num",),
        methods=("nan_to_num",),
        in_place="nan_to_num_",
    )
)
