"""torch is never imported, also where it is installed: not to compile, to load, nor to launch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Package

POISON = 'raise RuntimeError("torch was imported")\n'

SCRIPT = """
import sys

import numpy as np

import nbxtensor as nbx
from nbxtensor.runtime import compiler, loading, prepare, targets

assert not any(name.split(".")[0] in ("triton", "torch") for name in sys.modules)
name = sys.argv[1]
types = {"x_ptr": "*fp32", "y_ptr": "*fp32", "o_ptr": "*fp32", "n": "i32", "alpha": "fp32"}
for architecture in ("sm_90", "gfx942"):
    request = loading.request_of(f"{name}:add", types, {"BLOCK": 64}, frozenset({"x_ptr"}), {})
    assert loading.found(request, targets.target_of(architecture, 64)).image
kernel = prepare(f"{name}:add", "sim:0", types=types, constants={"BLOCK": 64})
x = nbx.asarray(np.ones(64, np.float32), device="sim:0")
out = nbx.empty(64, dtype=nbx.float32, device="sim:0")
kernel.launch(1, x.data_ptr(), x.data_ptr(), out.data_ptr(), 64, 1.0)
assert out.numpy().tolist() == [3.0] * 64
family = sys.modules[name]
family.add[1](x, x, out, 64, 0.0, BLOCK=64)
assert out.numpy().tolist() == [2.0] * 64
import triton
import foreign_kernels as foreign
for function, meta in (
    (foreign.plain, {"BLOCK": 64}),
    (foreign.guessed, {}),
    (foreign.tuned, {}),
):
    out = nbx.zeros(64, dtype=nbx.float32, device="sim:0")
    nbx.launch(function, lambda meta: (64 // meta["BLOCK"],), x, out, 64, **meta)
    assert out.numpy().tolist() == [1.0] * 64, function
assert foreign.tuned.best_config.kwargs["BLOCK"] in (16, 64)
# The compiler's own key of a foreign function, which looks at every argument.
jit = triton.runtime.jit.JITFunction(foreign.plain.fn)
backend = triton.compiler.compiler.make_backend(compiler.load().gpu_target("cuda", 90, 32))
binder = triton.runtime.jit.create_function_from_signature(jit.signature, jit.params, backend)
binder(x, out, 64, BLOCK=64)
assert not any(name.split(".")[0] == "torch" for name in sys.modules), "torch is imported"
print("ok", triton.__version__)
"""

FOREIGN = """
import triton
import triton.language as tl

@triton.jit
def plain(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    old = tl.load(o_ptr + offs, mask=offs < n)
    tl.store(o_ptr + offs, old + tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)

guessed = triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})(plain)
tuned = triton.autotune(
    [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 64}, num_warps=2)],
    key=["n"],
    restore_value=["o_ptr"],
)(plain)
"""


@pytest.mark.parametrize("installed", ["poisoned", "as it is"])
def test_nothing_imports_torch(package: Package, installed: str, tmp_path: Path) -> None:
    extra = tmp_path / "extra"
    extra.mkdir()
    (extra / "foreign_kernels.py").write_text(FOREIGN)
    if installed == "poisoned":
        (extra / "torch").mkdir()
        (extra / "torch" / "__init__.py").write_text(POISON)
    path = [str(extra), str(package.folder.parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", SCRIPT, f"{package.name}.family"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok")
