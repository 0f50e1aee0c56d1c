"""Elements in memory and the carriers in which kernels compute.

A carrier is one of five types, named by text: bool (as int8 of 0 and 1), int64, uint64, float32,
float64. `KIND` says what an element's bits mean where its type alone does not: a bool comes as
bytes, the 8-bit floats come as their bits.

The rules are those of csrc/cpu/cast.h: float to integer truncates, saturates and takes NaN to 0;
integer to integer wraps; anything to bool is "not zero"; floats narrow by one rounding.
"""

from __future__ import annotations

import triton.language as tl
from nbxtensor.runtime import kernel


@kernel
def bits_of_float(x):
    """Return the bits of float32 numbers."""
    return x.to(tl.uint32, bitcast=True)


@kernel
def float_of_bits(bits):
    """Return the float32 numbers of these bits."""
    return bits.to(tl.float32, bitcast=True)


@kernel
def decode_e4m3(x):
    """Return float8_e4m3fn bits as float32."""
    wide = x.to(tl.uint32)
    magnitude = (wide & 0x7F) << 20
    value = bits_of_float(float_of_bits(magnitude) * 1.329227995784916e36)
    value = tl.where(magnitude == 0x07F00000, 0x7FC00000, value)
    return float_of_bits((value | ((wide & 0x80) << 24)).to(tl.uint32))


@kernel
def decode_e5m2(x):
    """Return float8_e5m2 bits as float32."""
    half = (x.to(tl.uint16) << 8).to(tl.float16, bitcast=True)
    return half.to(tl.float32)


@kernel
def narrow_bits(magnitude, DROPPED: tl.constexpr, BIAS: tl.constexpr, MAGIC: tl.constexpr,
                LEAST_NORMAL: tl.constexpr):  # fmt: skip
    """Return the rounded bits of finite float32 magnitudes in a narrower type."""
    odd = (magnitude >> DROPPED) & 1
    moved = magnitude - ((127 - BIAS) << 23) + ((1 << (DROPPED - 1)) - 1) + odd
    normal = moved.to(tl.uint32) >> DROPPED
    # The adder rounds where the magic number's last place is the least subnormal.
    magic = tl.full(magnitude.shape, MAGIC, tl.float32)
    subnormal = bits_of_float(float_of_bits(magnitude) + magic) - bits_of_float(magic)
    return tl.where(magnitude < LEAST_NORMAL, subnormal, normal)


@kernel
def encode_e4m3(x):
    """Return float32 numbers as float8_e4m3fn bits: past the tie above 448 there is only NaN."""
    bits = bits_of_float(x)
    magnitude = bits & 0x7FFFFFFF
    value = narrow_bits(magnitude, 20, 7, 16384.0, 0x3C800000)
    value = tl.where(magnitude > 0x43E80000, 0x7F, value)
    return (value | ((bits >> 24) & 0x80)).to(tl.uint8)


@kernel
def encode_e5m2(x):
    """Return float32 numbers as float8_e5m2 bits."""
    bits = bits_of_float(x)
    magnitude = bits & 0x7FFFFFFF
    value = narrow_bits(magnitude, 21, 15, 128.0, 0x38800000)
    special = tl.where(magnitude > 0x7F800000, 0x7E, 0x7C)
    value = tl.where(magnitude >= 0x47800000, special, value)
    return (value | ((bits >> 24) & 0x80)).to(tl.uint8)


@kernel
def round_to_odd(x):
    """Return float64 numbers as float32 such that a further rounding is the only one."""
    near = x.to(tl.float32)
    back = near.to(tl.float64)
    bits = bits_of_float(near)
    away = tl.where(tl.abs(back) > tl.abs(x), 1, 0).to(tl.uint32)
    odd = (bits - away) | 1
    exact = (back == x) | (x != x)
    return float_of_bits(tl.where(exact, bits, odd).to(tl.uint32))


@kernel
def sticky_double(x):
    """Return 64-bit integers as float64 whose last bit tells whether any was dropped."""
    negative = x < 0
    magnitude = x.to(tl.uint64, bitcast=True)
    magnitude = tl.where(negative, (~magnitude + 1).to(tl.uint64), magnitude)
    kept = (magnitude >> 11) << 11
    sticky = tl.where(kept != magnitude, kept | 0x800, kept).to(tl.uint64)
    value = tl.where((magnitude >> 53) != 0, sticky, magnitude).to(tl.uint64).to(tl.float64)
    return tl.where(negative, -value, value)


@kernel
def saturate(x, E: tl.constexpr, LOW: tl.constexpr, GREATEST: tl.constexpr, LIMIT: tl.constexpr):
    """Return floats as integers of type E; GREATEST is the last float within, LIMIT the limit."""
    number = tl.where(x == x, x, 0.0)
    low = tl.full(x.shape, LOW, x.dtype)
    greatest = tl.full(x.shape, GREATEST, x.dtype)
    inside = tl.where(number > greatest, greatest, tl.where(number < low, low, number))
    limit = tl.full(x.shape, LIMIT, E)
    return tl.where(number > greatest, limit, inside.to(E))


@kernel
def to_integer(x, E: tl.constexpr):
    """Return floats truncated to integers of type E."""
    if tl.int8 == E:
        r = saturate(x, E, -128.0, 127.0, 127)
    elif tl.int16 == E:
        r = saturate(x, E, -32768.0, 32767.0, 32767)
    elif tl.uint8 == E:
        r = saturate(x, E, 0.0, 255.0, 255)
    elif tl.uint16 == E:
        r = saturate(x, E, 0.0, 65535.0, 65535)
    elif x.dtype == tl.float64:
        if tl.int32 == E:
            r = saturate(x, E, -2147483648.0, 2147483647.0, 2147483647)
        elif tl.uint32 == E:
            r = saturate(x, E, 0.0, 4294967295.0, 4294967295)
        elif tl.int64 == E:
            r = saturate(x, E, -9223372036854775808.0, 9223372036854774784.0, 9223372036854775807)
        else:
            r = saturate(x, E, 0.0, 18446744073709549568.0, 18446744073709551615)
    elif tl.int32 == E:
        r = saturate(x, E, -2147483648.0, 2147483520.0, 2147483647)
    elif tl.uint32 == E:
        r = saturate(x, E, 0.0, 4294967040.0, 4294967295)
    elif tl.int64 == E:
        r = saturate(x, E, -9223372036854775808.0, 9223371487098961920.0, 9223372036854775807)
    else:
        r = saturate(x, E, 0.0, 18446742974197923840.0, 18446744073709551615)
    return r


@kernel
def widen(x, KIND: tl.constexpr, T: tl.constexpr):
    """Return elements as read from memory in the carrier T."""
    if KIND == "bool":
        value = (x != 0).to(tl.int8)
    elif KIND == "e4m3":
        value = decode_e4m3(x)
    elif KIND == "e5m2":
        value = decode_e5m2(x)
    else:
        value = x
    if T == "bool":
        r = (value != 0).to(tl.int8)
    elif T == "float32":
        r = value.to(tl.float32)
    elif T == "float64":
        r = value.to(tl.float64)
    elif T == "int64":
        if value.dtype.is_floating():
            r = to_integer(value.to(tl.float64), tl.int64)
        else:
            r = value.to(tl.int64)
    else:
        if value.dtype.is_floating():
            r = to_integer(value.to(tl.float64), tl.uint64)
        elif KIND == "bool":
            r = value.to(tl.uint64)
        else:
            r = value.to(tl.int64).to(tl.uint64, bitcast=True)
    return r


@kernel
def single(x):
    """Return numbers of any carrier as float32, to be narrowed once more without a second error."""
    if x.dtype == tl.float32:
        r = x
    elif x.dtype == tl.float64:
        r = round_to_odd(x)
    elif x.dtype == tl.int8:
        r = x.to(tl.float32)
    else:
        r = round_to_odd(sticky_double(x))
    return r


@kernel
def narrow(x, KIND: tl.constexpr, E: tl.constexpr):
    """Return numbers of any carrier as elements of memory type E."""
    if KIND == "bool":
        r = (x != 0).to(E)
    elif KIND == "e4m3":
        r = encode_e4m3(single(x))
    elif KIND == "e5m2":
        r = encode_e5m2(single(x))
    elif tl.float16 == E:
        r = single(x).to(tl.float16)
    elif tl.bfloat16 == E:
        r = single(x).to(tl.bfloat16)
    elif tl.float32 == E:
        r = x.to(tl.float32)
    elif tl.float64 == E:
        r = x.to(tl.float64)
    elif x.dtype.is_floating():
        r = to_integer(x, E)
    else:
        r = x.to(E)
    return r


@kernel
def spot(index, RANK: tl.constexpr, d0, d1, d2, d3, d4, d5, d6, s0, s1, s2, s3, s4, s5, s6, s7):
    """Return the offset of element number `index`: axis 0 is the innermost, of extent d0."""
    rest = index
    if RANK == 0:
        offset = index * 0
    elif RANK == 1:
        offset = rest * s0
    else:
        offset = (rest % d0) * s0
        rest = rest // d0
        if RANK == 2:
            offset += rest * s1
        else:
            offset += (rest % d1) * s1
            rest = rest // d1
            if RANK == 3:
                offset += rest * s2
            else:
                offset += (rest % d2) * s2
                rest = rest // d2
                if RANK == 4:
                    offset += rest * s3
                else:
                    offset += (rest % d3) * s3
                    rest = rest // d3
                    if RANK == 5:
                        offset += rest * s4
                    else:
                        offset += (rest % d4) * s4
                        rest = rest // d4
                        if RANK == 6:
                            offset += rest * s5
                        else:
                            offset += (rest % d5) * s5
                            rest = rest // d5
                            if RANK == 7:
                                offset += rest * s6
                            else:
                                offset += (rest % d6) * s6
                                offset += (rest // d6) * s7
    return offset


@kernel
def contracted(x, y, total, T: tl.constexpr):
    """Return total + x @ y in full precision: not every Triton has a dot of float64."""
    if T == "float32":
        r = tl.dot(x, y, total, input_precision="ieee")
    else:
        r = total + tl.sum(x[:, :, None] * y[None, :, :], 1)
    return r
