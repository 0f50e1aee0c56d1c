"""Cost of a launch from Python, on the host.

Prints one JSON object with nanoseconds a call. Without a GPU the driver is one whose calls return
at once (`_stub_driver.cpp`); "net" leaves out a call of an empty function of as many arguments.
With `--device cuda:0` the card's own driver is called, by nbxtensor, by a loop in C with the same
words, and by Triton where torch is installed: its launcher asks torch for device and stream.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbxtensor as nbx
from _machine import describe
from nbxtensor import _core

ROOT = Path(__file__).resolve().parents[1]
GRID = (32,)

LOOP = """
#include <stdint.h>
#include <time.h>
struct Config {
  unsigned grid[3], block[3], shared;
  void *stream, *attributes;
  unsigned count;
};
typedef int (*Launch)(const struct Config*, void*, void**, void**);
double loop(Launch launch, void* function, unsigned blocks, unsigned threads, void* stream,
            uint64_t* words, int words_count, int count) {
  void* arguments[64];
  for (int i = 0; i < words_count; ++i) arguments[i] = &words[i];
  struct Config config = {{blocks, 1, 1}, {threads, 1, 1}, 0, stream, 0, 0};
  struct timespec a, b;
  clock_gettime(CLOCK_MONOTONIC, &a);
  for (int i = 0; i < count; ++i) {
    if (launch(&config, function, arguments, 0) != 0) return -1;
  }
  clock_gettime(CLOCK_MONOTONIC, &b);
  return ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / count;
}
"""


def nanoseconds(call: Callable[[], Any], number: int, rounds: int, wait: Any = None) -> float:
    """Return the median over rounds of a call's time, a plain loop's own left in."""
    times = []
    for _ in range(rounds):
        if wait is not None:
            wait()
        start = time.perf_counter_ns()
        for _ in range(number):
            call()
        times.append((time.perf_counter_ns() - start) / number)
    return statistics.median(times)


def compile_library(compiler: str, source: Path, *options: str) -> Path:
    library = Path(tempfile.mkdtemp(prefix="nbx-launch-")) / "lib.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), *options]
    subprocess.run(command, check=True)
    return library


FIRST = """
import json, sys, time
import nbxtensor as nbx
device = nbx.device(sys.argv[1])
tensors = [nbx.empty(4096, dtype=nbx.float32, device=device) for _ in range(4)]
device.synchronize()
start = time.process_time_ns()
from first import five
five((32,), *tensors, 4096)
launched = time.process_time_ns()
nbx.add(tensors[0], tensors[1])
print(json.dumps([launched - start, time.process_time_ns() - launched]))
"""


def first_launches(device: str, rounds: int) -> dict[str, float]:
    """Return the processor time of first calls in new processes that find all in a pack."""
    folder = Path(tempfile.mkdtemp(prefix="nbx-launch-"))
    declared = "from nbxtensor import kernel\n\n\n@kernel\ndef five(a, b, c, d, n):\n    pass\n"
    (folder / "first.py").write_text(declared, "utf-8")
    environment = {
        **os.environ,
        "NBX_KERNEL_CACHE": str(folder / "pack"),
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
    }
    # The bytecode of an installed package is there; the first process writes it, and the pack.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", FIRST, device]
    runs = []
    for _ in range(rounds + 1):
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            return {}  # there is no Triton to fill the pack with
        runs.append(json.loads(done.stdout))
    launches, adds = zip(*runs[1:], strict=True)
    return {
        "first launch of a process": statistics.median(launches),
        "first nbx.add after that": statistics.median(adds),
    }


def plain_kernel(device: nbx.Device) -> _core.Kernel:
    """A kernel of 4 tensors and an integer; needs no compiler, as the stub runs nothing."""

    def load(device: nbx.Device, types: Any, *rest: Any) -> Any:
        slots = ["raw8" if text.startswith("*") else "raw4" for text in types.values()]
        return _core.load_kernel(
            device, b"idle", "five", "five", slots, threads=128, hidden_words=2
        )

    rows = [(name, False, False, "", True, True, False, ...) for name in "abcdn"]
    return _core.Kernel("five", rows, load)


def measured(kernel: Any, device: nbx.Device, options: Any) -> dict[str, float]:
    tensors = [nbx.empty(4096, dtype=nbx.float32, device=device) for _ in range(4)]
    a, b, c, d = tensors
    grid = GRID
    bound = kernel[grid]

    def empty(*arguments: Any) -> None:
        pass

    wait = device.synchronize
    n = options.number
    return {
        "empty_call": nanoseconds(lambda: empty(grid, a, b, c, d, 4096), n, options.rounds),
        "kernel(grid, ...)": nanoseconds(
            lambda: kernel(grid, a, b, c, d, 4096), n, options.rounds, wait
        ),
        "kernel[grid](...)": nanoseconds(
            lambda: kernel[grid](a, b, c, d, 4096), n, options.rounds, wait
        ),
        "bound(...)": nanoseconds(lambda: bound(a, b, c, d, 4096), n, options.rounds, wait),
    }


def stub_figures(options: Any) -> dict[str, Any]:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return {"skipped": "no C++ compiler for the stub driver"}
    source = Path(__file__).with_name("_stub_driver.cpp")
    library = compile_library(compiler, source, "-std=c++20", f"-I{ROOT / 'csrc'}")
    done = subprocess.run(
        [sys.executable, __file__, "--inner", f"--number={options.number}",
         f"--rounds={options.rounds}"],
        env={**os.environ, "NBX_CUDA_LIBRARY": str(library)},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    figures: dict[str, Any] = json.loads(done.stdout)
    os.environ["NBX_CUDA_LIBRARY"] = str(library)
    return figures | first_launches("cuda:0", options.rounds)


def inner(options: Any) -> dict[str, float]:
    device = nbx.device("cuda:0")
    found = measured(plain_kernel(device), device, options)
    empty = found["empty_call"]
    return {**found, **{f"{name} net": t - empty for name, t in found.items() if t is not empty}}


# ---- on a card --------------------------------------------------------------------------------


def bare(options: Any, library: str) -> Callable[[], float] | None:
    """Return what times the driver's own launches, from a loop in C; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    from _launch_kernels import five
    from nbxtensor.runtime import loading, targets

    device = nbx.device(options.device)
    target = targets.target_of(device.architecture, 32)
    types = dict.fromkeys(("a", "b", "c", "d"), "*fp32") | {"n": "i32"}
    hints = {(i,): "D" for i in range(5)}
    request = loading.Request(
        "five", lambda: five.function, lambda: "bare", types=types, constants={}, hints=hints
    )
    image, record = request.compiled(target)
    driver = ctypes.CDLL(library)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuModuleLoadData(ctypes.byref(module), image) == 0
    assert (
        driver.cuModuleGetFunction(ctypes.byref(function), module, record["symbol"].encode()) == 0
    )
    folder = Path(tempfile.mkdtemp(prefix="nbx-launch-"))
    (folder / "loop.c").write_text(LOOP, "utf-8")
    loop = ctypes.CDLL(str(compile_library(compiler, folder / "loop.c"))).loop
    loop.restype = ctypes.c_double
    tensor = nbx.empty(4096, dtype=nbx.float32, device=device)
    stream = ctypes.c_void_p(nbx.current_stream(device).handle)
    words = (ctypes.c_uint64 * 7)(*[tensor.data_ptr()] * 4, 4096, 0, 0)

    def time_launches() -> float:
        device.synchronize()
        nanoseconds_each: float = loop(
            driver.cuLaunchKernelEx, function, *GRID, record["threads"], stream, words, 7,
            options.number,
        )  # fmt: skip
        # The words name the tensor's memory for as long as the loop runs.
        assert tensor.shape == (4096,)
        return nanoseconds_each

    return time_launches


def in_turns(kernel: Any, device: nbx.Device, bare_time: Callable[[], float], options: Any) -> Any:
    """Time launches and the bare driver's in turns, as the clock changes within seconds."""
    tensors = [nbx.empty(4096, dtype=nbx.float32, device=device) for _ in range(4)]
    a, b, c, d = tensors
    grid = GRID
    bound = kernel[grid]
    forms: dict[str, Callable[[], Any]] = {
        "kernel(grid, ...)": lambda: [kernel(grid, a, b, c, d, 4096) for _ in repeat],
        "bound(...)": lambda: [bound(a, b, c, d, 4096) for _ in repeat],
    }
    repeat = range(options.number)
    own: dict[str, list[float]] = {name: [] for name in forms}
    driver = []
    for _ in range(4 * options.rounds):
        for name, form in forms.items():
            device.synchronize()
            start = time.perf_counter_ns()
            form()
            own[name].append((time.perf_counter_ns() - start) / options.number)
        driver.append(bare_time())
    found = {"bare driver, in turns": statistics.median(driver)}
    for name, times in own.items():
        found[f"{name}, in turns"] = statistics.median(times)
        ratios = [x / y for x, y in zip(times, driver, strict=True)]
        found[f"{name} over bare"] = statistics.median(ratios)
    return found


def card_figures(options: Any) -> dict[str, Any]:
    from _launch_kernels import five, foreign_five

    device = nbx.device(options.device)
    options.number = min(options.number, 500)  # no queue gets full
    found: dict[str, Any] = measured(five, device, options)
    bare_time = bare(options, "libcuda.so.1")
    if bare_time is not None:
        found |= in_turns(five, device, bare_time, options)
    found |= first_launches(options.device, options.rounds)
    if importlib.util.find_spec("torch") is not None:
        import torch

        t = [torch.empty(4096, device=options.device) for _ in range(4)]
        triton_call = foreign_five[(32,)]
        found["triton"] = nanoseconds(
            lambda: triton_call(*t, 4096), options.number, options.rounds, torch.cuda.synchronize
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help="a CUDA device (default: the stub driver)")
    parser.add_argument("--number", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", action="store_true", help="no effect: JSON is always printed")
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inner:
        print(json.dumps(inner(options)))
        return
    figures = card_figures(options) if options.device else stub_figures(options)
    rounded = {k: round(v, 2) if isinstance(v, float) else v for k, v in figures.items()}
    print(json.dumps({"machine": describe(options.device), "nanoseconds": rounded}, indent=2))


if __name__ == "__main__":
    main()
