"""Elementwise steps: one skeleton over contiguous operands, one over operands of any strides.

`apply` is the table of expressions. An operand is described by KIND: "" where it is absent,
"number" for a number of the call, else how its bits are read (see carrier). An operand with STEP 0
is one element for all. The operand's carrier is T, that of the first one T0.
"""

from __future__ import annotations

import triton.language as tl
from nbxtensor.kernels.carrier import narrow, spot, widen
from nbxtensor.kernels.functions import (
    angle,
    copy_sign,
    divide,
    error_function,
    exact_remainder,
    exponential,
    exponential_minus_one,
    floor_quotient,
    gelu,
    hyperbolic_tangent,
    log_one_plus_exp,
    logarithm,
    logarithm_of_one_plus,
    power,
    round_half_even,
    sigmoid,
    square_root,
    truncate,
)
from nbxtensor.kernels.single import (
    analytic,
    floor_quotient_of_single,
    less_one,
    log_one_plus_power,
    mish,
    power_of_single,
    remainder_of_single,
)
from nbxtensor.runtime import kernel


@kernel
def whole_quotient(a, b):
    """Return integers divided and rounded down; by zero 0."""
    if a.dtype.is_int_signed():
        traps = (b == -1) & (a == -a)
        safe = tl.where((b == 0) | traps, 1, b).to(a.dtype)
        quotient = a // safe
        inexact = (quotient * safe != a) & ((a < 0) != (safe < 0))
        r = tl.where(inexact, quotient - 1, quotient)
        r = tl.where(traps & (a != 0), a, r)
    else:
        r = a // tl.where(b == 0, 1, b).to(a.dtype)
    return tl.where(b == 0, 0, r).to(a.dtype)


@kernel
def whole_remainder(a, b, FLOOR: tl.constexpr):
    """Return the remainder of integers, of the divisor's sign where FLOOR; by zero 0."""
    if a.dtype.is_int_signed():
        safe = tl.where((b == 0) | (b == -1), 1, b).to(a.dtype)
        rest = a % safe
        if FLOOR:
            rest = tl.where((rest != 0) & ((rest < 0) != (safe < 0)), rest + safe, rest)
    else:
        rest = a % tl.where(b == 0, 1, b).to(a.dtype)
    return tl.where(b == 0, 0, rest).to(a.dtype)


@kernel
def whole_power(a, b):
    """Return integer powers, wrapping; negative exponents give the truncated fraction."""
    if a.dtype.is_int_signed():
        negative = b < 0
    else:
        negative = b != b
    left = tl.where(negative, 0, b).to(tl.uint64, bitcast=True)
    base = a.to(tl.uint64, bitcast=True)
    result = tl.full(a.shape, 1, tl.uint64)
    while tl.max((left != 0).to(tl.int32), 0) > 0:
        result = tl.where((left & 1) != 0, result * base, result)
        base = base * base
        left = left >> 1
    r = result.to(a.dtype, bitcast=True)
    if a.dtype.is_int_signed():
        fraction = tl.where(a == 1, 1, tl.where(a == -1, tl.where((b & 1) == 0, 1, -1), 0))
        r = tl.where(negative, fraction, r)
    return r.to(a.dtype)


@kernel
def arithmetic(OP: tl.constexpr, a, b, c, e0):
    """Sums and products of every type; integers wrap."""
    if OP == "add":
        if a.dtype == tl.int8:
            r = a | b
        else:
            r = a + b
    elif OP == "sub":
        r = a - b
    elif OP == "mul":
        if a.dtype == tl.int8:
            r = a & b
        else:
            r = a * b
    elif OP == "addcmul":
        r = a + e0 * b * c
    elif OP == "neg":
        if a.dtype.is_floating():
            r = a * -1.0  # the language's minus is 0 - a, which loses the sign of 0
        else:
            r = (~a + 1).to(a.dtype)
    elif OP == "abs":
        if a.dtype == tl.uint64:
            r = a
        else:
            r = tl.abs(a)
    elif OP == "square":
        r = a * a
    elif OP == "sign":
        if a.dtype.is_floating():
            r = tl.where(a > 0.0, 1.0, tl.where(a < 0.0, -1.0, tl.where(a == a, 0.0, a)))
        elif a.dtype == tl.uint64:
            r = (a != 0).to(a.dtype)
        else:
            r = (a > 0).to(tl.int64) - (a < 0).to(tl.int64)
    elif OP == "same":
        r = a
    else:
        tl.static_assert(False, "no such op")
    return r


@kernel
def float_remainders(OP: tl.constexpr, a, b):
    """Return floor(a / b), or a remainder."""
    if OP == "floor_divide":
        if a.dtype == tl.float32:
            r = floor_quotient_of_single(a, b)
        else:
            r = floor_quotient(exact_remainder(a, b), a, b)
    else:
        y = b.to(tl.float64)
        if a.dtype == tl.float32:
            rest, _, _ = remainder_of_single(a, b)
        else:
            rest = exact_remainder(a, b)
        if OP == "remainder":
            turned = tl.where((rest < 0.0) != (y < 0.0), (rest + y).to(a.dtype), rest.to(a.dtype))
            r = tl.where(rest == 0.0, copy_sign(rest.to(a.dtype), b), turned)
        else:
            r = rest.to(a.dtype)
    return r


@kernel
def division(OP: tl.constexpr, a, b):
    """Quotients, remainders, powers."""
    if OP == "div":
        r = divide(a, b)
    elif OP == "reciprocal":
        r = divide(tl.full(a.shape, 1.0, a.dtype), a)
    elif not a.dtype.is_floating():
        if OP == "floor_divide":
            r = whole_quotient(a, b)
        elif OP == "remainder":
            r = whole_remainder(a, b, True)
        elif OP == "fmod":
            r = whole_remainder(a, b, False)
        else:
            r = whole_power(a, b)
    else:
        if OP == "pow":
            if a.dtype == tl.float32:
                r = power_of_single(a, b)
            else:
                r = power(a, b)
        else:
            r = float_remainders(OP, a, b)
    return r


@kernel
def choice(OP: tl.constexpr, a, b, c, e0, e1, e2, B: tl.constexpr, C: tl.constexpr):
    """Extrema and selections; NaN wins."""
    if OP == "maximum":
        r = tl.where((a > b) | (a != a), a, b)
    elif OP == "minimum":
        r = tl.where((a < b) | (a != a), a, b)
    elif OP == "where":
        r = tl.where(a != 0, b, c)
    elif OP == "clamp":
        r = a
        if B != "":
            r = tl.where((r < b) | (b != b), b, r)
        if C != "":
            r = tl.where((r > c) | (c != c), c, r)
    elif OP == "relu":
        r = tl.where(a < 0, 0, a).to(a.dtype)
    elif OP == "leaky_relu":
        r = tl.where(a < 0, a * e0, a)
    elif OP == "lerp":
        r = tl.where(c < 0.5, a + c * (b - a), b - (b - a) * (1.0 - c))
    elif OP == "nan_to_num":
        if a.dtype.is_floating():
            r = tl.where(a == float("inf"), e1, tl.where(a == float("-inf"), e2, a))
            r = tl.where(a != a, e0, r)
        else:
            r = a
    elif OP == "copysign":
        r = copy_sign(a, b)
    else:
        tl.static_assert(False, "no such op")
    return r


@kernel
def comparison(OP: tl.constexpr, a, b):
    """Comparisons; a signed integer with an unsigned one as the numbers that they are."""
    if a.dtype == tl.int64 and b.dtype == tl.uint64:
        below = a < 0
        x = a.to(tl.uint64, bitcast=True)
        less = below | (x < b)
        same = (x == b) & (a >= 0)
    elif a.dtype == tl.uint64 and b.dtype == tl.int64:
        y = b.to(tl.uint64, bitcast=True)
        less = (b >= 0) & (a < y)
        same = (a == y) & (b >= 0)
    else:
        less = a < b
        same = a == b
    if OP == "eq":
        r = same
    elif OP == "ne":
        r = ~same
    elif OP == "lt":
        r = less
    elif OP == "le":
        r = less | same
    elif OP == "gt":
        if a.dtype.is_floating():
            r = a > b
        else:
            r = ~(less | same)
    else:
        if a.dtype.is_floating():
            r = a >= b
        else:
            r = ~less
    return r.to(tl.int8)


@kernel
def logic(OP: tl.constexpr, a, b):
    """Bits and truth values."""
    if OP == "bitwise_and" or OP == "logical_and":
        r = a & b
    elif OP == "bitwise_or" or OP == "logical_or":
        r = a | b
    elif OP == "bitwise_xor" or OP == "logical_xor":
        r = a ^ b
    elif OP == "bitwise_not":
        if a.dtype == tl.int8:
            r = a ^ 1
        else:
            r = ~a
    elif OP == "logical_not":
        r = (a == 0).to(tl.int8)
    elif OP == "left_shift":
        inside = (b >= 0) & (b <= 63)
        r = tl.where(inside, a << tl.where(inside, b, 0).to(a.dtype), 0).to(a.dtype)
    elif OP == "right_shift":
        inside = (b >= 0) & (b <= 63)
        out = tl.where(a < 0, ~(a ^ a), a ^ a)
        r = tl.where(inside, a >> tl.where(inside, b, 0).to(a.dtype), out).to(a.dtype)
    elif OP == "isnan":
        r = (a != a).to(tl.int8)
    elif OP == "isinf":
        if a.dtype.is_floating():
            r = (tl.abs(a) == float("inf")).to(tl.int8)
        else:
            r = (a != a).to(tl.int8)
    else:
        if a.dtype.is_floating():
            r = (tl.abs(a) < float("inf")).to(tl.int8)
        else:
            r = (a == a).to(tl.int8)
    return r


@kernel
def rounding(OP: tl.constexpr, a):
    """Whole numbers near a."""
    if not a.dtype.is_floating():
        r = a
    elif OP == "floor":
        r = tl.floor(a)
    elif OP == "ceil":
        r = tl.ceil(a)
    elif OP == "trunc":
        r = truncate(a)
    else:
        r = round_half_even(a)
    return r


@kernel
def analysis(OP: tl.constexpr, a, e0, e1):
    """Functions with a float32 form of their own."""
    if OP == "exp":
        r = exponential(a)
    elif OP == "log":
        r = logarithm(a)
    elif OP == "sqrt":
        r = square_root(a)
    elif OP == "rsqrt":
        r = divide(tl.full(a.shape, 1.0, a.dtype), square_root(a))
    elif OP == "sin":
        r = tl.where(tl.abs(a) < 1e-4, a, tl.sin(a))  # a device may take subnormals for 0
    elif OP == "cos":
        r = tl.cos(a)
    elif OP == "tanh":
        r = hyperbolic_tangent(a)
    elif OP == "erf":
        r = error_function(a)
    elif OP == "sigmoid":
        r = sigmoid(a)
    elif OP == "silu":
        r = a * sigmoid(a)
    elif OP == "gelu":
        r = gelu(a, False)
    elif OP == "gelu_tanh":
        r = gelu(a, True)
    else:
        r = smooth(OP, a, e0, e1)
    return r


@kernel
def softplus(x):
    """Return log(1 + exp(x)) without overflow."""
    if x.dtype == tl.float32:
        r = log_one_plus_power(x)
    else:
        r = log_one_plus_exp(x)
    return r


@kernel
def smooth(OP: tl.constexpr, a, e0, e1):
    """Activations made of exp and log."""
    if OP == "hardsigmoid" or OP == "hardswish":
        shifted = a + 3.0
        low = tl.where(shifted < 0.0, 0.0, shifted)
        r = divide(tl.where(low > 6.0, 6.0, low), tl.full(a.shape, 6.0, a.dtype))
        if OP == "hardswish":
            r = a * r
    elif OP == "mish":
        if a.dtype == tl.float32:
            r = mish(a)
        else:
            r = tl.where(a != a, a, a * hyperbolic_tangent(softplus(a)))
    elif OP == "log_sigmoid":
        r = tl.where(a != a, a, -1.0 * softplus(-1.0 * a))
    elif OP == "softplus":
        scaled = a * e0
        r = divide(softplus(scaled), tl.full(a.shape, 1.0, a.dtype) * e0)
        r = tl.where((scaled > e1) | (a != a), a, r)
    elif OP == "elu":
        low = tl.where(a > 0.0, 0.0, a).to(a.dtype)
        if a.dtype == tl.float32:
            negative = less_one(low)
        else:
            negative = exponential_minus_one(low)
        r = tl.where(a > 0.0, a, e0 * negative)
    else:
        tl.static_assert(False, "no such op")
    return r


@kernel
def library(OP: tl.constexpr, x, y):
    """Functions that are computed in float64; of the group `double` for float32 too."""
    if OP == "exp2":
        r = tl.exp2(x)
    elif OP == "expm1":
        r = exponential_minus_one(x)
    elif OP == "log2":
        r = tl.log2(x)
    elif OP == "log10":
        r = tl.log(x) * 0.4342944819032518 + tl.log(x) * 1.098319650216765e-17
    elif OP == "log1p":
        r = logarithm_of_one_plus(x)
    elif OP == "tan":
        r = tl.sin(x) / tl.cos(x)
    elif OP == "asin":
        r = angle(x, tl.sqrt((1.0 - x) * (1.0 + x)))
    elif OP == "acos":
        r = 2.0 * angle(tl.sqrt(1.0 - x), tl.sqrt(1.0 + x))
    elif OP == "atan":
        r = angle(x, tl.full(x.shape, 1.0, tl.float64))
    elif OP == "atan2":
        r = angle(x, y)
    else:
        r = hyperbolic(OP, x, y)
    return r


@kernel
def hyperbolic(OP: tl.constexpr, x, y):
    """Hyperbolic functions and the like, in float64."""
    a = tl.abs(x)
    if OP == "sinh":
        e = exponential_minus_one(tl.where(a > 700.0, 700.0, a))
        half = tl.exp(a * 0.5)
        r = copy_sign(tl.where(a > 700.0, 0.5 * half * half, 0.5 * (e + e / (e + 1.0))), x)
    elif OP == "cosh":
        half = tl.exp(a * 0.5)
        e = tl.exp(tl.where(a > 700.0, 700.0, a))
        r = tl.where(a > 700.0, 0.5 * half * half, 0.5 * (e + 1.0 / e))
    elif OP == "asinh":
        b = tl.where(a > 1e8, 1.0, a)
        near = logarithm_of_one_plus(b + b * b / (1.0 + tl.sqrt(b * b + 1.0)))
        r = copy_sign(tl.where(a > 1e8, tl.log(a) + 0.6931471805599453, near), x)
    elif OP == "acosh":
        t = tl.where(x > 1e8, 1.0, x - 1.0)
        near = logarithm_of_one_plus(t + tl.sqrt(2.0 * t + t * t))
        r = tl.where(x > 1e8, tl.log(x) + 0.6931471805599453, near)
        r = tl.where(x < 1.0, float("nan"), r)
    elif OP == "atanh":
        r = copy_sign(0.5 * logarithm_of_one_plus(2.0 * a / (1.0 - a)), x)
    elif OP == "hypot":
        b = tl.abs(y)
        high = tl.where(a < b, b, a)
        low = tl.where(a < b, a, b) / tl.where(high == 0.0, 1.0, high)
        r = high * tl.sqrt(1.0 + low * low)
        r = tl.where((x != x) | (y != y), x + y, r)
        r = tl.where((a == float("inf")) | (b == float("inf")), float("inf"), r)
    elif OP == "logaddexp":
        high = tl.where(x > y, x, y)
        low = tl.where(x > y, y, x)
        r = high + logarithm_of_one_plus(tl.exp(low - high))
        r = tl.where(x == y, x + 0.6931471805599453, r)
        r = tl.where((x != x) | (y != y), x + y, r)
    else:
        tl.static_assert(False, "no such op")
    return r


@kernel
def apply(GROUP: tl.constexpr, OP: tl.constexpr, a, b, c, e0, e1, e2, B: tl.constexpr,
          C: tl.constexpr):  # fmt: skip
    """Return the op's result from operands in their carriers."""
    if GROUP == "arithmetic":
        r = arithmetic(OP, a, b, c, e0)
    elif GROUP == "division":
        r = division(OP, a, b)
    elif GROUP == "choice":
        r = choice(OP, a, b, c, e0, e1, e2, B, C)
    elif GROUP == "comparison":
        r = comparison(OP, a, b)
    elif GROUP == "logic":
        r = logic(OP, a, b)
    elif GROUP == "rounding":
        r = rounding(OP, a)
    elif GROUP == "analysis":
        r = analysis(OP, a, e0, e1)
    elif GROUP == "gated":
        if OP == "silu_mul":
            r = a * sigmoid(a) * b
        elif OP == "gelu_mul":
            r = gelu(a, False) * b
        else:
            r = gelu(a, True) * b
    else:
        y = a
        if B != "":
            y = b
        if GROUP == "analytic" and a.dtype == tl.float32:
            r = analytic(OP, a, y)
        else:
            r = library(OP, a.to(tl.float64), y.to(tl.float64)).to(a.dtype)
    return r


@kernel
def operand(x, offset, mask, KIND: tl.constexpr, T: tl.constexpr):
    """Return a tensor's elements or a number in the carrier T; None where it is absent."""
    if KIND == "":
        r = None
    elif KIND == "number":
        if T == "bool":
            r = ((tl.zeros(mask.shape, x.dtype) + x) != 0).to(tl.int8)
        elif T == "int64":
            r = tl.full(mask.shape, x, tl.int64)
        elif T == "uint64":
            r = tl.full(mask.shape, x, tl.uint64)
        elif T == "float32":
            r = tl.full(mask.shape, x, tl.float32)
        else:
            r = tl.full(mask.shape, x, tl.float64)
    else:
        r = widen(tl.load(x + offset, mask=mask, other=0), KIND, T)
    return r


@kernel
def contiguous(out, a, b, c, n, e0, e1, e2, GROUP: tl.constexpr, OP: tl.constexpr,
               TA: tl.constexpr, TB: tl.constexpr, TC: tl.constexpr, OUT: tl.constexpr,
               A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, A_STEP: tl.constexpr,
               B_STEP: tl.constexpr, C_STEP: tl.constexpr, WIDE: tl.constexpr,
               BLOCK: tl.constexpr):  # fmt: skip
    """Elementwise over n elements side by side."""
    block = tl.program_id(0)
    if WIDE:
        block = block.to(tl.int64)
    index = block * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    x = operand(a, index * A_STEP, mask, A, TA)
    y = operand(b, index * B_STEP, mask, B, TB)
    z = operand(c, index * C_STEP, mask, C, TC)
    r = apply(GROUP, OP, x, y, z, e0, e1, e2, B, C)
    tl.store(out + index, narrow(r, OUT, out.dtype.element_ty), mask=mask)


@kernel
def strided(out, a, b, c, n, e0, e1, e2, d0, d1, d2, d3, d4, d5, d6,
            o0, o1, o2, o3, o4, o5, o6, o7, a0, a1, a2, a3, a4, a5, a6, a7,
            b0, b1, b2, b3, b4, b5, b6, b7, c0, c1, c2, c3, c4, c5, c6, c7,
            GROUP: tl.constexpr, OP: tl.constexpr, TA: tl.constexpr, TB: tl.constexpr,
            TC: tl.constexpr, OUT: tl.constexpr, A: tl.constexpr, B: tl.constexpr,
            C: tl.constexpr, RANK: tl.constexpr, WIDE: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    """Elementwise over n elements of up to 8 axes; axis 0 is the innermost."""
    block = tl.program_id(0)
    if WIDE:
        block = block.to(tl.int64)
    index = block * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    if A != "" and A != "number":
        at = spot(index, RANK, d0, d1, d2, d3, d4, d5, d6, a0, a1, a2, a3, a4, a5, a6, a7)
        x = operand(a, at, mask, A, TA)
    else:
        x = operand(a, index, mask, A, TA)
    if B != "" and B != "number":
        at = spot(index, RANK, d0, d1, d2, d3, d4, d5, d6, b0, b1, b2, b3, b4, b5, b6, b7)
        y = operand(b, at, mask, B, TB)
    else:
        y = operand(b, index, mask, B, TB)
    if C != "" and C != "number":
        at = spot(index, RANK, d0, d1, d2, d3, d4, d5, d6, c0, c1, c2, c3, c4, c5, c6, c7)
        z = operand(c, at, mask, C, TC)
    else:
        z = operand(c, index, mask, C, TC)
    r = apply(GROUP, OP, x, y, z, e0, e1, e2, B, C)
    at = spot(index, RANK, d0, d1, d2, d3, d4, d5, d6, o0, o1, o2, o3, o4, o5, o6, o7)
    tl.store(out + at, narrow(r, OUT, out.dtype.element_ty), mask=mask)
