"""A page that shows a trace: one file, no network, for any browser."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nbxtensor.memory.trace._trace import Integers, Trace

_TEMPLATE = Path(__file__).with_name("view.html")
_BINS = 700  # of events; each is shown by its least and its most
_MOST_BLOCKS = 60_000  # drawn in the map: the largest
_MOST_GROUPS = 11  # with a colour of their own; the rest is one more
_MOST_NOTES = 200
_SIZES = {
    "below 64 KiB": 16,
    "64 KiB and more": 20,
    "1 MiB and more": 24,
    "16 MiB and more": 28,
    "256 MiB and more": 63,
}  # label: bits of the first size that is not of it
_NONE = {"tag": "(no tag)", "stream": "stream 0", "origin": "(unknown)"}


def page(trace: Trace, title: str) -> str:
    """Return the page of a trace."""
    data = json.dumps(view_data(trace), separators=(",", ":"), ensure_ascii=True)
    # Inside a script element only these could end it or open a comment.
    for letter in "<>&":
        data = data.replace(letter, f"\\u{ord(letter):04x}")
    template = _TEMPLATE.read_text(encoding="utf-8")
    return template.replace("{{title}}", html.escape(title)).replace("{{data}}", data)


def view_data(trace: Trace) -> dict[str, Any]:
    """Return what the page's script works on: samples, groups, blocks and their extents."""
    placed = trace.addressed()
    given = placed is not trace
    trace = placed
    live = trace.live()
    allocations, frees = trace.pairs()
    # A free counts where its allocation did.
    owner = np.arange(len(trace), dtype=np.int64)
    owner[frees[frees >= 0]] = allocations[frees >= 0]
    samples = _samples(live)
    groups = [
        _group(trace, name, labels, column[owner], samples, allocations)
        for name, labels, column in _groupings(trace)
    ]
    drawn = _drawn(trace, allocations)
    peak = int(np.argmax(live)) if len(live) else 0
    return {
        "device": trace.device,
        "source": trace.source,
        "clock": trace.clock,
        "placed": given,
        "events": len(trace),
        "missing": trace.missing,
        "blocks": len(allocations),
        "peak": int(live.max(initial=0)),
        "peakEvent": peak,
        "end": int(live[-1]) if len(live) else 0,
        "largest": int(trace.bytes.max(initial=0)),
        "samples": samples.tolist(),
        "times": trace.time[samples].tolist(),
        "live": live[samples].tolist(),
        "groups": [_without_members(group, drawn) for group in groups],
        "extents": _extents(trace, allocations),
        "map": _map(trace, allocations, frees, drawn),
        "origins": [text.split("\n")[:8] for text in trace.origins],
        "notes": [
            [note.position, note.action, note.bytes, note.text]
            for note in trace.notes
            if note.action in ("refuse", "mark", "epoch", "sleep", "wake")
        ][:_MOST_NOTES],
    }


def _samples(live: Integers) -> Integers:
    """Return the events that stand for all: the least and the most of every bin, and the ends."""
    if len(live) <= 2 * _BINS:
        return np.arange(len(live), dtype=np.int64)
    chosen = [0, len(live) - 1]
    edges = np.linspace(0, len(live), _BINS + 1).astype(np.int64)
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        part = live[low:high]
        chosen += [low + int(part.argmax()), low + int(part.argmin())]
    return np.unique(np.array(chosen, np.int64))


def _groupings(trace: Trace) -> list[tuple[str, list[str], Integers]]:
    """Return the ways to tell blocks apart that this trace knows: name, labels, place by event."""
    size = np.searchsorted(np.array([2**bits for bits in _SIZES.values()]), trace.bytes, "right")
    size = np.minimum(size, len(_SIZES) - 1)
    ways = [("size", list(_SIZES), size.astype(np.int64))]
    tags = ("tag", [text or _NONE["tag"] for text in trace.tags], trace.tag)
    # The first is what the page shows first.
    ways.insert(0 if len(trace.tags) > 1 else 1, tags)
    streams, places = np.unique(trace.stream, return_inverse=True)
    ways.append(("stream", [f"stream {stream}" for stream in streams.tolist()], places))
    if len(trace.origins) > 1:
        inner = [text.split("\n", 1)[0] or _NONE["origin"] for text in trace.origins]
        ways.append(("origin", inner, trace.origin))
    return ways


def _group(
    trace: Trace,
    name: str,
    labels: list[str],
    member: Integers,
    samples: Integers,
    allocations: Integers,
) -> dict[str, Any]:
    """Return live bytes by label at every sample; the smallest labels are one, the last."""
    signed = trace.bytes * trace.op
    weight = np.zeros(max(len(labels), 1), np.int64)
    np.maximum.at(weight, member, 0)
    np.add.at(weight, member[allocations], trace.bytes[allocations])
    order = [i for i in np.argsort(-weight, kind="stable").tolist() if weight[i] > 0]
    shown = order if len(order) <= _MOST_GROUPS + 1 else order[:_MOST_GROUPS]
    place = np.full(max(len(labels), 1), len(shown), np.int64)
    place[shown] = np.arange(len(shown))
    names = [labels[i] for i in shown]
    if len(shown) < len(order):
        names.append(f"{len(order) - len(shown)} others")
    member = place[member]
    series = [np.cumsum(np.where(member == i, signed, 0))[samples].tolist() for i in
              range(len(names))]  # fmt: skip
    return {"name": name, "labels": names, "series": series, "members": member[allocations]}


def _without_members(group: dict[str, Any], drawn: npt.NDArray[np.intp]) -> dict[str, Any]:
    members = group.pop("members")
    return {**group, "block": members[drawn].tolist()}


def _drawn(trace: Trace, allocations: Integers) -> npt.NDArray[np.intp]:
    """Return which blocks the map draws, in the order of their allocation."""
    sizes = trace.bytes[allocations]
    if len(sizes) <= _MOST_BLOCKS:
        return np.arange(len(sizes))
    return np.sort(np.argsort(-sizes, kind="stable")[:_MOST_BLOCKS])


def _extents(trace: Trace, allocations: Integers) -> list[list[int]]:
    """Return the parts of the address space that blocks ever used: (address, bytes), in order."""
    if not len(allocations):
        return []
    start = trace.address[allocations]
    end = start + trace.bytes[allocations]
    span = int(end.max() - start.min())
    page = 2 * 2**20 if span > 64 * 2**20 else 64 * 2**10 if span > 2**20 else 512
    low, high = start // page, -(-end // page)
    order = np.argsort(low, kind="stable")
    low, reach = low[order], np.maximum.accumulate(high[order])
    opens = np.flatnonzero(np.r_[True, low[1:] > reach[:-1]])
    closes = np.r_[opens[1:] - 1, len(low) - 1]
    return [
        [int(first) * page, int(last - first) * page]
        for first, last in zip(low[opens].tolist(), reach[closes].tolist(), strict=True)
    ]


def _map(
    trace: Trace, allocations: Integers, frees: Integers, drawn: npt.NDArray[np.intp]
) -> dict[str, Any]:
    opened, closed = allocations[drawn], frees[drawn]
    return {
        "start": opened.tolist(),
        "end": np.where(closed >= 0, closed, len(trace)).tolist(),
        "address": trace.address[opened].tolist(),
        "bytes": trace.bytes[opened].tolist(),
        "stream": trace.stream[opened].tolist(),
        "origin": trace.origin[opened].tolist(),
        "omitted": len(allocations) - len(drawn),
    }
