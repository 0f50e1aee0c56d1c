"""The reader of plain pickles, and the snapshot of the memory viewer."""

from __future__ import annotations

import collections
import datetime
import os
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbxtensor.memory.trace import TraceError
from nbxtensor.memory.trace._formats import read_bytes
from nbxtensor.memory.trace._pickle import dumps, loads
from nbxtensor.memory.trace._snapshot import read_snapshot

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.tuples()
        | st.tuples(inner)
        | st.dictionaries(st.text(max_size=5), inner)
        | st.tuples(inner, inner, inner, inner)
    ),
    max_leaves=30,
)


def attempt(read: Callable[[], Any]) -> Any:
    """Return what reading gives: a value, or an error that names the file."""
    try:
        return read()
    except TraceError as error:
        return error


@given(PLAIN, st.integers(2, 4))
def test_plain_values_come_back(value: Any, protocol: int) -> None:
    assert loads(pickle.dumps(value, protocol)) == value
    assert loads(dumps(value)) == value


def test_shared_values_stay_shared() -> None:
    inner: list[int] = [1]
    back = loads(dumps([inner, inner]))
    assert back[0] is back[1]


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/never",)


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Evil(), "system"),
        (collections.OrderedDict(a=1), "OrderedDict"),
        (datetime.date(2000, 1, 1), "date"),
        ([np.int64(3)], "scalar"),
    ],
)
def test_classes_are_refused_by_name(value: Any, named: str, protocol: int) -> None:
    with pytest.raises(TraceError, match=named) as caught:
        loads(pickle.dumps({"segments": value}, protocol), "run.pickle")
    assert "byte" in str(caught.value)
    assert "run code" in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'x'\ntR.",  # protocol 0
        b"\x80\x02cos\nsystem\n.",
        b"\x80\x02(cos\nsystem\no.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02Pid\n.",
    ],
)
def test_old_ways_to_a_class_are_refused(data: bytes) -> None:
    with pytest.raises(TraceError):
        loads(data)


@pytest.mark.parametrize(
    ("value", "named"), [(b"bytes", "opcode"), ({1, 2}, "opcode"), (2**80, "11 bytes")]
)
def test_other_values_are_refused(value: Any, named: str) -> None:
    with pytest.raises(TraceError, match=named):
        loads(pickle.dumps(value, 4))


@given(PLAIN, st.data())
def test_damaged_pickles_give_a_named_error(value: Any, data: st.DataObject) -> None:
    whole = bytearray(pickle.dumps({"segments": value, "device_traces": [[value]]}, 4))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    result = attempt(lambda: read_bytes(cut, "x", "snapshot"))
    assert not isinstance(result, TraceError) or str(result).startswith("x")


@given(st.binary(max_size=60))
def test_any_opcodes_give_a_named_error(data: bytes) -> None:
    result = attempt(lambda: loads(b"\x80\x02" + data, "x"))
    assert not isinstance(result, TraceError) or str(result).startswith("x")


def event(action: str, addr: int, size: int, time: int, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time, **more}


def test_a_snapshot_of_a_caching_allocator_is_read() -> None:
    frames = [{"filename": "m.py", "line": 3, "name": "f"}]
    snapshot = {
        "segments": [
            {
                "device": 1, "address": 4096, "total_size": 8192, "stream": 0,
                "blocks": [
                    {"size": 1024, "requested_size": 1000, "state": "active_allocated",
                     "frames": frames},
                    {"size": 1024, "requested_size": 1024, "state": "active_allocated"},
                    {"size": 6144, "state": "inactive"},
                ],
            },
        ],
        "device_traces": [
            [],
            [
                event("segment_alloc", 4096, 8192, 1),
                event("free_requested", 9000, 50, 2),  # was there before the events
                event("free_completed", 9000, 50, 3),
                event("alloc", 5120, 1024, 4, frames=frames),
                event("alloc", 7000, 10, 5),
                event("free", 7000, 10, 6),
                event("oom", 0, 1 << 40, 7, device_free=3),
                event("snapshot", 0, 0, 8),
            ],
        ],
    }  # fmt: skip
    events = read_snapshot(dumps(snapshot), "x")
    assert events.device == "cuda:1"
    table = list(
        zip(events.op.tolist(), events.address.tolist(), events.bytes.tolist(), strict=True)
    )
    assert table == [
        (1, 9000, 50),
        (1, 4096, 1000),
        (-1, 9000, 50),
        (1, 5120, 1024),
        (1, 7000, 10),
        (-1, 7000, 10),
    ]
    assert int(events.live()[-1]) == 2024
    assert [note.action for note in events.notes] == ["map", "refuse"]
    assert events.origins[events.origin[1]] == "m.py:3 f"


@pytest.mark.parametrize(
    ("snapshot", "named"),
    [
        ({"segments": 3}, "segments: 3"),
        ({"device_traces": [[{"action": "dance", "addr": 1, "size": 1}]]}, "dance"),
        ({"device_traces": [[{"action": "alloc", "addr": -1, "size": 1}]]}, "addr: -1"),
        ({"device_traces": [[{"action": "alloc", "addr": 1}]]}, r"no size"),
        ({"device_traces": [[7]]}, "7"),
    ],
)
def test_wrong_members_are_named(snapshot: Any, named: str) -> None:
    with pytest.raises(TraceError, match=named):
        read_snapshot(dumps(snapshot), "x")


def test_a_lost_free_is_counted() -> None:
    snapshot = {"device_traces": [[event("alloc", 512, 10, 1), event("alloc", 512, 20, 2)]]}
    events = read_snapshot(dumps(snapshot), "x")
    assert events.op.tolist() == [1, -1, 1]
    assert events.missing == 1
