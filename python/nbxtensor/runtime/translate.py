"""Kernels as functions for Triton: our kernels in their globals become what Triton knows."""

from __future__ import annotations

from collections.abc import Callable
from types import CellType, FunctionType, ModuleType
from typing import Any

from nbxtensor.runtime.kernels import function_of

__all__ = ["Translator"]


class Translator:
    """Copies of functions whose globals are replaced one by one, each namespace once.

    `wrap` makes Triton's object of a translated kernel function; `replace` answers for any other
    value, which may be the same.
    """

    def __init__(self, wrap: Callable[[Any], Any], replace: Callable[[Any], Any]) -> None:
        self._wrap = wrap
        self._replace = replace
        self._namespaces: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        self._modules: dict[int, ModuleType] = {}
        self._kernels: dict[int, tuple[Any, Any]] = {}

    def kernel(self, function: Callable[..., Any]) -> Any:
        """Return Triton's object of a kernel's plain function."""
        known = self._kernels.get(id(function))
        if known is None:
            # Kept with the function, whose address names it.
            known = self._kernels[id(function)] = (function, self._wrap(self._copied(function)))
        return known[1]

    def value(self, value: Any) -> Any:
        """Return what stands for a global."""
        function = function_of(value)
        if function is not None:
            return self.kernel(function)
        if isinstance(value, ModuleType):
            return self._module(value)
        return self._replace(value)

    def _module(self, module: ModuleType) -> Any:
        replaced = self._replace(module)
        if replaced is not module or not _holds_kernels(module):
            return replaced
        known = self._modules.get(id(module))
        if known is None:
            known = self._modules[id(module)] = ModuleType(module.__name__, module.__doc__)
            known.__dict__.update(self._namespace(module.__dict__))
        return known

    def _namespace(self, original: dict[str, Any]) -> dict[str, Any]:
        known = self._namespaces.get(id(original))
        if known is None:
            known = self._namespaces[id(original)] = (original, dict(original))
            for name, value in original.items():
                if not name.startswith("__"):
                    known[1][name] = self.value(value)
        return known[1]

    def _copied(self, function: Callable[..., Any]) -> Callable[..., Any]:
        assert isinstance(function, FunctionType)
        cells = tuple(
            CellType(self.value(cell.cell_contents)) for cell in function.__closure__ or ()
        )
        copied = FunctionType(
            function.__code__,
            self._namespace(function.__globals__),
            function.__name__,
            function.__defaults__ and tuple(self._replace(v) for v in function.__defaults__),
            cells or None,
        )
        copied.__kwdefaults__ = function.__kwdefaults__
        copied.__annotations__ = {
            name: self._replace(value) for name, value in function.__annotations__.items()
        }
        copied.__module__ = function.__module__
        copied.__qualname__ = function.__qualname__
        copied.__doc__ = function.__doc__
        return copied


def _holds_kernels(module: ModuleType) -> bool:
    return any(function_of(value) is not None for value in vars(module).values())
