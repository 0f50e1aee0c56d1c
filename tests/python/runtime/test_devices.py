"""Devices are one object each, opened by name, and never replaced in silence."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading

import pytest
from nbxtensor import _core, errors, runtime


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("name", ["cpu", "sim:0", "sim:1"])
def test_one_object_for_each_device(name: str) -> None:
    device = runtime.device(name)
    assert device is runtime.device(name)
    assert device is runtime.device(device)
    assert copy.copy(device) is device
    assert copy.deepcopy(device) is device
    assert pickle.loads(pickle.dumps(device)) is device
    assert device == name
    assert device != "cuda:0"
    assert device != 3
    assert hash(device) == hash(name)
    assert str(device) == device.name == name
    assert repr(device) == f"nbxtensor.device('{name}')"


def test_parts_of_a_device() -> None:
    sim = runtime.device("sim:1")
    assert (sim.kind, sim.type, sim.index, sim.architecture) == ("sim", "sim", 1, "sim")
    assert not sim.host_readable
    assert runtime.device("cpu").host_readable
    for name in ("sim:1", "cpu"):
        assert runtime.device(name).supports("page_map")
    assert sim.supports("capture_begin")
    assert runtime.device("cpu").supports("capture_begin")
    assert not runtime.device("cpu").supports("graph_create")
    with pytest.raises(ValueError, match="unknown name 'nothing'"):
        sim.supports("nothing")


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("gpu", ValueError, 'unknown name "gpu"; known are "cuda"'),
        ("", ValueError, "unknown name"),
        ("sim:x", ValueError, "index"),
        ("sim:2", errors.DeviceError, "from 0 to 1"),
        (7, TypeError, "got int"),
    ],
)
def test_bad_names_are_refused(name: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        runtime.device(name)


def test_a_missing_kind_is_an_error_with_its_reason() -> None:
    for report in _core.report_kinds():
        if report["state"] == "ready":
            assert runtime.is_available(report["kind"])
            continue
        assert report["reason"]
        assert not runtime.is_available(report["kind"])
        with pytest.raises(errors.DeviceError) as caught:
            runtime.device(report["kind"])
        assert report["reason"] in str(caught.value)
        assert "nothing else is used" in str(caught.value)


def test_devices_are_listed_by_kind() -> None:
    assert runtime.device("cpu") in runtime.devices()
    assert [str(d) for d in runtime.devices("sim")] == ["sim:0", "sim:1"]
    with pytest.raises(ValueError, match="unknown kind 'gpu'"):
        runtime.devices("gpu")
    with pytest.raises(ValueError, match="unknown name"):
        runtime.is_available("gpu")


@pytest.mark.parametrize("name", ["cpu", "sim:0"])
def test_device_info(name: str) -> None:
    info = runtime.device_info(name)
    assert info["device"] == name
    assert 0 <= info["free_bytes"] <= info["total_bytes"]
    assert info["facts"]["architecture"] == info["architecture"]


def test_a_context_sets_the_default_of_its_thread() -> None:
    outer = runtime.default_device()
    seen = []
    with runtime.device("sim:1") as device:
        assert runtime.default_device() is device
        with runtime.device("cpu"):
            assert runtime.default_device() == "cpu"
        assert runtime.default_device() is device
        thread = threading.Thread(target=lambda: seen.append(runtime.default_device()))
        thread.start()
        thread.join()
    assert runtime.default_device() is outer
    assert seen == [outer]
    with pytest.raises(RuntimeError, match="inner"), runtime.device("sim:1"):
        raise RuntimeError("inner")
    assert runtime.default_device() is outer
    with pytest.raises(ValueError, match="without having been entered"):
        runtime.device("cpu").__exit__(None, None, None)


def test_the_default_follows_the_variable() -> None:
    code = "from nbxtensor import runtime; print(runtime.default_device())"
    assert run(code, NBX_DEVICE="sim:1").stdout == "sim:1\n"
    assert run(code, NBX_DEVICE="").stdout == "cpu\n"
    done = run(code, NBX_DEVICE="gpu")
    assert done.returncode != 0
    assert 'unknown name "gpu"' in done.stderr


def test_the_simulator_is_sized_by_variables() -> None:
    code = (
        "from nbxtensor import runtime\n"
        "print([(d.name, d.memory_info()) for d in runtime.devices('sim')])"
    )
    done = run(code, NBX_SIM_DEVICES="3", NBX_SIM_MEMORY="1 GiB")
    gib = 1 << 30
    assert done.stdout == f"{[(f'sim:{i}', (gib, gib)) for i in range(3)]}\n", done.stderr
    done = run(code, NBX_SIM_DEVICES="-1")
    assert "NBX_SIM_DEVICES: expected 0 to 64, got -1" in done.stderr
    done = run(code, NBX_SIM_BACKING="paper")
    assert "NBX_SIM_BACKING" in done.stderr


def test_a_forked_child_is_refused_and_the_cpu_still_works() -> None:
    code = (
        "import os\n"
        "from nbxtensor import errors, runtime\n"
        "sim = runtime.device('sim')\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n"
        "        sim.memory_info()\n"
        "    except errors.DeviceError as error:\n"
        "        ok = 'forked' in str(error) and runtime.device('cpu').memory_info()[1] > 0\n"
        "        os._exit(0 if ok else 2)\n"
        "    os._exit(1)\n"
        "assert os.waitpid(pid, 0)[1] == 0"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr
