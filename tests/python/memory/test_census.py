"""The dry run: what a program needs is known before anything is loaded or computed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbxtensor as nbx

ROOT = Path(__file__).resolve().parents[3]


def census(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NBX_")}
    environment |= {"NBX_CENSUS": "1", **variables}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "examples"), environment.get("PYTHONPATH", "")]
    )
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def answer(code: str, **variables: str) -> object:
    done = census(code, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


DEVICES = """
import json, nbxtensor as nbx
from nbxtensor import _core
x = nbx.empty((1 << 30, 64), dtype=nbx.bfloat16, device="cuda:0")
y = nbx.empty((1 << 20,), device="hip:1")
z = (x[:4] @ x[:8].T).softmax(-1)
print(json.dumps({
    "names": [d.name for d in nbx.devices()],
    "default": nbx.default_device().name,
    "allocated": nbx.memory.allocated("cuda:0"),
    "distinct": len({x.data_ptr(), y.data_ptr(), z.data_ptr()}),
    "shape": list(z.shape), "dtype": str(z.dtype), "device": z.device.name,
    "read": z.to("cpu").tolist(),
    "backed": _core.sim.books(0)["used_bytes"],
}))
"""


def test_devices_are_named_as_asked_and_nothing_lies_behind_them() -> None:
    found = answer(DEVICES)
    assert isinstance(found, dict)
    assert {"cuda:0", "cuda:1", "hip:0", "sim:0", "cpu"} <= set(found["names"])
    assert found["default"] == "cuda:0"
    assert found["allocated"] >= 128 << 30
    assert found["distinct"] == 3
    assert (found["shape"], found["dtype"], found["device"]) == ([4, 8], "bfloat16", "cuda:0")
    assert found["read"] == [[0.0] * 8] * 4


def test_the_memory_of_the_card_can_be_given() -> None:
    code = """
import json, nbxtensor as nbx
try:
    nbx.empty((3 << 30,), dtype=nbx.uint8, device="cuda:0")
except nbx.OutOfMemoryError as error:
    print(json.dumps([error.device, error.driver_total]))
"""
    assert answer(code, NBX_SIM_MEMORY="2 GiB") == ["cuda:0", 2 << 30]


def test_a_missing_device_is_named() -> None:
    done = census("import nbxtensor as nbx; nbx.empty(3, device='cuda:7')")
    assert done.returncode != 0
    assert "cuda:7" in done.stderr
    done = census("import nbxtensor as nbx; nbx.empty(3)", NBX_CENSUS="maybe")
    assert "NBX_CENSUS: expected 0 or 1, got 'maybe'" in done.stderr


LOAD = """
import json, sys
import nbxtensor as nbx
from decoder import Decoder
from generate import packaged_model
device = sys.argv[1]
with nbx.memory.tag("weights"):
    model = Decoder(nbx.io.open_gguf(packaged_model()), device)
with nbx.memory.tag("kv"):
    cache = model.cache(256)
nbx.memory.reset_peak(device)
held = nbx.memory.report(device).by_tag()
logits = model.forward([1, 2, 3, 4, 5], cache)
nbx.synchronize(device)
print(json.dumps({
    "weights": held["weights"], "kv": held["kv"],
    "peak": nbx.memory.peak_allocated(device), "logits": list(logits.shape),
}))
"""


# answers: 55
def test_the_need_of_a_model_is_known_before_loading(tmp_path: Path) -> None:
    """The dry run's bytes are those of the real run, on a card that exists nowhere."""
    dry = answer(f"import sys; sys.argv = ['', 'cuda:0']\n{LOAD}")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NBX_")}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "examples"), environment.get("PYTHONPATH", "")]
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv = ['', 'sim:0']\n{LOAD}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    wet = json.loads(done.stdout)
    assert isinstance(dry, dict)
    assert dry == wet
    assert dry["weights"] > 50 << 20
    with nbx.memory.budget(nbx.memory.allocated("sim:1") + dry["peak"] // 2, "sim:1"):
        assert dry["peak"] > nbx.memory.stats("sim:1").budget - nbx.memory.allocated("sim:1")
