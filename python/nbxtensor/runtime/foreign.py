"""Kernels and arguments of other libraries: Triton's own functions, other libraries' tensors."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from nbxtensor._core import Kernel
from nbxtensor.errors import InvalidTypeError
from nbxtensor.runtime.calls import kernel_of
from nbxtensor.runtime.signature import Parameter, spelled
from nbxtensor.runtime.tuner import tuned

__all__ = ["foreign_argument", "foreign_kernel", "launch_foreign"]

# DLPack's device types that kernels run on.
DEVICES = {2: "cuda", 10: "hip", 12: "sim"}
HOSTS = {1: "cpu", 3: "cpu", 11: "cpu"}

_lock = threading.Lock()
_kernels: dict[int, tuple[Any, Kernel]] = {}


def _typestr(text: str) -> str:
    """Return Triton's name of a type of the array interface, such as "<f4"."""
    kinds = {"b": "u", "i": "i", "u": "u", "f": "fp"}
    kind, size = text[1], int(text[2:])
    if kind not in kinds:
        return text
    return "u1" if kind == "b" else f"{kinds[kind]}{8 * size}"


def _device_of(value: Any, default: str) -> str:
    if not hasattr(value, "__dlpack_device__"):
        return default
    kind, index = value.__dlpack_device__()
    kind = int(kind)
    if kind in HOSTS:
        return HOSTS[kind]
    return f"{DEVICES.get(kind, default.partition(':')[0])}:{int(index)}"


def foreign_argument(value: Any) -> tuple[Any, ...] | None:
    """Return what a kernel's argument is: of other libraries' tensors address, type and device."""
    kind = type(value)
    if isinstance(value, Kernel):
        return "constant", value
    if kind.__module__.partition(".")[0] == "triton":
        if kind.__name__ == "constexpr":
            return "constant", value.value
        if kind.__name__ in ("JITFunction", "dtype", "pointer_type", "InterpretedFunction"):
            return "constant", value
        if kind.__name__ == "TensorDescriptor":
            raise InvalidTypeError(
                "kernel: tensor descriptors are made inside the kernel, by "
                "tl.make_tensor_descriptor; pass the tensor"
            )
    if kind.__module__ == "nbxtensor.dtype._dtype":
        return "constant", value
    if callable(getattr(value, "data_ptr", None)) and hasattr(value, "dtype"):
        type_name = spelled(str(value.dtype).rpartition(".")[2])
        return "pointer", int(value.data_ptr()), type_name, _device_of(value, "cuda:0")
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        address = interface["data"][0]
        type_name = _typestr(interface["typestr"])
        return "pointer", int(address or 0), type_name, _device_of(value, "cuda:0")
    return None


def foreign_kernel(function: Any) -> Kernel:
    """Return the kernel of a function of ``triton.jit``, made once."""
    known = _kernels.get(id(function))
    if known is None:
        parameters = [
            Parameter(
                p.name,
                bool(p.is_constexpr),
                bool(p.is_const),
                p.annotation_type if isinstance(p.annotation_type, str) else "",
                not p.do_not_specialize,
                not p.do_not_specialize_on_alignment,
                p.default,
            )
            for p in _parameters(function)
        ]
        made = kernel_of(function.__name__, function, lambda: str(_key(function)), parameters)
        with _lock:
            # Kept with the function, whose address names it.
            known = _kernels.setdefault(id(function), (function, made))
    return known[1]


def _parameters(function: Any) -> Any:
    if hasattr(function, "params"):
        return function.params
    from triton.runtime.jit import JITFunction  # the interpreted form has no parameters of its own

    return JITFunction(function.fn).params


def _key(function: Any) -> str:
    if hasattr(function, "cache_key"):
        return str(function.cache_key)
    from triton.runtime.jit import JITFunction

    return str(JITFunction(function.fn).cache_key)


def launch_foreign(
    function: Any, grid: Any, arguments: tuple[Any, ...], meta: Mapping[str, Any]
) -> None:
    """Launch a function of Triton's decorators."""
    kind = type(function).__name__
    if type(function).__module__.partition(".")[0] != "triton":
        raise InvalidTypeError(
            f"launch: expected a kernel of nbxtensor.kernel or a function of triton.jit, got {kind}"
        )
    if kind == "Heuristics":
        meta = dict(meta)
        known = {**dict(zip(function.arg_names, arguments, strict=False)), **meta}
        for name, value in function.values.items():
            # As Triton does: each sees what the ones before it decided.
            known[name] = meta[name] = value(known)
        launch_foreign(function.fn, grid, arguments, meta)
    elif kind == "Autotuner":
        tuned(function, grid, arguments, dict(meta), launch_foreign)
    elif hasattr(function, "fn"):
        foreign_kernel(function)(grid, *arguments, **meta)
    else:
        raise InvalidTypeError(f"launch: {kind} of triton is no kernel; pass what is inside it")
