"""Cost of storage, views and small calls from Python, with NumPy in the same run.

Prints one JSON object: nanoseconds per call, medians over repetitions.
"""

from __future__ import annotations

import json
import statistics
import timeit
from typing import Any

import nbxtensor as nbx
import numpy as np
from nbxtensor import _core

CALLS = {
    "storage": "core.Storage(1024, device)",
    "empty": "core.empty((4, 8), dtype, device)",
    "index": "x[1]",
    "slice": "x[1:3]",
    "pair": "x[1, 2]",
    "ellipsis": "x[..., 0]",
    "transpose": "x.T",
    "reshape": "x.reshape(8, 4)",
    "view": "x.view(32)",
    "permute": "x.permute(1, 0)",
    "unsqueeze": "x.unsqueeze(0)",
    "shape": "x.shape",
    "item": "x[0, 0].item()",
    "fill": "x.fill_(0)",
    "clone": "x.clone()",
}
PEERS = {
    "empty": "numpy.empty((4, 8), numpy.float32)",
    "index": "a[1]",
    "slice": "a[1:3]",
    "pair": "a[1:2, 2]",
    "ellipsis": "a[..., 0]",
    "transpose": "a.T",
    "reshape": "a.reshape(8, 4)",
    "permute": "a.transpose(1, 0)",
    "shape": "a.shape",
    "item": "a.item(0, 0)",
    "fill": "a.fill(0)",
    "clone": "a.copy()",
}


def nanoseconds(code: str, names: dict[str, Any], calls: int = 20000, repeats: int = 9) -> float:
    times = timeit.repeat(code, globals=names, number=calls, repeat=repeats)
    return round(statistics.median(times) / calls * 1e9, 1)


def main() -> None:
    x = nbx.asarray(np.zeros((4, 8), np.float32), copy=True)
    names = {
        "core": _core, "x": x, "device": x.device, "dtype": x.dtype,
        "numpy": np, "a": np.zeros((4, 8), np.float32),
    }  # fmt: skip
    rows = {
        name: {"ns": nanoseconds(code, names)}
        | ({"numpy_ns": nanoseconds(PEERS[name], names)} if name in PEERS else {})
        for name, code in CALLS.items()
    }
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
