"""Graphs that are changed between replays: other tensors, other numbers; and built ones."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
import triton.language as tl
from nbxtensor import _core, runtime

DEVICES = ["cpu", "sim:0"]
each_device = pytest.mark.parametrize("device", DEVICES)


def tensor(values: Any, device: str) -> nbx.Tensor:
    """Return float32 values on the device, complete."""
    moved = nbx.asarray(np.array(values, np.float32)).to(device).clone()
    runtime.synchronize(device)
    return moved


@each_device
def test_kernels_take_another_tensor_without_a_copy(device: str) -> None:
    one, two = tensor([1.0, 2.0], device), tensor([10.0, 20.0], device)
    graph = nbx.Graph.capture(lambda x: (x + one) * one, tensor([0.0, 0.0], device))
    x = tensor([1.0, 1.0], device)
    np.testing.assert_array_equal(graph(x).numpy(), [2.0, 6.0])
    first = graph(x)
    graph.rebind(one, two)
    np.testing.assert_array_equal(graph(x).numpy(), [110.0, 420.0])
    one = tensor([0.0, 0.0], device)  # the former one is gone
    np.testing.assert_array_equal(graph(x).numpy(), [110.0, 420.0])
    np.testing.assert_array_equal(first.numpy(), [2.0, 6.0])
    two += 1.0
    np.testing.assert_array_equal(graph(x).numpy(), [132.0, 462.0])
    del two
    with pytest.raises(ValueError, match="was freed"):
        graph(x)


@each_device
def test_what_was_exchanged_is_not_kept(device: str) -> None:
    size = 1 << 16
    current = tensor(np.zeros(size), device)
    graph = nbx.Graph.capture(lambda x: x + current, tensor(np.zeros(size), device))
    nbx.memory.trim(device)
    before = None
    for step in range(20):
        following = tensor(np.full(size, float(step)), device)
        graph.rebind(current, following)
        current = following
        del following
        graph.replay()
        runtime.synchronize(device)
        nbx.memory.trim(device)
        mapped = nbx.memory.stats(device).pending
        before = mapped if before is None else before
        assert mapped == before
    assert graph.outputs[0].item() == 19.0


@each_device
def test_own_inputs_and_outputs_may_be_exchanged(device: str) -> None:
    graph = nbx.Graph.capture(lambda x: x + 1.0, tensor([1.0], device))
    mine = tensor([0.0], device)
    graph.rebind(graph.outputs, mine)
    assert graph(tensor([4.0], device)).item() == 5.0
    assert mine.item() == 5.0
    assert graph.outputs is mine


@each_device
def test_exchanges_that_cannot_be_made_are_refused(device: str) -> None:
    base = tensor(np.arange(8), device)
    left, right = base[:4], base[4:]
    target = tensor(np.zeros(4), device)

    def work(x: nbx.Tensor) -> nbx.Tensor:
        nbx.record_use(target, nbx.current_stream(device))
        return x + left + right + target

    graph = nbx.Graph.capture(work, tensor(np.zeros(4), device))
    other = tensor(np.ones(4), device)
    with pytest.raises(ValueError, match="a copy, a fill or work of another library uses"):
        graph.rebind(target, other)
    with pytest.raises(ValueError, match="uses another window of the same memory"):
        graph.rebind(left, other)
    with pytest.raises(ValueError, match="dtype, shape and strides"):
        graph.rebind(base, other)
    with pytest.raises(ValueError, match="no kernel of the graph uses the old tensor"):
        graph.rebind(tensor(np.zeros(4), device), other)
    with pytest.raises(ValueError, match="no multiple of 16 bytes"):
        graph.rebind(base, tensor(np.zeros(9), device)[1:])
    with pytest.raises(ValueError, match=r"the graph is of .*give tensors of its device"):
        graph.rebind(base, nbx.zeros((8,), device="sim:1"))
    expected = np.arange(4) + np.arange(4, 8)
    np.testing.assert_array_equal(graph(tensor(np.zeros(4), device)).numpy(), expected)


class Scale:
    """y[i] = x[i] * factor, a kernel of a simulated device."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, ...]] = []
        self.kernel = _core.simulate_kernel(
            _core.device("sim:0"),
            "scale",
            self.run,
            ["raw8", "raw8", "raw4", "raw4"],
            ["y", "x", "factor", "count"],
        )

    def run(self, grid: tuple[int, int, int], words: tuple[int, ...]) -> None:
        y, x, factor, count = words
        self.runs.append((*grid, factor))
        floats = ctypes.POINTER(ctypes.c_float)
        source, result = ctypes.cast(x, floats), ctypes.cast(y, floats)
        for i in range(count):
            result[i] = source[i] * factor

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(y: nbx.Tensor, x: nbx.Tensor, factor: int) -> None:
            self.kernel.launch(grid, y.data_ptr(), x.data_ptr(), factor, x.size)
            for used in (y, x):
                nbx.record_use(used, nbx.current_stream("sim:0"))

        return launch


def test_numbers_of_kernels_change_by_name() -> None:
    scale = Scale()
    x, y = tensor([1.0, 2.0], "sim:0"), tensor([0.0, 0.0], "sim:0")
    with nbx.Graph(device="sim:0") as graph:
        scale[2, 3](y, x, 4)
        z = y + 1.0
    node = graph.nodes[0]
    assert (node.kernel, node.grid) == ("scale", (2, 3, 1))
    assert node.arguments == {"y": y.data_ptr(), "x": x.data_ptr(), "factor": 4, "count": 2}
    graph.replay()
    np.testing.assert_array_equal(z.numpy(), [5.0, 9.0])
    graph.update(0, factor=10, count=1)
    assert graph.nodes[0].arguments["factor"] == 10
    graph.replay()
    np.testing.assert_array_equal(z.numpy(), [11.0, 9.0])
    assert scale.runs == [(2, 3, 1, 4), (2, 3, 1, 10)]
    with pytest.raises(ValueError, match=r"no parameter 'scale' .*; it has y, x, factor, count"):
        graph.update(0, scale=1)
    with pytest.raises(TypeError, match=r"'x' got a tensor; graph.rebind"):
        graph.update(0, x=x)
    with pytest.raises(OverflowError, match="'factor': the integer 4294967296 does not fit"):
        graph.update(0, factor=1 << 32)
    with pytest.raises(nbx.UnsupportedError, match="node 1 is a function of the host"):
        graph.update(1, number0=1)
    with pytest.raises(IndexError, match="node 2 of a graph of 2"):
        graph.update(2, factor=1)


@runtime.kernel
def scaled(y, x, factor):  # type: ignore[no-untyped-def]
    place = tl.program_id(0)
    tl.store(y + place, tl.load(x + place) * factor)


def test_graphs_are_built_of_launches() -> None:
    x, y, z = (tensor([1.0, 2.0], "sim:0") for _ in range(3))
    graph = nbx.Graph.from_launches(
        [(scaled, 2, (y, x, 3.0)), (scaled, (2,), (z, y), {"factor": 5.0})]
    )
    assert [(node.kernel, node.grid) for node in graph.nodes] == [("scaled", (2, 1, 1))] * 2
    np.testing.assert_array_equal(z.numpy(), [1.0, 2.0])
    graph.replay()
    np.testing.assert_array_equal(z.numpy(), [15.0, 30.0])
    graph.update(1, factor=2.0)
    graph.replay()
    np.testing.assert_array_equal(z.numpy(), [6.0, 12.0])
    graph.rebind(x, tensor([10.0, 20.0], "sim:0"))
    with pytest.raises(ValueError, match="was freed"):
        graph.replay()
    with pytest.raises(ValueError, match=r"launch 0 has 1 parts; expected \(kernel, grid"):
        nbx.Graph.from_launches([(scaled,)])
    with pytest.raises(nbx.UnsupportedError, match="graph_create"):
        nbx.Graph.from_launches([], stream=nbx.Stream("cpu"))
