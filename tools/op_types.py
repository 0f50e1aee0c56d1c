"""Types of the parameters of ops, for the stubs: a row says what a parameter is, not its type."""

from __future__ import annotations

from typing import Any

from nbxtensor.ops.signature import REQUIRED, Kind, Parameter
from nbxtensor.ops.table import Row

# Methods and dtypes of a tensor hide the builtins, hence builtins.int.
PREAMBLE = """\
_Number = builtins.complex | np.number[Any] | np.bool_
_Axes = builtins.int | Sequence[builtins.int]
_DTypeLike = DType | builtins.str | builtins.type[Any] | np.dtype[Any]
"""
OF_KIND = {
    Kind.TENSOR: "Tensor",
    Kind.OPTIONAL_TENSOR: "Tensor | None",
    Kind.TENSOR_LIST: "Sequence[Tensor]",
    Kind.OPERAND: "Tensor | _Number",
    Kind.OPTIONAL_OPERAND: "Tensor | _Number | None",
    Kind.WRITTEN: "Tensor",
}
# Values that decide a plan, and numbers; where the type does not follow from the default.
OF_NAME = {
    "alpha": "_Number",
    "beta": "_Number",
    "dim": "builtins.int",
    "dtype": "_DTypeLike | None",
    "format": "builtins.int",
    "k": "builtins.int",
    "kv_length": "builtins.int | None",
    "position": "builtins.int",
    "repetitions": "_Axes",
    "rotary_dim": "builtins.int | None",
    "shift": "_Axes",
    "value": "_Number",
    "width": "builtins.int",
    "window": "builtins.int | None",
}
# Of one axis only, though None is their default.
ONE_AXIS = {"argmax", "argmin", "cumsum", "cumprod", "cummax", "cummin", "take"}
# Weights that may be quantised.
QUANTIZED = {("linear", "weight"), ("embedding", "weight"), ("matmul", "y"), ("mm", "y")}


def type_of(row: Row, parameter: Parameter) -> str:
    """Return the type of a parameter.

    Raises
    ------
    SystemExit
        If nothing says what it is.
    """
    if (row.name, parameter.name) in QUANTIZED:
        return "Tensor | QuantizedTensor"
    if parameter.kind in OF_KIND:
        return OF_KIND[parameter.kind]
    default = parameter.default
    if parameter.name == "axis":
        if default is not None:
            return "builtins.int"
        return "builtins.int | None" if row.name in ONE_AXIS else "_Axes | None"
    if parameter.name in OF_NAME:
        return OF_NAME[parameter.name]
    if parameter.kind is Kind.SCALAR:
        return "builtins.float | None"
    if isinstance(default, bool | int | float | str):
        return f"builtins.{type(default).__name__}"
    raise SystemExit(f"op_types.py: give parameter {parameter.name!r} of {row.name!r} a type")


def _form(row: Row, parameters: list[tuple[Parameter, str]], first: int) -> str:
    """Return one list of arguments; each pair is a parameter and the name it goes by here."""
    limit = len(row.parameters) if row.positional < 0 else row.positional
    arguments, other_names = [], []
    for i, (parameter, name) in enumerate(parameters, first):
        if i == limit:
            arguments.append("*")
        default = "" if parameter.default is REQUIRED else f" = {parameter.default!r}"
        arguments.append(f"{name}: {type_of(row, parameter)}{default}")
        if default:
            kind = type_of(row, parameter)
            other_names += [f"{alias}: {kind} = ..." for alias in parameter.aliases]
    if other_names and "*" not in arguments:
        arguments.append("*")
    return ", ".join([*arguments, *other_names])


def forms(row: Row, skip: int = 0) -> list[str]:
    """Return the lists of arguments that a call may have, without the first `skip`.

    Required parameters go by their first name, then by their other ones, then by those but for the
    leading tensor; optional ones take their other names as further keywords.
    """
    listed = list(row.parameters)[skip:]
    required = [p for p in listed if p.default is REQUIRED]
    width = max((len(p.aliases) for p in required), default=0)
    names = [[p.name for p in listed]]
    for depth in range(width):
        other = [
            p.aliases[min(depth, len(p.aliases) - 1)] if p in required and p.aliases else p.name
            for p in listed
        ]
        names += [[listed[0].name, *other[1:]], other]
    return list(dict.fromkeys(_form(row, list(zip(listed, n, strict=True)), skip) for n in names))


def definitions(name: str, row: Row, method: bool = False) -> list[str]:
    """Return the lines that define an op's function, or its method."""
    indent = "    " if method else ""
    result = row.result.__name__ if row.result else "Self" if method else "Tensor"
    lists = forms(row, 1 if method else 0)
    if name.startswith("__"):
        lists = [f"{lists[0]}, /" if lists[0] else ""]
    lines = []
    for arguments in lists:
        if len(lists) > 1:
            lines.append(f"{indent}@overload")
        whole = ", ".join(filter(None, ["self" if method else "", arguments]))
        lines.append(f"{indent}def {name}({whole}) -> {result}: ...")
    return lines


def result_imports(rows: list[Row]) -> list[str]:
    """Return the imports of the named tuples of rows."""
    found: set[tuple[str, Any]] = {
        (row.result.__module__, row.result.__name__) for row in rows if row.result
    }
    return [f"from {module} import {name}" for module, name in sorted(found)]
