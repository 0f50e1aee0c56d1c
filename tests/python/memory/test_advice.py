"""Advice for a refused allocation, from its figures."""

from __future__ import annotations

import pytest
from nbxtensor import _core
from nbxtensor.memory import allocated, budget, what_would_have_fit


def error(**figures: object) -> BaseException:
    made = _core.OutOfMemoryError("refused")
    for name, value in figures.items():
        setattr(made, name, value)
    return made


def test_empty_without_figures() -> None:
    assert what_would_have_fit(MemoryError("other")) == ""
    assert what_would_have_fit(error(requested=5)) == ""


def test_pieces_and_axis() -> None:
    oom = error(requested=1000, would_fit=300, device="sim:0", driver_total=4096)
    text = what_would_have_fit(oom)
    assert "1000 B" in text
    assert "300 B would have fitted" in text
    assert "700 B less" in text
    assert "4 pieces of 250 B" in text
    assert "Cut axis 1 of (2, 125) into pieces of 31: (2, 31)." in what_would_have_fit(
        oom, (2, 125)
    )
    text = what_would_have_fit(oom, (2, 3, 3))
    assert "Cut axes 0 and 1 of (2, 3, 3) into pieces of shape (1, 1, 3)." in text
    assert "No cut" in what_would_have_fit(oom, (1, 3))
    assert "whole device" not in text


def test_nothing_free_and_more_than_the_device() -> None:
    text = what_would_have_fit(error(requested=1000, would_fit=0, device="d", driver_total=500))
    assert "nothing would have fitted" in text
    assert "whole device has 500 B" in text


# answers: 33
@pytest.mark.parametrize("extent", [1, 7, 1000, 12345])
def test_a_piece_of_the_advice_fits(extent: int) -> None:
    """The advice, followed, succeeds: a real refusal, then the largest size that it names."""
    with budget(allocated("cpu") + 64 * extent, "cpu"):
        with pytest.raises(_core.OutOfMemoryError) as caught:
            _core.Storage(64 * extent * 3, "cpu")
        room = caught.value.would_fit
        assert room == 64 * extent
        assert _core.Storage(room, "cpu").nbytes == room
        with pytest.raises(_core.OutOfMemoryError):
            _core.Storage(room + 1, "cpu")
        assert "would have fitted" in what_would_have_fit(caught.value)
