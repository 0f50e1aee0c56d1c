"""Lowering of elementwise steps, of copies and of fills with one number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from nbxtensor.dtype import (
    DType,
    bool_,
    finfo,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint64,
)
from nbxtensor.ops.device.launches import (
    Address,
    Argument,
    Lowering,
    NotLowered,
    Real,
    Whole,
    memory_type,
)
from nbxtensor.ops.device.layout import SMALL, coalesce
from nbxtensor.ops.plan import Number, Step, Window

BLOCK: Final = 1024

_GROUPS: Final = {
    "arithmetic": "add sub mul addcmul neg abs square sign",
    "division": "div reciprocal floor_divide remainder fmod pow",
    "choice": "maximum minimum where clamp relu leaky_relu lerp nan_to_num copysign",
    "comparison": "eq ne lt le gt ge",
    "logic": "bitwise_and bitwise_or bitwise_xor bitwise_not logical_and logical_or logical_xor "
    "logical_not left_shift right_shift isnan isinf isfinite",
    "rounding": "floor ceil trunc round",
    "analysis": "exp log sqrt rsqrt sin cos tanh erf sigmoid silu gelu hardsigmoid hardswish mish "
    "log_sigmoid softplus elu",
    "analytic": "expm1 log1p tan asin acos atan atan2 sinh cosh asinh acosh atanh logaddexp",
    "double": "exp2 log2 log10 hypot",
}
GROUP_OF: Final[dict[str, str]] = {
    op: group for group, ops in _GROUPS.items() for op in ops.split()
}
# Numbers that follow the op's dtype, before those of absent operands.
_EXTRAS: Final = {
    "addcmul": 1,
    "leaky_relu": 1,
    "elu": 1,
    "softplus": 2,
    "nan_to_num": 3,
    "gelu": 1,
}
_ALWAYS_BOOL: Final = ("logical_and", "logical_or", "logical_xor")
_CARRIERS: Final = {
    "bool": "bool",
    "int64": "int64",
    "uint64": "uint64",
    "float32": "float32",
    "float64": "float64",
}


def carrier(dtype: DType) -> str:
    """Return the name of the carrier of a compute dtype."""
    found = _CARRIERS.get(dtype.name)
    if found is None:
        raise NotLowered(f"kernels do not compute in {dtype}")
    return found


def natural_carrier(dtype: DType) -> str:
    """Return the carrier that holds every value of an element type."""
    if dtype.kind == "f":
        return "float64" if dtype is float64 else "float32"
    if dtype.kind == "b":
        return "bool"
    return "uint64" if dtype is uint64 else "int64"


def number_argument(value: Any, held: str) -> Argument:
    """Return a number of the plan or of the call in a carrier's type."""
    kind = value.kind if isinstance(value, Number) else type(value)
    if kind is complex:
        raise NotLowered("kernels do not compute with complex numbers")
    if held in ("float32", "float64"):
        return Real(value, "fp32" if held == "float32" else "fp64")
    if kind is float:
        # Truth values of real numbers; integers never meet one.
        return Real(value, "fp64")
    width = "u64" if held == "uint64" else "i64"
    return Whole(value if isinstance(value, Number) else int(value), width)


def _integer_range(value: Window | None, number: Any) -> str:
    """Return in which 64-bit type an integer operand of a comparison fits, or nothing."""
    if value is not None:
        if value.dtype is uint64:
            return "uint64"
        return "int64" if value.dtype.kind in "biu" else ""
    kind = number.kind if isinstance(number, Number) else type(number)
    if kind not in (bool, int):
        return ""
    unsigned = number.unsigned if isinstance(number, Number) else number >= 2**63
    return "uint64" if unsigned else "int64"


def _operand_carriers(name: str, compute: str, inputs: Sequence[Any], numbers: list[Any]) -> Any:
    if name in _ALWAYS_BOOL:
        return ["bool", "bool", "bool"]
    if name == "where":
        return ["bool", compute, compute]
    if GROUP_OF[name] == "comparison":
        left = iter(numbers)
        ranges = [_integer_range(x, None if x is not None else next(left)) for x in inputs]
        if set(ranges) == {"int64", "uint64"}:
            return [*ranges, ""]
    return [compute] * 3


def run(
    low: Lowering,
    group: str,
    op: str,
    out: Window,
    inputs: Sequence[Window | Argument],
    carriers: Sequence[str],
    extras: Sequence[Argument] = (),
) -> None:
    """Add one launch of the skeleton: inputs are windows of the output's shape, or numbers."""
    kind = memory_type(out.dtype)
    if out.size == 0:
        return
    windows = [w for w in inputs if isinstance(w, Window)]
    axes = coalesce(out.shape, [out.strides, *(w.strides for w in windows)])
    wide = axes.size + BLOCK > 2**31 or axes.reach() >= 2**31
    small = axes.size < SMALL
    # Of a small one every kernel more costs more than what it saves.
    steps_of = [steps[0] if steps else int(small) for steps in axes.strides]
    allowed = (1,) if small else (0, 1)
    dense = (
        len(axes.extents) <= 1
        and (steps_of[0] == 1 or axes.size == 1)
        and all(step in allowed for step in steps_of[1:])
    )
    axes = axes if dense else axes.in_general(general=small)
    arguments: dict[str, Argument] = {"out": Address(out, kind[0])}
    constants: dict[str, Any] = {"GROUP": group, "OP": op, "OUT": kind[1]}
    steps: dict[str, Argument] = {}
    place = 0
    for letter, given, held in zip("abc", [*inputs, None, None, None], carriers, strict=False):
        constants[f"T{letter.upper()}"] = held
        step = 0
        if isinstance(given, Window):
            place += 1
            element, reading = memory_type(given.dtype)
            arguments[letter] = Address(given, element)
            step = steps_of[place]
            steps |= axes.stride_arguments(place, letter, wide=wide)
        else:
            arguments[letter] = given
            reading = "" if given is None else "number"
            steps |= dict.fromkeys((f"{letter}{i}" for i in range(8)), None)
        constants[letter.upper()] = reading
        if dense:
            constants[f"{letter.upper()}_STEP"] = step
    size = axes.size
    arguments["n"] = Whole(size) if wide else size
    arguments |= {f"e{i}": extras[i] if i < len(extras) else None for i in range(3)}
    constants |= {"WIDE": wide, "BLOCK": BLOCK}
    grid = (math.ceil(size / BLOCK),)
    if dense:
        low.launch("elementwise:contiguous", grid, arguments, constants, claims=not small)
        return
    arguments |= axes.extent_arguments("d", wide=wide)
    arguments |= axes.stride_arguments(0, "o", wide=wide) | steps
    constants["RANK"] = len(axes.extents)
    low.launch("elementwise:strided", grid, arguments, constants, claims=not small)


def elementwise(low: Lowering, step: Step) -> None:
    """Lower a step ``elementwise:<op>``: [out], inputs, [compute, extras..., numbers...]."""
    name = step.kernel.split(":")[1]
    group = GROUP_OF.get(name)
    if group is None:
        raise NotLowered(f"there is no kernel for {step.kernel}")
    out = step.window(0)
    compute = "bool" if name in _ALWAYS_BOOL else carrier(step.scalars[0])
    count = _EXTRAS.get(name, 0)
    numbers = list(step.scalars[1 + count :])
    inputs = step.operands[1:]
    carriers = _operand_carriers(name, compute, inputs, numbers)
    given: list[Any] = []
    left = iter(numbers)
    for window, held in zip(inputs, carriers, strict=False):
        number = window if window is not None else next(left, None)
        if number is None or (isinstance(number, Number) and number.none):
            given.append(None)
        elif isinstance(number, Window):
            given.append(number)
        else:
            given.append(number_argument(number, held))
    extras = list(step.scalars[1 : 1 + count])
    if name == "gelu":
        name = "gelu_tanh" if extras[0] else "gelu"
        extras = []
    elif name == "nan_to_num":
        extras = _replacements(out.dtype, extras) if out.dtype.kind == "f" else []
    run(low, group, name, out, given, carriers, [number_argument(e, compute) for e in extras])


def _replacements(dtype: DType, extras: Sequence[Any]) -> list[Any]:
    greatest = float(finfo(dtype).max)
    defaults = (0.0, greatest, -greatest)
    return [
        default if extra is None or (isinstance(extra, Number) and extra.none) else extra
        for extra, default in zip(extras, defaults, strict=True)
    ]


def bits_window(window: Window) -> Window:
    """Return the window as integers of its elements' width; 16 bytes are a pair of 8."""
    dtype = window.dtype
    if dtype.itemsize == 16:
        return Window(
            window.source,
            window.index,
            int64,
            (*window.shape, 2),
            (*(2 * s for s in window.strides), 1),
            window.offset,
            aligned=window.aligned,
        )
    return window.as_dtype({1: int8, 2: int16, 4: int32, 8: int64}[dtype.itemsize])


def same_bits(a: DType, b: DType) -> bool:
    """Return whether a conversion only copies bits."""
    return a is b or (a.kind in "iu" and b.kind in "iu" and a.bits == b.bits)


def copy(low: Lowering, step: Step) -> None:
    """Lower ``copy:strided``: [target], [source], converting."""
    target, source = step.windows()
    if target.dtype.bits < 8 or source.dtype.bits < 8:
        raise NotLowered(f"kernels do not copy {source.dtype} to {target.dtype}")
    if same_bits(target.dtype, source.dtype):
        run(low, "arithmetic", "same", bits_window(target), [bits_window(source)], ["int64"] * 3)
        return
    if target.dtype.kind == "c" or source.dtype.kind == "c":
        _copy_complex(low, target, source)
        return
    held = natural_carrier(source.dtype)
    run(low, "arithmetic", "same", target, [source], [held] * 3)


def parts(window: Window) -> tuple[Window, Window]:
    """Return the real and the imaginary parts of a complex window."""
    part = float32 if window.dtype.bits == 64 else float64
    real = Window(
        window.source,
        window.index,
        part,
        window.shape,
        tuple(2 * s for s in window.strides),
        window.offset,
        aligned=window.aligned,
    )
    return real, real.shifted(part.itemsize)


def _copy_complex(low: Lowering, target: Window, source: Window) -> None:
    if target.dtype.kind != "c":
        if target.dtype is bool_:
            raise NotLowered("kernels do not copy complex numbers to bool")
        real = parts(source)[0]
        run(low, "arithmetic", "same", target, [real], [natural_carrier(real.dtype)] * 3)
        return
    real, imaginary = parts(target)
    if source.dtype.kind == "c":
        from_real, from_imaginary = parts(source)
        held = [natural_carrier(from_real.dtype)] * 3
        run(low, "arithmetic", "same", real, [from_real], held)
        run(low, "arithmetic", "same", imaginary, [from_imaginary], held)
        return
    run(low, "arithmetic", "same", real, [source], [natural_carrier(source.dtype)] * 3)
    run(low, "arithmetic", "same", imaginary, [Real(0.0, "fp32")], ["float32"] * 3)


def fill(low: Lowering, step: Step) -> None:
    """Lower ``fill:value``: [out], [value]."""
    out = step.window(0)
    value = step.scalars[0]
    if out.dtype.bits < 8:
        raise NotLowered(f"kernels do not fill {out.dtype}")
    kind = value.kind if isinstance(value, Number) else type(value)
    if out.dtype.kind == "c":
        if kind is complex:
            raise NotLowered("kernels do not fill with complex numbers")
        real, imaginary = parts(out)
        run(low, "arithmetic", "same", real, [number_argument(value, "float64")], ["float64"] * 3)
        run(low, "arithmetic", "same", imaginary, [Real(0.0, "fp64")], ["float64"] * 3)
        return
    if kind is float:
        held = "float64"
    else:
        unsigned = isinstance(value, Number) and value.unsigned
        held = "uint64" if unsigned or out.dtype is uint64 else "int64"
    run(low, "arithmetic", "same", out, [number_argument(value, held)], [held] * 3)
