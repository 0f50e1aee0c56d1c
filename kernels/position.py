"""Rotary positions."""

from __future__ import annotations

import triton.language as tl
from nbxtensor.kernels.carrier import narrow, widen
from nbxtensor.runtime import kernel


@kernel
def rope(out, x, positions, base, scale, length, heads, width, rotary, x0, x1, x2, x3,
         o0, o1, o2, o3, p0, p1, INTERLEAVED: tl.constexpr, T: tl.constexpr,
         KIND: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr, BH: tl.constexpr,
         BP: tl.constexpr):  # fmt: skip
    """Rotate the pairs of one token's heads; the columns past `rotary` are copied.

    Angles are float64: a float32 angle is wrong from the second digit on at positions of 10^5.
    """
    token = tl.program_id(0)
    head = tl.program_id(1) * BH + tl.arange(0, BH)
    if WIDE:
        token = token.to(tl.int64)
        head = head.to(tl.int64)
    batch = token // length
    place = token % length
    position = tl.load(positions + batch * p0 + place * p1).to(tl.float64) * scale
    pair = tl.arange(0, BP)
    pairs = rotary // 2
    turns = pair.to(tl.float64) * (-2.0 / tl.where(rotary > 0, rotary, 1).to(tl.float64))
    logarithm = tl.log(tl.zeros([BP], tl.float64) + base)
    angle = position * tl.exp(turns * logarithm)
    cosine = tl.cos(angle)[None, :]
    sine = tl.sin(angle)[None, :]
    if T == "float32":
        cosine = cosine.to(tl.float32)
        sine = sine.to(tl.float32)
    if INTERLEAVED:
        first = pair * 2
        second = pair * 2 + 1
    else:
        first = pair
        second = pair + pairs
    source = x + batch * x0 + place * x1 + head[:, None] * x2
    target = out + batch * o0 + place * o1 + head[:, None] * o2
    mask = (head < heads)[:, None] & (pair < pairs)[None, :]
    a = widen(tl.load(source + first[None, :] * x3, mask=mask, other=0), KIND, T)
    b = widen(tl.load(source + second[None, :] * x3, mask=mask, other=0), KIND, T)
    E: tl.constexpr = out.dtype.element_ty
    tl.store(target + first[None, :] * o3, narrow(a * cosine - b * sine, KIND, E), mask=mask)
    tl.store(target + second[None, :] * o3, narrow(b * cosine + a * sine, KIND, E), mask=mask)
    if REST > 0:
        column = rotary + tl.arange(0, REST)
        mask = (head < heads)[:, None] & (column < width)[None, :]
        value = tl.load(source + column[None, :] * x3, mask=mask, other=0)
        tl.store(target + column[None, :] * o3, value, mask=mask)
