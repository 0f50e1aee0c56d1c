"""Graphs on a real card: replays, exchanges, growth, and memory that belongs to them."""

from __future__ import annotations

import gc
import threading
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
import triton.language as tl
from nbxtensor.runtime import current_stream, kernel, synchronize


@kernel
def affine(y, x, factor, offset, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """y = x * factor + offset."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    tl.store(y + place, tl.load(x + place, mask=inside) * factor + offset, mask=inside)


COUNT = 5000
GRID = (-(-COUNT // 1024),)


def launch(y: nbx.Tensor, x: nbx.Tensor, factor: float, offset: float) -> None:
    affine[GRID](y, x, factor, offset, COUNT, BLOCK=1024)


def steps(x: nbx.Tensor, count: int = 200) -> nbx.Tensor:
    """Run `count` kernels, each on memory of its own."""
    for step in range(count):
        y = nbx.empty((COUNT,), dtype="float32", device=x.device)
        launch(y, x, 0.99, 0.25 * (step % 7))
        x = y
    return x


def expected(values: np.ndarray, count: int = 200) -> np.ndarray:
    values = values.astype(np.float64)
    for step in range(count):
        values = values * 0.99 + 0.25 * (step % 7)
    return values


def fresh(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal(COUNT).astype(np.float32)


def host(x: nbx.Tensor) -> np.ndarray:
    return x.to("cpu").numpy()


def test_two_hundred_kernels_replay_as_they_ran(
    device: nbx.Device, rng: np.random.Generator
) -> None:
    graph = nbx.Graph.capture(steps, nbx.asarray(fresh(rng), device=device))
    assert len(graph.nodes) == 200
    assert {node.grid for node in graph.nodes} == {(*GRID, 1, 1)}
    for _ in range(3):
        values = fresh(rng)
        x = nbx.asarray(values, device=device)
        result = host(graph(x))
        np.testing.assert_array_equal(result, host(steps(x)))
        np.testing.assert_allclose(result, expected(values), rtol=1e-5, atol=1e-5)


def test_a_thousand_replays_see_their_inputs_and_keep_their_results(
    device: nbx.Device, rng: np.random.Generator
) -> None:
    graph = nbx.Graph.capture(lambda x: steps(x, 20), nbx.asarray(fresh(rng), device=device))
    x = nbx.empty((COUNT,), dtype="float32", device=device)
    given, kept = [], []
    for step in range(1000):
        values = fresh(rng)
        x[...] = nbx.from_numpy(values)  # in the order of the stream, and nothing waits
        result = graph(x)
        if step % 50 == 0:
            given.append(values)
            kept.append(result)
    for values, result in zip(given, kept, strict=True):
        np.testing.assert_allclose(host(result), expected(values, 20), rtol=1e-5, atol=1e-5)


def test_copies_replay_with_the_hosts_values_of_the_capture(device: nbx.Device) -> None:
    source = np.arange(COUNT, dtype=np.float32)
    a = nbx.empty((COUNT,), dtype="float32", device=device)
    b = nbx.empty((COUNT,), dtype="float32", device=device)
    with nbx.Graph(device=device) as graph:
        a[...] = nbx.from_numpy(source.copy())
        c = nbx.from_numpy(source[:10].copy()).to(device)
    b[...] = nbx.from_numpy(np.zeros(COUNT, np.float32))
    np.testing.assert_array_equal(host(b), np.zeros(COUNT))
    source[:] = -1
    gc.collect()
    graph.replay()
    np.testing.assert_array_equal(host(a), np.arange(COUNT))
    np.testing.assert_array_equal(host(c), np.arange(10))


def test_kernels_take_other_tensors_and_numbers(
    device: nbx.Device, rng: np.random.Generator
) -> None:
    one, two = fresh(rng), fresh(rng)
    x, other = (nbx.asarray(values, device=device) for values in (one, two))
    y = nbx.empty((COUNT,), dtype="float32", device=device)
    launch(y, x, 2.0, 1.0)
    synchronize(device)
    with nbx.Graph(device=device) as graph:
        launch(y, x, 2.0, 1.0)
    graph.replay()
    np.testing.assert_allclose(host(y), one * 2 + 1, rtol=1e-5, atol=1e-6)
    graph.rebind(x, other)
    graph.replay()
    np.testing.assert_allclose(host(y), two * 2 + 1, rtol=1e-5, atol=1e-6)
    graph.update(0, factor=3.0, offset=-1.0)
    graph.replay()
    np.testing.assert_allclose(host(y), two * 3 - 1, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="has no parameter 'BLOCK'"):
        graph.update(0, BLOCK=512)
    del x
    graph.replay()
    del other
    with pytest.raises(ValueError, match="was freed"):
        graph.replay()


def test_graphs_are_built_of_launches(device: nbx.Device, rng: np.random.Generator) -> None:
    values = fresh(rng)
    x = nbx.asarray(values, device=device)
    y = nbx.empty((COUNT,), dtype="float32", device=device)
    z = nbx.empty((COUNT,), dtype="float32", device=device)
    rows: list[Any] = [
        (affine, GRID, (y, x, 2.0, 1.0, COUNT), {"BLOCK": 1024}),
        (affine, GRID, (z, y, 0.5, 3.0, COUNT), {"BLOCK": 1024}),
    ]
    graph = nbx.Graph.from_launches(rows)
    for _ in range(3):
        graph.replay()
    np.testing.assert_allclose(host(z), (values * 2 + 1) * 0.5 + 3, rtol=1e-5, atol=1e-6)
    graph.update(1, offset=0.0)
    graph.replay()
    np.testing.assert_allclose(host(z), (values * 2 + 1) * 0.5, rtol=1e-5, atol=1e-6)


def test_growth_of_what_it_reads_is_an_error(device: nbx.Device, rng: np.random.Generator) -> None:
    values = fresh(rng)
    cache = nbx.asarray(values, device=device)

    def work(x: nbx.Tensor) -> nbx.Tensor:
        y = nbx.empty((COUNT,), dtype="float32", device=device)
        launch(y, cache, 1.0, 0.5)
        return y

    x = nbx.empty((1,), dtype="float32", device=device)
    graph = nbx.Graph.capture(work, x)
    np.testing.assert_allclose(host(graph(x)), values + 0.5, rtol=1e-5, atol=1e-6)
    cache = nbx.asarray(np.concatenate([values, values]), device=device)
    with pytest.raises(ValueError, match=r"was freed .*capture again"):
        graph(x)


def test_memory_made_inside_belongs_to_the_graph(
    device: nbx.Device, rng: np.random.Generator
) -> None:
    values = fresh(rng)
    x = nbx.asarray(values, device=device)
    launch(nbx.empty((COUNT,), dtype="float32", device=device), x, 1.0, 1.0)
    inside = set()
    with nbx.Graph(device=device) as graph:
        y = x
        for _ in range(6):
            z = nbx.empty((COUNT,), dtype="float32", device=device)
            launch(z, y, 1.0, 1.0)
            inside.add(z.data_ptr())
            y = z
    assert len(inside) == 2
    zeros = np.zeros(COUNT, np.float32)
    outside = [nbx.asarray(zeros, device=device) for _ in range(6)]
    assert not inside & {tensor.data_ptr() for tensor in outside}
    graph.replay()
    np.testing.assert_allclose(host(y), values + 6, rtol=1e-5, atol=1e-5)
    for tensor in outside:
        np.testing.assert_array_equal(host(tensor), zeros)
    del graph, y, z
    synchronize(device)
    assert nbx.memory.stats(device).pending == 0


def test_captures_come_and_go(device: nbx.Device, rng: np.random.Generator) -> None:
    x = nbx.asarray(fresh(rng), device=device)
    stream = nbx.Stream(device)

    def once() -> None:
        with nbx.Graph(stream) as graph:
            y = steps(x, 4)
        graph.replay(stream)
        del y

    def held() -> tuple[int, int, int]:
        synchronize(device)
        gc.collect()
        nbx.memory.trim(device)
        figures = nbx.memory.stats(device)
        return figures.live, figures.mapped, figures.pending

    once()
    before = held()
    for _ in range(100):
        once()
    assert held() == before


def test_streams_and_threads_share_a_graph(device: nbx.Device, rng: np.random.Generator) -> None:
    graph = nbx.Graph.capture(lambda x: steps(x, 10), nbx.asarray(fresh(rng), device=device))
    seeds = [int(seed) for seed in rng.integers(0, 2**31, 4)]
    failures: list[str] = []

    def work(seed: int) -> None:
        own = np.random.default_rng(seed)
        with nbx.Stream(device):
            for _ in range(25):
                values = fresh(own)
                result = host(graph(nbx.asarray(values, device=device)))
                if not np.allclose(result, expected(values, 10), rtol=1e-5, atol=1e-5):
                    failures.append(f"seed {seed}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_several_streams_are_captured_together(
    device: nbx.Device, rng: np.random.Generator
) -> None:
    values = fresh(rng)
    x = nbx.asarray(values, device=device)
    first, second = nbx.Stream(device), nbx.Stream(device)
    y, z = (nbx.empty((COUNT,), dtype="float32", device=device) for _ in range(2))
    launch(y, x, 1.0, 0.0)
    synchronize(device)
    with nbx.Graph(first) as graph:
        launch(y, x, 2.0, 0.0)
        second.wait_stream(first)
        with second:
            launch(z, y, 1.0, 5.0)
        first.wait_stream(second)
        launch(y, z, 1.0, 1.0)
    graph.replay()
    np.testing.assert_allclose(host(y), values * 2 + 6, rtol=1e-5, atol=1e-5)


def test_reads_are_refused_inside_and_the_stream_is_usable_after(
    device: nbx.Device, rng: np.random.Generator
) -> None:
    values = fresh(rng)
    x = nbx.asarray(values, device=device)
    stream = nbx.Stream(device)
    synchronize(device)

    def read() -> None:
        with nbx.Graph(stream):
            launch(x, x, 1.0, 1.0)
            x.numpy()

    with pytest.raises(ValueError, match="captured"):
        read()
    with stream:
        assert current_stream(device) == stream
        np.testing.assert_array_equal(host(x), values)


def test_ops_replay(device: nbx.Device, rng: np.random.Generator) -> None:
    def work(x: nbx.Tensor, w: nbx.Tensor) -> dict[str, nbx.Tensor]:
        y = nbx.exp(x * 0.5) + w
        return {"y": y, "sum": y.sum(), "product": x.reshape(50, 100) @ w.reshape(100, 50)}

    a, b = fresh(rng), fresh(rng)
    x, w = nbx.asarray(a, device=device), nbx.asarray(b, device=device)
    graph = nbx.Graph.capture(work, nbx.asarray(b, device=device), w)
    eager, replayed = work(x, w), graph(x, w)
    for name, tensor in eager.items():
        np.testing.assert_array_equal(host(tensor), host(replayed[name]))
    np.testing.assert_allclose(host(replayed["y"]), np.exp(a * 0.5) + b, rtol=1e-5, atol=1e-6)
