"""Tab-separated traces: ours, and the log of allocations of the system that came before."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from nbxtensor.memory.trace._text import Row, TraceError, numbers, rows, shown, text_lines
from nbxtensor.memory.trace._trace import Builder, Trace, from_columns

REQUIRED = ("op", "id", "bytes", "stream")
OPTIONAL = ("time", "address", "tag", "thread", "origin")
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_BACK = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}


def escape(text: str) -> str:
    r"""Write backslashes, tabs and line ends as \\, \t, \n and \r."""
    return "".join(_ESCAPES.get(letter, letter) for letter in text)


def _unescape(row: Row, index: int, column: str) -> str:
    text = row.fields[index]
    if "\\" not in text:
        return text
    letters = iter(text)
    result = []
    for letter in letters:
        if letter != "\\":
            result.append(letter)
            continue
        code = next(letters, "")
        if code not in _BACK:
            row.fail(column, text, r"backslashes only in \\, \t, \n and \r")
        result.append(_BACK[code])
    return "".join(result)


def is_tsv(head: str) -> bool:
    """Tell our format by its first line."""
    return head.startswith("# op\t") or head[:2] in ("+\t", "-\t")


def read_tsv(data: bytes, name: str) -> Trace:
    """Read ``# op id bytes stream`` with tabs; more columns may follow, in any order."""
    plain = _plain_events(data)
    if plain is not None:
        return plain.validate(name, np.arange(len(plain)) + 2)
    lines = text_lines(data, name)
    columns = list(REQUIRED)
    start = 0
    if lines and lines[0].startswith("#"):
        columns = _header(lines[0], name)
        start = 1
    builder = Builder("tsv", clock="ns" if "time" in columns else "order")
    places = {column: i for i, column in enumerate(columns)}
    places_in_file = []
    for number, line in enumerate(lines[start:], start + 1):
        if line.startswith("##"):
            _remark(line, builder, Row(name, number, [line]))
            continue
        row = next(rows([line], name, "\t", len(columns), number))
        _add_tsv(row, places, builder)
        places_in_file.append(number)
    trace = builder.build().validate(name, np.array(places_in_file, np.int64))
    _require_rising(builder, trace, name, places_in_file)
    return trace


def _plain_events(data: bytes) -> Trace | None:
    """Read the four columns of plain numbers at once; None for everything else, faults too."""
    head, _, body = data.partition(b"\n")
    if head.decode("latin-1") != "# " + "\t".join(REQUIRED):
        return None
    if re.fullmatch(rb"(?:[+-](?:\t[0-9]+){3}\n)+", body) is None:
        return None
    table = numbers(body.translate(bytes.maketrans(b"+-", b"12")), "\t", len(REQUIRED))
    if table is None:
        return None
    op = 3 - 2 * table[:, 0]
    none = np.zeros(len(table), np.int64)
    columns = [np.arange(len(table)), op, table[:, 1], none, table[:, 2], table[:, 3]]
    return from_columns([*columns, none, none, none], source="tsv")


def _header(line: str, name: str) -> list[str]:
    columns = line[1:].strip().split("\t")
    known = REQUIRED + OPTIONAL
    wrong = [column for column in columns if column not in known or columns.count(column) > 1]
    absent = [column for column in REQUIRED if column not in columns]
    if wrong or absent:
        allowed = f"'# ' and the columns {', '.join(REQUIRED)}, and any of {', '.join(OPTIONAL)}"
        raise TraceError(name, shown(line), allowed, 1)
    return columns


def _remark(line: str, builder: Builder, row: Row) -> None:
    """Take what a line of the form ``## key=value`` says."""
    key, _, value = line[2:].lstrip(" ").partition("=")
    if key == "device":
        builder.device = _unescape(Row(row.file, row.line, [value]), 0, key)
    elif key == "missing":
        builder.missing = Row(row.file, row.line, [value]).integer(0, key)
    elif key == "note":
        action, *rest = value.split("\t")
        fields = Row(row.file, row.line, rest)
        if len(rest) != 4:
            row.fail(key, line, "action, time, address, bytes and text between tabs")
        text = _unescape(fields, 3, key)
        builder.note(
            action, fields.integer(0, key), fields.integer(1, key), fields.integer(2, key), text
        )


def _add_tsv(row: Row, places: dict[str, int], builder: Builder) -> None:
    op = row.fields[places["op"]]
    if op not in ("+", "-"):
        row.fail("op", op, "+ or -")

    def integer(column: str, low: int = 0) -> int:
        return row.integer(places[column], column, low) if column in places else 0

    def text(column: str) -> str:
        return _unescape(row, places[column], column) if column in places else ""

    builder.add(
        1 if op == "+" else -1,
        integer("id"),
        integer("bytes"),
        time=integer("time") if "time" in places else None,
        address=integer("address"),
        stream=integer("stream"),
        tag=text("tag"),
        thread=integer("thread"),
        origin=text("origin"),
    )


def _require_rising(builder: Builder, trace: Trace, name: str, lines: list[int]) -> None:
    given = builder.times()
    falls = np.flatnonzero(np.diff(given) < 0)
    if len(falls):
        at = int(falls[0]) + 1
        raise TraceError(
            name,
            f"{given[at]}",
            f"at least {given[at - 1]}, the time before it",
            lines[at],
            "time",
        )


def write_tsv(trace: Trace) -> bytes:
    """Write every column that says something."""
    optional: dict[str, Callable[[int], str]] = {}
    if trace.clock == "ns":
        optional["time"] = lambda i: str(time[i])
    if trace.address.any():
        optional["address"] = lambda i: str(address[i])
    if len(trace.tags) > 1:
        optional["tag"] = lambda i: tags[tag[i]]
    if trace.thread.any():
        optional["thread"] = lambda i: str(thread[i])
    if len(trace.origins) > 1:
        optional["origin"] = lambda i: origins[origin[i]]
    time, address, thread = trace.time.tolist(), trace.address.tolist(), trace.thread.tolist()
    tag, origin = trace.tag.tolist(), trace.origin.tolist()
    tags = [escape(text) for text in trace.tags]
    origins = [escape(text) for text in trace.origins]
    op, block, size = trace.op.tolist(), trace.id.tolist(), trace.bytes.tolist()
    stream = trace.stream.tolist()
    out = ["# " + "\t".join([*REQUIRED, *optional])]
    if trace.device:
        out.append(f"## device={escape(trace.device)}")
    if trace.missing:
        out.append(f"## missing={trace.missing}")
    notes = list(trace.notes)
    for i in range(len(trace) + 1):
        while notes and notes[0].position <= i:
            note = notes.pop(0)
            out.append(
                f"## note={note.action}\t{note.time}\t{note.address}\t{note.bytes}\t"
                f"{escape(note.text)}"
            )
        if i < len(trace):
            sign = "+" if op[i] > 0 else "-"
            fields = [sign, str(block[i]), str(size[i]), str(stream[i])]
            out.append("\t".join([*fields, *(value(i) for value in optional.values())]))
    return ("\n".join(out) + "\n").encode()


def is_seed(head: str) -> bool:
    """Tell the earlier system's log by its first line."""
    fields = head.split("\t")
    return len(fields) == 5 and (fields[1] in ("M", "F") or fields[0] == "event_id")


def read_seed(data: bytes, name: str) -> Trace:
    """Read ``event_id M|F ptr nbytes site``: the log may begin when blocks are live already."""
    builder = Builder("seed")
    live: dict[int, tuple[int, int]] = {}
    lines = text_lines(data, name)
    first = 1
    if lines and lines[0].startswith("event_id\t"):
        lines, first = lines[1:], 2
    former = -1
    for row in rows(lines, name, "\t", 5, first):
        former = row.integer(0, "event_id", former + 1)
        pointer, size = row.pointer(2, "ptr"), row.integer(3, "nbytes")
        kind = row.fields[1]
        if kind not in ("M", "F"):
            row.fail("M|F", kind, "M or F")
        if kind == "M":
            if pointer in live:
                row.fail("ptr", hex(pointer), "an address that is not live")
            live[pointer] = (len(builder), size)
        elif pointer not in live:
            builder.missing += 1
            continue
        block, held = live[pointer] if kind == "M" else live.pop(pointer)
        if size not in (held, 0):
            row.fail("nbytes", size, f"the {held} bytes of its allocation, or 0")
        frames = "" if row.fields[4] == "?" else "\n".join(row.fields[4].split(" < "))
        builder.add(1 if kind == "M" else -1, block, held, address=pointer, origin=frames)
    return builder.build().validate(name)


def write_seed(trace: Trace) -> bytes:
    """Write the earlier system's log; tags, streams and times are not part of it."""
    addressed = trace.addressed()
    origins = [escape(" < ".join(text.split("\n"))) or "?" for text in trace.origins]
    out = []
    for i, (op, address, size, origin) in enumerate(
        zip(
            addressed.op.tolist(),
            addressed.address.tolist(),
            addressed.bytes.tolist(),
            addressed.origin.tolist(),
            strict=True,
        )
    ):
        out.append(f"{i}\t{'M' if op > 0 else 'F'}\t{address}\t{size}\t{origins[origin]}")
    return ("\n".join(out) + "\n").encode() if out else b"event_id\tM|F\tptr\tnbytes\tsite\n"
