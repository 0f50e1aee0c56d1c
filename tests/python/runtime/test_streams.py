"""Streams and events order work; contexts set a thread's stream."""

from __future__ import annotations

import threading

import pytest
from nbxtensor import _core, runtime


def test_a_context_sets_the_stream_of_its_thread() -> None:
    outer = runtime.current_stream("sim:0")
    assert outer == runtime.default_stream("sim:0")
    stream = runtime.Stream("sim:0")
    seen = []
    with runtime.stream(stream) as entered:
        assert entered is stream
        assert runtime.current_stream("sim:0") is stream
        assert runtime.current_stream("sim:1") == runtime.default_stream("sim:1")
        thread = threading.Thread(target=lambda: seen.append(runtime.current_stream("sim:0")))
        thread.start()
        thread.join()
    assert runtime.current_stream("sim:0") == outer
    assert seen == [outer]


def test_contexts_must_nest() -> None:
    first, second = runtime.Stream("sim:0"), runtime.Stream("sim:0")
    first.__enter__()
    second.__enter__()
    with pytest.raises(ValueError, match="entered last"):
        first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    first.__exit__(None, None, None)
    assert runtime.current_stream("sim:0") == runtime.default_stream("sim:0")


def test_a_stream_stays_while_it_is_current() -> None:
    before = _core.sim.books(0)["streams"]
    with runtime.Stream("sim:0"):
        assert _core.sim.books(0)["streams"] == before + 1
        runtime.current_stream("sim:0").synchronize()
    assert _core.sim.books(0)["streams"] == before


def test_identity() -> None:
    stream = runtime.Stream("sim:0")
    assert stream.device is runtime.device("sim:0")
    assert stream == stream
    assert stream != runtime.Stream("sim:0")
    assert stream != runtime.default_stream("sim:0")
    assert stream != 1
    assert len({stream, stream, runtime.default_stream("sim:0")}) == 2
    assert repr(stream) == f"nbxtensor.Stream('sim:0', handle={stream.handle})"


@pytest.mark.parametrize("name", ["cpu", "sim:0"])
def test_waits_and_events(name: str) -> None:
    first, second = runtime.Stream(name), runtime.Stream(name)
    assert first.is_complete()
    event = first.record_event(timing=True)
    second.wait_event(event)
    second.wait_stream(first)
    end = runtime.Event(name, timing=True)
    end.record(second)
    end.synchronize()
    assert event.is_complete()
    assert end.is_complete()
    assert event.elapsed(end) >= 0
    runtime.synchronize(second)
    runtime.synchronize(name)
    with pytest.raises(ValueError, match="timing=True"):
        event.elapsed(runtime.Event(name))


def test_events_belong_to_a_device() -> None:
    with pytest.raises(ValueError, match=r"event is of sim:0 and the stream of sim:1"):
        runtime.Event("sim:0").record(runtime.default_stream("sim:1"))


def test_only_streams_make_stream_contexts() -> None:
    with pytest.raises(TypeError, match="expected a Stream, got str"):
        runtime.stream("sim:0")  # type: ignore[arg-type]
