"""Synthetic allocation traces: the workloads that allocators are known to fail on.

Every generator takes a seed and returns a trace. Sizes are bytes as a program would ask for them,
not rounded to anything.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nbxtensor.memory.trace._trace import Builder, Trace

KIB = 1024
MIB = 1024 * KIB


class Writer:
    """Collects the events of a program that allocates and frees."""

    def __init__(self) -> None:
        self._events = Builder("generated", device="sim:0")
        self._live: dict[int, tuple[int, int]] = {}
        self._next = 0

    def allocate(self, size: int, stream: int = 0) -> int:
        """Allocate `size` bytes and return the id."""
        self._events.add(1, self._next, size, stream=stream)
        self._live[self._next] = (size, stream)
        self._next += 1
        return self._next - 1

    def free(self, name: int) -> None:
        """Free what `allocate` returned."""
        size, stream = self._live.pop(name)
        self._events.add(-1, name, size, stream=stream)

    def free_all(self, names: list[int]) -> None:
        """Free several, in order, and empty the list."""
        for name in names:
            self.free(name)
        names.clear()

    def trace(self) -> Trace:
        """Return everything so far; what is still live stays so."""
        return self._events.build()


def serving(seed: int, requests: int = 120, layers: int = 8) -> Trace:
    """Decode batches whose key and value caches grow by copying into larger ones."""
    rng = np.random.default_rng(seed)
    writer = Writer()
    for _ in range(layers):
        writer.allocate(int(rng.integers(8, 24)) * MIB)  # weights
    token = 4 * KIB
    running: list[tuple[int, int, list[int]]] = []  # tokens held, tokens wanted, a cache a layer
    for _ in range(requests * 6):
        if requests > 0 and (len(running) < 4 or (len(running) < 16 and rng.random() < 0.3)):
            requests -= 1
            prompt = int(rng.lognormal(5.5, 0.9)) + 1
            caches = [writer.allocate(prompt * token) for _ in range(layers)]
            running.append((prompt, prompt + int(rng.lognormal(5.0, 0.8)) + 1, caches))
        step: list[tuple[int, int, list[int]]] = []
        for held, wanted, caches in running:
            scratch = [writer.allocate(int(rng.integers(1, 64)) * 3000 + 17) for _ in range(3)]
            grown = held + 48
            for layer, old in enumerate(caches):
                caches[layer] = writer.allocate(grown * token)
                writer.free(old)
            writer.free_all(scratch)
            if grown >= wanted:
                writer.free_all(caches)
            else:
                step.append((grown, wanted, caches))
        running = step
    return writer.trace()


def experts(seed: int, steps: int = 60, layers: int = 4, count: int = 16) -> Trace:
    """Tokens routed to experts of uneven load, some of which come and go from host memory."""
    rng = np.random.default_rng(seed)
    writer = Writer()
    weight = int(rng.integers(5, 9)) * MIB + 12345
    resident: list[dict[int, int]] = [{} for _ in range(layers)]
    for _ in range(steps):
        tokens = int(rng.choice([1, 16, 256, 1024]))
        hidden = writer.allocate(tokens * 8192 + 1)
        for layer in resident:
            load = rng.multinomial(tokens * 2, rng.dirichlet(np.full(count, 0.4)))
            for expert in np.flatnonzero(load):
                if int(expert) not in layer:
                    if len(layer) >= count // 2:
                        writer.free(layer.pop(next(iter(layer))))
                    layer[int(expert)] = writer.allocate(weight)
                rows = int(load[expert])
                work = [writer.allocate(rows * width) for width in (8192, 28672, 28672, 8192)]
                writer.free_all(work)
        writer.free(hidden)
    return writer.trace()


def growing(seed: int, count: int = 400) -> Trace:
    """Sizes that grow slowly: no freed block is ever large enough for the next request."""
    rng = np.random.default_rng(seed)
    writer = Writer()
    size, last = 1 * MIB, [writer.allocate(64 * KIB)]
    for _ in range(count):
        size += int(rng.integers(1, 512 * KIB))
        last.append(writer.allocate(size))
        writer.free(last.pop(0))
    return writer.trace()


def phases(seed: int, rounds: int = 3) -> Trace:
    """Phases A, B, A, ...: what one frees comes back in another size, small blocks stay between."""
    rng = np.random.default_rng(seed)
    writer = Writer()
    for _ in range(rounds):
        for low, high in ((256 * KIB, 4 * MIB), (16 * MIB, 96 * MIB)):
            held: list[int] = []
            total = 0
            while total < 768 * MIB:
                size = int(rng.integers(low, high))
                held.append(writer.allocate(size))
                total += size
                if rng.random() < 0.02:
                    writer.allocate(int(rng.integers(1, 64 * KIB)))
            rng.shuffle(held)
            writer.free_all(held)
    return writer.trace()


def comb(seed: int, teeth: int = 64) -> Trace:
    """Every other of many equal blocks freed, then requests larger than any hole."""
    rng = np.random.default_rng(seed)
    writer = Writer()
    tooth = int(rng.integers(20, 40)) * MIB + int(rng.integers(1, 4 * KIB))
    row = [writer.allocate(tooth) for _ in range(teeth)]
    for name in row[::2]:
        writer.free(name)
    kept = row[1::2]
    free = tooth * len(row[::2])
    large: list[int] = []
    while free > 0:
        size = min(free, int(rng.integers(2, 12)) * tooth)
        large.append(writer.allocate(size))
        free -= size
    writer.free_all(large)
    writer.free_all(kept)
    return writer.trace()


def streams(seed: int, count: int = 6000, number: int = 4) -> Trace:
    """Several streams with sizes and lifetimes of their own, busy by turns."""
    rng = np.random.default_rng(seed)
    writer = Writer()
    centre = rng.uniform(13, 21, size=number)
    held: list[list[int]] = [[] for _ in range(number)]
    for step in range(count):
        phase = (step * number * 2 // count) % number
        stream = phase if rng.random() < 0.6 else int(rng.integers(number))
        queue = held[stream]
        if len(queue) > 40 or (queue and rng.random() < 0.45):
            writer.free(queue.pop(int(rng.integers(len(queue)))))
        else:
            size = int(2 ** min(25.0, max(6.0, rng.normal(centre[stream], 2.0))))
            queue.append(writer.allocate(size, stream))
    return writer.trace()


GENERATORS: dict[str, Callable[[int], Trace]] = {
    "serving": serving,
    "experts": experts,
    "growing": growing,
    "phases": phases,
    "comb": comb,
    "streams": streams,
}
