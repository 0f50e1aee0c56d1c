"""Functions of float32 whose float64 forms (elementwise.library) take longer than the memory.

Each is within 4 units in the last place, subnormal results included. Polynomials were fitted to the
function by weighted least squares over the reduced range; those in float64 are series.
"""

from __future__ import annotations

import triton.language as tl
from nbxtensor.kernels.functions import (
    copy_sign,
    divide,
    exact_remainder,
    exponential,
    exponential_parts,
    finished_power,
    floor_quotient,
    is_negative,
    logarithm,
    square_root,
)
from nbxtensor.runtime import kernel


@kernel
def less_one(x):
    """Return exp(x) - 1."""
    m, first, second = exponential_parts(x)
    # 1 / second is a power of two as well.
    bits = 0x7F000000 - second.to(tl.int32, bitcast=True)
    r = (m * first + (first - bits.to(tl.float32, bitcast=True))) * second
    return tl.where((x == 0.0) | (x != x), x, r)


@kernel
def log_one_plus(x):
    """Return log(1 + x): what the sum loses comes back to first order."""
    u = 1.0 + x
    r = logarithm(u) + (x - (u - 1.0)) / u
    r = tl.where((u == 1.0) | (x == float("inf")), x, r)
    return tl.where(u == 0.0, float("-inf"), r)


@kernel
def log_one_plus_power(x):
    """Return log(1 + exp(x)) without overflow."""
    return tl.where(x > 0.0, x, 0.0) + log_one_plus(exponential(-tl.abs(x)))


@kernel
def mish(x):
    """Return x tanh(log(1 + exp(x))), as a quotient of polynomials in exp(x)."""
    m, first, second = exponential_parts(tl.where(x > 20.0, 20.0, x))
    e = (1.0 + m) * first * second
    n = e * (e + 2.0)
    # Far below zero it is x exp(x), which may be ordinary where exp(x) is subnormal.
    r = tl.where(x < -40.0, x * ((1.0 + m) * first) * second, x * divide(n, n + 2.0))
    r = tl.where(x < -115.0, x * 0.0, r)
    return tl.where((x > 20.0) | (x != x), x, r)


@kernel
def hyperbolic_sine(x):
    """Return sinh(x)."""
    a = tl.abs(x)
    z = a * a
    p = z * 2.806305474223336e-06 + 0.0001983809779630974
    p = p * z + 0.008333339355885983
    p = p * z + 0.1666666716337204
    m, first, second = exponential_parts(a)
    half = (1.0 + m) * first * (second * 0.5)
    large = half - divide(tl.full(x.shape, 0.25, tl.float32), half)
    return copy_sign(tl.where(a < 1.0, a + a * z * p, tl.where(x == x, large, x)), x)


@kernel
def hyperbolic_cosine(x):
    """Return cosh(x)."""
    m, first, second = exponential_parts(tl.abs(x))
    half = (1.0 + m) * first * (second * 0.5)
    r = half + divide(tl.full(x.shape, 0.25, tl.float32), half)
    return tl.where(x == x, r, x)


@kernel
def inverse_hyperbolic(OP: tl.constexpr, x):
    """Return asinh(x), acosh(x) or atanh(x), all by log(1 + t)."""
    a = tl.abs(x)
    if OP == "asinh":
        b = tl.where(a > 10000.0, 1.0, a)
        t = b + b * b / (1.0 + square_root(b * b + 1.0))
        far = logarithm(a) + 0.6931471824645996
        r = copy_sign(tl.where(a > 10000.0, far, log_one_plus(t)), x)
    elif OP == "acosh":
        b = tl.where(x > 10000.0, 0.0, x - 1.0)
        near = log_one_plus(b + square_root(2.0 * b + b * b))
        r = tl.where(x > 10000.0, logarithm(x) + 0.6931471824645996, near)
        r = tl.where(x < 1.0, float("nan"), r)
    else:
        r = copy_sign(0.5 * log_one_plus(divide(2.0 * a, 1.0 - a)), x)
    return r


@kernel
def arctangent_of_share(t):
    """Return atan(t) for t of 0 to 1, as a head that is exact in float32 and the rest."""
    far = t > 0.41421357
    w = tl.where(far, divide(t - 1.0, t + 1.0), t)
    z = w * w
    p = z * -0.06466443836688995 + 0.10748737305402756
    p = p * z + -0.1426449567079544
    p = p * z + 0.19999559223651886
    p = p * z + -0.3333333134651184
    # pi / 4 is the head and 2e-8 less.
    rest = w + (w * z * p + tl.where(far, -2.1855694e-8, 0.0))
    return tl.where(far, 0.7853981852531433, 0.0), rest


@kernel
def angle_of(y, x):
    """Return atan2(y, x)."""
    a = tl.abs(y)
    b = tl.abs(x)
    low = tl.where(a < b, a, b)
    high = tl.where(a < b, b, a)
    ratio = divide(low, tl.where(high == 0.0, 1.0, high))
    # Equal ones, infinities among them.
    ratio = tl.where(a == b, tl.where(a == 0.0, 0.0, 1.0), ratio)
    head, rest = arctangent_of_share(tl.where(ratio == ratio, ratio, 0.0))
    # Turned by pi / 2 and pi, each a float32 and what it lacks.
    turned = a > b
    head = tl.where(turned, 1.5707963705062866 - head, head)
    rest = tl.where(turned, -4.371139e-8 - rest, rest)
    back = is_negative(x)
    head = tl.where(back, 3.1415927410125732 - head, head)
    rest = tl.where(back, -8.742278e-8 - rest, rest)
    return tl.where((x != x) | (y != y), x + y, copy_sign(head + rest, y))


@kernel
def arcsine_parts(x):
    """Return s and asin(s), where s is |x|, or sqrt((1 - |x|) / 2) where |x| is above a half."""
    a = tl.abs(x)
    near = a <= 0.5
    z = tl.where(near, a * a, (1.0 - a) * 0.5)
    s = tl.where(near, a, square_root(z))
    p = z * 0.033929094672203064 + 0.01700020395219326
    p = p * z + 0.031133338809013367
    p = p * z + 0.04459646716713905
    p = p * z + 0.07500103861093521
    p = p * z + 0.1666666567325592
    return near, s + s * z * p


@kernel
def arcsine(x):
    """Return asin(x)."""
    near, s = arcsine_parts(x)
    return copy_sign(tl.where(near, s, 1.5707963705062866 - (2.0 * s + 4.371139e-8)), x)


@kernel
def arccosine(x):
    """Return acos(x)."""
    near, s = arcsine_parts(x)
    middle = 1.5707963705062866 - (copy_sign(s, x) + 4.371139e-8)
    left = 3.1415927410125732 - (2.0 * s + 8.742278e-8)
    return tl.where(near, middle, tl.where(x < 0.0, left, 2.0 * s))


@kernel
def analytic(OP: tl.constexpr, x, y):
    """The functions of elementwise.library for float32."""
    if OP == "expm1":
        r = less_one(x)
    elif OP == "log1p":
        r = log_one_plus(x)
    elif OP == "tan":
        # A device may take subnormal numbers for 0.
        r = tl.where(tl.abs(x) < 1e-4, x, divide(tl.sin(x), tl.cos(x)))
    elif OP == "asin":
        r = arcsine(x)
    elif OP == "acos":
        r = arccosine(x)
    elif OP == "atan":
        r = angle_of(x, tl.full(x.shape, 1.0, tl.float32))
    elif OP == "atan2":
        r = angle_of(x, y)
    elif OP == "sinh":
        r = hyperbolic_sine(x)
    elif OP == "cosh":
        r = hyperbolic_cosine(x)
    elif OP == "logaddexp":
        r = log_sum(x, y)
    else:
        r = inverse_hyperbolic(OP, x)
    return r


@kernel
def short_logarithm(x):
    """Return log(x) of positive normal float64 to 38 bits."""
    bits = x.to(tl.int64, bitcast=True)
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52
    m = (bits - (exponent << 52)).to(tl.float64, bitcast=True)
    # (m - 1) / (m + 1) from a reciprocal of float32 and one step of Newton's.
    f = m - 1.0
    d = m + 1.0
    near = divide(tl.full(x.shape, 1.0, tl.float32), d.to(tl.float32)).to(tl.float64)
    s = f * near
    s = s + near * tl.fma(-s, d, f)
    z = s * s
    p = z * (2.0 / 13.0) + 2.0 / 11.0
    p = p * z + 2.0 / 9.0
    p = p * z + 2.0 / 7.0
    p = p * z + 0.4
    p = p * z + 2.0 / 3.0
    return exponent.to(tl.float64) * 0.6931471805599453 + (2.0 * s + s * z * p)


@kernel
def short_exponential(x):
    """Return exp(x) of float64 to 32 bits; beyond 140 it stays as it is there."""
    x = tl.where(x > 140.0, 140.0, tl.where(x < -140.0, -140.0, x))
    whole = (x * 1.4426950408889634 + 6755399441055744.0) - 6755399441055744.0
    g = x - whole * 0.6931471805599453
    e = g * (1.0 / 40320.0) + 1.0 / 5040.0
    e = e * g + 1.0 / 720.0
    e = e * g + 1.0 / 120.0
    e = e * g + 1.0 / 24.0
    e = e * g + 1.0 / 6.0
    e = e * g + 0.5
    e = (e * g) * g + g + 1.0
    return e * ((whole.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@kernel
def power_of_single(x, y):
    """Return x to the power y."""
    magnitude = tl.abs(x)
    ordinary = (magnitude > 0.0) & (magnitude < float("inf"))
    t = y.to(tl.float64) * short_logarithm(tl.where(ordinary, magnitude, 1.0).to(tl.float64))
    # Infinity times 0 is settled by finished_power.
    return finished_power(x, y, short_exponential(tl.where(t == t, t, 0.0)).to(tl.float32))


@kernel
def log_sum(x, y):
    """Return log(exp(x) + exp(y)); in float64, as the sum may come near 1."""
    high = tl.where(x > y, x, y).to(tl.float64)
    low = tl.where(x > y, y, x).to(tl.float64)
    e = short_exponential(tl.where(x == y, 0.0, low - high))
    u = 1.0 + e
    # What the sum loses, to first order.
    r = (high + (short_logarithm(u) + (e - (u - 1.0)) / u)).to(tl.float32)
    return tl.where((x != x) | (y != y), x + y, r)


@kernel
def remainder_of_single(x, y):
    """Return fmod(x, y) in float64, without error, and floor(|x / y|) but where the third is true.

    A whole number below 2^29 times a float32 is exact in float64; where the quotient is longer it
    is divided bit by bit, and the whole number is not known.
    """
    a = tl.abs(x).to(tl.float64)
    b = tl.abs(y).to(tl.float64)
    usable = (a < float("inf")) & (b > 0.0) & (b < float("inf"))
    # Shorter divisors have no reciprocal in float32.
    far = usable & ((b < 1e-37) | (a >= b * 536870912.0))
    u = tl.where(usable & ~far, a, 0.0)
    v = tl.where(usable & ~far, b, 1.0)
    near = (1.0 / v.to(tl.float32)).to(tl.float64)
    near = near + near * tl.fma(-v, near, tl.full(v.shape, 1.0, tl.float64))
    quotient = tl.floor(u * near)
    rest = tl.fma(-quotient, v, u)
    quotient = tl.where(rest < 0.0, quotient - 1.0, tl.where(rest >= v, quotient + 1.0, quotient))
    rest = tl.fma(-quotient, v, u)
    rest = tl.where(b == float("inf"), a, rest)
    bad = (x != x) | (y != y) | (a == float("inf")) | (b == 0.0)
    r = tl.where(bad, float("nan"), copy_sign(rest, x.to(tl.float64)))
    if tl.max(far.to(tl.int32), 0) > 0:
        r = tl.where(far, exact_remainder(x.to(tl.float64), y.to(tl.float64)), r)
    return r, quotient, far


@kernel
def floor_quotient_of_single(x, y):
    """Return floor(x / y), with infinities x / y itself, as the array API says."""
    rest, quotient, far = remainder_of_single(x, y)
    apart = (x < 0.0) != (y < 0.0)
    down = tl.where(apart & (rest != 0.0), quotient + 1.0, quotient)
    r = tl.where(apart, -1.0 * down, down).to(tl.float32)
    share = divide(x, y)
    r = tl.where(r == 0.0, copy_sign(r, share), r)
    r = tl.where((y == 0.0) | (rest != rest), tl.where(y == 0.0, share, float("nan")), r)
    if tl.max(far.to(tl.int32), 0) > 0:
        other = y.to(tl.float64)
        r = tl.where(far, floor_quotient(rest, x.to(tl.float64), other).to(tl.float32), r)
    infinite = (tl.abs(x) == float("inf")) | (tl.abs(y) == float("inf"))
    return tl.where(infinite, share, r)
