"""What a compiled kernel depends on: the texts of the files that its function comes from.

Files of a package are found without importing them, so that a process which finds its kernels
compiled imports neither Triton nor a kernel's file.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import linecache
import re
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from nbxtensor.errors import InvalidValueError
from nbxtensor.runtime.kernels import function_of

__all__ = ["PACKAGE", "Named", "file_of", "hash_of", "hash_of_function", "named"]

PACKAGE = "nbxtensor.kernels"

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n#]*)|import[ \t]+([^\n#]+))",
    re.MULTILINE,
)


class Named(NamedTuple):
    """A kernel by its text name, "family:function"."""

    module: str
    function: str


def named(name: str) -> Named:
    """Read a name; the family is a file of `nbxtensor.kernels`, or a module if it has a dot."""
    family, separator, function = name.partition(":")
    if not separator or not function.isidentifier() or not family:
        raise InvalidValueError(f"prepare: {name!r} names no kernel; expected 'family:function'")
    return Named(family if "." in family else f"{PACKAGE}.{family}", function)


@functools.cache
def file_of(module: str) -> Path:
    """Return where a module's text stands, without importing it (but its packages)."""
    package, _, last = module.rpartition(".")
    if package == PACKAGE:
        # The package is not imported either.
        spec = importlib.util.find_spec(PACKAGE)
        folders = list(spec.submodule_search_locations or ()) if spec is not None else []
        for folder in folders:
            file = Path(folder, f"{last}.py")
            if file.is_file():
                return file
        known = sorted(
            file.stem
            for folder in folders
            for file in Path(folder).glob("*.py")
            if not file.stem.startswith("_")
        )
        raise InvalidValueError(
            f"prepare: there is no kernel family {last!r}; known are {', '.join(known)}"
        )
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise InvalidValueError(f"prepare: there is no module {module!r}")
    return Path(spec.origin)


def _imported(text: str, module: str) -> set[str]:
    """Return names of modules beside `module` that its text may import."""
    package = module.rpartition(".")[0]
    found: set[str] = set()
    for source, names, plain in _IMPORT.findall(text):
        if plain:
            found.update(part.split(" as ")[0].strip() for part in plain.split(","))
            continue
        dots = len(source) - len(source.lstrip("."))
        base = source
        if dots:
            parts = module.split(".")[:-dots]
            base = ".".join([*parts, source.lstrip(".")]).strip(".")
        found.add(base)
        for part in names.strip("() \t").replace("\n", " ").split(","):
            name = part.split(" as ")[0].strip().strip("()").strip()
            if name.isidentifier():
                found.add(f"{base}.{name}")
    return {name for name in found if name.rpartition(".")[0] == package and name != module}


@functools.cache
def hash_of(module: str) -> str:
    """Return a hash of a module's text and of those beside it that it imports, directly or not."""
    folder = file_of(module).parent
    texts: dict[str, bytes] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file = folder / f"{name.rpartition('.')[2]}.py"
        if name in texts or not file.is_file():
            continue
        texts[name] = file.read_bytes()
        waiting += _imported(texts[name].decode("utf-8", "replace"), name)
    digest = hashlib.sha256()
    for name in sorted(texts):
        digest.update(f"{name} {len(texts[name])}\n".encode())
        digest.update(texts[name])
    return digest.hexdigest()


def text_of_function(function: FunctionType) -> tuple[str, int]:
    """Return a function's text, decorators included, and the number of its first line.

    As `inspect.getsourcelines`, whose tokenizer takes longer to be made ready than all else that
    finding a kernel does.
    """
    function = inspect.unwrap(function)
    code = function.__code__
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, function.__globals__)[code.co_firstlineno - 1 :]
    if lines and function.__name__ != "<lambda>":
        indent = len(lines[0]) - len(lines[0].lstrip())
        for end, line in enumerate([*lines[1:], "end"], 1):
            bare = line.strip()
            if bare.startswith("#") or (bare and len(line) - len(line.lstrip()) > indent):
                continue
            # Up to a line that may end it; inside brackets and strings none does.
            if bare and _is_function(lines[:end], indent):
                while lines[end - 1].strip()[:1] in ("", "#"):
                    end -= 1
                return "".join(lines[:end]), code.co_firstlineno
    found, number = inspect.getsourcelines(function)
    return "".join(found), number


def _is_function(lines: list[str], indent: int) -> bool:
    text = "".join(["if True:\n" if indent else "", *lines])
    try:
        module: Any = compile(text, "<kernel>", "exec", ast.PyCF_ONLY_AST, True)
        (statement,) = module.body
    except (SyntaxError, ValueError):
        return False
    return isinstance(statement.body[0] if indent else statement, ast.FunctionDef)


def hash_of_function(function: FunctionType) -> str:
    """Return a hash of a function's text and of all that it refers to.

    Other kernels by their texts, functions of Triton's decorator by its own hash, constants by
    value.
    """
    digest = hashlib.sha256()
    seen: set[int] = set()
    waiting = [function]
    while waiting:
        reached = waiting.pop()
        if id(reached) in seen:
            continue
        seen.add(id(reached))
        try:
            text, number = text_of_function(reached)
        except OSError as error:
            raise InvalidValueError(
                f"kernel {reached.__name__}: its text is not to be had ({error}); "
                "define the function in a file"
            ) from error
        digest.update(f"{reached.__qualname__} {number}\n{text}".encode())
        for name, value in sorted(_references(reached), key=lambda pair: pair[0]):
            inner = function_of(value)
            if isinstance(inner, FunctionType):
                waiting.append(inner)
            elif hasattr(value, "cache_key"):
                digest.update(f"{name}={value.cache_key}\n".encode())
            elif isinstance(getattr(value, "value", value), (int, float, str, tuple, type(None))):
                digest.update(f"{name}={getattr(value, 'value', value)!r}\n".encode())
    return digest.hexdigest()


def _names(code: CodeType) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found


def _references(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals, what surrounds the function, and members of modules that it names."""
    names = _names(function.__code__)
    cells = function.__closure__ or ()
    values = {name: function.__globals__[name] for name in names & function.__globals__.keys()}
    values.update(
        (name, cell.cell_contents)
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True)
    )
    for name, value in values.items():
        if not isinstance(value, ModuleType):
            yield name, value
        elif value.__name__.partition(".")[0] != "triton":
            for member in names & vars(value).keys():
                yield f"{name}.{member}", vars(value)[member]
