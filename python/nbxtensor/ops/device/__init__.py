"""Steps on devices that run Triton's kernels: one table by kernel name, without a word in the rows.

A step of host kernels becomes launches of compiled kernels. Where no kernel here can do it, it
stays as it is on a device that runs host kernels too (sim), and is refused by name on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nbxtensor import env
from nbxtensor.errors import UnsupportedError
from nbxtensor.ops.device import elementwise, reduce
from nbxtensor.ops.device.launches import Launch, Lowering, NotLowered, recipe
from nbxtensor.ops.plan import Builder, Step, operand_tuple
from nbxtensor import runtime

__all__ = ["LOWERINGS", "launches_of", "lower", "runs_kernels"]

Rule = Callable[[Lowering, Step], None]

LOWERINGS: dict[str, Rule] = {
    "copy:strided": elementwise.copy,
    "fill:value": elementwise.fill,
    "reduce:argmax": reduce.place,
    "reduce:argmin": reduce.place,
    **{f"reduce:{name}": reduce.reduction for name in reduce.NAMES},
    **{f"elementwise:{name}": elementwise.elementwise for name in elementwise.GROUP_OF},
}


def runs_kernels(device: Any) -> bool:
    """Return whether the steps of this device become launches of compiled kernels."""
    if device.kind in ("cpu", "metal"):
        return False
    return device.kind != "sim" or env.get("NBX_SIM_KERNELS") == "triton"


def launches_of(builder: Builder, step: Step) -> list[Launch]:
    """Return a step's launches.

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
    rule(low, step)
    return low.launches


def lower(builder: Builder, device: Any, steps: Sequence[Step]) -> Iterator[tuple[Any, ...]]:
    """Yield the steps as a plan takes them on this device."""
    compiled = device is not None and runs_kernels(device)
    for step in steps:
        if not compiled:
            yield step.as_tuple()
            continue
        try:
            launches = launches_of(builder, step)
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
