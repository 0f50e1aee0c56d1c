"""The commands print what they promise, and one broken part hides nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from nbxtensor import __main__, _core, env, errors, facts, memory, runtime
from nbxtensor.cli import info, selftest


def test_info_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["info", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    found = data["devices"]
    assert {name.partition(":")[0] for name in found} == {"cuda", "hip", "metal", "cpu", "sim"}
    assert {info["state"] for info in found.values()} <= {"usable", "unusable", "absent"}
    assert all(info["reason"] for info in found.values() if info["state"] != "usable")
    assert data["default_device"] == str(runtime.default_device())
    own = found["cpu"]["facts"]
    assert own["file"].endswith(f"{found['cpu']['architecture']}.yml")
    assert own["values"]["lanes"]["value"] == 1
    assert own["values"]["lanes"]["unit"] == "threads"
    assert own["values"]["alignment_bytes"]["origin"] == "device"
    assert own["disagreements"] == []
    assert [row["name"] for row in data["environment"]] == [v.name for v in env.variables()]
    assert {"python", "numpy", "nbxtensor", "triton", "ml_dtypes"} <= data["versions"].keys()


def test_info_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["info"]) == 0
    text = capsys.readouterr().out
    for part in ("default device: cpu", "NBX_NUM_THREADS", "  cuda  ", "facts of cpu: "):
        assert part in text
    assert text.count("facts of sim:0, sim:1: simulated GPU in host memory") == 1
    for row in (
        "lanes             32 threads",
        "page_bytes        2 MiB",
        "cache_line_bytes  128 B",
    ):
        assert f"  {row} " in text


def report(kind: str, state: str, count: int, reason: str) -> dict[str, object]:
    return {"kind": kind, "state": state, "count": count, "reason": reason}


def test_info_tells_three_states_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = next(row for row in _core.report_kinds() if row["kind"] == "cpu")
    reports = [
        report("cuda", "no device", 1, "cuInit failed with 999"),
        report("hip", "library absent", 0, "libamdhip64.so is not there"),
        known,
    ]
    monkeypatch.setattr(info._core, "report_kinds", lambda: reports)
    assert __main__.main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  cuda     unusable: cuInit failed with 999"
    assert lines[1] == "  hip      absent: libamdhip64.so is not there"
    assert lines[2].startswith("  cpu      usable: ")
    assert len(lines) == 3


def test_a_device_of_an_unknown_architecture_is_unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise errors.InvalidValueError("facts: nothing is known of sim architecture 'odd'")

    monkeypatch.setattr(runtime.queries, "facts_of", unknown)
    text = "\n".join(info._device_lines(info._devices()))
    assert "  sim:1    unusable: InvalidValueError: facts: nothing is known of sim arch" in text


def test_info_shows_where_a_device_and_its_file_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    real = runtime.queries.facts_of

    def differing(device: runtime.Device) -> facts.Facts:
        return real(device)._replace(disagreements=("lanes: 64 here, 32 there",))

    monkeypatch.setattr(runtime.queries, "facts_of", differing)
    assert "  differs: lanes: 64 here, 32 there" in info.render(info.collect())


def test_a_broken_probe_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no such thing")

    monkeypatch.setattr(info.runtime, "device_info", fail)
    monkeypatch.setattr(info.platform, "platform", fail)
    data = info.collect()
    assert data["devices"]["sim:0"] == {"state": "unusable", "reason": "OSError: no such thing"}
    assert data["platform"] == {"error": "OSError: no such thing"}
    text = info.render(data)
    assert "OSError: no such thing" in text
    assert "NBX_DEVICE" in text
    monkeypatch.setattr(info._core, "report_kinds", fail)
    assert "OSError: no such thing" in info.render(info.collect())


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["devices"]) == 0
    assert "simulated GPU 1" in capsys.readouterr().out


def test_selftest_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["selftest"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("seed ")
    assert text.count(" ok ") == len(selftest.CHECKS) * len(runtime.devices())
    assert text.endswith("all checks passed\n")


def test_selftest_says_what_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> str:
        raise AssertionError("bytes changed")

    monkeypatch.setattr(selftest, "CHECKS", (("copy", broken), *selftest.CHECKS[:1]))
    assert __main__.main(["selftest", "cpu", "--seed", "1"]) == 1
    text = capsys.readouterr().out
    assert "FAILED  AssertionError: bytes changed" in text
    assert "1 checks failed" in text


def test_ops_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["ops", "add"]) == 0
    assert capsys.readouterr().out.startswith("add(")
    assert __main__.main(["ops", "nothing-like-it"]) == 2
    assert "there is no op 'nothing-like-it'" in capsys.readouterr().err


def test_memory_reports_every_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["memory"]) == 0
    text = capsys.readouterr().out
    for device in runtime.devices():
        assert f"Memory of {device.name}\n" in text
    assert text.count("driver: ") == len(runtime.devices())


def test_memory_of_one_device_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    with memory.budget("1 GiB", device="sim:1"), memory.tag("cli_test"):
        held = _core.Storage(3_000_000, "sim:1")
        assert __main__.main(["memory", "sim:1"]) == 0
        report = memory.report("sim:1")
    text = capsys.readouterr().out
    assert str(report) in text
    assert held.nbytes == 3_000_000
    assert f"{report.by_tag()['cli_test']:,}" in text
    assert "budget 1 GiB" in text
    assert "Memory of cpu" not in text
    free, total = memory.mem_get_info("sim:1")
    assert f"driver: {_core.format_bytes(free)} of {_core.format_bytes(total)} free" in text
    assert __main__.main(["memory", "gpu"]) == 2
    assert 'unknown name "gpu"' in capsys.readouterr().err


def test_errors_exit_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["selftest", "gpu"]) == 2
    assert 'unknown name "gpu"' in capsys.readouterr().err


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "nbxtensor", "devices"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "usable" in done.stdout
