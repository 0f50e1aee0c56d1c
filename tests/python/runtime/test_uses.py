"""Memory that several streams use, streams of others, and captures."""

from __future__ import annotations

import gc

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import _core, runtime

COUNT = 1 << 20
BYTES = 4 * COUNT


def late_fill(tensor: nbx.Tensor, stream: nbx.Stream, value: int) -> None:
    """Let another library write the memory, at the end of the stream."""
    _core.sim.foreign_fill(0, tensor.data_ptr(), value, BYTES, stream.handle)


@pytest.mark.parametrize("method", ["record_use", "record_stream", "function"])
def test_memory_in_use_elsewhere_is_not_handed_on(method: str) -> None:
    stream = nbx.Stream("sim:0")
    tensor = nbx.empty((COUNT,), device="sim:0")
    address = tensor.data_ptr()
    late_fill(tensor, stream, 0xFF)
    if method == "function":
        nbx.record_use(tensor, stream)
    else:
        getattr(tensor, method)(stream)
    del tensor
    ones = [nbx.ones((COUNT,), device="sim:0") for _ in range(4)]
    runtime.synchronize("sim:0")
    for one in ones:
        np.testing.assert_array_equal(one.numpy(), np.ones(COUNT, np.float32))
    assert address not in [one.data_ptr() for one in ones] or stream.is_complete()


def test_without_a_record_the_late_work_is_seen() -> None:
    """The device is late enough for the test above to mean something."""
    stream = nbx.Stream("sim:0")
    tensor = nbx.empty((COUNT,), device="sim:0")
    address = tensor.data_ptr()
    late_fill(tensor, stream, 0xFF)
    del tensor
    one = nbx.zeros((COUNT,), device="sim:0")
    assert one.data_ptr() == address
    one.cpu()
    runtime.synchronize("sim:0")
    assert np.isnan(one.numpy()).all()


def test_host_access_waits_for_recorded_work() -> None:
    stream = nbx.Stream("sim:0")
    tensor = nbx.zeros((COUNT,), dtype=nbx.int32, device="sim:0")
    stream.wait_stream(runtime.default_stream("sim:0"))
    late_fill(tensor, stream, 1)
    tensor.record_use(stream)
    np.testing.assert_array_equal(tensor.numpy(), np.full(COUNT, 0x01010101, np.int32))


def test_streams_of_others_are_wrapped_and_left_alone() -> None:
    owner = nbx.Stream("sim:0")
    wrapped = nbx.Stream.external(owner.handle, "sim:0")
    assert wrapped == owner
    before = _core.sim.books(0)["streams"]
    with nbx.stream(wrapped):
        total = nbx.ones((8,), device="sim:0").sum()
    assert float(total) == 8.0
    del wrapped
    gc.collect()
    assert _core.sim.books(0)["streams"] == before
    owner.synchronize()


def test_record_use_names_what_it_got() -> None:
    tensor = nbx.ones((2,), device="sim:0")
    with pytest.raises(TypeError, match=r"record_use: expected a Stream, got int; .*external"):
        tensor.record_use(7)  # type: ignore[arg-type]
    tensor.record_use(nbx.Stream("cpu"))  # whose work is over when it returns
    nbx.ones((2,)).record_use(nbx.Stream("sim:0"))


def test_a_dead_streams_memory_comes_back() -> None:
    nbx.memory.trim("sim:0")
    held = _core.sim.books(0)["used_bytes"]
    for _ in range(3):
        with nbx.Stream("sim:0"):
            total = (nbx.ones((COUNT,), device="sim:0") + 1).sum()
        del total
    _core.sim.advance(10.0)
    nbx.memory.trim("sim:0")
    assert _core.sim.books(0)["used_bytes"] == held


def test_borrowed_memory_goes_back_when_the_last_work_drops_it() -> None:
    """The last reference is dropped on the stream, where nobody may wait."""
    array = np.arange(8, dtype=np.float32)
    source = nbx.from_numpy(array)
    on_device = source.to("sim:0")
    alias = nbx.from_dlpack(on_device)
    result = alias * 2
    del alias
    np.testing.assert_array_equal(result.numpy(), array * 2)


# ---- captures ------------------------------------------------------------------------------


def test_a_graph_runs_as_often_as_it_is_launched() -> None:
    stream = nbx.Stream("sim:0")
    counter = nbx.zeros((4,), device="sim:0")
    stream.wait_stream(runtime.default_stream("sim:0"))
    with runtime.capture(stream) as recorded:
        counter += 1.0
    np.testing.assert_array_equal(counter.numpy(), np.zeros(4))
    for count in (1, 2, 3):
        recorded.graph.launch()
        np.testing.assert_array_equal(counter.numpy(), np.full(4, count))


def test_memory_inside_a_capture_is_reused_there_and_frozen_after_it() -> None:
    nbx.memory.trim("sim:0")
    stream = nbx.Stream("sim:0")
    x = nbx.ones((COUNT,), device="sim:0")
    runtime.synchronize("sim:0")
    stream.wait_stream(runtime.default_stream("sim:0"))
    addresses = set()
    with runtime.capture(stream) as recorded:
        y = x
        for _ in range(8):
            y = y + 1
            addresses.add(y.data_ptr())
    assert len(addresses) == 2  # what an addition reads, and what it writes
    frozen = set(addresses)
    outside = [nbx.zeros((COUNT,), device="sim:0") for _ in range(4)]
    assert not frozen & {tensor.data_ptr() for tensor in outside}
    recorded.graph.launch()
    np.testing.assert_array_equal(y.numpy(), np.full(COUNT, 9.0))
    for tensor in outside:
        np.testing.assert_array_equal(tensor.numpy(), np.zeros(COUNT))


def test_tensors_that_die_before_their_graph_leave_it_their_memory() -> None:
    nbx.memory.trim("sim:0")
    stream = nbx.Stream("sim:0")
    x = nbx.ones((COUNT,), device="sim:0")
    runtime.synchronize("sim:0")
    stream.wait_stream(runtime.default_stream("sim:0"))
    with runtime.capture(stream) as recorded:
        y = x + 1
        x += 1.0
    used = {x.data_ptr(), y.data_ptr()}
    del x, y
    outside = [nbx.zeros((COUNT,), device="sim:0") for _ in range(4)]
    assert not used & {tensor.data_ptr() for tensor in outside}
    recorded.graph.launch()
    for tensor in outside:
        np.testing.assert_array_equal(tensor.numpy(), np.zeros(COUNT))
    del recorded
    runtime.synchronize("sim:0")
    outside += [nbx.zeros((COUNT,), device="sim:0") for _ in range(4)]
    assert used & {tensor.data_ptr() for tensor in outside}


def test_an_abandoned_capture_leaves_nothing_behind() -> None:
    stream = nbx.Stream("sim:0")
    x = nbx.ones((COUNT,), device="sim:0")
    runtime.synchronize("sim:0")
    before = nbx.memory.stats("sim:0")
    recorded = runtime.capture(stream)

    def abandon() -> None:
        with recorded:
            x + 1
            raise KeyError("abandoned")

    with pytest.raises(KeyError):
        abandon()
    assert nbx.memory.stats("sim:0").live == before.live
    with pytest.raises(ValueError, match="there is no graph"):
        recorded.graph  # noqa: B018
    with nbx.stream(stream):
        np.testing.assert_array_equal((x + 1).numpy(), np.full(COUNT, 2.0))


def test_captures_do_not_nest() -> None:
    stream = nbx.Stream("sim:0")
    with runtime.capture(stream), pytest.raises(ValueError, match="captured already"):
        runtime.capture(stream).__enter__()
    with pytest.raises(nbx.DeviceError, match="capture_begin"):
        runtime.capture(runtime.default_stream("sim:0")).__enter__()
    with pytest.raises(nbx.UnsupportedError, match="capture_begin"):
        runtime.capture(nbx.Stream("cpu")).__enter__()
