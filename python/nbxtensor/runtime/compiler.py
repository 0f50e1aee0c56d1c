"""Triton as a compiler: the only module that imports it, on the first kernel that is not packed.

Triton's versions differ here and nowhere else. torch is never imported on the way, also where it
is installed.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from nbxtensor.errors import (
    DeviceError,
    Error,
    InvalidTypeError,
    InvalidValueError,
    UnsupportedError,
)
from nbxtensor.runtime.binary import resources_of
from nbxtensor.runtime.signature import leaves_of, slot_of
from nbxtensor.runtime.targets import Compiled, Target, triton_version
from nbxtensor.runtime.translate import Translator

__all__ = ["check_options", "compile_kernel", "load", "parameter_names"]

# Serialises compilations: Triton keeps state in its modules.
LOCK = threading.RLock()


def parameter_names(function: Any) -> tuple[str, ...]:
    """Return the parameters of a plain function, or of one with Triton's decorator."""
    return tuple(inspect.signature(getattr(function, "fn", function)).parameters)


class Triton:
    """The imported compiler."""

    def __init__(self) -> None:
        version = triton_version()
        if version is None:
            raise DeviceError(
                "kernels: Triton is not installed, and the kernel is in no pack; install it with "
                "`pip install 'triton>=3.6,<3.10'`"
            )
        self.version = tuple(int(part) for part in version.split(".")[:2])
        if not (3, 6) <= self.version < (3, 10):
            raise DeviceError(
                f"kernels: Triton {version} is installed; nbxtensor compiles with 3.6 to 3.9: "
                "`pip install 'triton>=3.6,<3.10'`"
            )
        # Backends of other packages may import torch at their top.
        former = os.environ.get("TRITON_BACKENDS_IN_TREE")
        os.environ["TRITON_BACKENDS_IN_TREE"] = "1"
        try:
            import triton
            import triton.language
            from triton.backends.compiler import GPUTarget
            from triton.compiler import ASTSource
            from triton.compiler.compiler import make_backend
            from triton.runtime.jit import JITFunction
        finally:
            if former is None:
                del os.environ["TRITON_BACKENDS_IN_TREE"]
            else:
                os.environ["TRITON_BACKENDS_IN_TREE"] = former
        self.triton: Any = triton
        self.language: Any = triton.language
        self.gpu_target: Any = GPUTarget
        self.source: Any = ASTSource
        self.make_backend: Any = make_backend
        self.jit_function: Any = JITFunction
        self.translator = Translator(self.jit_function, lambda value: value)
        self._keep_torch_out()

    def _keep_torch_out(self) -> None:
        """Let the first specialisation look for torch where there is none."""
        from triton._C.libtriton import native_specialize_impl
        from triton.backends.amd.compiler import HIPBackend

        if self.version >= (3, 8):
            HIPBackend._torch_available = False
            return
        # The original imports torch to ask an argument for its size.
        HIPBackend.is_within_2gb = staticmethod(
            lambda a: hasattr(a, "ptr_range") and a.ptr_range() <= 2**31 - 1
        )
        absent = "torch" not in sys.modules
        if absent:
            sys.modules["torch"] = None  # type: ignore[assignment]
        try:
            backend = self.make_backend(self.gpu_target("cuda", 90, 32))
            native_specialize_impl(backend, 2, False, True, True)
        finally:
            if absent:
                del sys.modules["torch"]

    def target(self, target: Target) -> Any:
        """Return Triton's object for a target."""
        if target.backend == "cuda":
            return self.gpu_target("cuda", int(target.architecture.removeprefix("sm_")), 32)
        return self.gpu_target("hip", target.architecture, target.lanes)

    def constant(self, value: Any) -> Any:
        """Return a constant as Triton's language knows it: our dtypes are its dtypes."""
        if isinstance(value, tuple):
            return (
                type(value)(*map(self.constant, value))
                if hasattr(value, "_fields")
                else tuple(map(self.constant, value))
            )
        if type(value).__module__ == "nbxtensor.dtype._dtype":
            return self.language.str_to_ty(value.triton, None)
        function = self.translator.value(value)
        return function if function is not value else value


_loaded: Triton | None = None


def check_options(name: str, options: Mapping[str, Any], parameters: list[str]) -> None:
    """Refuse names that are neither parameters nor options of any backend."""
    triton = load()
    known: set[str] = set()
    for target in (Target("cuda", "sm_90", 32), Target("hip", "gfx942", 64)):
        known |= set(
            vars(
                triton.make_backend(triton.target(target)).parse_options({"enable_fp_fusion": True})
            )
        )
    for option in options:
        if option not in known:
            raise InvalidTypeError(
                f"kernel {name} has no parameter and no option '{option}'; its parameters are "
                f"{', '.join(parameters)}, the options {', '.join(sorted(known))}"
            )


def load() -> Triton:
    """Return the compiler, imported on first use."""
    global _loaded
    with LOCK:
        if _loaded is None:
            _loaded = Triton()
        return _loaded


def _attributes(
    triton: Triton,
    backend: Any,
    names: list[str],
    types: Mapping[str, Any],
    constants: Mapping[str, Any],
    hints: Mapping[tuple[int, ...], str],
) -> dict[tuple[int, ...], Any]:
    """Return Triton's attributes: of every specialised parameter, by the path to it."""
    attributes: dict[tuple[int, ...], Any] = {}

    def add(path: tuple[int, ...], text: Any) -> None:
        if isinstance(text, tuple):
            for index, element in enumerate(text):
                add((*path, index), element)
        elif text == "constexpr":
            if triton.version >= (3, 7):
                attributes[path] = backend.parse_attr("")
        elif text.startswith("*") or (text[0] in "iu" and text not in ("i1", "u1")):
            attributes[path] = backend.parse_attr(hints.get(path, ""))

    for index, name in enumerate(names):
        add((index,), "constexpr" if name in constants else types[name])
    return attributes


def compile_kernel(
    name: str,
    function: Callable[..., Any] | Any,
    target: Target,
    *,
    types: Mapping[str, Any],
    constants: Mapping[str, Any],
    nested: Mapping[tuple[int, ...], Any] | None = None,
    hints: Mapping[tuple[int, ...], str],
    options: Mapping[str, Any],
) -> Compiled:
    """Compile one specialisation of a kernel.

    Parameters
    ----------
    name
        For errors.
    function
        The plain function, or a function of Triton's own decorator.
    types
        Type of each parameter that is no constant; of tuples one for each element, "constexpr" for
        those that are constants.
    constants
        Values of the other parameters.
    nested
        Constants inside tuples, by their path.
    hints
        "D" of what is divisible by 16, "S" of what addresses less than 2 GiB, by path.
    options
        Options of the backend: num_warps, num_stages, ...
    """
    with LOCK:
        triton = load()
        jit = (
            function
            if isinstance(function, triton.jit_function)
            else triton.translator.kernel(function)
        )
        gpu = triton.target(target)
        backend = triton.make_backend(gpu)
        names = list(jit.arg_names)
        check_options(name, options, names)
        signature = {n: "constexpr" if n in constants else types[n] for n in names}
        values: dict[tuple[int, ...], Any] = {
            (names.index(n),): triton.constant(v) for n, v in constants.items()
        }
        values.update({path: triton.constant(v) for path, v in (nested or {}).items()})
        attributes = _attributes(triton, backend, names, types, constants, hints)
        try:
            settings = backend.parse_options(
                {"enable_fp_fusion": True, **_run_time(triton), **options}
            )
            source = triton.source(jit, signature, values, attributes)
            compiled = triton.triton.compile(source, target=gpu, options=settings.__dict__)
        except Error:
            raise
        except Exception as error:
            raise _failure(name, target, signature, error) from error
        return _record(name, target, triton, names, signature, compiled)


def _run_time(triton: Triton) -> dict[str, Any]:
    """Return the options that Triton's own launch always adds."""
    added: dict[str, Any] = {"debug": False, "instrumentation_mode": ""}
    if triton.version >= (3, 9):
        added["fpsan_homomorphic_casts"] = False
    return added


def _failure(name: str, target: Target, signature: Mapping[str, Any], error: Exception) -> Error:
    given = ", ".join(f"{parameter}: {text}" for parameter, text in signature.items())
    text = str(error).strip() or type(error).__name__
    kind = InvalidValueError if type(error).__name__ != "UnsupportedError" else UnsupportedError
    return kind(f"kernel {name}({given}) does not compile for {target.text}: {text}")


def _record(
    name: str,
    target: Target,
    triton: Triton,
    names: list[str],
    signature: Mapping[str, Any],
    compiled: Any,
) -> Compiled:
    metadata = compiled.metadata
    leaves = leaves_of(tuple(signature.values()))
    if any(text.startswith("tensordesc") for text in leaves):
        raise UnsupportedError(
            f"kernel {name}: tensor descriptors are made inside the kernel, by "
            "tl.make_tensor_descriptor; none can be an argument"
        )
    image = compiled.asm["cubin" if target.backend == "cuda" else "hsaco"]
    lanes = 32 if target.backend == "cuda" else int(metadata.warp_size)
    record = {
        "name": name,
        "symbol": metadata.name,
        "target": target.text,
        "triton": triton.triton.__version__,
        "parameters": names,
        "slots": [slot_of(text) for text in leaves],
        "threads": lanes * int(metadata.num_warps),
        "shared_bytes": int(metadata.shared),
        "cluster": int(getattr(metadata, "num_ctas", 1) or 1),
        "cooperative": bool(getattr(metadata, "launch_cooperative_grid", False)),
        "programmatic": bool(getattr(metadata, "launch_pdl", False)),
        "scratch_bytes": int(getattr(metadata, "global_scratch_size", 0) or 0),
        "scratch_alignment": int(getattr(metadata, "global_scratch_align", 1) or 1),
        "hidden_words": 2,
        **resources_of(target.backend, compiled.asm),
    }
    return Compiled(bytes(image), record)
