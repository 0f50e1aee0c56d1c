"""Every row's samples on a simulated device that interprets Triton's kernels."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from nbxtensor import _core
from nbxtensor.dtype import DType
from nbxtensor.ops import TABLE, Row
from nbxtensor.ops.device import LOWERINGS
from nbxtensor.testing import Case, check_case
from nbxtensor.testing.cases import LAYOUTS


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plan with kernels in Triton's language, and let no plan outlive the test."""
    monkeypatch.setenv("NBX_SIM_KERNELS", "triton")
    _core.forget_plans()
    yield
    _core.forget_plans()


@pytest.fixture
def seed() -> int:
    """A fresh seed, in every message of a failing case."""
    return secrets.randbits(32)


# Interpreted, their comparison of all pairs takes its time.
SLOW = {"sort", "argsort", "sample_logits", "linear_quantized"}


def chosen(number: int, row: Row) -> list[tuple[DType, tuple[str, ...]]]:
    """float32, or what comes first, in all layouts; of the others a few in one each."""
    real = [dtype for dtype in row.dtypes if dtype.kind != "c"]
    first = next((dtype for dtype in real if dtype.name == "float32"), real[0])
    others = [dtype for dtype in real if dtype is not first]
    if row.name in SLOW:
        return [(real[number % len(real)], LAYOUTS[:1])]
    picked = [others[(number + i) % len(others)] for i in range(min(2, len(others)))]
    return [
        (first, LAYOUTS[:3]),
        *((dtype, (LAYOUTS[(number + i) % 4],)) for i, dtype in enumerate(picked)),
    ]


CASES = [
    pytest.param(Case(row, dtype, "sim"), layouts, id=f"{row.name}-{dtype}")
    for number, row in enumerate(TABLE.values())
    for dtype, layouts in chosen(number, row)
]


@pytest.mark.parametrize(("case", "layouts"), CASES)
def test_row_equals_its_oracle(case: Case, layouts: tuple[str, ...], seed: int) -> None:
    assert check_case(case, seed, layouts) > 0


def test_every_kernel_has_a_lowering() -> None:
    host_only = {"index:nonzero", "quant:quantize"}
    assert set(_core.host_kernel_names()) - set(LOWERINGS) == host_only
