"""Every format of traces: how it is told, read and written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nbxtensor.errors import InvalidValueError
from nbxtensor.memory.trace import _csv, _perfetto, _snapshot, _tsv
from nbxtensor.memory.trace._text import TraceError, load, save, shown
from nbxtensor.memory.trace._trace import Trace


class Format(NamedTuple):
    """One format of files."""

    title: str
    endings: tuple[str, ...]  # of file names; the first is the usual one
    tell: Callable[[str], bool]  # by the first line
    read: Callable[[bytes, str], Trace]
    write: Callable[[Trace], bytes]


FORMATS = {
    "tsv": Format(
        "# op\\tid\\tbytes\\tstream", (".tsv",), _tsv.is_tsv, _tsv.read_tsv, _tsv.write_tsv
    ),
    "seed": Format(
        "event_id\\tM|F\\tptr\\tnbytes\\tsite",
        (".seed.tsv",),
        _tsv.is_seed,
        _tsv.read_seed,
        _tsv.write_seed,
    ),
    "interval": Format(
        "id,lower,upper,size[,offset]",
        (".csv", ".interval.csv"),
        _csv.is_interval,
        _csv.read_interval,
        _csv.write_interval,
    ),
    "rmm": Format(",".join(_csv.RMM), (".rmm.csv",), _csv.is_rmm, _csv.read_rmm, _csv.write_rmm),
    "kineto": Format(
        ",".join(_csv.KINETO),
        (".kineto.csv",),
        _csv.is_kineto,
        _csv.read_kineto,
        _csv.write_kineto,
    ),
    "snapshot": Format(
        "pickle of the memory viewer",
        (".pickle", ".pkl"),
        _snapshot.is_snapshot,
        _snapshot.read_snapshot,
        _snapshot.write_snapshot,
    ),
    "perfetto": Format(
        "JSON of Perfetto and Chrome",
        (".json",),
        _perfetto.is_perfetto,
        _perfetto.read_perfetto,
        _perfetto.write_perfetto,
    ),
}


def format_of_name(name: str) -> str:
    """Return the format that a file's name asks for; the longest ending decides."""
    plain = name.removesuffix(".gz")
    endings = [
        (len(ending), key)
        for key, kind in FORMATS.items()
        for ending in kind.endings
        if plain.endswith(ending)
    ]
    if not endings:
        known = ", ".join(ending for kind in FORMATS.values() for ending in kind.endings)
        raise InvalidValueError(
            f"trace: the name {name!r} tells no format; end it in one of {known} (and .gz), or "
            f"name the format: {', '.join(FORMATS)}"
        )
    return max(endings)[1]


def _known(name: str) -> Format:
    if name not in FORMATS:
        raise InvalidValueError(f"trace: unknown format {name!r}; known are {', '.join(FORMATS)}")
    return FORMATS[name]


def read_bytes(data: bytes, name: str, format: str | None = None) -> Trace:
    """Read a trace from unpacked bytes; `name` is what errors call it."""
    if format is not None:
        return _known(format).read(data, name)
    head = data[:4096].split(b"\n", 1)[0].rstrip(b"\r").decode("latin-1")
    for kind in FORMATS.values():
        if kind.tell(head):
            return kind.read(data, name)
    titles = "; ".join(f"{key} ({kind.title})" for key, kind in FORMATS.items())
    raise TraceError(name, shown(head), f"the beginning of one of the formats: {titles}", 1)


def read(path: str | Path, format: str | None = None) -> Trace:
    """Read a trace; the content tells the format where none is named, and whether it is packed.

    Parameters
    ----------
    path : str or Path
    format : str, optional
        One of `FORMATS`.

    Raises
    ------
    TraceError
        Names the file, the line, the column, what was found and what is allowed.
    """
    return read_bytes(load(path), str(path), format)


def write(trace: Trace, path: str | Path, format: str | None = None) -> None:
    """Write a trace; the name's ending tells the format where none is named, .gz packs it."""
    kind = _known(format if format is not None else format_of_name(Path(path).name))
    save(path, kind.write(trace))
