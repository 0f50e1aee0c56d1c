"""Every format of traces: round trips, faults by line and column, and damaged files."""

from __future__ import annotations

import gzip
import io
import json
import pickletools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbxtensor.memory import trace
from nbxtensor.memory.trace import Trace, TraceError
from nbxtensor.memory.trace._formats import format_of_name, read_bytes
from nbxtensor.memory.trace._trace import Builder

DATA = Path(__file__).parents[3] / "data" / "traces"
# What a format cannot say comes back empty.
KEPT = {
    "tsv": {"time", "address", "stream", "tag", "thread", "origin", "id"},
    "seed": {"address", "origin"},
    "interval": {"time", "address", "id"},
    "rmm": {"time", "address", "stream", "thread"},
    "kineto": {"time", "thread"},
    "snapshot": {"time", "address", "stream", "tag", "origin"},
    "perfetto": {"time", "address", "stream", "tag", "thread", "origin", "id"},
}


def random_trace(
    rng: np.random.Generator, count: int, *, rich: bool = True, closed: bool = False
) -> Trace:
    """Return a valid trace; times are whole microseconds of one morning. Closed: all is freed."""
    builder = Builder("test", "sim:0", "ns")
    tags = ["", "kv", "weights/layer.3", "a\tb\\c", "<b>&"]
    origins = ["", "model.py:12 forward", "a.py:1 f\nb.py:2 g"]
    live: dict[int, tuple[int, int, int, int]] = {}
    time, top = 10**9, 4096
    for block in range(count):
        time += int(rng.integers(1, 50)) * 1000
        if live and rng.random() < 0.45:
            victim = int(rng.choice(list(live)))
            size, address, stream, tag = live.pop(victim)
            builder.add(-1, victim, size, time=time, address=address, stream=stream, tag=tags[tag])
            continue
        size, stream = int(rng.integers(1, 1 << 20)), int(rng.integers(0, 3))
        tag = int(rng.integers(len(tags))) if rich else 0
        origin = origins[int(rng.integers(len(origins)))] if rich else ""
        builder.add(
            1,
            block,
            size,
            time=time,
            address=top,
            stream=stream,
            tag=tags[tag],
            thread=int(rng.integers(0, 4)),
            origin=origin,
        )
        live[block] = (size, top, stream, tag)
        top += -(-size // 512) * 512
    for block, (size, address, stream, tag) in live.items() if closed else ():
        time += 1000
        builder.add(-1, block, size, time=time, address=address, stream=stream, tag=tags[tag])
    if rich:
        builder.note("refuse", time, 0, 1 << 40, "kv")
    return builder.build().validate()


def texts(column: np.ndarray, names: tuple[str, ...]) -> list[str]:
    return [names[i] for i in column.tolist()]


def same(one: Trace, other: Trace, kept: set[str]) -> None:
    assert one.op.tolist() == other.op.tolist()
    assert one.bytes.tolist() == other.bytes.tolist()
    for column in ("time", "id", "address", "stream", "thread"):
        if column in kept:
            assert getattr(one, column).tolist() == getattr(other, column).tolist(), column
    opened = one.op > 0  # a format may know the tag or the origin of allocations only
    for column, names in (("tag", "tags"), ("origin", "origins")):
        if column in kept:
            mine = texts(getattr(one, column)[opened], getattr(one, names))
            assert mine == texts(getattr(other, column)[opened], getattr(other, names)), column


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("kind", list(KEPT))
def test_round_trip(kind: str, packed: str, rng: np.random.Generator, tmp_path: Path) -> None:
    events = random_trace(rng, 300, closed=kind == "interval")
    path = tmp_path / f"run{trace.FORMATS[kind].endings[0]}{packed}"
    trace.write(events, path)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == bool(packed)
    back = trace.read(path)
    assert back.source == kind
    same(events, back, KEPT[kind])
    assert back.peak() == events.peak()
    again = tmp_path / "again"
    trace.write(back, again, kind)
    same(back, trace.read(again), KEPT[kind])


@pytest.mark.parametrize("target", list(KEPT))
@pytest.mark.parametrize("source", list(KEPT))
def test_any_format_becomes_any_other(
    source: str, target: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    # An interval ends, so that what is live at the end is freed there.
    events = random_trace(rng, 80, closed="interval" in (source, target))
    trace.write(events, tmp_path / "one", source)
    trace.write(trace.read(tmp_path / "one"), tmp_path / "two", target)
    back = trace.read(tmp_path / "two")
    assert back.live().tolist() == events.live().tolist()


def test_notes_and_missing_come_back(rng: np.random.Generator, tmp_path: Path) -> None:
    events = random_trace(rng, 50)
    object.__setattr__(events, "missing", 7)
    for kind in ("tsv", "perfetto"):
        trace.write(events, tmp_path / kind, kind)
        back = trace.read(tmp_path / kind)
        assert back.notes == events.notes
        assert (back.missing, back.device) == (7, "sim:0")
    trace.write(events, tmp_path / "rmm", "rmm")
    assert [(n.action, n.bytes) for n in trace.read(tmp_path / "rmm").notes] == [
        ("refuse", 1 << 40)
    ]


def test_equal_traces_give_equal_files(rng: np.random.Generator, tmp_path: Path) -> None:
    events = random_trace(rng, 50)
    for name in ("one.tsv.gz", "two.tsv.gz"):
        trace.write(events, tmp_path / name)
    assert (tmp_path / "one.tsv.gz").read_bytes() == (tmp_path / "two.tsv.gz").read_bytes()


def test_plain_files_are_read_like_any_other(rng: np.random.Generator) -> None:
    """The reader of plain numbers agrees with the one that handles everything."""
    events = random_trace(rng, 200, rich=False)
    plain = b"# op\tid\tbytes\tstream\n" + b"".join(
        f"{'+' if op > 0 else '-'}\t{block}\t{size}\t{stream}\n".encode()
        for op, block, size, stream in zip(
            events.op.tolist(),
            events.id.tolist(),
            events.bytes.tolist(),
            events.stream.tolist(),
            strict=True,
        )
    )
    fast, slow = read_bytes(plain, "x"), read_bytes(plain + b"## remark\n", "x")
    same(fast, slow, {"time", "id", "address", "stream", "thread"})
    text = trace.FORMATS["interval"].write(events)
    fast, slow = read_bytes(text, "x"), read_bytes(text.replace(b"\n", b"\r\n"), "x")
    same(fast, slow, {"time", "id", "address"})


def test_intervals_free_before_they_allocate() -> None:
    events = read_bytes(b"id,lower,upper,size\na,0,5,10\nb,5,9,10\n", "x")
    assert events.op.tolist() == [1, -1, 1, -1]
    assert events.peak() == 10
    assert events.id.tolist() == [0, 0, 1, 1]


def test_kineto_frees_the_newest_of_a_size() -> None:
    events = read_bytes(b"ts_us,thread,bytes\n1,0,8\n2,0,8\n3,1,-8\n4,0,-16\n", "x")
    assert events.id.tolist() == [0, 1, 1]
    assert events.thread.tolist() == [0, 0, 1]
    assert events.missing == 1


def test_rmm_counts_frees_of_older_blocks_and_passes_midnight() -> None:
    text = (
        "Thread,Time,Action,Pointer,Size,Stream\n"
        "7,23:59:59.999999,free,0x10,5,0\n"
        "7,23:59:59.999999,allocate,0x7f20,100,0x2\n"
        "8,00:00:01:5,free,0x7f20,100,2\n"
    )
    events = read_bytes(text.encode(), "x")
    assert events.missing == 1
    assert events.stream.tolist() == [2, 2]
    assert int(events.time[1] - events.time[0]) == 1_500_001_000


FAULTS = [
    (b"# op\tid\tbytes\n", 1, None, "columns op, id, bytes, stream"),
    (b"# op\tid\tbytes\tstream\n+\t1\t2\n", 2, None, "4 fields"),
    (b"# op\tid\tbytes\tstream\n*\t1\t2\t0\n", 2, "op", "+ or -"),
    (b"# op\tid\tbytes\tstream\n+\tx\t2\t0\n", 2, "id", "whole number"),
    (b"# op\tid\tbytes\tstream\n+\t1\t-2\t0\n", 2, "bytes", "0 .."),
    (b"# op\tid\tbytes\tstream\n+\t-\t2\t0\n", 2, "id", "whole number"),
    (b"# op\tid\tbytes\tstream\n+\t1\t\xd9\xa3\t0\n", 2, "bytes", "whole number"),
    (b"# op\tid\tbytes\tstream\n+\t1\t99999999999999999999\t0\n", 2, "bytes", "within"),
    (b"# op\tid\tbytes\tstream\n+\t1\t2\t0\n+\t1\t2\t0\n", 3, "id", "not live"),
    (b"# op\tid\tbytes\tstream\n-\t1\t2\t0\n", 2, "id", "was allocated"),
    (b"# op\tid\tbytes\tstream\n+\t1\t2\t0\n-\t1\t3\t0\n", 3, "bytes", "the 2 bytes"),
    (b"# op\tid\tbytes\tstream\ttime\n+\t1\t2\t0\t5\n-\t1\t2\t0\t4\n", 3, "time", "at least 5"),
    (b"# op\tid\tbytes\tstream\ttag\n+\t1\t2\t0\ta\\x\n", 2, "tag", "backslashes"),
    (b"# op\tid\tbytes\tstream\n+\t1\t\xff\t0\n", 2, None, "UTF-8"),
    (b"id,lower,upper,size\n1,5,5,1\n", 2, "upper", "6 .."),
    (b"id,lower,upper,size\n1,1,5,1\n1,6,7,1\n", 3, "id", "line 2"),
    (b"id,lower,upper,size,colour\n", 1, None, "any of offset"),
    (b"Thread,Time,Action,Pointer,Size,Stream\n1,25:00:00.0,free,0x1,1,0\n", 2, "Time", "HH:MM:SS"),
    (b"Thread,Time,Action,Pointer,Size,Stream\n1,01:00:00.0,lend,0x1,1,0\n", 2, "Action", "free"),
    (
        b"Thread,Time,Action,Pointer,Size,Stream\n1,01:00:00.0,free,0y1,1,0\n",
        2,
        "Pointer",
        "address",
    ),
    (b"ts_us,thread,bytes\n1,0,0\n", 2, "bytes", "above 0"),
    (b"ts_us,thread,bytes\n1,0\n", 2, None, "3 fields"),
    (b"0\tM\t0x10\t5\ta.py:1 f\n0\tF\t0x10\t5\tx\n", 2, "event_id", "1 .."),
    (b"0\tM\t0x10\t5\ta.py:1 f\n1\tG\t0x10\t5\tx\n", 2, "M|F", "M or F"),
    (b"0\tM\t0x10\t5\ta.py:1 f\n1\tF\t0x10\t6\tx\n", 2, "nbytes", "the 5 bytes"),
    (b"what is this\n", 1, None, "one of the formats"),
    (b"", 1, None, "one of the formats"),
    (b'{"traceEvents": [}', 1, "18", "JSON"),
]


@pytest.mark.parametrize(("data", "line", "column", "allowed"), FAULTS)
def test_faults_are_named(data: bytes, line: int, column: str | None, allowed: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_bytes(data, "run.x")
    error = caught.value
    assert (error.file, error.line, error.column) == ("run.x", line, column)
    assert allowed in error.allowed
    assert str(error).startswith(f"run.x, line {line}")
    assert "found" in str(error)
    assert "allowed is" in str(error)


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.tsv.gz"
    path.write_bytes(gzip.compress(b"# op\tid\tbytes\tstream\n")[:-6])
    with pytest.raises(TraceError, match="gzip"):
        trace.read(path)


def test_names_tell_formats() -> None:
    assert format_of_name("a.tsv.gz") == "tsv"
    assert format_of_name("a.seed.tsv") == "seed"
    assert format_of_name("a.rmm.csv.gz") == "rmm"
    assert format_of_name("a.csv") == "interval"
    assert format_of_name("a.pickle") == "snapshot"
    with pytest.raises(ValueError, match=r"a\.txt.*\.tsv"):
        format_of_name("a.txt")
    with pytest.raises(ValueError, match=r"'text'.*tsv, seed"):
        read_bytes(b"", "x", "text")


def attempt(data: bytes, kind: str) -> Trace | TraceError:
    """Return what reading gives: a trace, or an error that names the file."""
    try:
        return read_bytes(data, "x", kind).validate()
    except TraceError as error:
        return error


def lines_of(kind: str) -> st.SearchStrategy[bytes]:
    """Return files that begin like a format and go on with almost valid lines."""
    heads = {
        "tsv": b"# op\tid\tbytes\tstream\ttag",
        "interval": b"id,lower,upper,size",
        "rmm": b"Thread,Time,Action,Pointer,Size,Stream",
        "kineto": b"ts_us,thread,bytes",
        "seed": b"event_id\tM|F\tptr\tnbytes\tsite",
    }
    separator = b"\t" if kind in ("tsv", "seed") else b","
    field = st.one_of(
        st.sampled_from(
            [
                b"+",
                b"-",
                b"M",
                b"F",
                b"0x10",
                b"allocate",
                b"free",
                b"01:02:03.4",
                b"0",
                b"-8",
                b"8",
                b"9" * 30,
                b"",
                b"\xff",
                b"##",
                b"\\t",
                b"1_0",
                b"\r",
            ]
        ),
        st.integers(-3, 12).map(lambda n: str(n).encode()),
    )
    count = heads[kind].count(separator) + 1
    row = st.lists(field, min_size=count - 1, max_size=count + 1).map(separator.join)
    return st.lists(row, max_size=8).map(lambda rows: b"\n".join([heads[kind], *rows]))


@given(
    st.sampled_from(["tsv", "interval", "rmm", "kineto", "seed"]).flatmap(
        lambda kind: st.tuples(st.just(kind), lines_of(kind))
    )
)
def test_bad_text_gives_a_named_error(case: tuple[str, bytes]) -> None:
    kind, data = case
    result = attempt(data, kind)
    if isinstance(result, TraceError):
        assert result.line is not None
        return
    assert (result.live() >= 0).all()
    allocations, frees = result.pairs()
    assert len(allocations) + (frees >= 0).sum() == len(result)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_named_error(data: bytes) -> None:
    for kind in trace.FORMATS:
        result = attempt(data, kind)
        assert isinstance(result, Trace) or str(result).startswith("x")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "ph",
                        "cat",
                        "args",
                        "id",
                        "ts",
                        "traceEvents",
                        "otherData",
                        "position",
                        "time",
                        "bytes",
                        "segments",
                        "device_traces",
                        "action",
                        "addr",
                        "blocks",
                    ]
                ),
                inner,
                max_size=5,
            )
        ),
        max_leaves=20,
    )
)
def test_any_json_gives_a_named_error(document: object) -> None:
    for value in (document, {"traceEvents": [document], "otherData": document}):
        result = attempt(json.dumps(value).encode(), "perfetto")
        assert isinstance(result, Trace) or str(result).startswith("x")


def test_addresses_are_given_where_there_are_none(rng: np.random.Generator) -> None:
    events = read_bytes(trace.FORMATS["kineto"].write(random_trace(rng, 400)), "x")
    placed = events.addressed()
    live: dict[int, tuple[int, int]] = {}
    for op, block, address, size in zip(
        placed.op.tolist(),
        placed.id.tolist(),
        placed.address.tolist(),
        placed.bytes.tolist(),
        strict=True,
    ):
        if op < 0:
            assert live.pop(block)[0] == address
            continue
        assert address > 0
        assert all(address >= a + s or a >= address + size for a, s in live.values())
        live[block] = (address, size)
    assert placed.addressed() is placed


@pytest.mark.parametrize(
    "path",
    sorted(p for p in DATA.rglob("*") if p.name.endswith((".csv", ".csv.gz", ".tsv.gz"))),
    ids=lambda path: path.name,
)
def test_shipped_traces_are_read(path: Path) -> None:
    events = trace.read(path)
    assert len(events) > 0
    allocations, frees = events.pairs()
    assert len(allocations) + int((frees >= 0).sum()) == len(events)
    # An independent count: the live bytes by hand, over the file's own rows.
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = [line.split("\t" if ".tsv" in path.name else ",") for line in text.decode().splitlines()]
    if rows[0][0] == "id":
        edges = sorted(
            (int(row[c]), (1 if c == 1 else -1) * int(row[3])) for row in rows[1:] for c in (1, 2)
        )
        live = np.cumsum([size for _, size in edges])
        assert events.peak() == live.max()
    elif rows[0][0] == "# op":
        signed = [(1 if row[0] == "+" else -1) * int(row[2]) for row in rows[1:]]
        assert events.peak() == np.cumsum(signed).max()
    else:
        assert events.source == "kineto"


def test_the_writer_uses_plain_opcodes_only(rng: np.random.Generator) -> None:
    data = trace.FORMATS["snapshot"].write(random_trace(rng, 100))
    used = {opcode.name for opcode, _, _ in pickletools.genops(io.BytesIO(data))}
    assert used <= {
        "PROTO", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "MARK", "BINUNICODE", "BININT",
        "BININT1", "BININT2", "LONG1", "BINFLOAT", "NEWTRUE", "NEWFALSE", "NONE", "SETITEM",
        "SETITEMS", "APPEND", "APPENDS", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "BINPUT",
        "LONG_BINPUT", "BINGET", "LONG_BINGET", "STOP",
    }  # fmt: skip


@pytest.mark.parametrize("sizes", [(2**63 - 1,), (2**63 - 1, 1), (2**62, 1), (2**62, 2**62)])
def test_live_bytes_are_bounded(sizes: tuple[int, ...]) -> None:
    """Sums of them are figures, and addresses follow them."""
    rows = "".join(f"+\t{number}\t{size}\t0\n" for number, size in enumerate(sizes))
    with pytest.raises(TraceError, match=r"more than 2\^62 live bytes; allowed is at most"):
        read_bytes(f"# op\tid\tbytes\tstream\n{rows}".encode(), "run.tsv")
