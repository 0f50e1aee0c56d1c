"""Functions of Triton's decorators: heuristics in Triton's order, the fastest candidate kept."""

from __future__ import annotations

from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
import triton
import triton.language as tl
from nbxtensor.runtime import tuner


@triton.jit
def accumulate(x_ptr, o_ptr, n, BLOCK: tl.constexpr, EXTRA: tl.constexpr = 0):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    old = tl.load(o_ptr + offs, mask=offs < n)
    new = old + tl.load(x_ptr + offs, mask=offs < n) + EXTRA
    tl.store(o_ptr + offs, new, mask=offs < n)


def tensors() -> tuple[nbx.Tensor, nbx.Tensor]:
    x = nbx.asarray(np.arange(32, dtype=np.float32), device="sim:0")
    return x, nbx.ones(32, dtype=nbx.float32, device="sim:0")


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (-(-meta["n"] // meta["BLOCK"]),)


def test_heuristics_see_arguments_and_each_other() -> None:
    chosen = triton.heuristics(
        {"BLOCK": lambda args: args["n"] // 2, "EXTRA": lambda args: args["BLOCK"]}
    )(accumulate)
    x, out = tensors()
    nbx.launch(chosen, grid, x, out, n=32)
    assert out.numpy().tolist() == [1.0 + i + 16 for i in range(32)]


def autotuned(**keywords: Any) -> Any:
    configs = [triton.Config({"BLOCK": block}) for block in (8, 16, 32)]
    return triton.autotune(configs, key=["n"], **keywords)(accumulate)


def test_the_fastest_candidate_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = autotuned(reset_to_zero=["o_ptr"])
    timed: list[int] = []

    def seconds(self: Any, config: Any, device: Any) -> float:
        timed.append(config.kwargs["BLOCK"])
        return abs(config.kwargs["BLOCK"] - 17)

    monkeypatch.setattr(tuner._Trial, "seconds", seconds)
    x, out = tensors()
    for _ in range(2):
        nbx.launch(kernel, grid, x, out, 32)
    assert timed == [8, 16, 32]
    assert kernel.best_config.kwargs == {"BLOCK": 16}
    # Another value of the key, another type and another device are tuned by themselves.
    nbx.launch(kernel, grid, x, out, 31)
    nbx.launch(kernel, grid, x, nbx.zeros(32, dtype=nbx.float64, device="sim:0"), 31)
    other = nbx.zeros(32, dtype=nbx.float32, device="sim:1")
    nbx.launch(kernel, grid, other, other, 31)
    assert timed == [8, 16, 32] * 4


def test_candidates_are_pruned_as_triton_does(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []
    monkeypatch.setattr(
        tuner._Trial,
        "seconds",
        lambda self, config, device: timed.append(config.kwargs["BLOCK"]) or 1.0,
    )
    kernel = autotuned(
        prune_configs_by={
            "early_config_prune": lambda configs, named, **rest: [
                c for c in configs if c.kwargs["BLOCK"] < named["n"]
            ]
        }
    )
    x, out = tensors()
    nbx.launch(kernel, grid, x, out, 32)
    assert timed == [8, 16]


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({"restore_value": ["o_ptr"]}, [1.0 + i for i in range(32)]),
        ({"reset_to_zero": ["o_ptr"]}, [float(i) for i in range(32)]),
    ],
)
def test_trials_leave_tensors_as_they_were(keywords: Any, expected: list[float]) -> None:
    x, out = tensors()
    nbx.launch(autotuned(**keywords), grid, x, out, 32)
    assert out.numpy().tolist() == expected


def test_candidates_that_cannot_run_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = autotuned()
    once = tuner._Trial._once

    def failing(self: Any, config: Any, events: Any) -> None:
        if config.kwargs["BLOCK"] != 32:
            raise nbx.DeviceError("launch: too many resources")
        once(self, config, events)

    monkeypatch.setattr(tuner._Trial, "_once", failing)
    x, out = tensors()
    nbx.launch(kernel, grid, x, out, 32)
    assert kernel.best_config.kwargs == {"BLOCK": 32}
    monkeypatch.setattr(
        tuner._Trial, "seconds", lambda *_: (_ for _ in ()).throw(nbx.DeviceError("no room"))
    )
    with pytest.raises(nbx.DeviceError, match="none of the 3 candidates of accumulate"):
        nbx.launch(autotuned(), grid, x, out, 32)


def test_what_the_autotuner_decides_is_not_given_by_the_call() -> None:
    x, out = tensors()
    with pytest.raises(TypeError, match="BLOCK are given by the call and by the autotuner"):
        nbx.launch(autotuned(), grid, x, out, 32, BLOCK=8)


def test_events_time_the_candidates() -> None:
    kernel = autotuned()
    x, out = tensors()
    nbx.launch(kernel, grid, x, out, 32)
    assert set(kernel.configs_timings) == set(kernel.configs)
    assert all(seconds >= 0 for seconds in kernel.configs_timings.values())
