"""The tensor's own copies, fills and gathers as ops, for devices of compiled kernels.

The tensor floor names a kernel and hands over tensors; here that is an op like any other, planned
once for a key and then run from its cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nbxtensor import _core
from nbxtensor.ops.device import lower
from nbxtensor.ops.plan import Builder, Number, Window
from nbxtensor.ops.signature import Parameter, scalar, static, tensor, tensor_list, written

__all__ = ["run"]


def _op(name: str, parameters: tuple[Parameter, ...], plan: Callable[..., Window]) -> Any:
    def planner(*values: Any) -> _core.Plan:
        builder = Builder(name)
        return builder.finish(plan(builder, *builder.bind(parameters, values)), lower)

    return _core.Op(name, [parameter.as_tuple() for parameter in parameters], planner)


def _plan_copy(builder: Builder, out: Window, x: Window) -> Window:
    builder.copy(out, x)
    return out


def _plan_fill(builder: Builder, out: Window, value: Number) -> Window:
    builder.step("fill:value", [out], [], [value])
    return out


def _indexed(kernel: str) -> Any:
    def plan(
        builder: Builder, out: Window, x: Window, indices: list[Window], axes: tuple[int, ...]
    ) -> Window:
        builder.step(kernel, [out], [x, *indices], [len(axes), *axes])
        return out

    return plan


_OUT = written("out")
_copy = _op("copy", (_OUT, tensor("x")), _plan_copy)
_fill = _op("fill", (_OUT, scalar("value")), _plan_fill)
_INDEXED = (_OUT, tensor("x"), tensor_list("indices"), static("axes"))
_take = _op("index", _INDEXED, _indexed("index:take"))
_put = _op("assignment", _INDEXED, _indexed("index:put"))


def run(name: str, tensors: tuple[Any, ...], scalars: tuple[Any, ...]) -> None:
    """Run a kernel of the tensor floor: the first tensor is written."""
    if name == "copy:strided":
        _copy(*tensors)
    elif name == "fill:value":
        _fill(tensors[0], scalars[0])
    else:
        op = _take if name == "index:take" else _put
        op(tensors[0], tensors[1], list(tensors[2:]), tuple(scalars[1:]))


_core.set_kernel_hook(run)
