"""Graphs on the cpu and on simulated devices: captured, replayed, changed, and out of date."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import _core, runtime

DEVICES = ["cpu", "sim:0"]
each_device = pytest.mark.parametrize("device", DEVICES)


def tensor(values: Any, device: str) -> nbx.Tensor:
    """Return float32 values on the device, complete."""
    moved = nbx.asarray(np.array(values, np.float32)).to(device).clone()
    runtime.synchronize(device)
    return moved


def fresh(shape: tuple[int, ...]) -> np.ndarray:
    seed = np.random.SeedSequence().entropy
    print(f"seed {seed}")
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- replays ---------------------------------------------------------------------------------


@each_device
def test_two_hundred_kernels_replay_as_they_ran(device: str) -> None:
    def work(x: nbx.Tensor) -> nbx.Tensor:
        for step in range(100):
            x = x * 0.75 + float(step)
        return x

    values = fresh((33,))
    graph = nbx.Graph.capture(work, tensor(values, device))
    assert len(graph.nodes) == 200
    assert {node.kernel for node in graph.nodes} == {"elementwise:mul", "elementwise:add"}
    for values in (fresh((33,)), fresh((33,))):
        x = tensor(values, device)
        np.testing.assert_array_equal(graph(x).numpy(), work(x).numpy())


@each_device
def test_nothing_runs_inside(device: str) -> None:
    counter = tensor([0.0, 0.0], device)
    with nbx.Graph(device=device) as graph:
        counter += 1.0
        counter[0] = 7.0
    np.testing.assert_array_equal(counter.numpy(), [0.0, 0.0])
    for count in (1, 2, 3):
        graph.replay()
        np.testing.assert_array_equal(counter.numpy(), [7.0, count])


@each_device
def test_changing_inputs_are_seen_and_results_are_kept(device: str) -> None:
    """A graph that read stale inputs gave tokens twice, and one overwrote what was kept."""
    weights = fresh((4, 3))
    matrix = tensor(weights, device)
    graph = nbx.Graph.capture(lambda x: nbx.matmul(x, matrix), nbx.ones((2, 4), device=device))
    given = [fresh((2, 4)) for _ in range(100)]
    x = nbx.empty((2, 4), device=device)
    kept = []
    for values in given:
        x[...] = nbx.from_numpy(values)
        kept.append(graph(x))
    for values, result in zip(given, kept, strict=True):
        expected = values.astype(np.float64) @ weights.astype(np.float64)
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-5)


@each_device
def test_the_graphs_own_tensors_are_overwritten(device: str) -> None:
    graph = nbx.Graph.capture(lambda x: x + 1.0, tensor([1.0], device))
    first = graph(tensor([1.0], device))
    assert graph.outputs.item() == 2.0
    graph(tensor([5.0], device))
    assert graph.outputs.item() == 6.0
    assert first.item() == 2.0


@each_device
def test_trees_of_tensors_come_and_go(device: str) -> None:
    def work(pair: tuple[Any, Any], options: dict[str, Any], factor: float) -> dict[str, Any]:
        a, b = pair
        return {"sum": (a + b) * factor, "rest": [options["c"].T, None, factor]}

    one, two = tensor([1.0, 2.0], device), tensor([3.0, 4.0], device)
    c = tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], device)
    graph = nbx.Graph.capture(work, (one, two), {"c": c}, 2.0)
    result = graph((two, two), {"c": c * 10.0}, 2.0)
    np.testing.assert_array_equal(result["sum"].numpy(), [12.0, 16.0])
    np.testing.assert_array_equal(result["rest"][0].numpy(), [[10, 40], [20, 50], [30, 60]])
    assert result["rest"][1:] == [None, 2.0]
    with pytest.raises(ValueError, match=r"inputs\[2\] is 3.0, in the capture it was 2.0"):
        graph((two, two), {"c": c}, 3.0)
    with pytest.raises(ValueError, match=r"inputs\[0\] was a tuple of 2 in the capture, got tuple"):
        graph((two,), {"c": c}, 2.0)
    with pytest.raises(ValueError, match=r"inputs\[1\] has the keys \['d'\]"):
        graph((two, two), {"d": c}, 2.0)
    with pytest.raises(TypeError, match=r"inputs\[0\]\[0\] was a tensor in the capture, got int"):
        graph((1, two), {"c": c}, 2.0)
    with pytest.raises(ValueError, match=r"tensor 2 of the inputs is float32 of shape \(2, 2\)"):
        graph((two, two), {"c": c[:, :2]}, 2.0)


@each_device
def test_inputs_without_order_in_memory_are_copied_in_order(device: str) -> None:
    values = fresh((3, 5))
    graph = nbx.Graph.capture(lambda x: x * 2.0, nbx.ones((5, 3), device=device))
    np.testing.assert_array_equal(graph(tensor(values, device).T).numpy(), values.T * 2)
    np.testing.assert_array_equal(graph(nbx.from_numpy(values).T).numpy(), values.T * 2)


@each_device
def test_host_values_inside_are_those_of_the_capture(device: str) -> None:
    host = np.array([1.0, 2.0], np.float32)

    def work(x: nbx.Tensor) -> nbx.Tensor:
        y = x * nbx.asarray(host.copy()).to(device)
        z = nbx.empty((2,), device=device)
        z[...] = nbx.from_numpy(np.array([10.0, 20.0], np.float32))
        return y + z

    graph = nbx.Graph.capture(work, tensor([1.0, 1.0], device))
    gc.collect()
    junk = [np.full(2, np.nan, np.float32) for _ in range(100)]
    np.testing.assert_array_equal(graph(tensor([3.0, 4.0], device)).numpy(), [13.0, 28.0])
    assert len(junk) == 100


@each_device
def test_errors_of_kernels_come_from_the_replay(device: str) -> None:
    table = tensor(np.arange(4), device)
    index = nbx.asarray(np.array([0, 3], np.int64)).to(device).clone()
    graph = nbx.Graph.capture(lambda i: nbx.take(table, i), index)
    index[...] = 9

    def run() -> None:
        graph(index)
        runtime.synchronize(device)

    with pytest.raises(IndexError):
        run()
    index[...] = 2
    np.testing.assert_array_equal(graph(index).numpy(), [2.0, 2.0])


# ---- what is refused inside ------------------------------------------------------------------


READS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda x: x.numpy(),
    "item": lambda x: x.item(),
    "bool": bool,
    "float": float,
    "tolist": lambda x: x.tolist(),
    "array": np.asarray,
}


@each_device
@pytest.mark.parametrize("read", READS)
def test_captured_values_cannot_be_read_inside(device: str, read: str) -> None:
    x = tensor([1.0], device)
    graph = nbx.Graph(device=device)

    def work() -> None:
        with graph:
            READS[read](x + 1.0)

    with pytest.raises(ValueError, match="captured work runs when the graph is launched"):
        work()
    with pytest.raises(ValueError, match="nothing is captured"):
        graph.replay()
    np.testing.assert_array_equal((x + 1.0).numpy(), [2.0])


def test_copies_to_other_devices_are_refused_inside() -> None:
    x = tensor([1.0], "sim:0")
    other = tensor([1.0], "sim:1")

    def copy(source: nbx.Tensor, to: str) -> None:
        with nbx.Graph(device="sim:0"):
            source.to(to)

    for source, to in ((x, "cpu"), (x, "sim:1"), (other, "sim:0")):
        with pytest.raises(ValueError, match="is captured, and a copy to"):
            copy(source, to)
    assert x.to("sim:1").item() == 1.0


@each_device
def test_random_numbers_are_refused_inside(device: str) -> None:
    before = nbx.random.get_state()

    def draw() -> None:
        with nbx.Graph(device=device):
            nbx.random.uniform(size=(2,), device=device)

    with pytest.raises(ValueError, match="the same numbers at every replay"):
        draw()
    assert nbx.random.get_state() == before
    graph = nbx.Graph.capture(lambda noise: noise + 1.0, nbx.ones((2,), device=device))
    noise = nbx.random.uniform(size=(2,), device=device)
    np.testing.assert_array_equal(graph(noise).numpy(), (noise + 1.0).numpy())


@each_device
def test_captures_and_launches_do_not_nest(device: str) -> None:
    x = tensor([1.0], device)
    graph = nbx.Graph.capture(lambda y: y + 1.0, x)
    outer = nbx.Graph(device=device)
    with pytest.raises(ValueError, match="a graph cannot be part of another"), outer:
        graph.replay()
    stream = nbx.Stream(device)
    with nbx.Graph(stream), pytest.raises(ValueError, match="captured already"):
        nbx.Graph(stream).__enter__()
    with pytest.raises(ValueError, match=r"default stream of .* cannot be captured"):
        nbx.Graph(runtime.default_stream(device)).__enter__()
    with pytest.raises(ValueError, match="captured already; make another"):
        graph.__enter__()
    assert graph(x).item() == 2.0


def test_streams_and_devices_are_named() -> None:
    with pytest.raises(TypeError, match="expected a Stream, got int"):
        nbx.Graph(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the stream is of cpu, the device given is sim:0"):
        nbx.Graph(nbx.Stream("cpu"), device="sim:0")
    with pytest.raises(ValueError, match="tensor 1 of the inputs is on cpu, the graph on sim:0"):
        nbx.Graph.capture(lambda a, b: a, nbx.ones((1,), device="sim:0"), nbx.ones((1,)))
    graph = nbx.Graph.capture(lambda a: a + 1.0, nbx.ones((1,), device="sim:0"))
    assert graph.device == "sim:0"
    with pytest.raises(ValueError, match="the graph is of sim:0 and the stream of cpu"):
        graph.replay(nbx.Stream("cpu"))
    with nbx.Graph(device="cpu") as low:
        pass
    with pytest.raises(ValueError, match="it has no inputs"):
        low()


# ---- memory ----------------------------------------------------------------------------------


@each_device
def test_memory_made_inside_belongs_to_the_graph(device: str) -> None:
    x = tensor(np.ones(1 << 16), device)
    nbx.memory.trim(device)
    before = nbx.memory.stats(device).live
    addresses = set()
    with nbx.Graph(device=device) as graph:
        y = x
        for _ in range(8):
            y = y + 1.0
            addresses.add(y.data_ptr())
    assert len(addresses) == 2, "freed inside, used again inside"
    outside = [nbx.zeros((1 << 16,), device=device) for _ in range(6)]
    assert not addresses & {other.data_ptr() for other in outside}
    graph.replay()
    assert y[0].item() == 9.0
    for other in outside:
        assert not other.numpy().any()
    del y, graph, outside, other
    gc.collect()
    runtime.synchronize(device)
    nbx.memory.trim(device)  # check mode keeps freed blocks for a while
    assert nbx.memory.stats(device).live == before
    assert nbx.memory.stats(device).pending == 0


@each_device
def test_its_memory_is_counted_under_a_tag(device: str) -> None:
    def held(tag: str) -> int:
        return sum(row.bytes for row in nbx.memory.report(device).rows if row.tag == tag)

    graph = nbx.Graph.capture(lambda x: x + 1.0, tensor(np.ones(1 << 12), device))
    assert held("graph") >= 2 * 4 * (1 << 12), "an input and an output"
    with nbx.memory.tag("decode"):
        tagged = nbx.Graph.capture(lambda x: x + 1.0, tensor(np.ones(1 << 12), device))
    assert held("decode") >= 2 * 4 * (1 << 12)
    del graph, tagged
    gc.collect()
    runtime.synchronize(device)
    nbx.memory.trim(device)  # check mode keeps freed blocks for a while
    assert held("graph") == held("decode") == 0


def books() -> dict[str, int]:
    _core.sim.advance(10.0)
    runtime.synchronize("sim:0")
    gc.collect()
    nbx.memory.trim("sim:0")
    return {key: _core.sim.books(0)[key] for key in ("used_bytes", "streams")}


def test_a_thousand_captures_leave_nothing() -> None:
    x = tensor(np.ones(1 << 10), "sim:0")
    stream = nbx.Stream("sim:0")

    def once(fail: bool) -> None:
        graph = nbx.Graph(stream)
        try:
            with graph:
                y = x + 1.0
                z = y * nbx.asarray(np.ones(4, np.float32)).to("sim:0")[0]
                if fail:
                    raise KeyError("abandoned")
            graph.replay()
            del y, z
        except KeyError:
            assert fail

    once(False)
    before = books()
    for index in range(1000):
        once(index % 3 == 0)
    assert books() == before
    assert nbx.memory.stats("sim:0").pending == 0


@each_device
def test_an_abandoned_capture_leaves_nothing_behind(device: str) -> None:
    x = tensor(np.ones(1 << 16), device)
    stream = nbx.Stream(device)
    before = nbx.memory.stats(device)
    former = nbx.current_stream(device)
    graph = nbx.Graph(stream)

    def abandon() -> None:
        with graph:
            x + 1.0
            raise KeyError("abandoned")

    with pytest.raises(KeyError):
        abandon()
    assert nbx.current_stream(device) == former
    after = nbx.memory.stats(device)
    assert (after.live, after.pending) == (before.live, before.pending)
    with pytest.raises(ValueError, match="nothing is captured"):
        graph.replay()
    with stream:
        np.testing.assert_array_equal((x + 1.0).numpy(), np.full(1 << 16, 2.0))


@each_device
def test_a_graph_may_go_while_it_runs(device: str) -> None:
    x = tensor(np.ones(1 << 12), device)
    results = []
    for _ in range(20):
        graph = nbx.Graph.capture(lambda y: (y * 2.0) + nbx.asarray([1.0]).to(y.device), x)
        results.append(graph(x))
        del graph
    for result in results:
        np.testing.assert_array_equal(result.numpy(), np.full(1 << 12, 3.0))


# ---- graphs that are out of date -------------------------------------------------------------


@each_device
def test_growth_of_what_it_reads_is_an_error(device: str) -> None:
    """A cache that grew by a copy would be read at its old address for ever."""
    cache = tensor(np.ones((2, 4)), device)
    graph = nbx.Graph.capture(lambda x: (cache * x).sum(), tensor([2.0], device))
    assert graph(tensor([3.0], device)).item() == 24.0
    cache = nbx.concat([cache, cache])
    for _ in range(2):
        with pytest.raises(ValueError, match=r"a tensor of 32 B .* was freed .*capture again"):
            graph(tensor([3.0], device))
    with pytest.raises(ValueError, match="was freed"):
        graph.replay()
    graph = nbx.Graph.capture(lambda x: (cache * x).sum(), tensor([2.0], device))
    assert graph(tensor([3.0], device)).item() == 48.0


@each_device
def test_what_is_freed_inside_is_an_error_at_once(device: str) -> None:
    def work() -> None:
        x = tensor([1.0], device)
        with nbx.Graph(device=device):
            x = x + 1.0

    with pytest.raises(ValueError, match="was freed that the captured work uses"):
        work()


def test_sleeping_memory_is_an_error_until_it_wakes() -> None:
    with nbx.memory.tag("weights"):
        weights = tensor(np.arange(1 << 20), "sim:0")
    graph = nbx.Graph.capture(lambda x: (weights * x)[3], tensor([2.0], "sim:0"))
    assert graph(tensor([2.0], "sim:0")).item() == 6.0
    nbx.memory.sleep("weights", device="sim:0")
    with pytest.raises(ValueError, match=r"weights\) that the captured work uses is asleep"):
        graph.replay()
    nbx.memory.wake("weights", device="sim:0")
    assert graph(tensor([5.0], "sim:0")).item() == 15.0


def test_reserved_memory_grows_under_a_graph() -> None:
    granule = 2 << 20
    block = nbx.memory.reserve(8 * granule, device="sim:0")
    block.commit(granule)
    window = block.tensor((4,), nbx.float32)
    window[...] = 1.0
    graph = nbx.Graph.capture(
        lambda x: window + x + block.tensor((4,), nbx.float32), tensor(np.zeros(4), "sim:0")
    )
    block.commit(4 * granule)
    result = graph(tensor(np.ones(4), "sim:0"))
    np.testing.assert_array_equal(result.numpy(), np.full(4, 3.0))
    window = block.tensor((4,), nbx.float32)  # the former one is gone
    with pytest.raises(ValueError, match="was freed"):
        graph.replay()


def test_an_epoch_ends_its_graphs() -> None:
    graph = nbx.Graph.capture(lambda x: x + 1.0, tensor([1.0], "sim:1"))
    nbx.memory.new_epoch("sim:1")
    with pytest.raises(ValueError, match=r"is of epoch .* ended .*; capture again"):
        graph.replay()


# ---- threads and streams ---------------------------------------------------------------------


@each_device
def test_threads_share_a_graph(device: str) -> None:
    graph = nbx.Graph.capture(lambda x: (x * 2.0).sum(), tensor(np.zeros(64), device))
    failures: list[str] = []

    def work(number: int) -> None:
        with nbx.Stream(device):
            for step in range(20):
                value = float(100 * number + step)
                result = graph(nbx.full((64,), value, device=device))
                if result.item() != 128.0 * value:
                    failures.append(f"{value}: {result.item()}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_streams_that_wait_for_captured_work_join() -> None:
    for device in DEVICES:
        x = tensor([1.0], device)
        first, second = nbx.Stream(device), nbx.Stream(device)
        with nbx.Graph(first) as graph:
            y = x + 1.0
            second.wait_stream(first)
            with second:
                z = y * 10.0
            first.wait_stream(second)
            total = y + z
        assert not _core.is_capturing(device)
        graph.replay()
        assert total.item() == 22.0


@each_device
def test_launches_on_several_streams_come_in_turn(device: str) -> None:
    counter = tensor([0.0], device)
    with nbx.Graph(device=device) as graph:
        counter += 1.0
    streams = [nbx.Stream(device) for _ in range(3)]
    for step in range(30):
        graph.replay(streams[step % 3])
    assert counter.item() == 30.0
