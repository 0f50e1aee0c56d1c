"""Parameters of kernels: Triton's names of types, and how values of them are passed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from nbxtensor.errors import InvalidTypeError, InvalidValueError

__all__ = [
    "Parameter",
    "check_type",
    "leaves_of",
    "parameters_of",
    "selected",
    "slot_of",
    "spelled",
]

# How a launch passes a scalar of each type; pointers are 8 raw bytes.
SLOTS = {
    "i1": "raw1",
    "u1": "raw1",
    "i8": "raw1",
    "u8": "raw1",
    "i16": "raw2",
    "u16": "raw2",
    "i32": "raw4",
    "u32": "raw4",
    "i64": "raw8",
    "u64": "raw8",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "f32": "float32",
    "fp64": "float64",
}

# Types that only pointers have.
POINTED = ("fp8e4nv", "fp8e5", "fp8e4b8", "fp8e4b15", "fp8e5b16")

# Triton's shorter names of what annotations and dtypes say.
SPELLINGS = {
    "bool": "u1",
    "int1": "i1",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    "half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "int": "i32",
    "uint": "u32",
    "float8e4nv": "fp8e4nv",
    "float8e5": "fp8e5",
    "float8e4b15": "fp8e4b15",
    "float8_e4m3fn": "fp8e4nv",
    "float8e4b8": "fp8e4b8",
    "float8_e4m3fnuz": "fp8e4b8",
    "float8_e5m2": "fp8e5",
    "float8e5b16": "fp8e5b16",
    "float8_e5m2fnuz": "fp8e5b16",
    "void": "void",
}
KNOWN = frozenset(SPELLINGS.values()) | frozenset(SLOTS)


class Parameter(NamedTuple):
    """One parameter of a kernel, as its function declares it."""

    name: str
    is_constexpr: bool
    is_const: bool  # a pointer that is only read
    type: str  # by its annotation; "" without one that Triton knows
    specialize: bool
    align: bool
    default: object  # inspect.Parameter.empty without one


def spelled(annotation: object) -> str:
    """Return the text of an annotation as Triton spells types."""
    if isinstance(annotation, str):
        text = annotation.strip()
        if text.startswith("const "):
            inner = spelled(text.removeprefix("const"))
            return "*k" + inner.removeprefix("*")
        if text.endswith("*"):
            return "*" + spelled(text[:-1])
        if text.startswith("*"):
            return "*" + spelled(text[1:])
        for prefix in ("triton.language.", "tl."):
            if text.startswith(prefix):
                return spelled(text.removeprefix(prefix))
    elif hasattr(annotation, "element_ty"):
        return "*" + spelled(annotation.element_ty)
    elif isinstance(annotation, type):
        text = annotation.__name__
    elif type(annotation).__name__ == "dtype" and hasattr(annotation, "name"):
        text = str(annotation.name)
    else:
        text = str(annotation)
    return SPELLINGS.get(text.removesuffix("_t"), text)


def selected(
    kernel: str, what: str, given: Iterable[str | int], names: list[str]
) -> frozenset[str]:
    """Return parameter names that were given by name or by place."""
    chosen = set()
    for item in given:
        name = names[item] if isinstance(item, int) and -len(names) <= item < len(names) else item
        if name not in names:
            raise InvalidValueError(
                f"kernel {kernel}: {what} names {item!r}; its parameters are {', '.join(names)}"
            )
        chosen.add(str(name))
    return frozenset(chosen)


def parameters_of(
    function: Callable[..., Any],
    do_not_specialize: Iterable[str | int] = (),
    do_not_specialize_on_alignment: Iterable[str | int] = (),
) -> tuple[Parameter, ...]:
    """Return the parameters of a function in Triton's language."""
    declared = inspect.signature(function).parameters
    names = list(declared)
    name = function.__name__
    never = selected(name, "do_not_specialize", do_not_specialize, names)
    unaligned = selected(
        name, "do_not_specialize_on_alignment", do_not_specialize_on_alignment, names
    )
    found = []
    for parameter in declared.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InvalidTypeError(
                f"kernel {name}: parameter '*{parameter.name}' takes any number of arguments; "
                "a kernel's parameters are all named, a tuple holds several"
            )
        empty = parameter.annotation is parameter.empty
        text = "" if empty else spelled(parameter.annotation)
        is_constexpr = "constexpr" in text
        bare = text.removeprefix("*k") if text.startswith("*k") else text.removeprefix("*")
        found.append(
            Parameter(
                parameter.name,
                is_constexpr,
                not is_constexpr and ("const" in text or text.startswith("*k")),
                text if bare in KNOWN and not is_constexpr else "",
                parameter.name not in never,
                parameter.name not in unaligned,
                parameter.default,
            )
        )
    return tuple(found)


def check_type(kernel: str, parameter: str, text: str) -> None:
    """Refuse a type that no parameter can have."""
    bare = text.removeprefix("*k") if text.startswith("*k") else text.removeprefix("*")
    if bare in SLOTS or (text.startswith("*") and bare in POINTED):
        return
    known = ", ".join(sorted(SLOTS))
    raise InvalidValueError(
        f"kernel {kernel}: parameter '{parameter}' has the unknown type {text!r}; known are "
        f"{known}, with '*' in front of them and of {', '.join(POINTED)} for pointers"
    )


def slot_of(text: str) -> str:
    """Return how a launch passes a parameter of this type."""
    if text == "constexpr":
        return "skip"
    return "raw8" if text.startswith("*") else SLOTS[text]


def leaves_of(types: Mapping[str, Any] | tuple[Any, ...]) -> list[str]:
    """Return the types in order, those of tuples one by one."""
    found: list[str] = []
    for text in types.values() if isinstance(types, Mapping) else types:
        found += leaves_of(text) if isinstance(text, tuple) else [text]
    return found
