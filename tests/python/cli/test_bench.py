"""The benchmark of ops: its peers compute what rows do, and its figures follow from its times."""

from __future__ import annotations

import json

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import __main__
from nbxtensor.cli import bench
from nbxtensor.cli.bench_peers import numpy_call
from nbxtensor.ops import OPS, TABLE

ROWS = [row for row in TABLE.values() if row.bench]
OPTIONS = bench.Options("cpu", "float32", 0.001, 1, ())


def small(shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(min(size, 12) for size in shape) for shape in shapes)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_numpy_computes_the_same(row: bench.Row) -> None:
    function = numpy_call(row)
    if function is None:
        assert row.name in {"erf", "rope"}, "name NumPy's form of it in bench_peers.py"
        return
    tensors = bench.arguments_of(row, small(row.bench[0]), OPTIONS)
    own = OPS[row.name](*tensors, **bench.keywords_of(row))
    peer = function(*(tensor.numpy() for tensor in tensors))
    own, peer = (part if isinstance(part, tuple) else (part,) for part in (own, peer))
    for ours, theirs in zip(own, peer, strict=False):  # cummax has places beside the values
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=2e-3, atol=2e-3)


def test_ratios_are_those_of_the_times(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "add", "mm", "--rounds", "2", "--seconds", "0.01", "--peers", "numpy"]
    assert __main__.main([*command, "--threads", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["threads"] == 1
    (add,), (product,) = report["rows"]["add"], report["rows"]["mm"]
    for entry in (add, product):
        assert entry["ratio_numpy"] == pytest.approx(entry["numpy_us"] / entry["us"], abs=2e-3)
        assert entry["of_limit"] > 0
    (shape, _) = add["shapes"]
    assert add["gb_s"] == pytest.approx(3 * 4 * shape[0] * shape[1] / add["us"] / 1e3, rel=0.01)
    assert product["gflop_s"] == pytest.approx(2 * 512**3 / product["us"] / 1e3, rel=0.01)
    mean = (add["ratio_numpy"] * product["ratio_numpy"]) ** 0.5
    totals = report["summary"]["ratio_numpy"]
    assert totals["geometric_mean"] == pytest.approx(mean, rel=0.01)
    assert totals["least"][1] == min(add["ratio_numpy"], product["ratio_numpy"])


def test_the_number_of_threads_is_put_back() -> None:
    before = nbx.get_num_threads()
    with bench.threads(before + 1) as count:
        assert count == nbx.get_num_threads() == before + 1
    assert nbx.get_num_threads() == before


def test_rows_of_a_simulated_card_name_no_copy_below_a_mebibyte(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert __main__.main(["bench", "dot", "--device", "sim", "--rounds", "1", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["rows"]["dot"]
    assert entry["us"] > 0
    assert "of_limit" not in entry


@pytest.mark.parametrize(
    ("options", "words"),
    [(["nothing"], "no op is called"), (["dot", "--rounds", "0"], "rounds: expected 1 or more")],
)
def test_bad_options_are_named(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main(["bench", *options]) == 2
    assert words in capsys.readouterr().err
