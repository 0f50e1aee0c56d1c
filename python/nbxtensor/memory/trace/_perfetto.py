"""JSON of Perfetto and Chrome: counters of live bytes by tag and stream, a slice a block."""

from __future__ import annotations

import json
from typing import Any

from nbxtensor.memory.trace._text import LARGEST, TraceError, shown
from nbxtensor.memory.trace._trace import Builder, Note, Trace

_BLOCK = "nbx.block"
_MOST_COUNTERS = 100_000  # samples of each counter
_UNTAGGED = "(no tag)"
_COLUMNS = ("time", "op", "id", "address", "bytes", "stream", "tag", "thread", "origin")


def is_perfetto(head: str) -> bool:
    """Tell JSON by its first letter."""
    return head.lstrip()[:1] in ("{", "[")


def write_perfetto(trace: Trace) -> bytes:
    """Write slices, counters and marks; one microsecond an event where no times are known."""
    scale = 1000 if trace.clock == "ns" else 1
    process = trace.device or "memory"
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": f"nbxtensor {process}"}}
    ]
    _add_slices(events, trace, scale)
    events += [_mark_of(note, scale) for note in trace.notes]
    other = {"device": trace.device, "clock": trace.clock, "missing": str(trace.missing)}
    document = {"displayTimeUnit": "ns", "otherData": other, "traceEvents": events}
    return json.dumps(document, separators=(",", ":")).encode()


def _add_slices(events: list[dict[str, Any]], trace: Trace, scale: int) -> None:
    """Append both ends of every block's slice, and samples of the counters."""
    step = max(1, len(trace) // _MOST_COUNTERS)
    by_tag = [0] * len(trace.tags)
    by_stream: dict[int, int] = {}
    tag_of: dict[int, int] = {}
    columns = zip(*(getattr(trace, column).tolist() for column in _COLUMNS), strict=True)
    for i, (time, op, block, address, size, stream, tag, thread, origin) in enumerate(columns):
        held = tag_of.setdefault(block, tag) if op > 0 else tag_of.pop(block)
        by_tag[held] += op * size
        by_stream[stream] = by_stream.get(stream, 0) + op * size
        events.append(
            {
                "ph": "b" if op > 0 else "e",
                "cat": _BLOCK,
                "id": hex(block),
                "pid": 1,
                "tid": thread,
                "ts": time / scale,
                "name": trace.tags[held] or _UNTAGGED,
                "args": {
                    "position": i,
                    "time": time,
                    "bytes": size,
                    "address": address,
                    "stream": stream,
                    "tag": trace.tags[tag],
                    "origin": trace.origins[origin],
                },
            }
        )
        if i % step == 0 or i == len(trace) - 1:
            tags = {trace.tags[t] or _UNTAGGED: total for t, total in enumerate(by_tag)}
            streams = {f"stream {key}": total for key, total in sorted(by_stream.items())}
            for name, values in (("live bytes by tag", tags), ("live bytes by stream", streams)):
                events.append(
                    {"ph": "C", "pid": 1, "name": name, "ts": time / scale, "args": values}
                )


def _mark_of(note: Note, scale: int) -> dict[str, Any]:
    return {
        "ph": "i",
        "s": "g",
        "pid": 1,
        "tid": 0,
        "ts": note.time / scale,
        "name": f"{note.action} {note.text}".strip(),
        "args": {
            "action": note.action,
            "position": note.position,
            "time": note.time,
            "address": note.address,
            "bytes": note.bytes,
            "text": note.text,
        },
    }


class _Event:
    """One event of the file, checked member by member."""

    def __init__(self, name: str, number: int, value: dict[str, Any]) -> None:
        self.name, self.number = name, number
        arguments = value.get("args")
        if not isinstance(arguments, dict):
            raise self._fail("args", arguments, "an object")
        self.members: dict[str, Any] = {**value, **arguments}

    def _fail(self, key: str, found: object, allowed: str) -> TraceError:
        return TraceError(
            self.name, f"{key}: {shown(found)} at traceEvents[{self.number}]", allowed
        )

    def integer(self, key: str, low: int = 0) -> int:
        found = self.members.get(key)
        if isinstance(found, bool) or not isinstance(found, int) or not low <= found <= LARGEST:
            raise self._fail(key, found, f"a whole number within {low} .. {LARGEST}")
        return found

    def text(self, key: str) -> str:
        found = self.members.get(key)
        if not isinstance(found, str):
            raise self._fail(key, found, "a text")
        return found

    def block(self) -> int:
        text = self.text("id")
        try:
            number = int(text, 16)
        except ValueError:
            number = -1
        if not 0 <= number <= LARGEST:
            raise self._fail("id", text, "a hexadecimal number, such as 0x2a")
        return number


def read_perfetto(data: bytes, name: str) -> Trace:
    """Read back what `write_perfetto` wrote; other files hold no allocations."""
    document = _parsed(data, name)
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise TraceError(name, "no list traceEvents", "a file that nbxtensor exported")
    other = document.get("otherData")
    about = _Event(name, -1, {"args": other if isinstance(other, dict) else {}})
    clock = about.members.get("clock")
    builder = Builder("perfetto", clock="ns" if clock == "ns" else "order")
    builder.device = str(about.members.get("device", ""))
    missing = str(about.members.get("missing", "0"))
    builder.missing = int(missing) if missing.isascii() and missing.isdigit() else 0
    items: list[tuple[int, int, _Event]] = []
    for number, value in enumerate(events):
        if not isinstance(value, dict):
            raise TraceError(name, f"{shown(value)} at traceEvents[{number}]", "an object")
        phase = value.get("ph")
        if phase == "i" or (value.get("cat") == _BLOCK and phase in ("b", "e")):
            event = _Event(name, number, value)
            items.append((event.integer("position"), 0 if phase == "i" else 1, event))
    if not items:
        raise TraceError(
            name, "no blocks", f"slices of the category {_BLOCK}, as nbxtensor exports them"
        )
    for _, is_block, event in sorted(items, key=lambda item: item[:2]):
        if not is_block:
            builder.note(
                event.text("action"),
                event.integer("time", -(2**62)),
                event.integer("address"),
                event.integer("bytes"),
                event.text("text"),
            )
            continue
        builder.add(
            1 if event.text("ph") == "b" else -1,
            event.block(),
            event.integer("bytes"),
            time=event.integer("time", -(2**62)),
            address=event.integer("address"),
            stream=event.integer("stream"),
            tag=event.text("tag"),
            thread=event.integer("tid"),
            origin=event.text("origin"),
        )
    return builder.build().validate(name)


def _parsed(data: bytes, name: str) -> Any:
    try:
        return json.loads(data)
    except UnicodeDecodeError as error:
        raise TraceError(name, "bytes that are no text", "JSON in UTF-8") from error
    except json.JSONDecodeError as error:
        raise TraceError(name, error.msg, "JSON", error.lineno, str(error.colno)) from error
    except (RecursionError, ValueError) as error:
        raise TraceError(name, f"{error}", "JSON of numbers and containers") from error
