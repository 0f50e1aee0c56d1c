"""Time of `import nbxtensor` over `import numpy`: median of fresh processes, interleaved."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

RUNS = 15


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main() -> None:
    subprocess.run([sys.executable, "-c", "import nbxtensor"], check=True)  # writes the bytecode
    pairs = [(seconds("import numpy"), seconds("import nbxtensor")) for _ in range(RUNS)]
    numpy = statistics.median(a for a, _ in pairs)
    nbx = statistics.median(b for _, b in pairs)
    over = statistics.median(b - a for a, b in pairs)
    figures = {"numpy_ms": numpy, "nbxtensor_ms": nbx, "over_numpy_ms": over}
    print(json.dumps({name: round(value * 1e3, 1) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
