"""Variables are typed, read at use, and misspelt ones are reported."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
from nbxtensor import _core, env, errors


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )


def test_values_are_read_at_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBX_SIM_DEVICES", "5")
    assert env.get("NBX_SIM_DEVICES") == 5
    monkeypatch.setenv("NBX_SIM_DEVICES", "")
    assert env.get("NBX_SIM_DEVICES") == 2
    monkeypatch.setenv("NBX_MEMORY_BUDGET", "50%")
    assert env.get("NBX_MEMORY_BUDGET", 1000) == 500
    monkeypatch.delenv("NBX_MEMORY_BUDGET")
    assert env.get("NBX_MEMORY_BUDGET", 1000) is None


def test_wrong_values_name_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBX_SIM_DEVICES", "many")
    with pytest.raises(errors.InvalidValueError, match="NBX_SIM_DEVICES: expected integer, got"):
        env.get("NBX_SIM_DEVICES")
    with pytest.raises(errors.InvalidValueError, match="unknown variable 'NBX_NOTHING'"):
        env.get("NBX_NOTHING")


def test_the_list_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBX_DEVICE", "sim:1")
    rows = {row.name: row for row in env.variables()}
    assert rows["NBX_DEVICE"].is_set
    assert rows["NBX_DEVICE"].value == "sim:1"
    assert all(row.description.endswith(".") for row in rows.values())
    monkeypatch.setenv("NBX_DEVISE", "x")
    assert env.unknown() == ["NBX_DEVISE"]


def test_a_misspelt_variable_warns_once_at_import() -> None:
    done = run("import nbxtensor.env", NBX_DEVISE="cpu")
    assert done.returncode == 0
    assert (
        done.stderr.count("NBX_DEVISE is no variable of nbxtensor; did you mean NBX_DEVICE?") == 1
    )
    done = run("import nbxtensor.env", NBX_DEVISE="cpu", NBX_LOG="off")
    assert (done.returncode, done.stderr) == (0, "")


def test_messages_reach_logging(caplog: pytest.LogCaptureFixture) -> None:
    _core.log("warning", "from the core")
    _core.log("debug", "below the level")
    _core.deliver_log()
    assert ("nbxtensor", logging.WARNING, "from the core") in caplog.record_tuples
    assert "below the level" not in caplog.text


def test_the_logger_of_the_user_decides(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("nbxtensor")
    logger.setLevel(logging.ERROR)
    try:
        _core.log("warning", "unwanted")
        _core.log("error", "wanted")
        _core.deliver_log()
    finally:
        logger.setLevel(logging.NOTSET)
    assert [record.message for record in caplog.records] == ["wanted"]


def test_messages_of_other_threads_arrive_before_exit() -> None:
    done = run(
        "import threading\nfrom nbxtensor import _core, env\n"
        "t = threading.Thread(target=_core.log, args=('error', 'late'))\nt.start()\nt.join()"
    )
    assert done.returncode == 0
    assert done.stderr == "nbxtensor: error: late\n"


def test_log_levels_are_named() -> None:
    with pytest.raises(errors.InvalidValueError, match="expected debug, info, warning"):
        _core.set_log_level("loud")
    assert _core.log_level() == "warning"
