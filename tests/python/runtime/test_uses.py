"""Memory that several streams use, and streams of others."""

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
