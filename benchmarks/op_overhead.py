"""Cost of one call of an op on tiny tensors, from Python.

Prints one JSON object: nanoseconds for each call, medians of several rounds, with NumPy's own in
the same run, and torch's where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import timeit
from typing import Any

import nbxtensor as nbx
import numpy as np


def statement_ns(statement: str, names: dict[str, Any], rounds: int, number: int) -> float:
    """Return the median over rounds of a statement's nanoseconds, without a lambda's own cost."""
    timer = timeit.Timer(statement, setup="z = x + 0", globals=names)
    timer.timeit(number)
    return statistics.median(timer.timeit(number) / number for _ in range(rounds)) * 1e9


STATEMENTS = {
    "x + y": "x + y",
    "x + 1.5": "x + 1.5",
    "z += y": "z += y",
    "x.exp()": "x.exp()",
    "x.sum(1)": "x.sum(1)",
    "a @ b": "a @ b",
}
OWN = {
    "silu": "x.silu()",
    "rms_norm": "nbx.rms_norm(x, w)",
    "kv_append": "nbx.kv_append(cache, new, 3)",
}
NUMPY = {"x.exp()": "np.exp(x)"}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--number", type=int, default=20000)
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    arrays = {
        name: generator.standard_normal(shape).astype(np.float32)
        for name, shape in (("x", (2, 8)), ("y", (2, 8)), ("a", (4, 4)), ("b", (4, 4)))
    }
    own = {name: nbx.asarray(values) for name, values in arrays.items()}
    own |= {
        "nbx": nbx,
        "w": nbx.ones((8,)),
        "cache": nbx.zeros((1, 3, 16, 8)),
        "new": nbx.ones((1, 3, 1, 8)),
    }
    numpy = {**arrays, "np": np}
    torch: dict[str, Any] = {}
    if importlib.util.find_spec("torch") is not None:
        import torch as torch_module

        torch_module.set_num_threads(2)
        torch = {name: torch_module.from_numpy(values.copy()) for name, values in arrays.items()}
    report: dict[str, dict[str, float]] = {}
    for name, statement in (STATEMENTS | OWN).items():
        row = {"nbxtensor": statement_ns(statement, own, options.rounds, options.number)}
        if name in STATEMENTS:
            peer = NUMPY.get(name, statement)
            row["numpy"] = statement_ns(peer, numpy, options.rounds, options.number)
            if torch:
                row["torch"] = statement_ns(statement, torch, options.rounds, options.number)
        report[name] = {key: round(value, 1) for key, value in row.items()}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
