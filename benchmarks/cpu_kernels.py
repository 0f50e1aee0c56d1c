"""CPU kernels: the table of cpu_kernels.cpp, and float32 products against NumPy's BLAS as JSON.

The C++ part is compiled with the kernels into a temporary folder: two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

THREADS = int(os.environ.get("NBX_NUM_THREADS", "2"))
os.environ.setdefault("OPENBLAS_NUM_THREADS", str(THREADS))

import nbxtensor as nbx  # noqa: E402
import numpy as np  # noqa: E402
from nbxtensor import _core  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
SHAPES = ((512, 576, 576), (512, 1536, 576), (512, 576, 1536), (1024, 1024, 1024))


def build(folder: Path) -> Path:
    """Compile the kernels and their benchmark."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or "c++"
    flags = ["-std=c++20", "-O3", "-DNDEBUG", f"-I{ROOT / 'csrc'}"]
    sources = sorted((ROOT / "csrc" / "cpu").glob("*.cpp"))
    sources += [ROOT / "csrc" / "launch" / "kernel.cpp", ROOT / "benchmarks" / "cpu_kernels.cpp"]
    objects = [folder / f"{i}.o" for i in range(len(sources))]

    def compile_one(source: Path, target: Path) -> None:
        subprocess.run([compiler, *flags, "-c", str(source), "-o", str(target)], check=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, sources, objects))
    program = folder / "cpu_kernels"
    subprocess.run([compiler, *map(str, objects), "-o", str(program), "-lpthread"], check=True)
    return program


def against_blas(m: int, n: int, k: int, repeats: int = 31) -> dict[str, float]:
    """Time x @ w.T here and in NumPy by turns, so that both meet the same machine."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((m, k), np.float32)
    w = rng.standard_normal((n, k), np.float32)
    left, right = nbx.asarray(x), nbx.asarray(w)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        nbx.linear(left, right)
        middle = time.perf_counter()
        np.matmul(x, w.T)
        ours.append(middle - start)
        theirs.append(time.perf_counter() - middle)
    mine, blas = statistics.median(ours), statistics.median(theirs)
    return {
        "gflops": round(2e-9 * m * n * k / mine, 1),
        "numpy_gflops": round(2e-9 * m * n * k / blas, 1),
        "speed_over_numpy": round(blas / mine, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python-only", action="store_true", help="leave the C++ part out")
    arguments = parser.parse_args()
    if not arguments.python_only:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([str(build(Path(folder))), str(THREADS)], check=True)
    _core.set_num_threads(THREADS)
    result = {"x".join(map(str, shape)): against_blas(*shape) for shape in SHAPES}
    json.dump({"threads": THREADS, "products": result}, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
