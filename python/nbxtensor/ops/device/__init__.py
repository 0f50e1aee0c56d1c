"""Steps on devices that run Triton's kernels: one table by kernel name, without a word in the rows.

A step of host kernels becomes launches of compiled kernels. Where no kernel here can do it, it
stays as it is on a device that runs host kernels too (sim), and is refused by name on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nbxtensor import _core, env, runtime
from nbxtensor.errors import UnsupportedError
from nbxtensor.ops.device import elementwise, index, matmul, order, reduce, rows
from nbxtensor.ops.device.launches import Argument, Launch, Lowering, NotLowered, Pointer, recipe
from nbxtensor.ops.plan import Builder, Step, operand_tuple

__all__ = ["LOWERINGS", "launches_of", "lower", "runs_kernels"]

Rule = Callable[[Lowering, Step], None]

LOWERINGS: dict[str, Rule] = {
    "copy:strided": elementwise.copy,
    "fill:value": elementwise.fill,
    "norm:softmax": rows.softmax,
    "norm:log_softmax": rows.softmax,
    "norm:rms": rows.normalise,
    "norm:rms_add": rows.normalise,
    "norm:layer": rows.normalise,
    "activation:silu_mul": rows.gated,
    "activation:gelu_mul": rows.gated,
    "position:rope": rows.rope,
    **{f"scan:{name}": rows.scan for name in ("cumsum", "cumprod", "cummax", "cummin")},
    "matmul:dense": matmul.dense,
    "attention:forward": matmul.attention,
    "attention:append": matmul.append,
    "embedding:dense": index.embedding,
    "index:take": index.take,
    "index:put": index.put,
    "fill:arange": index.arange,
    "fill:linspace": index.linspace,
    "fill:eye": index.eye,
    "fill:triangle": index.triangle,
    **{f"random:{name}": index.random for name in ("uniform", "normal", "integers")},
    "sort:sort": order.sort,
    "sort:topk": order.topk,
    "sample:logits": order.sample,
    "quant:dequantize": order.dequantize,
    "embedding:quantized": order.embedding,
    "matmul:quantized": order.product,
    "reduce:argmax": reduce.place,
    "reduce:argmin": reduce.place,
    **{f"reduce:{name}": reduce.reduction for name in reduce.NAMES},
    **{f"elementwise:{name}": elementwise.elementwise for name in elementwise.GROUP_OF},
}


def runs_kernels(device: Any) -> bool:
    """Return whether the steps of this device become launches of compiled kernels."""
    if device.kind in ("cpu", "metal"):
        return False
    if device.architecture == "sim":  # of every kind in a dry run, where nothing is computed
        return device.kind == "sim" and env.get("NBX_SIM_KERNELS") == "triton"
    return True


def launches_of(builder: Builder, step: Step, device: Any = None) -> list[Launch]:
    """Return a step's launches, on a device or for none in particular.

    Raises
    ------
    NotLowered
        If no kernel can do it; the text says why.
    """
    rule = LOWERINGS.get(step.kernel) if isinstance(step.kernel, str) else None
    if rule is None:
        what = step.kernel if isinstance(step.kernel, str) else "a NumPy function"
        raise NotLowered(f"there is no kernel for {what}")
    low = Lowering(builder)
    if device is not None:
        low = Lowering(builder, _sites(builder, device), device.kind == "sim")
    rule(low, step)
    return low.launches


def _sites(builder: Builder, device: Any) -> Callable[[str], tuple[Argument, int]]:
    def site(what: str) -> tuple[Argument, int]:
        address, number = _core.fault_site(device, builder.name, what)
        return (Pointer(address), number) if address else (None, 0)

    return site


def lower(builder: Builder, device: Any, steps: Sequence[Step]) -> Iterator[tuple[Any, ...]]:
    """Yield the steps as a plan takes them on this device."""
    compiled = device is not None and runs_kernels(device)
    for step in steps:
        if not compiled:
            yield step.as_tuple()
            continue
        try:
            launches = launches_of(builder, step, device)
        except NotLowered as reason:
            if device.kind != "sim":
                raise UnsupportedError(
                    f"{builder.name}: no kernel for {device.kind}: {reason}; "
                    'move the tensors with .to("cpu") or convert them'
                ) from None
            yield step.as_tuple()
            continue
        for launch in launches:
            yield _device_step(launch, device)


def _device_step(launch: Launch, device: Any) -> tuple[Any, ...]:
    kernel = runtime.prepare(
        launch.name,
        device,
        types=launch.types,
        constants=launch.constants,
        divisible=launch.divisible,
        options=launch.options,
    )
    return (
        kernel,
        launch.grid,
        recipe(launch),
        [operand_tuple(window) for window in launch.operands],
        launch.written,
    )
