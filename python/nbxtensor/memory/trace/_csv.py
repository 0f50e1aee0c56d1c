"""Comma-separated traces: intervals of the packing literature, RMM's log, Kineto's samples."""

from __future__ import annotations

import re

import numpy as np

from nbxtensor.memory.trace._text import Row, TraceError, numbers, rows, shown, text_lines
from nbxtensor.memory.trace._trace import Builder, Note, Trace, from_columns

INTERVAL = ("id", "lower", "upper", "size")
INTERVAL_OPTIONAL = ("offset", "alignment", "hint", "gaps")
RMM = ("Thread", "Time", "Action", "Pointer", "Size", "Stream")
KINETO = ("ts_us", "thread", "bytes")

_DAY = 24 * 3600 * 10**9
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])(?:[.:]([0-9]{1,9}))?", re.ASCII)


def _below_header(data: bytes, name: str, columns: tuple[str, ...]) -> list[str]:
    lines = text_lines(data, name)
    if not lines or lines[0] != ",".join(columns):
        raise TraceError(name, shown(lines[0] if lines else ""), ",".join(columns), 1)
    return lines[1:]


# ---- intervals -----------------------------------------------------------------------------------


def is_interval(head: str) -> bool:
    """Tell intervals by their header."""
    return set(INTERVAL) <= set(head.split(","))


def _plain_intervals(data: bytes) -> Trace | None:
    """Read the usual columns of plain numbers at once; None for everything else, faults too."""
    head, _, body = data.partition(b"\n")
    columns = head.decode("latin-1").split(",")
    if columns not in ([*INTERVAL], [*INTERVAL, "offset"]):
        return None
    table = numbers(body, ",", len(columns))
    if table is None:
        return None
    block, lower, upper, size = table.T[:4]
    if bool((lower >= upper).any()) or len(np.unique(block)) != len(block):
        return None
    address = table[:, 4] if len(columns) == 5 else np.zeros_like(block)
    time = np.concatenate([lower, upper])
    op = np.repeat(np.array([1, -1], np.int64), len(block))
    order = np.lexsort((np.tile(np.arange(len(block)), 2), op, time))
    both = [np.tile(column, 2)[order] for column in (block, address, size)]
    none = np.zeros(len(order), np.int64)
    return from_columns([time[order], op[order], *both, none, none, none, none], source="interval")


def read_interval(data: bytes, name: str) -> Trace:
    """Read ``id,lower,upper,size``: live from lower on, until just before upper."""
    plain = _plain_intervals(data)
    if plain is not None:
        return plain.validate(name)
    lines = text_lines(data, name)
    columns = lines[0].split(",") if lines else []
    known = INTERVAL + INTERVAL_OPTIONAL
    if (
        not set(INTERVAL) <= set(columns)
        or not set(columns) <= set(known)
        or (len(set(columns)) != len(columns))
    ):
        allowed = f"{','.join(INTERVAL)} and any of {', '.join(INTERVAL_OPTIONAL)}"
        raise TraceError(name, shown(lines[0] if lines else ""), allowed, 1)
    place = {column: i for i, column in enumerate(columns)}
    names: dict[str, int] = {}
    events: list[tuple[int, int, int, int, int]] = []  # time, op, block, bytes, address
    for row in rows(lines[1:], name, ",", len(columns), 2):
        text = row.fields[place["id"]]
        if text in names:
            row.fail("id", text, f"an id of its own; line {names[text] + 2} has this one")
        block = names.setdefault(text, len(names))
        lower = row.integer(place["lower"], "lower", -(2**62), 2**62)
        upper = row.integer(place["upper"], "upper", lower + 1, 2**62)
        size = row.integer(place["size"], "size")
        offset = row.integer(place["offset"], "offset") if "offset" in place else 0
        events += [(lower, 1, block, size, offset), (upper, -1, block, size, offset)]
    events.sort(key=lambda event: event[:2])  # frees before allocations at equal times
    ids = _numbers(names)
    builder = Builder("interval")
    for time, op, block, size, address in events:
        builder.add(op, ids[block], size, time=time, address=address)
    return builder.build().validate(name)


def _numbers(names: dict[str, int]) -> list[int]:
    """Return the ids themselves where all are numbers, else their order."""
    if all(re.fullmatch(r"0|[1-9][0-9]{0,17}", text, re.ASCII) for text in names):
        return [int(text) for text in names]
    return list(range(len(names)))


def write_interval(trace: Trace) -> bytes:
    """Write lifetimes; a block that was never freed ends one after everything."""
    allocations, frees = trace.pairs()
    time = trace.time
    # At equal times frees come first: where the trace says otherwise, the order is the time.
    tied = (np.diff(time) == 0) & (np.diff(trace.op) < 0)
    ends = np.where(frees >= 0, frees, 0)
    if bool(tied.any()) or bool(((frees >= 0) & (time[ends] <= time[allocations])).any()):
        time = np.arange(len(trace), dtype=np.int64)
    last = int(time[-1]) + 1 if len(time) else 0
    upper = np.where(frees >= 0, time[ends] if len(time) else 0, last)
    block = trace.id[allocations]
    if len(np.unique(block)) != len(block):
        block = np.arange(len(block), dtype=np.int64)
    columns = [block, time[allocations], upper, trace.bytes[allocations]]
    head = list(INTERVAL)
    if trace.address.any():
        head.append("offset")
        columns.append(trace.address[allocations])
    cells = zip(*(column.tolist() for column in columns), strict=True)
    return "\n".join([",".join(head), *(",".join(map(str, row)) for row in cells), ""]).encode()


# ---- RMM -----------------------------------------------------------------------------------------


def is_rmm(head: str) -> bool:
    """Tell RMM's log by its header."""
    return head == ",".join(RMM)


def read_rmm(data: bytes, name: str) -> Trace:
    """Read RMM's log of allocations; it may begin when blocks are live already."""
    builder = Builder("rmm", clock="ns")
    live: dict[int, tuple[int, int]] = {}
    days = former = 0
    for row in rows(_below_header(data, name, RMM), name, ",", len(RMM), 2):
        thread, action = row.integer(0, "Thread"), row.fields[2]
        time = _time_of_day(row) + days
        if time < former - _DAY // 2:  # past midnight
            days += _DAY
            time += _DAY
        former = max(former, time)
        size, stream = row.integer(4, "Size"), row.pointer(5, "Stream")
        if action == "allocate failure":
            builder.note("refuse", time, 0, size)
            continue
        pointer = row.pointer(3, "Pointer")
        if action == "allocate":
            if pointer in live:
                row.fail("Pointer", hex(pointer), "an address that is not live")
            live[pointer] = (len(builder), size)
        elif action != "free":
            row.fail("Action", action, "allocate, free or allocate failure")
        elif pointer not in live:
            builder.missing += 1
            continue
        block, held = live[pointer] if action == "allocate" else live.pop(pointer)
        if size != held:
            row.fail("Size", size, f"the {held} bytes of its allocation")
        builder.add(
            1 if action == "allocate" else -1,
            block,
            size,
            time=time,
            address=pointer,
            stream=stream,
            thread=thread,
        )
    return builder.build().validate(name)


def _time_of_day(row: Row) -> int:
    match = _CLOCK.fullmatch(row.fields[1])
    if match is None:
        row.fail("Time", row.fields[1], "HH:MM:SS.microseconds")
    hours, minutes, seconds = (int(match[i]) for i in (1, 2, 3))
    fraction = int((match[4] or "0").ljust(9, "0"))
    return ((hours * 60 + minutes) * 60 + seconds) * 10**9 + fraction


def write_rmm(trace: Trace) -> bytes:
    """Write RMM's log; tags and origins are not part of it."""
    addressed = trace.addressed()
    out = [",".join(RMM)]
    refusals = [note for note in trace.notes if note.action == "refuse"]
    columns = zip(
        *(
            getattr(addressed, column).tolist()
            for column in ("time", "op", "address", "bytes", "stream", "thread")
        ),
        strict=True,
    )
    for i, (time, op, address, size, stream, thread) in enumerate(columns):
        while refusals and refusals[0].position <= i:
            out.append(_refusal(refusals.pop(0), trace.clock))
        action = "allocate" if op > 0 else "free"
        out.append(f"{thread},{_clock(time, trace.clock)},{action},{address:#x},{size},{stream}")
    out += [_refusal(note, trace.clock) for note in refusals]
    return ("\n".join(out) + "\n").encode()


def _refusal(note: Note, clock: str) -> str:
    return f"0,{_clock(note.time, clock)},allocate failure,0x0,{note.bytes},0"


def _clock(time: int, clock: str) -> str:
    microseconds = time // 1000 if clock == "ns" else time
    seconds, fraction = divmod(microseconds, 10**6)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours % 24:02}:{minute:02}:{second:02}.{fraction:06}"


# ---- Kineto --------------------------------------------------------------------------------------


def is_kineto(head: str) -> bool:
    """Tell Kineto's samples by their header."""
    return head == ",".join(KINETO)


def read_kineto(data: bytes, name: str) -> Trace:
    """Read ``ts_us,thread,bytes``, where frees are negative.

    A free takes the most recent live allocation of its size.
    """
    samples = []
    for row in rows(_below_header(data, name, KINETO), name, ",", len(KINETO), 2):
        size = row.integer(2, "bytes", -(2**62), 2**62)
        if size == 0:
            row.fail("bytes", "0", "bytes above 0 for an allocation, below for a free")
        samples.append((row.integer(0, "ts_us", 0, 2**53), row.integer(1, "thread"), size))
    samples.sort(key=lambda sample: sample[0])
    builder = Builder("kineto", clock="ns")
    live: dict[int, list[int]] = {}
    for time, thread, size in samples:
        held = live.setdefault(abs(size), [])
        if size < 0 and not held:
            builder.missing += 1
            continue
        if size > 0:
            held.append(len(builder))
        block = held[-1] if size > 0 else held.pop()
        builder.add(1 if size > 0 else -1, block, abs(size), time=time * 1000, thread=thread)
    return builder.build().validate(name)


def write_kineto(trace: Trace) -> bytes:
    """Write samples; which free belongs to which allocation is not part of them."""
    time = trace.time // 1000 if trace.clock == "ns" else trace.time
    signed = trace.bytes * trace.op
    if len(signed) and not signed.all():
        raise TraceError(
            "kineto",
            "a block of 0 bytes",
            "blocks of at least one byte; the format "
            "tells allocations from frees by the sign of their bytes",
        )
    cells = zip(time.tolist(), trace.thread.tolist(), signed.tolist(), strict=True)
    return "\n".join([",".join(KINETO), *(",".join(map(str, row)) for row in cells), ""]).encode()
