"""The line that a long load draws on a terminal."""

from __future__ import annotations

import io
import itertools

import pytest
from nbxtensor.io import _progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that passes a second at every look."""
    ticks = itertools.count()
    monkeypatch.setattr(_progress.time, "monotonic", lambda: float(next(ticks)))


def draw(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, progress: bool | None) -> str:
    monkeypatch.setattr(_progress.sys, "stderr", stream)
    meter = _progress.Meter(progress, 2000)
    meter.add(500)
    meter.add(1500)
    meter.close()
    return stream.getvalue()


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("progress", [None, True])
def test_a_terminal_shows_a_bar(monkeypatch: pytest.MonkeyPatch, progress: bool | None) -> None:
    lines = draw(monkeypatch, Terminal(), progress).split("\r")
    assert [line.count("#") for line in lines[1:]] == [8, 30]
    assert "25% of 2,000 bytes" in lines[1]
    assert lines[2].endswith("100% of 2,000 bytes\n")


@pytest.mark.usefixtures("clock")
def test_silence_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert draw(monkeypatch, Terminal(), False) == ""
    assert draw(monkeypatch, io.StringIO(), None) == ""
    assert draw(monkeypatch, io.StringIO(), True) == ""


def test_a_quick_load_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert draw(monkeypatch, Terminal(), None) == ""
