"""Orders along the last axis, by ranks or by repeated selection, and drawing from logits.

Every element has a 64-bit key of the same order: -0 counts as 0 and NaN is greatest. Of equal keys
the first element comes first, also in descending order, where the keys are inverted.
"""

from __future__ import annotations

import triton.language as tl
from nbxtensor.kernels.carrier import spot, widen
from nbxtensor.runtime import kernel


@kernel
def key_of(x, T: tl.constexpr, DESCENDING: tl.constexpr):
    """Return the keys of numbers in a carrier."""
    if T == "float32" or T == "float64":
        bits = (x.to(tl.float64) + 0.0).to(tl.int64, bitcast=True)
        key = tl.where(bits < 0, bits ^ 0x7FFFFFFFFFFFFFFF, bits)
        key = tl.where(x != x, 0x7FFFFFFFFFFFFFFF, key)
    elif T == "uint64":
        # The top bit of an unsigned number counts as a sign of its own.
        low = x.to(tl.int64, bitcast=True)
        key = (low - 0x7FFFFFFFFFFFFFFF) - 1
    else:
        key = x.to(tl.int64)
    if DESCENDING:
        key = ~key
    return key


@kernel
def ranks(values, places, x, k, kept, d0, d1, d2, d3, d4, d5, d6,
          x0, x1, x2, x3, x4, x5, x6, x7, v0, v1, v2, v3, v4, v5, v6, v7,
          i0, i1, i2, i3, i4, i5, i6, i7, along_x, along_v, along_i, T: tl.constexpr,
          KIND: tl.constexpr, DESCENDING: tl.constexpr, KEPT: tl.constexpr, BI: tl.constexpr,
          BJ: tl.constexpr):  # fmt: skip
    """Write each of k elements of a row to the place of its rank, if that is below `kept`."""
    blocks = tl.cdiv(k, BI)
    row = tl.program_id(0).to(tl.int64) // blocks
    index = (tl.program_id(0).to(tl.int64) % blocks) * BI + tl.arange(0, BI)
    source = x + spot(row, KEPT, d0, d1, d2, d3, d4, d5, d6, x0, x1, x2, x3, x4, x5, x6, x7)
    own = tl.load(source + index * along_x, mask=index < k, other=0)
    key = key_of(widen(own, KIND, T), T, DESCENDING)
    rank = tl.zeros([BI], tl.int64)
    for start in range(0, k, BJ):
        other = start + tl.arange(0, BJ).to(tl.int64)
        value = tl.load(source + other * along_x, mask=other < k, other=0)
        rival = key_of(widen(value, KIND, T), T, DESCENDING)
        before = rival[None, :] < key[:, None]
        before = before | ((rival[None, :] == key[:, None]) & (other[None, :] < index[:, None]))
        before = before & (other < k)[None, :]
        rank += tl.sum(before.to(tl.int32), 1)
    mask = (index < k) & (rank < kept)
    to_value = spot(row, KEPT, d0, d1, d2, d3, d4, d5, d6, v0, v1, v2, v3, v4, v5, v6, v7)
    to_place = spot(row, KEPT, d0, d1, d2, d3, d4, d5, d6, i0, i1, i2, i3, i4, i5, i6, i7)
    tl.store(values + to_value + rank * along_v, own, mask=mask)
    tl.store(places + to_place + rank * along_i, index, mask=mask)


@kernel
def select(values, places, x, k, kept, d0, d1, d2, d3, d4, d5, d6,
           x0, x1, x2, x3, x4, x5, x6, x7, v0, v1, v2, v3, v4, v5, v6, v7,
           i0, i1, i2, i3, i4, i5, i6, i7, along_x, along_v, along_i, T: tl.constexpr,
           KIND: tl.constexpr, DESCENDING: tl.constexpr, KEPT: tl.constexpr,
           BJ: tl.constexpr):  # fmt: skip
    """Write the first `kept` elements of a row's order, found one after another."""
    row = tl.program_id(0).to(tl.int64)
    source = x + spot(row, KEPT, d0, d1, d2, d3, d4, d5, d6, x0, x1, x2, x3, x4, x5, x6, x7)
    to_value = spot(row, KEPT, d0, d1, d2, d3, d4, d5, d6, v0, v1, v2, v3, v4, v5, v6, v7)
    to_place = spot(row, KEPT, d0, d1, d2, d3, d4, d5, d6, i0, i1, i2, i3, i4, i5, i6, i7)
    last = tl.min(tl.zeros([BJ], tl.int64), 0) - 0x7FFFFFFFFFFFFFFF - 1
    place = tl.min(tl.zeros([BJ], tl.int64), 0) - 1
    for number in range(0, kept):
        best = tl.full([BJ], 0x7FFFFFFFFFFFFFFF, tl.int64)
        found = tl.full([BJ], 0x7FFFFFFFFFFFFFFF, tl.int64)
        for start in range(0, k, BJ):
            at = start + tl.arange(0, BJ).to(tl.int64)
            value = tl.load(source + at * along_x, mask=at < k, other=0)
            key = key_of(widen(value, KIND, T), T, DESCENDING)
            after = (key > last) | ((key == last) & (at > place))
            takes = (at < k) & after & ((key < best) | (found == 0x7FFFFFFFFFFFFFFF))
            best = tl.where(takes, key, best)
            found = tl.where(takes, at, found)
        last = tl.min(best, 0)
        wins = (best == last) & (found != 0x7FFFFFFFFFFFFFFF)
        place = tl.min(tl.where(wins, found, 0x7FFFFFFFFFFFFFFF), 0)
        tl.store(values + to_value + number * along_v, tl.load(source + place * along_x))
        tl.store(places + to_place + number * along_i, place)


@kernel
def weights(source, at, along, k, top, temperature, KIND: tl.constexpr):
    """Return exp((x - top) / temperature), 0 outside the row."""
    x = widen(tl.load(source + at * along, mask=at < k, other=0), KIND, "float64")
    weight = tl.where(x == top, 1.0, tl.exp((x - top) / temperature))
    return x, tl.where(at < k, weight, 0.0)


@kernel
def share(source, along, k, top, temperature, key, KIND: tl.constexpr, BJ: tl.constexpr):
    """Return how many elements have keys above `key`, and the sum of their weights."""
    count = tl.zeros([BJ], tl.int64)
    total = tl.zeros([BJ], tl.float64)
    for start in range(0, k, BJ):
        at = start + tl.arange(0, BJ).to(tl.int64)
        x, weight = weights(source, at, along, k, top, temperature, KIND)
        above = (key_of(x, "float64", False) > key) & (at < k)
        count += above.to(tl.int64)
        total += tl.where(above, weight, 0.0)
    return tl.sum(count, 0), tl.sum(total, 0)


@kernel
def edge_of(source, along, k, top, temperature, low, wanted, COUNTS: tl.constexpr,
            KIND: tl.constexpr, BJ: tl.constexpr):  # fmt: skip
    """Return the least key of `low` at least above which less than `wanted` lies.

    That is elements where COUNTS, else the sum of their weights.
    """
    high = key_of(top, "float64", False)
    while low < high:
        middle = (low & high) + ((low ^ high) >> 1)
        count, total = share(source, along, k, top, temperature, middle, KIND, BJ)
        less = total < wanted
        if COUNTS:
            less = count < wanted
        high = tl.where(less, middle, high)
        low = tl.where(less, low, middle + 1)
    return low


@kernel
def staying(source, at, along, k, top, temperature, edge, room, used, KIND: tl.constexpr):
    """Return the weights of elements that stay, and the sum of those at the edge so far.

    Of the elements at the edge the first stay, as long as there is room, one at least.
    """
    x, weight = weights(source, at, along, k, top, temperature, KIND)
    key = key_of(x, "float64", False)
    border = tl.where((key == edge) & (at < k), weight, 0.0)
    before = used + tl.cumsum(border, 0) - border
    stays = (key > edge) | ((key == edge) & ((before < room) | (before == 0.0)))
    return tl.where(stays & (at < k), weight, 0.0), used + tl.sum(border, 0)


@kernel
def drawn(source, along, k, top, temperature, edge, room, uniform, otherwise, KIND: tl.constexpr,
          BJ: tl.constexpr):  # fmt: skip
    """Return the first element at which the share `uniform` of the weights is passed."""
    sums = tl.min(tl.zeros([BJ], tl.float64), 0)
    used = sums
    for start in range(0, k, BJ):
        at = start + tl.arange(0, BJ).to(tl.int64)
        kept, used = staying(source, at, along, k, top, temperature, edge, room, used, KIND)
        sums += tl.sum(kept, 0)
    goal = uniform * sums
    reached = sums * 0.0
    used = sums * 0.0
    pick = k.to(tl.int64)
    last = otherwise * 0
    for start in range(0, k, BJ):
        at = start + tl.arange(0, BJ).to(tl.int64)
        kept, used = staying(source, at, along, k, top, temperature, edge, room, used, KIND)
        passed = (reached + tl.cumsum(kept, 0) > goal) & (kept > 0.0)
        here = tl.min(tl.where(passed, at, k.to(tl.int64)), 0)
        pick = tl.where(here < pick, here, pick)
        final = tl.max(tl.where(kept > 0.0, at, 0), 0)
        last = tl.where(final > last, final, last)
        reached += tl.sum(kept, 0)
    return tl.where(pick < k, pick, last)


@kernel
def greatest_of(source, along, k, KIND: tl.constexpr, BJ: tl.constexpr):
    """Return the greatest element of a row, NaN aside, and its first place."""
    best = tl.full([BJ], float("-inf"), tl.float64)
    found = tl.zeros([BJ], tl.int64) + k
    for start in range(0, k, BJ):
        at = start + tl.arange(0, BJ).to(tl.int64)
        x = widen(tl.load(source + at * along, mask=at < k, other=0), KIND, "float64")
        takes = (at < k) & ((x > best) | ((found == k) & (x == x)))
        best = tl.where(takes, x, best)
        found = tl.where(takes, at, found)
    top = tl.max(best, 0)
    place = tl.min(tl.where(best == top, found, k.to(tl.int64)), 0)
    return top, tl.where(place < k, place, 0)


@kernel
def sample(out, logits, uniforms, temperature, top_k, top_p, k, row_stride, along, u_stride,
           o_stride, KIND: tl.constexpr, U: tl.constexpr, BJ: tl.constexpr):  # fmt: skip
    """Draw one id of each row from softmax(logits / temperature).

    The limits of top_k and top_p are found by halving the range of keys: no row is sorted.
    """
    row = tl.program_id(0).to(tl.int64)
    source = logits + row * row_stride
    top, chosen = greatest_of(source, along, k, KIND, BJ)
    if temperature > 0.0:
        # Elements with keys of `edge` at least stay: first by number, then by share.
        least = tl.min(tl.zeros([BJ], tl.int64), 0) - 0x7FFFFFFFFFFFFFFF - 1
        edge = least
        if (top_k > 0) & (top_k < k):
            edge = edge_of(source, along, k, top, temperature, least, top_k, True, KIND, BJ)
        below = edge - 1 + (edge == least)
        _, whole = share(source, along, k, top, temperature, below, KIND, BJ)
        room = whole * 2.0
        if top_p < 1.0:
            wanted = top_p * whole
            edge = edge_of(source, along, k, top, temperature, edge, wanted, False, KIND, BJ)
            _, above = share(source, along, k, top, temperature, edge, KIND, BJ)
            room = wanted - above
        u = widen(tl.load(uniforms + row * u_stride), U, "float64")
        chosen = drawn(source, along, k, top, temperature, edge, room, u, chosen, KIND, BJ)
    tl.store(out + row * o_stride, chosen)
