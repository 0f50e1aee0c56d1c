"""Snapshots: what a device's heap holds now, and what happened before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nbxtensor import _core
from nbxtensor.memory._arguments import flag
from nbxtensor.memory.trace import _events, _pickle, _snapshot
from nbxtensor.memory.trace._events import Held
from nbxtensor.memory.trace._text import save
from nbxtensor.memory.trace._trace import Trace

Table = npt.NDArray[np.void]

# States of a block, by csrc/heap/records.h.
STATES = (
    "unused",
    "free",
    "gap",
    "live",
    "cached",
    "waiting",
    "slab",
    "moving",
    "asleep",
    "dormant",
)
_LIVE, _GAP, _WAITING = (STATES.index(name) for name in ("live", "gap", "waiting"))
_ASLEEP, _DORMANT = STATES.index("asleep"), STATES.index("dormant")


class Snapshot:
    """What one device's heap held at one moment, and the events that the recorder had.

    Taking one copies records; everything else happens when it is asked for.

    Attributes
    ----------
    device : str
    segments : structured ndarray
        Address, bytes, has_gaps (pages come and go), single_home (made for one large block).
    blocks : structured ndarray
        Address, bytes, requested, generation, stream, account, origin, segment, state (a place in
        `STATES`); in no order. Slots come besides their slab.
    """

    def __init__(self, device: Any = None, *, history: bool = True) -> None:
        self.device = str(_core.memory_statistics(device)["device"])
        self._events = _core.recorder_events() if history else None
        self.segments: Table
        self.blocks: Table
        self.segments, self.blocks = _core.memory_blocks(self.device)

    def live(self) -> Table:
        """Return the blocks that are handed out, in order of address, none twice."""
        return self._in_states(_LIVE)

    def _in_states(self, *states: int) -> Table:
        blocks = self.blocks[np.isin(self.blocks["state"], states) & (self.blocks["bytes"] > 0)]
        # Of two that overlap, the one that was read later is right.
        place = np.argsort(blocks["address"], kind="stable")
        kept: list[int] = []
        ends = (blocks["address"] + blocks["bytes"]).tolist()
        starts = blocks["address"].tolist()
        for i in place.tolist():
            while kept and ends[kept[-1]] > starts[i] and kept[-1] < i:
                kept.pop()
            if not kept or ends[kept[-1]] <= starts[i]:
                kept.append(i)
        ordered: Table = blocks[kept]
        return ordered

    def held(self) -> Iterator[Held]:
        """Yield the blocks that were not freed, sleeping ones too, as a trace wants them."""
        blocks = self._in_states(_LIVE, _ASLEEP)
        names = ("address", "generation", "requested", "stream", "account", "origin")
        for row in zip(*(blocks[name].tolist() for name in names), strict=True):
            address, generation, *rest = row
            yield Held(address, generation & 0xFFFFFF, *rest)

    def events(self) -> Trace:
        """Return the recorder's events of this device; what was live before comes first."""
        if self._events is None:
            return _events.build(_events.unpack(*_events.joined([])[:2]), self.device)
        words, threads, missing = self._events
        return _events.build(
            _events.unpack(words, threads), self.device, int(missing), list(self.held())
        )

    def mapped(self) -> list[tuple[int, int, int]]:
        """Return the runs of addresses with memory: (address, bytes, place of the segment).

        Of sleeping blocks none, though pages that they share with others are there.
        """
        runs = []
        gaps = self.blocks[np.isin(self.blocks["state"], (_GAP, _ASLEEP, _DORMANT))]
        gaps = gaps[np.argsort(gaps["address"], kind="stable")]
        for place, segment in enumerate(self.segments.tolist()):
            at, end = segment[0], segment[0] + segment[1]
            for gap in gaps[gaps["segment"] == place].tolist() if segment[2] else ():
                if gap[0] > at:
                    runs.append((at, gap[0] - at, place))
                at = max(at, gap[0] + gap[1])
            if end > at:
                runs.append((at, end - at, place))
        return sorted(runs)

    def as_dict(self) -> dict[str, Any]:
        """Return plain containers in the form of the common memory viewer."""
        return combined([self])


def combined(snapshots: Sequence[Snapshot]) -> dict[str, Any]:
    """Return several devices' snapshots as one, each under its place in `device_names`."""
    segments: list[dict[str, Any]] = []
    traces = []
    for device, snapshot in enumerate(snapshots):
        trace = snapshot.events()
        segments += _segments(snapshot, trace, device)
        waiting = snapshot._in_states(_WAITING)["address"].tolist()
        traces.append(_snapshot.events_of(trace, waiting))
    return {
        "segments": segments,
        "device_traces": traces,
        "device_names": [snapshot.device for snapshot in snapshots],
        "allocator_settings": {"recorder_events": int(_core.recorder_event_limit())},
        "external_annotations": [],
    }


def _segments(snapshot: Snapshot, trace: Trace, device: int) -> list[dict[str, Any]]:
    """Return the viewer's segments: memory that is mapped, then addresses that were or will be.

    The viewer finds a segment under every block of every event, so that addresses whose memory
    has gone back since must be there too.
    """
    runs = snapshot.mapped()
    blocks = snapshot._in_states(_LIVE, _WAITING, _ASLEEP)
    account = _events.account_names(snapshot.device)
    frames = {
        number: _snapshot.frames_of(_events.origin_text(number))
        for number in np.unique(blocks["origin"]).tolist()
    }
    names = ("address", "bytes", "requested", "origin", "state")
    columns = [blocks[name].tolist() for name in names]
    states = dict.fromkeys((_LIVE, _ASLEEP), "active_allocated")
    states[_WAITING] = "active_pending_free"
    live = [
        (address, size, requested, states[state], frames[origin], account[number])
        for address, size, requested, origin, state, number in zip(
            *columns, blocks["account"].tolist(), strict=True
        )
    ]
    starts = blocks["address"].astype(np.int64)
    entries = []
    for address, size, _ in runs:
        low, high = np.searchsorted(starts, [address, address + size]).tolist()
        filled = _snapshot.fill((address, size), live[low:high])
        entries.append(_snapshot.segment_entry(device, address, size, 0, filled))
    asleep = np.flatnonzero(blocks["state"] == _ASLEEP).tolist()
    for i in asleep:
        block = [_snapshot.block_entry(*live[i])]
        entry = _snapshot.segment_entry(device, live[i][0], live[i][1], 0, block)
        entries.append({**entry, "segment_type": "asleep"})
    spans = [(run[0], run[0] + run[1]) for run in runs]
    spans += [(live[i][0], live[i][0] + live[i][1]) for i in asleep]
    for address, size in _uncovered(trace, sorted(spans)):
        filled = _snapshot.fill((address, size), [])
        entry = _snapshot.segment_entry(device, address, size, 0, filled)
        entries.append({**entry, "segment_type": "unmapped"})
    return entries


def _uncovered(trace: Trace, runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (address, bytes) of what blocks of the trace used outside the runs, joined."""
    opened = trace.op > 0
    used = np.unique(np.stack([trace.address[opened], trace.bytes[opened]], 1), axis=0)
    lows = np.array([low for low, _ in runs], np.int64)
    highs = np.array([0, *(high for _, high in runs)], np.int64)
    after = np.searchsorted(lows, used[:, 0], "right")
    # The viewer looks for a block's first byte.
    outside = used[:, 0] >= highs[after]
    pieces = []
    for (address, size), at in zip(used[outside].tolist(), after[outside].tolist(), strict=True):
        end = address + max(size, 1)
        pieces.append((address, min(end, runs[at][0]) if at < len(runs) else end))
    joined: list[list[int]] = []
    for low, high in pieces:
        if joined and low <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], high)
        else:
            joined.append([low, high])
    return [(low, high - low) for low, high in joined]


def snapshot(device: Any = None, *, history: bool = True) -> Snapshot:
    """Return what a device's heap holds now, with the recorder's events before it.

    Parameters
    ----------
    device : device or str, optional
        The default device if not given.
    history : bool
        Whether to copy the events too.
    """
    return Snapshot(device, history=flag("snapshot", "history", history))


def dump_snapshot(path: str | Path, device: Any = None) -> None:
    """Write a snapshot that opens in the common memory viewer (pickle, plain containers only).

    Parameters
    ----------
    path : str or Path
        .gz packs it.
    device : device, str or a sequence of them, optional
        The default device if not given.
    """
    devices = list(device) if isinstance(device, list | tuple) else [device]
    save(path, _pickle.dumps(combined([Snapshot(one) for one in devices])))
