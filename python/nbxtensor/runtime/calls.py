"""Kernels that are called: how their specialisations are compiled."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any

from nbxtensor._core import Device, DeviceKernel, Kernel
from nbxtensor.runtime import sources
from nbxtensor.runtime.loading import Request, loaded, require_language
from nbxtensor.runtime.signature import Parameter, parameters_of, selected

__all__ = ["declared", "kernel_of"]


def kernel_of(
    name: str,
    function: Any,
    source: Callable[[], str],
    parameters: Iterable[Parameter],
    reads: frozenset[str] = frozenset(),
) -> Kernel:
    """Return a kernel that compiles `function` where a call asks for it.

    Parameters
    ----------
    name
        For people, and in packs.
    function
        A plain function, or one of Triton's own decorator.
    source
        Returns a hash of the texts that the function depends on.
    parameters
        In the order of the declaration.
    reads
        Parameters whose memory is only read.
    """

    def compile_call(
        device: Device,
        types: Mapping[str, Any],
        constants: Mapping[str, Any],
        nested: Mapping[tuple[int, ...], Any],
        hints: Mapping[tuple[int, ...], str],
        specialized: list[str],
        options: Mapping[str, Any],
    ) -> DeviceKernel:
        require_language(device, name)
        request = Request(
            name,
            lambda: function,
            source,
            types=types,
            constants=constants,
            nested=nested,
            hints=hints,
            specialized=frozenset(specialized),
            options=options,
        )
        return loaded(request, device)

    rows = [
        (
            p.name,
            p.is_constexpr,
            p.is_const,
            p.type,
            p.specialize,
            p.align,
            p.name in reads,
            ... if p.default is inspect.Parameter.empty else p.default,
        )
        for p in parameters
    ]
    return Kernel(name, rows, compile_call)


def declared(
    function: FunctionType,
    do_not_specialize: Iterable[str | int],
    do_not_specialize_on_alignment: Iterable[str | int],
    reads: Iterable[str | int],
) -> Kernel:
    """Return the kernel of a plain function, which keeps the function's name and text."""
    parameters = parameters_of(function, do_not_specialize, do_not_specialize_on_alignment)
    names = [parameter.name for parameter in parameters]
    kernel = kernel_of(
        function.__name__,
        function,
        lambda: sources.hash_of_function(function),
        parameters,
        selected(function.__name__, "reads", reads, names),
    )
    kernel.function = function
    kernel.__name__ = function.__name__
    kernel.__qualname__ = function.__qualname__
    kernel.__doc__ = function.__doc__
    kernel.__module__ = function.__module__
    return kernel
