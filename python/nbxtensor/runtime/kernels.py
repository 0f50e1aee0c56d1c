"""Kernels: functions in Triton's language, declared by a decorator that imports no Triton."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, overload

from nbxtensor._core import Device, DeviceKernel, Kernel, LaunchObserver, register_foreign_arguments
from nbxtensor._core import device as device_named
from nbxtensor.errors import InvalidTypeError

__all__ = [
    "Kernel",
    "Launch",
    "function_of",
    "kernel",
    "launch",
    "observe_launches",
    "part",
    "prepare",
]


class Launch(NamedTuple):
    """One launch, as `observe_launches` reports it."""

    name: str
    grid: tuple[int, int, int]
    device: str
    stream: int  # the driver's handle
    nanoseconds: int  # of the driver's call on the host


def part(name: str) -> ModuleType:
    """Return a module of this package that only those need who use kernels, and imports much."""
    return importlib.import_module(f"nbxtensor.runtime.{name}")


def function_of(value: object) -> Callable[..., Any] | None:
    """Return the function of one of our kernels; None for anything else."""
    return getattr(value, "function", None) if isinstance(value, Kernel) else None


@overload
def kernel(function: Callable[..., Any]) -> Kernel: ...
@overload
def kernel(
    *,
    do_not_specialize: Iterable[str | int] = (),
    do_not_specialize_on_alignment: Iterable[str | int] = (),
    reads: Iterable[str | int] = (),
) -> Callable[[Callable[..., Any]], Kernel]: ...
def kernel(
    function: Callable[..., Any] | None = None,
    *,
    do_not_specialize: Iterable[str | int] = (),
    do_not_specialize_on_alignment: Iterable[str | int] = (),
    reads: Iterable[str | int] = (),
) -> Kernel | Callable[[Callable[..., Any]], Kernel]:
    """Declare a function in Triton's language as a kernel, or as a part of other kernels.

    ``K[grid](*args, **meta)`` launches it on the current stream of the device that the tensors are
    on; `meta` holds constexprs by name and the compiler's options (``num_warps``, ...). A grid is
    an integer, a tuple of up to three, or a function of the arguments by name. Nothing is compiled,
    and Triton is not imported, before the first launch that finds the kernel in no pack.

    Parameters
    ----------
    function
        The function; left out, a decorator is returned.
    do_not_specialize
        Parameters, by name or place, whose values are not compiled in (1, multiples of 16).
    do_not_specialize_on_alignment
        Parameters whose being multiples of 16 is not compiled in.
    reads
        Parameters whose memory the kernel only reads; without it all count as written.
    """
    if function is None:
        return functools.partial(
            _declared,
            do_not_specialize=tuple(do_not_specialize),
            do_not_specialize_on_alignment=tuple(do_not_specialize_on_alignment),
            reads=tuple(reads),
        )
    return _declared(function, do_not_specialize, do_not_specialize_on_alignment, reads)


def _declared(
    function: Callable[..., Any],
    do_not_specialize: Iterable[str | int],
    do_not_specialize_on_alignment: Iterable[str | int],
    reads: Iterable[str | int],
) -> Kernel:
    if not isinstance(function, FunctionType):
        raise InvalidTypeError(
            f"kernel: expected a function in Triton's language, got {type(function).__name__}; "
            "nbx.launch takes functions of triton.jit"
        )
    made: Kernel = part("calls").declared(
        function, do_not_specialize, do_not_specialize_on_alignment, reads
    )
    return made


def launch(kernel: Any, grid: Any, *arguments: Any, **meta: Any) -> None:
    """Launch a kernel over a grid, on the current stream of the device that its tensors are on.

    Parameters
    ----------
    kernel
        A kernel of `nbxtensor.kernel`, or a function of ``triton.jit``, with or without
        ``triton.autotune`` and ``triton.heuristics`` around it.
    grid
        Blocks: an integer, a tuple of up to three, or a function of the arguments by name.
    arguments
        Tensors and numbers, in the order of the kernel's parameters.
    meta
        Further arguments by name, and options of the compiler.
    """
    if isinstance(kernel, Kernel):
        kernel(grid, *arguments, **meta)
        return
    part("foreign").launch_foreign(kernel, grid, arguments, meta)


class observe_launches:  # noqa: N801 - read like the function that it replaces
    """Call a function for every kernel that is launched, by any thread, until closed.

    Also a context manager. Costs nothing while nobody observes.

    Parameters
    ----------
    callback
        Called with a `Launch`, on the thread that launches.
    """

    def __init__(self, callback: Callable[[Launch], object]) -> None:
        self._observer: LaunchObserver | None = LaunchObserver(
            lambda *fields: callback(Launch(*fields))
        )

    def close(self) -> None:
        """Observe no longer."""
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.close()

    def __enter__(self) -> observe_launches:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _foreign_argument(value: object) -> tuple[Any, ...] | None:
    answer: tuple[Any, ...] | None = part("foreign").foreign_argument(value)
    return answer


register_foreign_arguments(_foreign_argument)


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
    found: DeviceKernel = part("loading").prepared(
        name, device_named(device), types, constants or {}, divisible, options or {}
    )
    return found
