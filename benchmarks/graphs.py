"""Cost of a replay of many small kernels: on the host, and until the device is done.

Prints one JSON object: microseconds a replay, medians of several rounds. On a CUDA device the same
kernels are recorded once more by the driver alone, and launched by a loop in C, and torch's graph
of as many kernels runs where torch is installed. On the cpu the peer is the same work without one.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbxtensor as nbx
from _machine import describe
from nbxtensor import runtime

Launches = Callable[[int], None]

LOOP = """
#include <time.h>
typedef int (*Launch)(void*, void*);
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}
double loop(Launch launch, void* graph, void* stream, int count, int* status) {
  double start = now();
  for (int i = 0; i < count && *status == 0; ++i) *status = launch(graph, stream);
  return now() - start;
}
"""


def measure(
    sides: dict[str, tuple[Launches, Callable[[], None]]], options: Any
) -> dict[str, dict[str, float]]:
    """Return host and wall microseconds of each side's launch.

    The sides take turns, as the clock changes; few launches at a time, so that no queue is full.
    """
    figures: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in sides}
    for round_ in range(options.rounds + 3):
        for name, (launch, wait) in sides.items():
            wait()
            start = time.perf_counter()
            launch(options.number)
            submitted = time.perf_counter()
            wait()
            done = time.perf_counter()
            if round_ >= 3:
                figures[name][0].append((submitted - start) / options.number * 1e6)
                figures[name][1].append((done - start) / options.number * 1e6)
    return {
        name: {"host_us": statistics.median(host), "wall_us": statistics.median(wall)}
        for name, (host, wall) in figures.items()
    }


# ---- the work --------------------------------------------------------------------------------


def device_work(device: nbx.Device, kernels: int) -> Callable[[], None]:
    """Return what launches small kernels that depend on each other, and allocates nothing."""
    from _graph_kernels import affine

    x, y = (nbx.zeros((1024,), dtype="float32", device="cpu").to(device) for _ in range(2))

    def work() -> None:
        a, b = x, y
        for _ in range(kernels):
            affine[(1,)](b, a, 0.99, 0.5, 1024, BLOCK=1024)
            a, b = b, a

    work()
    runtime.synchronize(device)
    return work


def host_work(device: nbx.Device, kernels: int) -> Callable[[], None]:
    """Return the same as ops on the cpu."""
    x = nbx.zeros((1024,), device=device)

    def work() -> None:
        y = x
        for _ in range(kernels):
            y += 0.5

    work()
    return work


# ---- peers -----------------------------------------------------------------------------------


def check(status: int, call: str) -> None:
    if status != 0:
        raise RuntimeError(f"{call} failed with {status}")


class BareGraph:
    """The same kernels, recorded and launched by the driver alone."""

    def __init__(self, work: Callable[[], None], stream: nbx.Stream) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.stream = ctypes.c_void_p(stream.handle)
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        with stream:
            check(self.driver.cuStreamBeginCapture_v2(self.stream, 2), "cuStreamBeginCapture")
            work()
            check(self.driver.cuStreamEndCapture(self.stream, ctypes.byref(graph)), "EndCapture")
        check(
            self.driver.cuGraphInstantiateWithFlags(
                ctypes.byref(executable), graph, ctypes.c_ulonglong(0)
            ),
            "cuGraphInstantiateWithFlags",
        )
        self.executable = executable
        self.loop = self._compiled()

    @staticmethod
    def _compiled() -> Any:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
        if compiler is None:
            return None
        folder = Path(tempfile.mkdtemp())
        (folder / "loop.c").write_text(LOOP, "utf-8")
        library = folder / "loop.so"
        subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", "-o", library, folder / "loop.c"], check=True
        )
        loop = ctypes.CDLL(str(library)).loop
        loop.restype = ctypes.c_double
        shutil.rmtree(folder)
        return loop

    def launch(self, count: int) -> None:
        function = self.driver.cuGraphLaunch
        if self.loop is None:
            for _ in range(count):
                check(function(self.executable, self.stream), "cuGraphLaunch")
            return
        status = ctypes.c_int(0)
        self.loop(function, self.executable, self.stream, count, ctypes.byref(status))
        check(status.value, "cuGraphLaunch")


def torch_graph(kernels: int) -> tuple[Launches, Callable[[], None]]:
    import torch

    x, y = (torch.zeros(1024, device="cuda") for _ in range(2))

    def work() -> None:
        a, b = x, y
        for _ in range(kernels):
            torch.add(a, 0.5, out=b)
            a, b = b, a

    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()

    def launch(count: int) -> None:
        for _ in range(count):
            graph.replay()

    return launch, torch.cuda.synchronize


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kernels", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--number", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="one line")
    options = parser.parse_args()
    device = nbx.device(options.device)
    on_host = device.kind == "cpu"
    work = (host_work if on_host else device_work)(device, options.kernels)
    stream = nbx.Stream(device)
    with nbx.Graph(stream) as graph:
        work()

    def replay(count: int) -> None:
        for _ in range(count):
            graph.replay()

    def eager(count: int) -> None:
        for _ in range(count):
            work()

    def wait() -> None:
        stream.synchronize()

    sides = {"replay": (replay, wait)}
    others = {"eager": (eager, wait)}
    if device.kind == "cuda":
        sides["driver"] = (BareGraph(work, stream).launch, wait)
        if importlib.util.find_spec("torch") is not None:
            others["torch"] = torch_graph(options.kernels)
    with stream:
        rows = measure(sides, options) | measure(others, options)
    if "driver" in rows:
        for figure in ("host_us", "wall_us"):
            rows["replay"][figure.replace("_us", "_over_driver")] = (
                rows["replay"][figure] / rows["driver"][figure]
            )
    report = {
        "machine": describe(device.name),
        "device": device.name,
        "kernels": options.kernels,
        **rows,
    }
    print(json.dumps(report, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
