"""The snapshot of the common memory viewer: segments with their blocks, and what happened before.

The viewer goes back in time from the segments, so that every block of every event must lie in one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

import numpy as np

from nbxtensor.memory.trace import _pickle
from nbxtensor.memory.trace._text import LARGEST, TraceError, shown
from nbxtensor.memory.trace._trace import Builder, Integers, Trace

_PAGE = 2 * 1024 * 1024
_ACTIONS = {
    "segment_alloc": "map",
    "segment_map": "map",
    "segment_free": "unmap",
    "segment_unmap": "unmap",
    "oom": "refuse",
}
_PASSED_OVER = ("snapshot", "annotate", "workspace_snapshot")
_FREES = ("free", "free_requested", "free_completed")
_ALLOWED = (
    "alloc, free_requested, free_completed, free, segment_alloc, segment_free, segment_map, "
    "segment_unmap, oom, annotate or snapshot"
)
_ALLOCATED = ("active_allocated", "active_pending_free")


def is_snapshot(head: str) -> bool:
    """Tell a pickle by its first bytes."""
    return len(head) > 1 and head[0] == "\x80" and "\x02" <= head[1] <= "\x05"


# ---- reading -------------------------------------------------------------------------------------


class _Node:
    """A container of the snapshot, with the way to it for errors."""

    def __init__(self, name: str, path: str, value: Any) -> None:
        self.name, self.path, self.value = name, path, value

    def fail(self, found: str, allowed: str) -> TraceError:
        return TraceError(self.name, f"{found} at {self.path or 'the top'}", allowed)

    def items(self, key: str) -> list[_Node]:
        """Return the containers of a list."""
        found = self._get(key, [])
        if not isinstance(found, list | tuple):
            raise self.fail(f"{key}: {shown(found)}", "a list")
        return [_Node(self.name, f"{self.path}{key}[{i}].", item) for i, item in enumerate(found)]

    def integer(self, *keys: str, default: int | None = None) -> int:
        """Return a number under the first of the keys that is there."""
        for key in keys:
            found = self._get(key, None)
            if found is not None:
                if (
                    isinstance(found, bool)
                    or not isinstance(found, int)
                    or (not 0 <= found <= LARGEST)
                ):
                    raise self.fail(f"{key}: {shown(found)}", f"a whole number, 0 .. {LARGEST}")
                return found
        if default is None:
            raise self.fail(f"no {keys[0]}", "it")
        return default

    def text(self, key: str) -> str:
        """Return a text; empty if there is none."""
        found = self._get(key, "")
        if not isinstance(found, str):
            raise self.fail(f"{key}: {shown(found)}", "a text")
        return found

    def frames(self) -> str:
        """Return the frames, innermost first, one a line."""
        lines = []
        for frame in self.items("frames"):
            number = frame.integer("line", default=0)
            lines.append(f"{frame.text('filename')}:{number} {frame.text('name')}")
        return "\n".join(lines)

    def tag(self) -> str:
        """Return the category or the attached text, if there is one."""
        found = self._get("user_metadata", None) or self._get("category", "")
        return found if isinstance(found, str) else ""

    def _get(self, key: str, default: Any) -> Any:
        if not isinstance(self.value, dict):
            raise self.fail(shown(self.value), "a dict")
        return self.value.get(key, default)


def read_snapshot(data: bytes, name: str) -> Trace:
    """Read the events of the first device that has any; blocks from before them come first."""
    value = _pickle.loads(data, name)
    if isinstance(value, list | tuple):  # an early form: segments only
        value = {"segments": value, "device_traces": []}
    root = _Node(name, "", value)
    traces = _Node(name, "", {"traces": root._get("device_traces", [])}).items("traces")
    device = 0
    events: list[_Node] = []
    for i, trace in enumerate(traces):
        events = _Node(name, f"device_traces[{i}]", {"": trace.value}).items("")
        if events:
            device = i
            break
    segments = root.items("segments")
    if not events and segments:
        device = segments[0].integer("device", default=0)
    builder = Builder("snapshot", _device_name(root, device), "ns")
    held = _blocks(segments, device)
    _add_events(builder, events, held)
    return builder.build().validate(name)


def _device_name(root: _Node, device: int) -> str:
    names = root._get("device_names", None)
    if isinstance(names, list) and device < len(names) and isinstance(names[device], str):
        return str(names[device])
    return f"cuda:{device}"


def _blocks(segments: Iterable[_Node], device: int) -> dict[int, tuple[int, int, str, str]]:
    """Return what is live at the end: bytes, stream, tag and frames by address."""
    held = {}
    for segment in segments:
        if segment.integer("device", default=0) != device:
            continue
        address = segment.integer("address")
        stream = segment.integer("stream", default=0)
        for block in segment.items("blocks"):
            size = block.integer("size")
            if block.text("state") == "active_allocated":
                requested = block.integer("requested_size", default=size)
                start = block.integer("address", default=address)
                held[start] = (requested, stream, block.tag(), block.frames())
            address += size
    return held


def _add_events(
    builder: Builder, events: list[_Node], held: dict[int, tuple[int, int, str, str]]
) -> None:
    """Append what was live before the first event, then the events."""
    before, live = _before(events, held)
    times = [event.integer("time_us", default=0) * 1000 for event in events]
    first = times[0] if times else 0
    blocks: dict[int, tuple[int, int]] = {}
    requested: dict[int, int] = {}  # by address: the place of a free that is not complete
    for address, (size, stream, tag, frames) in before.items():
        blocks[address] = (len(builder), size)
        builder.add(
            1,
            len(builder),
            size,
            time=first,
            address=address,
            stream=stream,
            tag=tag,
            origin=frames,
        )
    for place, (event, time) in enumerate(zip(events, times, strict=True)):
        action = event.text("action")
        address, size = event.integer("addr", default=0), event.integer("size", default=0)
        stream = event.integer("stream", default=0)
        add = partial(builder.add, time=time, address=address, stream=stream)
        if action == "alloc":
            if address in blocks:  # its free was overwritten
                block, held_bytes = blocks.pop(address)
                builder.missing += 1
                add(-1, block, held_bytes)
            requested.pop(address, None)
            blocks[address] = (len(builder), size)
            add(1, len(builder), size, tag=event.tag(), origin=event.frames())
        elif action == "free_completed" and address in requested:
            if requested.pop(address) != place - 1:  # queued work used the block meanwhile
                builder.note("complete", time, address, size)
        elif action in _FREES:
            if action == "free_requested":
                requested[address] = place
            block, held_bytes = blocks.pop(address)
            add(-1, block, held_bytes, tag=event.tag(), origin=event.frames())
        elif action in _ACTIONS:
            builder.note(_ACTIONS[action], time, address, size)
        elif action not in _PASSED_OVER:
            raise event.fail(f"action {shown(action)}", _ALLOWED)
    builder.missing += len(live - blocks.keys())


def _before(
    events: list[_Node], held: dict[int, tuple[int, int, str, str]]
) -> tuple[dict[int, tuple[int, int, str, str]], set[int]]:
    """Return what was live before the events, and the addresses that are live after them."""
    before: dict[int, tuple[int, int, str, str]] = {}
    seen: set[int] = set()
    requested: set[int] = set()
    for event in events:
        action = event.text("action")
        if action != "alloc" and action not in _FREES:
            continue
        address, size = event.integer("addr"), event.integer("size")
        if action == "free_completed" and address in requested:
            requested.discard(address)  # freed by its request already
            continue
        (requested.add if action == "free_requested" else requested.discard)(address)
        if action != "alloc" and address not in seen:
            before[address] = (size, event.integer("stream", default=0), event.tag(), "")
        if action == "alloc":
            seen.add(address)
        elif address in seen or address in before:
            seen.discard(address)
    for address, block in held.items():
        if address not in seen and address not in before:
            before[address] = block
    return before, set(held)


# ---- writing -------------------------------------------------------------------------------------


def frames_of(origin: str) -> list[dict[str, Any]]:
    """Return the viewer's frames of an origin's lines, "file:line name"."""
    frames = []
    for text in origin.split("\n") if origin else []:
        place, _, function = text.partition(" ")
        filename, _, line = place.rpartition(":")
        if not filename or not (line.isascii() and line.isdigit()):
            filename, line, function = text, "0", ""
        frames.append({"filename": filename, "line": int(line), "name": function})
    return frames


def events_of(trace: Trace, waiting: Collection[int] = ()) -> list[dict[str, Any]]:
    """Return the viewer's events.

    A free is completed where the trace says that the last use of its block was over, else when it
    is requested; that of a block at one of the addresses `waiting` is not completed yet.
    """
    frames = [frames_of(text) for text in trace.origins]
    events: list[dict[str, Any]] = []
    unit = 1000 if trace.clock == "ns" else 1
    completions = trace.completions()
    uncompleted = _last(trace, waiting)
    notes = [i for i, note in enumerate(trace.notes) if note.action in ("refuse", "complete")]
    ends: dict[int, dict[str, Any]] = {}  # events to come, by the place of their note

    def add_note(place: int) -> None:
        if trace.notes[place].action == "refuse":
            events.append(_refusal(trace.notes[place]))
        elif place in ends:
            events.append({**ends.pop(place), "time_us": trace.notes[place].time // unit})

    columns = zip(
        *(
            getattr(trace, column).tolist()
            for column in ("time", "op", "address", "bytes", "stream", "tag", "origin")
        ),
        strict=True,
    )
    for i, (time, op, address, size, stream, tag, origin) in enumerate(columns):
        while notes and trace.notes[notes[0]].position <= i:
            add_note(notes.pop(0))
        event = {
            "action": "alloc" if op > 0 else "free_requested",
            "addr": address,
            "size": size,
            "stream": stream,
            "time_us": time // unit,
            "frames": frames[origin],
        }
        if tag:
            event["user_metadata"] = trace.tags[tag]
        events.append(event)
        completed = {**event, "action": "free_completed"}
        if op < 0 and i in completions:
            ends[completions[i]] = completed
        elif op < 0 and i not in uncompleted:
            events.append(completed)
    for place in notes:
        add_note(place)
    return events


def _last(trace: Trace, addresses: Collection[int]) -> set[int]:
    """Return the position of the last event at each address."""
    last = {}
    for i in np.flatnonzero(np.isin(trace.address, list(addresses))).tolist():
        last[int(trace.address[i])] = i
    return set(last.values())


def _refusal(note: Any) -> dict[str, Any]:
    return {
        "action": "oom",
        "addr": 0,
        "size": note.bytes,
        "stream": 0,
        "device_free": 0,
        "time_us": note.time // 1000,
        "frames": [],
    }


def block_entry(
    address: int, size: int, requested: int, state: str, frames: list[dict[str, Any]], tag: str
) -> dict[str, Any]:
    """Return the viewer's entry of one block."""
    entry: dict[str, Any] = {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": frames,
    }
    if tag:
        entry["user_metadata"] = tag
    return entry


def segment_entry(
    device: int, address: int, size: int, stream: int, blocks: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the viewer's entry of one segment; its blocks cover it."""
    allocated = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    active = sum(block["size"] for block in blocks if block["state"] in _ALLOCATED)
    return {
        "device": device,
        "address": address,
        "total_size": size,
        "allocated_size": allocated,
        "active_size": active,
        "requested_size": sum(
            block["requested_size"] for block in blocks if block["state"] in _ALLOCATED
        ),
        "stream": stream,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def fill(
    segment: tuple[int, int], live: list[tuple[int, int, int, str, list[dict[str, Any]], str]]
) -> list[dict[str, Any]]:
    """Return the blocks of a segment (address, bytes): the given ones, in order, and the holes.

    A given block is (address, bytes, requested, state, frames, tag).
    """
    at, end = segment[0], segment[0] + segment[1]
    blocks = []
    for address, size, requested, state, frames, tag in live:
        if address > at:
            blocks.append(block_entry(at, address - at, 0, "inactive", [], ""))
        blocks.append(block_entry(address, size, requested, state, frames, tag))
        at = address + size
    if at < end:
        blocks.append(block_entry(at, end - at, 0, "inactive", [], ""))
    return blocks


def _left(trace: Trace, allocations: Integers) -> Integers:
    """Return the allocations that hold bytes, in order of address."""
    held = allocations[trace.bytes[allocations] > 0]
    return held[np.argsort(trace.address[held], kind="stable")]


def write_snapshot(trace: Trace) -> bytes:
    """Write a trace as a snapshot of one device with one segment under all its blocks."""
    trace = trace.addressed()
    allocations, frees = trace.pairs()
    left = _left(trace, allocations[frees < 0])
    starts = trace.address[left]
    if bool((starts[1:] < (starts + trace.bytes[left])[:-1]).any()):
        trace = trace.placed()
        left = _left(trace, left)
    segments = []
    if len(allocations):
        starts, sizes = trace.address[allocations], trace.bytes[allocations]
        low = int(starts.min()) // _PAGE * _PAGE
        high = -(-int((starts + sizes).max() + 1) // _PAGE) * _PAGE
        live = [
            (
                int(trace.address[i]),
                int(trace.bytes[i]),
                int(trace.bytes[i]),
                "active_allocated",
                frames_of(trace.origins[trace.origin[i]]),
                trace.tags[trace.tag[i]],
            )
            for i in left.tolist()
        ]
        blocks = fill((low, high - low), live)
        segments.append(segment_entry(0, low, high - low, 0, blocks))
    return _pickle.dumps(
        {
            "segments": segments,
            "device_traces": [events_of(trace)],
            "device_names": [trace.device],
            "allocator_settings": {},
            "external_annotations": [],
        }
    )
