"""Plans written by hand: steps in NumPy, temporaries, scalars, errors of steps."""

from __future__ import annotations

import secrets
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import _core
from nbxtensor.ops.plan import Builder
from nbxtensor.ops.signature import Parameter, scalar, tensor, tensor_list

DEVICES = ("cpu", "sim")


def make_op(name: str, parameters: tuple[Parameter, ...], planner: Any) -> Any:
    def plan(*values: Any) -> _core.Plan:
        builder = Builder(name)
        return builder.finish(planner(builder, *builder.bind(parameters, values)))

    return _core.Op(name, [parameter.as_tuple() for parameter in parameters], plan)


def cumulative(out: Any, x: Any, factor: float) -> None:
    out[...] = np.cumsum(x, axis=0) * factor


def plan_cumulative(builder: Builder, x: Any, factor: Any) -> Any:
    out = builder.output(x.shape, nbx.bfloat16)
    # NumPy has no bfloat16: it works on float32, and a copy converts.
    wide = builder.temporary(x.shape, nbx.float32)
    builder.step(cumulative, [wide], [builder.cast(x, nbx.float32)], [factor])
    builder.copy(out, wide)
    return out


@pytest.mark.parametrize("device", DEVICES)
def test_a_numpy_step_sees_strided_windows(device: str) -> None:
    seed = secrets.randbits(32)
    values = np.random.default_rng(seed).integers(-8, 8, (5, 6)).astype(np.float32)
    op = make_op("cumulative", (tensor("x"), scalar("factor")), plan_cumulative)
    x = nbx.asarray(values).to(device)
    for factor in (1.0, 2.0):
        for given, expected in ((x, values), (x[::-1, ::2], values[::-1, ::2]), (x.T, values.T)):
            result = op(given, factor)
            assert result.dtype is nbx.bfloat16
            np.testing.assert_array_equal(
                result.to(nbx.float32).numpy(), np.cumsum(expected, 0) * factor, f"seed {seed}"
            )
    assert op.misses == 3


class StepError(Exception):
    pass


def refuse(*_: Any) -> None:
    raise StepError("this step always fails")


def plan_refuse(builder: Builder, x: Any) -> Any:
    out = builder.output(x.shape, x.dtype)
    builder.step(refuse, [out], [x])
    return out


def test_errors_of_a_numpy_step_reach_the_caller() -> None:
    op = make_op("refuse", (tensor("x"),), plan_refuse)
    before = nbx.memory.allocated("cpu")
    x = nbx.ones((3,))
    with pytest.raises(StepError, match="always fails"):
        op(x)
    del x
    assert nbx.memory.allocated("cpu") == before


def test_errors_of_queued_work_reach_whoever_waits() -> None:
    op = make_op("refuse", (tensor("x"),), plan_refuse)
    result = op(nbx.ones((3,), device="sim"))
    with pytest.raises(nbx.DeviceError, match="always fails"):
        result.cpu()
    nbx.synchronize("sim")


def test_index_errors_of_queued_kernels_reach_whoever_waits() -> None:
    weight = nbx.ones((4, 2), device="sim")
    ids = nbx.asarray(np.array([1, 9])).to("sim")
    with pytest.raises(IndexError, match="9"):
        nbx.embedding(ids, weight).cpu()
    nbx.synchronize("sim")


def test_lists_of_tensors_are_counted_flat() -> None:
    def plan(builder: Builder, first: Any, items: Any, last: Any) -> Any:
        out = builder.output((2 + len(items),), nbx.float32)
        for i, window in enumerate((first, *items, last)):
            builder.copy(out.slice(0, i, i + 1), window.insert(0))
        return out

    op = make_op("flat", (tensor("a"), tensor_list("b"), tensor("c")), plan)
    values = [nbx.asarray(np.float32(i)) for i in range(5)]
    assert op(values[0], values[1:4], values[4]).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert op(values[4], [], values[0]).tolist() == [4.0, 0.0]


def test_devices_do_not_mix() -> None:
    x = nbx.ones((3,))
    with pytest.raises(ValueError, match=r"argument 'y' is on sim:0, expected cpu"):
        nbx.add(x, nbx.ones((3,), device="sim"))


@pytest.mark.parametrize("device", DEVICES)
def test_quantised_weights_stand_for_matrices(device: str) -> None:
    seed = secrets.randbits(32)
    generator = np.random.default_rng(seed)
    weight = generator.standard_normal((7, 64)).astype(np.float32)
    x = generator.standard_normal((3, 64)).astype(np.float32)
    quantized = nbx.quant.quantize(nbx.asarray(weight), "q8_0")
    exact = quantized.dequantize().numpy().astype(np.float64)
    quantized = quantized.to(device)
    given = nbx.asarray(x).to(device)
    for result in (nbx.linear(given, quantized), given @ quantized.T):
        np.testing.assert_allclose(
            result.numpy(), x @ exact.T, rtol=1e-3, atol=5e-2, err_msg=f"seed {seed}"
        )
    rows = nbx.embedding(nbx.asarray(np.array([6, 0])).to(device), quantized)
    np.testing.assert_allclose(rows.numpy(), exact[[6, 0]], rtol=1e-6)
    with pytest.raises(ValueError, match=r"write x @ weight\.T"):
        given @ quantized
    with pytest.raises(ValueError, match="does not fit weights of shape"):
        nbx.linear(given[:, :32], quantized)
