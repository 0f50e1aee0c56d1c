"""Functions of real numbers.

In float32 they are polynomials of our own, within a few units in the last place, since a device's
own may be faster and worse; in float64 they come from exp, log, sin and cos of the device. What is
rarely used is computed in float64 for both.
"""

from __future__ import annotations

import triton.language as tl
from nbxtensor.kernels.carrier import bits_of_float, float_of_bits
from nbxtensor.runtime import kernel


@kernel
def copy_sign(x, y):
    """Return the magnitude of x with the sign of y."""
    if x.dtype == tl.float64:
        mask = tl.full(x.shape, 0x7FFFFFFFFFFFFFFF, tl.int64)
        bits = (x.to(tl.int64, bitcast=True) & mask) | (y.to(tl.int64, bitcast=True) & ~mask)
        r = bits.to(tl.float64, bitcast=True)
    else:
        bits = (bits_of_float(x) & 0x7FFFFFFF) | (bits_of_float(y) & 0x80000000)
        r = float_of_bits(bits.to(tl.uint32))
    return r


@kernel
def is_negative(x):
    """Return whether the sign bit is set, also that of -0 and NaN."""
    if x.dtype == tl.float64:
        r = x.to(tl.int64, bitcast=True) < 0
    else:
        r = x.to(tl.int32, bitcast=True) < 0
    return r


@kernel
def divide(x, y):
    """Return the correctly rounded quotient."""
    if x.dtype == tl.float32:
        r = tl.div_rn(x, y)
    else:
        r = x / y
    return r


@kernel
def square_root(x):
    """Return the correctly rounded square root."""
    if x.dtype == tl.float32:
        r = tl.sqrt_rn(x)
    else:
        r = tl.sqrt(x)
    return r


@kernel
def exponential_parts(x):
    """Return m, a and b with exp(x) = (1 + m) a b for float32; a and b are powers of two.

    The power is in two halves, so that neither leaves the range.
    """
    # Past these the result is infinity or 0 whatever the argument.
    low = tl.where(x < -115.0, -115.0, x)
    argument = tl.where(low > 90.0, 90.0, low)
    # The sum's last bits are the whole part of x / ln 2.
    shifted = argument * 1.4426950216293335 + 12582912.0
    whole = shifted - 12582912.0
    f = argument - whole * 0.693145751953125
    f = f - whole * 1.428606765330187e-06
    p = f * 0.00019917669123969972 + 0.0013945853570476174
    p = p * f + 0.008333265781402588
    p = p * f + 0.04166627302765846
    p = p * f + 0.1666666716337204
    p = p * f + 0.5
    exponent = shifted.to(tl.int32, bitcast=True) - 0x4B400000
    half = exponent >> 1
    first = ((half + 127) << 23).to(tl.float32, bitcast=True)
    second = ((exponent - half + 127) << 23).to(tl.float32, bitcast=True)
    return (p * f) * f + f, first, second


@kernel
def exponential(x):
    """Return exp(x); in float32 within 2 units, subnormal results included."""
    if x.dtype == tl.float64:
        r = tl.exp(x)
    else:
        m, first, second = exponential_parts(x)
        r = tl.where(x == x, (1.0 + m) * first * second, x)
    return r


@kernel
def logarithm(x):
    """Return log(x); in float32 within 2 units."""
    if x.dtype == tl.float64:
        r = tl.log(x)
    else:
        tiny = x < 1.1754943508222875e-38
        bits = tl.where(tiny, x * 8388608.0, x).to(tl.int32, bitcast=True)
        # The mantissa is taken from [sqrt(1/2), sqrt(2)).
        exponent = (bits - 0x3F3504F3) >> 23
        mantissa = (bits - (exponent << 23)).to(tl.float32, bitcast=True)
        power = exponent.to(tl.float32) - tl.where(tiny, 23.0, 0.0)
        f = mantissa - 1.0
        # Of a share of f, what the quotient lacks in its last bits does not count.
        s = f / (2.0 + f)
        z = s * s
        p = z * 0.23586952686309814 + 0.2853710353374481
        p = p * z + 0.4000033736228943
        p = p * z + 0.6666666269302368
        p = p * z
        # log(1 + f) = f - s (f - z p), which keeps the leading term exact.
        rest = power * -2.12194440e-4 - s * (f - p)
        r = rest + f + power * 0.693359375
        r = tl.where(x == 0.0, float("-inf"), r)
        r = tl.where(x == float("inf"), x, r)
        r = tl.where((x < 0.0) | (x != x), float("nan"), r)
    return r


@kernel
def exponential_minus_one(x):
    """Return exp(x) - 1 for float64 (Kahan's way: the errors of exp and log cancel)."""
    u = tl.exp(x)
    v = u - 1.0
    r = v * x / tl.log(u)
    r = tl.where(u == 1.0, x, r)
    r = tl.where((x > 40.0) | (u != u), u, r)
    return tl.where(x < -40.0, -1.0, r)


@kernel
def logarithm_of_one_plus(x):
    """Return log(1 + x) for float64 (Kahan's way)."""
    u = 1.0 + x
    r = tl.log(u) * x / (u - 1.0)
    r = tl.where(u == 1.0, x, r)
    return tl.where(x == float("inf"), x, r)


@kernel
def hyperbolic_tangent(x):
    """Return tanh(x); in float32 within 3 units."""
    magnitude = tl.abs(x)
    if x.dtype == tl.float64:
        e = exponential_minus_one(2.0 * tl.where(magnitude > 20.0, 20.0, magnitude))
        r = copy_sign(tl.where(magnitude > 20.0, 1.0, e / (e + 2.0)), x)
        r = tl.where(x == x, r, x)
    else:
        z = x * x
        p = z * -0.005835008341819048 + 0.020749470219016075
        p = p * z + -0.05377177149057388
        p = p * z + 0.13331806659698486
        p = p * z + -0.33333295583724976
        small = magnitude * z * p + magnitude
        large = 1.0 - divide(tl.full(x.shape, 2.0, tl.float32), exponential(2.0 * magnitude) + 1.0)
        r = copy_sign(tl.where(magnitude < 0.6, small, large), x)
    return r


@kernel
def sigmoid(x):
    """Return 1 / (1 + exp(-x)), relatively accurate in both tails."""
    decay = exponential(-tl.abs(x))
    share = divide(tl.full(x.shape, 1.0, x.dtype), 1.0 + decay)
    return tl.where(x < 0.0, decay * share, share)


@kernel
def error_tail(magnitude):
    """Return 1 - erf(x) for x of at least 0.9, to an absolute error of 1e-8."""
    x = tl.where(magnitude > 4.0, 4.0, magnitude)
    p = x * 2.0909563318127766e-05 + -0.0004323030880186707
    p = p * x + 0.004160527139902115
    p = p * x + -0.025091497227549553
    p = p * x + 0.10823661834001541
    p = p * x + 0.6333866715431213
    p = p * x + 1.1294951438903809
    p = p * x + -0.00017055212811101228
    return tl.where(magnitude > 4.0, 0.0, exponential(-p))


@kernel
def error_core(x):
    """Return erf(x) for |x| < 0.9."""
    z = x * x
    p = z * -0.0006021806038916111 + 0.004999601282179356
    p = p * z + -0.02677128277719021
    p = p * z + 0.11281955242156982
    p = p * z + -0.3761250674724579
    p = p * z + 0.12837915122509003
    return x * p + x


@kernel
def error_function(x):
    """Return erf(x); in float32 within 3 units."""
    if x.dtype == tl.float64:
        r = tl.erf(x)
    else:
        magnitude = tl.abs(x)
        large = copy_sign(1.0 - error_tail(magnitude), x)
        r = tl.where(magnitude < 0.9, error_core(x), large)
        r = tl.where(x == x, r, x)
    return r


@kernel
def one_plus_error(x):
    """Return 1 + erf(x), in float32 without cancellation in the negative tail."""
    if x.dtype == tl.float64:
        r = 1.0 + tl.erf(x)
    else:
        magnitude = tl.abs(x)
        tail = error_tail(magnitude)
        large = tl.where(x < 0.0, tail, 2.0 - tail)
        r = tl.where(magnitude < 0.9, 1.0 + error_core(x), large)
        r = tl.where(x == x, r, x)
    return r


@kernel
def log_one_plus_exp(x):
    """Return log(1 + exp(x)) of float64 without overflow."""
    return tl.where(x > 0.0, x, 0.0) + logarithm_of_one_plus(tl.exp(-tl.abs(x)))


@kernel
def gelu(x, TANH: tl.constexpr):
    """Return the Gaussian error linear unit."""
    if TANH:
        cubic = x + 0.044715 * x * x * x
        r = 0.5 * x * (1.0 + hyperbolic_tangent(0.7978845608028654 * cubic))
    else:
        r = 0.5 * x * one_plus_error(x * 0.7071067811865476)
    return r


@kernel
def round_half_even(x):
    """Return the nearest whole numbers."""
    if x.dtype == tl.float64:
        limit = 4503599627370496.0
    else:
        limit = 8388608.0
    magnitude = tl.abs(x)
    whole = (magnitude + limit) - limit
    return tl.where(magnitude < limit, copy_sign(whole, x), x)


@kernel
def truncate(x):
    """Return x rounded towards zero."""
    return tl.where(is_negative(x), tl.ceil(x), tl.floor(x))


@kernel
def arctangent(x):
    """Return atan(x) for float64 of 0 to 1: the nearest quarter's, then a series."""
    place = (x * 4.0 + 0.5).to(tl.int32)
    c = place.to(tl.float64) * 0.25
    # Whole tensors: a literal beside a condition would be rounded to float32.
    known = tl.full(x.shape, 0.0, tl.float64)
    known = tl.where(place == 1, tl.full(x.shape, 0.24497866312686414, tl.float64), known)
    known = tl.where(place == 2, tl.full(x.shape, 0.4636476090008061, tl.float64), known)
    known = tl.where(place == 3, tl.full(x.shape, 0.6435011087932844, tl.float64), known)
    known = tl.where(place >= 4, tl.full(x.shape, 0.7853981633974483, tl.float64), known)
    t = (x - c) / (1.0 + x * c)
    z = t * t
    p = z * (-1.0 / 19.0) + 1.0 / 17.0
    p = p * z + -1.0 / 15.0
    p = p * z + 1.0 / 13.0
    p = p * z + -1.0 / 11.0
    p = p * z + 1.0 / 9.0
    p = p * z + -1.0 / 7.0
    p = p * z + 0.2
    p = p * z + -1.0 / 3.0
    return known + (t + t * z * p)


@kernel
def angle(y, x):
    """Return atan2(y, x) for float64."""
    a = tl.abs(y)
    b = tl.abs(x)
    low = tl.where(a < b, a, b)
    high = tl.where(a < b, b, a)
    ratio = tl.where(high == 0.0, 0.0, low / tl.where(high == 0.0, 1.0, high))
    # Equal ones, infinities among them.
    ratio = tl.where(a == b, tl.where(a == 0.0, 0.0, 1.0), ratio)
    turned = arctangent(tl.where(ratio == ratio, ratio, 0.0))
    turned = tl.where(a > b, 1.5707963267948966 - turned, turned)
    turned = tl.where(is_negative(x), 3.141592653589793 - turned, turned)
    turned = copy_sign(turned, y)
    return tl.where((x != x) | (y != y), x + y, turned)


@kernel
def power_logarithm(x):
    """Return log(x) of positive finite float64 as a sum of two numbers."""
    tiny = x < 2.2250738585072014e-308
    bits = tl.where(tiny, x * 18014398509481984.0, x).to(tl.int64, bitcast=True)
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52
    m = (bits - (exponent << 52)).to(tl.float64, bitcast=True)
    e = exponent.to(tl.float64) - tl.where(tiny, 54.0, 0.0)
    f = m - 1.0
    d = m + 1.0
    d_rest = m - (d - 1.0)
    s = f / d
    s_rest = (tl.fma(-s, d, f) - s * d_rest) / d
    z = s * s
    p = z * (2.0 / 21.0) + 2.0 / 19.0
    p = p * z + 2.0 / 17.0
    p = p * z + 2.0 / 15.0
    p = p * z + 2.0 / 13.0
    p = p * z + 2.0 / 11.0
    p = p * z + 2.0 / 9.0
    p = p * z + 2.0 / 7.0
    p = p * z + 0.4
    p = p * z + 2.0 / 3.0
    head = e * 0.6931471803691238
    high = head + 2.0 * s
    rest = (head - high) + 2.0 * s
    rest += e * 1.9082149292705877e-10 + 2.0 * s_rest + s * z * p
    total = high + rest
    return total, (high - total) + rest


@kernel
def finished_power(x, y, r):
    """Return x to the power y as C says it; r is that of |x| where it is positive and finite."""
    magnitude = tl.abs(x)
    ordinary = (magnitude > 0.0) & (magnitude < float("inf"))
    whole = tl.floor(y) == y
    # Halves of whole numbers past the mantissa are whole again.
    odd = whole & (tl.floor(y * 0.5) * 2.0 != y)
    # Of 0 and infinity the power is one of them again.
    up = (magnitude == 0.0) != (y > 0.0)
    r = tl.where(ordinary, r, tl.where(up, float("inf"), 0.0))
    r = tl.where(is_negative(x) & odd, copy_sign(r, x), r)
    r = tl.where((x < 0.0) & ~whole & (magnitude < float("inf")), float("nan"), r)
    r = tl.where((magnitude == 1.0) & (tl.abs(y) == float("inf")), 1.0, r)
    r = tl.where((x != x) | (y != y), x + y, r)
    return tl.where((y == 0.0) | (x == 1.0), 1.0, r)


@kernel
def power(x, y):
    """Return x to the power y for float64, as C says it."""
    magnitude = tl.abs(x)
    ordinary = (magnitude > 0.0) & (magnitude < float("inf"))
    high, low = power_logarithm(tl.where(ordinary, magnitude, 1.0))
    product = y * high
    rest = tl.fma(y, high, -product) + y * low
    grown = tl.exp(product)
    finite = (grown > 0.0) & (grown < float("inf")) & (rest == rest)
    return finished_power(x, y, tl.where(finite, grown * (1.0 + rest), grown))


@kernel
def exact_remainder(x, y):
    """Return fmod(x, y) of float64, without error: a long division of the mantissas."""
    a = tl.abs(x)
    b = tl.abs(y)
    usable = (a < float("inf")) & (b > 0.0) & (b == b) & (a >= b)
    a = tl.where(usable, a, 1.0)
    b = tl.where(usable, b, 1.0)
    b = tl.where(b < float("inf"), b, 1.0)
    # Subnormal numbers are lifted together.
    lift = tl.where(b < 2.2250738585072014e-308, 18014398509481984.0, 1.0)
    near = a * lift < float("inf")
    a_bits = tl.where(near, a * lift, a).to(tl.int64, bitcast=True)
    a_shift = tl.where(near, 0, 54)
    b_bits = (b * lift).to(tl.int64, bitcast=True)
    left = (a_bits >> 52) + a_shift - (b_bits >> 52)
    rest = (a_bits & 0xFFFFFFFFFFFFF) | 0x10000000000000
    divisor = (b_bits & 0xFFFFFFFFFFFFF) | 0x10000000000000
    rest = rest % divisor
    while tl.max(left, 0) > 0:
        by = tl.where(left > 10, 10, tl.where(left > 0, left, 0))
        rest = (rest << by) % divisor
        left -= by
    # rest times the unit of b: two factors, so that neither leaves the range.
    exponent = b_bits >> 52
    value = rest.to(tl.float64) * 2.220446049250313e-16
    unit = (exponent << 52).to(tl.float64, bitcast=True)
    r = value * unit / lift
    whole = tl.where(usable, r, tl.abs(x))
    bad = (x != x) | (y != y) | (tl.abs(x) == float("inf")) | (y == 0.0)
    return tl.where(bad, float("nan"), copy_sign(whole, x))


@kernel
def floor_quotient(rest, a, b):
    """Return floor(a / b) of float64, with infinities a / b itself; `rest` is fmod(a, b)."""
    safe = tl.where(b == 0.0, 1.0, b)
    quotient = (a - rest) / safe
    quotient = tl.where((rest != 0.0) & ((b < 0.0) != (rest < 0.0)), quotient - 1.0, quotient)
    whole = tl.floor(quotient)
    # The division above may have come out a hair off a whole number.
    whole = tl.where(quotient - whole > 0.5, whole + 1.0, whole)
    r = tl.where(quotient == 0.0, copy_sign(quotient, a / b), whole)
    infinite = (tl.abs(a) == float("inf")) | (tl.abs(b) == float("inf"))
    return tl.where((b == 0.0) | infinite, a / b, r)
