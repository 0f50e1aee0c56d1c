"""Kernels: functions in Triton's language, declared by a decorator that imports no Triton."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nbxtensor._core import Device, DeviceKernel
from nbxtensor._core import device as device_named

__all__ = ["Kernel", "function_of", "kernel", "prepare"]


class Kernel:
    """A function in Triton's language."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__


def function_of(value: object) -> Callable[..., Any] | None:
    """Return the function of one of our kernels; None for anything else."""
    return value.function if isinstance(value, Kernel) else None


def kernel(function: Callable[..., Any]) -> Kernel:
    """Declare a function in Triton's language."""
    return Kernel(function)


def prepare(
    name: str,
    device: Device | str | None = None,
    *,
    types: Mapping[str, str],
    constants: Mapping[str, object] | None = None,
    divisible: frozenset[str] = frozenset(),
    options: Mapping[str, object] | None = None,
) -> DeviceKernel:
    """Return a kernel of `nbxtensor.kernels` on a device: found in a pack, or compiled.

    Parameters
    ----------
    name
        Such as ``"elementwise:binary"``: the file of the family, and the function in it.
    device
        Where it runs; on a simulated device through Triton's interpreter.
    types
        Type of each parameter that a launch passes, as Triton spells it: ``"*fp32"``, ``"i32"``.
    constants
        Values of the other parameters.
    divisible
        Parameters whose address or number is always a multiple of 16.
    options
        Options of the compiler: ``num_warps``, ``num_stages``, ...

    Returns
    -------
    DeviceKernel
        Its words are the parameters of `types`, in the order of the function's declaration.
    """
    from nbxtensor.runtime.loading import prepared  # what compiles is not needed to import

    return prepared(name, device_named(device), types, constants or {}, divisible, options or {})
