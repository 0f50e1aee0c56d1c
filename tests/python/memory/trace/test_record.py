"""Recordings and snapshots of real heaps, and the command line."""

from __future__ import annotations

import itertools
import pickletools
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor.errors import FileError
from nbxtensor.memory import trace
from nbxtensor.memory.trace import Trace, _record
from nbxtensor.memory.trace._pickle import loads
from nbxtensor.memory.trace._record import record
from nbxtensor.memory.trace._snapshot import read_snapshot, write_snapshot
from nbxtensor.memory.trace._state import dump_snapshot, snapshot

# What the viewer's own unpickler knows.
OPCODES = {
    "PROTO", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "MARK", "BINUNICODE", "BININT", "BININT1",
    "BININT2", "LONG1", "BINFLOAT", "NEWTRUE", "NEWFALSE", "NONE", "SETITEM", "SETITEMS", "APPEND",
    "APPENDS", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "BINPUT", "LONG_BINPUT", "BINGET",
    "LONG_BINGET", "STOP",
}  # fmt: skip


@pytest.fixture(params=["cpu", "sim:0"])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def bytes_by_tag(events: Trace, sign: int) -> dict[str, int]:
    totals: dict[str, int] = {}
    for op, tag, size in zip(
        events.op.tolist(), events.tag.tolist(), events.bytes.tolist(), strict=True
    ):
        if op == sign:
            name = events.tags[tag]
            totals[name] = totals.get(name, 0) + size
    return totals


def test_a_recording_has_every_allocation(device: str, rng: np.random.Generator) -> None:
    sizes = rng.integers(1, 50_000, 200).tolist()
    before = nbx.empty((1000,), dtype=nbx.uint8, device=device)
    with record(device=device) as recording:
        kept = []
        for i, size in enumerate(sizes):
            with nbx.memory.tag("rec/kv" if i % 2 else "rec/weights"):
                kept.append(nbx.empty((size,), dtype=nbx.uint8, device=device))
            if i % 3 == 0:
                kept.pop()
        del before
    events = recording.trace
    assert events.missing == 0
    assert events.device == device
    allocated = bytes_by_tag(events, 1)
    assert allocated["rec/weights"] == sum(sizes[0::2])
    assert allocated["rec/kv"] == sum(sizes[1::2])
    freed = bytes_by_tag(events, -1)
    assert freed["rec/weights"] == sum(s for i, s in enumerate(sizes) if i % 3 == 0 and i % 2 == 0)
    # The block from before is there from the start, and its free.
    first = events.bytes[(events.op > 0) & (events.tag == 0)].tolist()
    assert 1000 in first
    assert events.addressed() is events
    assert (np.diff(events.time) >= 0).all()
    assert kept


def test_threads_are_recorded_apart(device: str) -> None:
    def work(tag: str) -> None:
        with nbx.memory.tag(tag):
            for i in range(500):
                nbx.empty((i + 1,), dtype=nbx.uint8, device=device)

    with record(device=device) as recording:
        threads = [threading.Thread(target=work, args=(f"rec/t{i}",)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events = recording.trace
    assert events.missing == 0
    for i in range(4):
        mine = events.tag == events.tags.index(f"rec/t{i}")
        assert bytes_by_tag(events, 1)[f"rec/t{i}"] == 500 * 501 // 2
        assert bytes_by_tag(events, -1)[f"rec/t{i}"] == 500 * 501 // 2
        assert len(np.unique(events.thread[mine])) == 1


def test_a_recording_may_go_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.tsv.gz"
    former = _record.set_events(64)
    try:
        with record(path, device="cpu") as recording:
            thread = threading.Thread(
                target=lambda: [nbx.empty((i + 1,)) for i in range(2000)] and None
            )
            thread.start()
            thread.join()
    finally:
        _record.set_events(former)
    events = trace.read(path)
    assert events.missing == recording.trace.missing == 0
    assert events.bytes.tolist() == recording.trace.bytes.tolist()
    assert int((events.bytes[events.op > 0] % 4 == 0).sum()) >= 2000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.tsv.gz"]


def test_a_recording_that_cannot_begin_records_nothing(tmp_path: Path) -> None:
    recording = record(tmp_path / "nowhere" / "run.tsv")
    with pytest.raises(FileError, match=r"run\.tsv: cannot be written"):
        recording.start()
    with pytest.raises(ValueError, match="when the with statement has ended"):
        recording.stop()
    (tmp_path / "nowhere").mkdir()
    with recording:
        held = nbx.empty((4321,), dtype=nbx.uint8, device="cpu")
    assert 4321 in recording.trace.bytes
    assert [path.name for path in (tmp_path / "nowhere").iterdir()] == ["run.tsv"]
    del held


def test_origins_are_recorded() -> None:
    former = _record.set_origins(3)
    try:
        with record(device="cpu") as recording:
            nbx.zeros((77,))
    finally:
        _record.set_origins(former)
    events = recording.trace
    at = int(np.flatnonzero((events.op > 0) & (events.bytes == 308))[0])
    frames = events.origins[events.origin[at]].split("\n")
    assert "test_record.py" in frames[0]
    assert frames[0].endswith("test_origins_are_recorded")


def test_the_rings_are_always_on() -> None:
    marker = nbx.empty((123_457,), dtype=nbx.uint8, device="cpu")
    events = _record.events("cpu")
    assert 123_457 in events.bytes[events.op > 0].tolist()
    assert marker.shape == (123_457,)


def test_a_snapshot_shows_every_live_block(device: str, rng: np.random.Generator) -> None:
    held = {}
    with nbx.memory.tag("snapshot/test"):
        for size in rng.choice(np.arange(100_000, 200_000), 30, replace=False).tolist():
            held[size] = nbx.empty((size,), dtype=nbx.uint8, device=device)
    shot = snapshot(device)
    live = shot.live()
    mine = live[np.isin(live["requested"], list(held))]
    assert sorted(mine["requested"].tolist()) == sorted(held)
    addresses = live["address"].astype(np.int64)
    assert (np.diff(addresses) > 0).all()
    assert (addresses[:-1] + live["bytes"][:-1].astype(np.int64) <= addresses[1:]).all()
    runs = shot.mapped()
    for block in mine.tolist():
        assert any(low <= block[0] and block[0] + block[1] <= low + size for low, size, _ in runs)
    data = shot.as_dict()
    tagged = [
        block
        for segment in data["segments"]
        for block in segment["blocks"]
        if block.get("user_metadata") == "snapshot/test"
    ]
    assert sorted(block["requested_size"] for block in tagged) == sorted(held)


def walk_back(data: dict[str, Any], device: int) -> None:
    """Do what the viewer does: undo every event, and find each block's segment each time."""
    segments = [s for s in data["segments"] if s["device"] == device]
    spans = sorted((s["address"], s["address"] + s["total_size"]) for s in segments)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    blocks, requested = set(), set()
    for segment in segments:
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            if block["state"] in ("active_allocated", "active_pending_free"):
                blocks.add(at)
            if block["state"] == "active_pending_free":
                requested.add(at)
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]

    def covered(address: int) -> bool:
        return any(low <= address < high for low, high in spans)

    for event in reversed(data["device_traces"][device]):
        address = event["addr"]
        if event["action"] == "free_completed":
            assert address not in blocks
            blocks.add(address)
            requested.add(address)
        elif event["action"] == "free_requested":
            requested.remove(address)
        elif event["action"] == "alloc":
            assert address in blocks
            blocks.remove(address)
        assert event["action"] == "oom" or covered(address)
    assert all(covered(address) for address in blocks)


def test_a_dumped_snapshot_opens_in_the_viewer(device: str, tmp_path: Path) -> None:
    kept = [nbx.empty((5000 + i,), dtype=nbx.uint8, device=device) for i in range(50)]
    del kept[::3]
    path = tmp_path / "run.pickle"
    dump_snapshot(path, [device, "cpu"])
    raw = path.read_bytes()
    for opcode, argument, _ in pickletools.genops(raw):
        assert opcode.name in OPCODES
        if opcode.name == "LONG1":
            assert -(2**63) <= int(argument) < 2**63
    data = loads(raw)
    assert data["device_names"] == [device, "cpu"]
    assert set(data) >= {"segments", "device_traces", "allocator_settings"}
    assert all("frames" in event for events in data["device_traces"] for event in events)
    walk_back(data, 0)
    events = trace.read(path)
    assert events.device == device
    assert int(events.live()[-1]) >= sum(k.shape[0] for k in kept)


def test_a_snapshot_of_sleepers_and_of_blocks_that_wait_opens_in_the_viewer() -> None:
    device = "sim:0"
    streams = [nbx.Stream(device) for _ in range(2)]
    with record(device=device) as recording:
        with nbx.memory.tag("rec/asleep"):
            sleeper = nbx.ones((300_000,), device=device)
        awake = nbx.asarray(np.ones(1 << 20, np.float32), device=device)
        nbx.memory.sleep("rec/asleep", device)
        waiting = nbx.empty((1 << 20,), dtype=nbx.uint8, device=device)
        address = waiting.data_ptr()
        for stream in streams:
            with nbx.stream(stream):
                late = nbx.asarray(np.ones(1 << 20, np.float32), device=device)
                waiting.record_use(stream)
                del late
        del waiting
        shot = snapshot(device)
        data = shot.as_dict()
        nbx.empty((10,), device=device)
        nbx.synchronize(device)
        nbx.memory.trim(device)
    walk_back(data, 0)
    blocks = {
        block["address"]: (segment["segment_type"], block)
        for segment in data["segments"]
        for block in segment["blocks"]
    }
    kind, block = blocks[address]
    assert (kind, block["state"]) == ("large", "active_pending_free")
    assert block["requested_size"] == 1 << 20
    asleep = [block for kind, block in blocks.values() if kind == "asleep"]
    assert [block["requested_size"] for block in asleep] == [1_200_000]
    assert asleep[0]["user_metadata"] == "rec/asleep"
    assert 1_200_000 not in shot.live()["requested"].tolist()
    nbx.memory.wake("rec/asleep", device)
    # The recording knows when the last use of the freed block was over; so does a snapshot of it.
    trace_ = recording.trace
    ends = trace_.completions()
    freed = [i for i in ends if trace_.address[i] == address]
    assert len(freed) == 1
    again = read_snapshot(write_snapshot(trace_), "again")
    assert {int(again.address[i]) for i in again.completions()} >= {address}
    actions = [note.action for note in trace_.notes if note.action in ("sleep", "tag")]
    assert actions == ["tag", "tag", "sleep"]
    assert sleeper.shape == (300_000,)
    assert awake.shape == (1 << 20,)


def test_origins_of_frees_are_recorded() -> None:
    def drop(tensors: list[nbx.Tensor]) -> None:
        tensors.clear()

    former = _record.set_origins(2)
    try:
        with record(device="cpu") as recording:
            drop([nbx.zeros((79,))])
    finally:
        _record.set_origins(former)
    events = recording.trace
    at = int(np.flatnonzero((events.op < 0) & (events.bytes == 316))[0])
    assert events.origins[events.origin[at]].split("\n")[0].endswith(" drop")
    back = read_snapshot(write_snapshot(events), "back")
    freed = int(np.flatnonzero((back.op < 0) & (back.bytes == 316))[0])
    assert back.origins[back.origin[freed]] == events.origins[events.origin[at]]


def test_a_new_epoch_is_a_note() -> None:
    with record(device="sim:1") as recording:
        nbx.zeros((10,), device="sim:1")
        epoch = nbx.memory.new_epoch("sim:1")
        nbx.zeros((10,), device="sim:1")
    notes = [(note.action, note.bytes) for note in recording.trace.notes if note.action == "epoch"]
    assert notes == [("epoch", epoch)]


def test_a_converted_trace_opens_in_the_viewer(rng: np.random.Generator, tmp_path: Path) -> None:
    lines = ["# op\tid\tbytes\tstream"]
    live: list[tuple[int, int]] = []
    for block in range(300):
        if live and rng.random() < 0.4:
            victim, size = live.pop(int(rng.integers(len(live))))
            lines.append(f"-\t{victim}\t{size}\t0")
        else:
            live.append((block, int(rng.integers(1, 10**6))))
            lines.append(f"+\t{block}\t{live[-1][1]}\t0")
    (tmp_path / "run.tsv").write_text("\n".join(lines))
    trace.write(trace.read(tmp_path / "run.tsv"), tmp_path / "run.pickle")
    walk_back(loads((tmp_path / "run.pickle").read_bytes()), 0)


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nbxtensor", "trace", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=300,
    )


def test_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("SIZE = 4321\n")
    (tmp_path / "script.py").write_text(
        "import sys, helper, nbxtensor as nbx\n"
        "assert sys.argv[1:] == ['-x', '--flag', 'a b'], sys.argv\n"
        "with nbx.memory.tag('kv'):\n"
        "    x = nbx.empty((helper.SIZE,), dtype=nbx.uint8, device='cpu')\n"
        "sys.exit(3)\n"
    )
    done = run(
        "record", "-o", "out.tsv.gz", "--origins", "2", "--", "script.py", "-x", "--flag", "a b",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    events = trace.read(tmp_path / "out.tsv.gz")
    at = int(np.flatnonzero(events.bytes == 4321)[0])
    assert events.tags[events.tag[at]] == "kv"
    assert "script.py:4" in events.origins[events.origin[at]]
    assert run("convert", "out.tsv.gz", "out.json", cwd=tmp_path).returncode == 0
    assert run("convert", "--to", "seed", "out.json", "out.txt", cwd=tmp_path).returncode == 0
    assert trace.read(tmp_path / "out.txt").peak() == events.peak()
    assert run("view", "out.txt", "-o", "out.html", cwd=tmp_path).returncode == 0
    assert "<canvas" in (tmp_path / "out.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("convert", "nothing.tsv", "x.json"), "nothing.tsv: cannot be read"),
        (("convert", "bad.tsv", "x.json"), "bad.tsv, line 2, column op"),
        (("convert", "bad.tsv", "x.txt"), "bad.tsv, line 2"),
        (("view", "bad.tsv", "-o", "x.html", "--from", "morse"), "unknown format 'morse'"),
        (("record", "-o", "x.txt", "--", "bad.tsv"), "tells no format"),
        (("record", "-o", "x.tsv", "--", "nothing.py"), "nothing.py: cannot be run"),
        (("record", "-o", "x.tsv", "-m", "nothing.at.all"), "there is no module 'nothing.at.all'"),
        (("record", "-o", "no/x.tsv", "--", "bad.tsv"), "no/x.tsv: cannot be written"),
        (("convert", "blanks.tsv", "x.json"), r"# op\tid\tbytes\tstream"),
    ],
)
def test_the_command_line_names_faults(
    arguments: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.tsv").write_text("# op\tid\tbytes\tstream\n?\t1\t2\t3\n")
    (tmp_path / "blanks.tsv").write_text("# op id bytes stream\n+ 1 2 3\n")
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_refusals_and_pages_are_notes() -> None:
    device, tag = "sim:0", "rec/small"
    with record(device=device) as recording:
        nbx.memory.trim(device)
        large = nbx.empty((96 << 20,), dtype=nbx.uint8, device=device)
        with (
            nbx.memory.budget("1 MiB", device=device, tag=tag),
            nbx.memory.tag(tag),
            pytest.raises(nbx.OutOfMemoryError),
        ):
            nbx.empty((2 << 20,), dtype=nbx.uint8, device=device)
        del large
        nbx.memory.trim(device)
    notes = {(note.action, note.bytes, note.text) for note in recording.trace.notes}
    assert ("refuse", 2 << 20, tag) in notes
    assert any(action == "map" and size > 0 for action, size, _ in notes)
    assert any(action == "unmap" and size > 0 for action, size, _ in notes)
