"""What a compiled kernel depends on: the texts of the files that its function comes from.

Files of a package are found without importing them, so that a process which finds its kernels
compiled imports neither Triton nor a kernel's file.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

from nbxtensor.errors import InvalidValueError

__all__ = ["PACKAGE", "Named", "file_of", "hash_of", "named"]

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
