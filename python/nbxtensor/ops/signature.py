"""How the parameters of an op are bound; the binding itself runs in the core."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

# Stands for "no default" in the core's parameter tuples.
REQUIRED: Final = ...


class Kind(IntEnum):
    """What a parameter takes; the same numbers stand in csrc/bindings/op.h."""

    TENSOR = 0
    OPTIONAL_TENSOR = 1
    TENSOR_LIST = 2
    OPERAND = 3  # tensor or number; of a number only the type decides the plan
    OPTIONAL_OPERAND = 4  # the same, or None
    SCALAR = 5  # number or None whose value the plan does not know
    STATIC = 6  # hashable value that the plan depends on
    WRITTEN = 7  # tensor that the op writes


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an op."""

    name: str
    kind: Kind
    default: Any = REQUIRED
    aliases: tuple[str, ...] = ()

    def as_tuple(self) -> tuple[Any, ...]:
        """Return the parameter as the core reads it."""
        return self.name, int(self.kind), self.default, self.aliases

    def written(self) -> Parameter:
        """Return the parameter as that of the in-place form."""
        return Parameter(self.name, Kind.WRITTEN, self.default, self.aliases)


def tensor(name: str, *aliases: str) -> Parameter:
    """Return a parameter that takes a tensor."""
    return Parameter(name, Kind.TENSOR, REQUIRED, aliases)


def optional_tensor(name: str, *aliases: str) -> Parameter:
    """Return a parameter that takes a tensor or None."""
    return Parameter(name, Kind.OPTIONAL_TENSOR, None, aliases)


def tensor_list(name: str, *aliases: str) -> Parameter:
    """Return a parameter that takes a list or tuple of tensors."""
    return Parameter(name, Kind.TENSOR_LIST, REQUIRED, aliases)


def operand(name: str, *aliases: str) -> Parameter:
    """Return a parameter that takes a tensor or a number."""
    return Parameter(name, Kind.OPERAND, REQUIRED, aliases)


def optional_operand(name: str, *aliases: str) -> Parameter:
    """Return a parameter that takes a tensor, a number or None."""
    return Parameter(name, Kind.OPTIONAL_OPERAND, None, aliases)


def scalar(name: str, default: Any = REQUIRED, *aliases: str) -> Parameter:
    """Return a parameter that takes a number whose value never needs a new plan."""
    return Parameter(name, Kind.SCALAR, default, aliases)


def static(name: str, default: Any = REQUIRED, *aliases: str) -> Parameter:
    """Return a parameter whose value decides the plan: axes, dtypes, modes."""
    return Parameter(name, Kind.STATIC, default, aliases)


def written(name: str, *aliases: str) -> Parameter:
    """Return a parameter that takes the tensor to be written."""
    return Parameter(name, Kind.WRITTEN, REQUIRED, aliases)


# Of the functions that have an in-place form: a tensor that takes the result.
OUT: Final = Parameter("out", Kind.WRITTEN, None)
