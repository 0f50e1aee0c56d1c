"""Kernels on simulated devices: Triton's interpreter, on the memory of the device itself.

Triton decides whether it interprets when a function is decorated, its own library included, and
changes its modules while it does. So the interpreter works in a second copy of Triton's Python
modules, beside the one that compiles.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from nbxtensor.errors import DeviceError
from nbxtensor.runtime.compiler import LOCK, load
from nbxtensor.runtime.translate import Translator

__all__ = ["interpreted"]

# One kernel at a time: the interpreter keeps the place in the grid in its module.
_running = threading.RLock()


def _of_triton(name: str) -> bool:
    """Return whether a module is of the part of Triton that is copied; its compiled part is not."""
    return name == "triton" or (name.startswith("triton.") and not name.startswith("triton._C"))


class Interpreter:
    """The second copy."""

    def __init__(self) -> None:
        load()  # the first copy comes first, with what keeps torch out
        self._modules: dict[str, ModuleType] = {}
        self.module("triton")
        self.language: Any = self.module("triton.language")
        self._interpreter: Any = self.module("triton.runtime.interpreter")
        self.module("triton").knobs.runtime.interpret = True
        self._patch()
        self.translator = Translator(self._interpreter.InterpretedFunction, self.counterpart)

    @contextlib.contextmanager
    def _swapped(self) -> Iterator[None]:
        """Let imports of triton find this copy."""
        with LOCK:
            originals = {name: module for name, module in sys.modules.items() if _of_triton(name)}
            setting = os.environ.get("TRITON_INTERPRET")
            for name in originals:
                del sys.modules[name]
            sys.modules.update(self._modules)
            os.environ["TRITON_INTERPRET"] = "1"
            try:
                yield
            finally:
                self._modules = {n: m for n, m in sys.modules.items() if _of_triton(n)}
                for name in self._modules:
                    del sys.modules[name]
                sys.modules.update(originals)
                if setting is None:
                    del os.environ["TRITON_INTERPRET"]
                else:
                    os.environ["TRITON_INTERPRET"] = setting

    def module(self, name: str) -> Any:
        """Return a module of the copy."""
        if name not in self._modules:
            with self._swapped():
                importlib.import_module(name)
        return self._modules[name]

    def _patch(self) -> None:
        """Change the copy's language for good; the interpreter would at each call, and back."""

        def visible() -> None: ...

        namespace = {"tl": self.language, "core": self.language.core}
        self._interpreter._patch_lang(FunctionType(visible.__code__, namespace))
        scope = type("Scope", (), {"restore": lambda self: None})()
        self._interpreter._patch_lang = lambda function: scope

    def counterpart(self, value: Any) -> Any:
        """Return what the copy has in place of an object of Triton's."""
        if isinstance(value, ModuleType):
            return self.module(value.__name__) if _of_triton(value.__name__) else value
        if type(value).__module__ == "nbxtensor.dtype._dtype":
            return self.language.str_to_ty(value.triton, None)
        if isinstance(value, tuple) and type(value) is tuple:
            return tuple(map(self.counterpart, value))
        home = getattr(type(value), "__module__", "") or ""
        if _of_triton(home):
            return self._object(value)
        home = getattr(value, "__module__", "") or ""
        if _of_triton(home) and hasattr(value, "__qualname__"):
            found: Any = self.module(home)
            for name in value.__qualname__.split("."):
                found = getattr(found, name, None)
            return value if found is None else found
        return value

    def _object(self, value: Any) -> Any:
        kind = type(value).__name__
        if kind == "constexpr":
            return self.language.constexpr(self.counterpart(value.value))
        if kind == "dtype":
            return self.language.dtype(value.name)
        if hasattr(value, "fn") and isinstance(value.fn, FunctionType):
            if _of_triton(value.fn.__module__):
                return self.counterpart(value.fn)  # of Triton's library
            return self.translator.kernel(value.fn)
        return value

    def scalar(self, text: str, bits: int) -> Any:
        """Return a parameter's value from the bits that were launched."""
        kind = self.language.str_to_ty(text, None)
        dtype = self._interpreter._get_np_dtype(kind)
        data = np.frombuffer(bits.to_bytes(8, "little"), dtype, 1).copy()
        return self.language.tensor(self._interpreter.TensorHandle(data, kind), kind)

    def run(self, function: Any, arguments: Mapping[str, Any], grid: tuple[int, int, int]) -> None:
        """Call the kernel for each block of the grid."""
        builder = self._interpreter.interpreter_builder
        with _running, np.errstate(all="ignore"):
            body = function.rewrite()
            builder.set_grid_dim(*grid)
            for place in itertools.product(*map(range, grid)):
                builder.set_grid_idx(*place)
                body(**arguments)


_loaded: Interpreter | None = None


def _interpreter() -> Interpreter:
    global _loaded
    with LOCK:
        if _loaded is None:
            _loaded = Interpreter()
        return _loaded


def _parameter(
    interpreter: Interpreter, text: Any, constant: Any, path: tuple[int, ...], words: Iterator[int]
) -> Any:
    if isinstance(text, tuple):
        return interpreter.language.tuple(
            [
                _parameter(interpreter, element, constant, (*path, index), words)
                for index, element in enumerate(text)
            ]
        )
    if text == "constexpr":
        return constant(path)
    return interpreter.scalar(text, next(words))


def interpreted(
    name: str,
    function: Callable[..., Any] | Any,
    *,
    types: Mapping[str, Any],
    constants: Mapping[str, Any],
    nested: Mapping[tuple[int, ...], Any] | None = None,
    specialized: frozenset[str] = frozenset(),
) -> tuple[list[str], Callable[[tuple[int, int, int], tuple[int, ...]], None]]:
    """Return the parameters of a kernel, and a function that runs it from bits of arguments.

    `specialized` names constants that stand for run-time values: they become numbers of the
    language, as the kernel may call their methods.
    """
    interpreter = _interpreter()
    plain = function.fn if hasattr(function, "fn") else function
    kernel = interpreter.translator.kernel(plain)
    names = list(kernel.arg_names)
    fixed: dict[tuple[int, ...], Any] = {
        (names.index(n),): _constant(interpreter, v, n in specialized) for n, v in constants.items()
    }
    fixed.update(
        {path: interpreter.translator.value(value) for path, value in (nested or {}).items()}
    )

    def run(grid: tuple[int, int, int], words: tuple[int, ...]) -> None:
        values = iter(words)
        arguments = {
            n: _parameter(
                interpreter,
                "constexpr" if n in constants else types[n],
                fixed.__getitem__,
                (index,),
                values,
            )
            for index, n in enumerate(names)
        }
        try:
            interpreter.run(kernel, arguments, grid)
        except Exception as error:
            raise DeviceError(_where(plain, error)) from error

    return names, run


def _constant(interpreter: Interpreter, value: Any, is_number: bool) -> Any:
    if is_number and type(value) is int:
        return interpreter.scalar("i32", value & 0xFFFFFFFF)
    return interpreter.translator.value(value)


def _where(function: Callable[..., Any], error: Exception) -> str:
    """Return an error's text and the line of the kernel that raised it."""
    file = function.__code__.co_filename
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == file
    ]
    place = f" ({file}:{lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{place}"
