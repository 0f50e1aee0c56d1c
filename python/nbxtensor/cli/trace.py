"""``python -m nbxtensor trace``: record, replay, convert and view traces of allocations."""

from __future__ import annotations

import argparse
import importlib.util
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbxtensor.cli import trace_replay
from nbxtensor.errors import FileError, InvalidValueError
from nbxtensor.memory import trace
from nbxtensor.memory.trace import _record, _view
from nbxtensor.memory.trace._text import save


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    commands = parser.add_subparsers(dest="action", required=True)
    formats = ", ".join(trace.FORMATS)

    record = commands.add_parser("record", help="run a script and record its allocations")
    record.add_argument("-o", "--output", required=True, help="file; its ending tells the format")
    record.add_argument("--device", help="whose events (default: the device with the most)")
    record.add_argument("--origins", type=int, default=0, metavar="N",
                        help="keep N Python frames of every allocation")  # fmt: skip
    record.add_argument("-m", dest="module", action="store_true", help="run a module by its name")
    record.add_argument("script", help="script, or module with -m; put -- before it")
    record.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")

    replay = commands.add_parser("replay", help="replay a trace and report what it needs")
    trace_replay.add_arguments(replay)

    convert = commands.add_parser("convert", help="write a trace in another format")
    convert.add_argument("input")
    convert.add_argument("output", help="file; its ending tells the format, .gz packs it")
    convert.add_argument("--from", dest="source", metavar="FORMAT", help=f"one of {formats}")
    convert.add_argument("--to", dest="target", metavar="FORMAT", help=f"one of {formats}")

    view = commands.add_parser("view", help="write a page that shows a trace, for any browser")
    view.add_argument("input")
    view.add_argument("-o", "--output", required=True, help="the page, one file without network")
    view.add_argument("--from", dest="source", metavar="FORMAT", help=f"one of {formats}")


def run(arguments: argparse.Namespace) -> int:
    """Run one subcommand; return the exit status."""
    actions = {
        "record": _record_script,
        "replay": trace_replay.run,
        "convert": _convert,
        "view": _show,
    }
    return actions[arguments.action](arguments)


def _convert(arguments: argparse.Namespace) -> int:
    events = trace.read(arguments.input, arguments.source)
    trace.write(events, arguments.output, arguments.target)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    events = trace.read(arguments.input, arguments.source)
    page = _view.page(events, Path(arguments.input).name)
    save(arguments.output, page.encode())
    return 0


@contextmanager
def _program(name: str, arguments: list[str], folder: str) -> Iterator[None]:
    """Let a script see its own arguments and find the modules beside it."""
    former = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = [name, *arguments], folder
    try:
        yield
    finally:
        sys.argv, sys.path[0] = former


def _record_script(arguments: argparse.Namespace) -> int:
    script, rest = arguments.script, list(arguments.arguments)
    _require(script, arguments.module)
    recording = _record.record(arguments.output, arguments.device)
    former = _record.set_origins(arguments.origins)
    status = 0
    try:
        folder = "" if arguments.module else str(Path(script).resolve().parent)
        with recording, _program(script, rest, folder):
            status = _run_script(script, arguments.module)
    finally:
        _record.set_origins(former)
    events = recording.trace
    missing = f", {events.missing} missing" if events.missing else ""
    print(
        f"{arguments.output}: {len(events)} events of {events.device or 'no device'}{missing}, "
        f"peak {events.peak()} bytes",
        file=sys.stderr,
    )
    return status


def _require(script: str, module: bool) -> None:
    """Raise unless there is something to run; nothing is imported yet."""
    if not module:
        if not Path(script).exists():
            raise FileError(f"{script}: cannot be run: there is no such file")
        return
    top = script.partition(".")[0]
    if not top or importlib.util.find_spec(top) is None:
        raise InvalidValueError(f"record: there is no module {script!r}; name one to import")


def _run_script(script: str, module: bool) -> int:
    try:
        if module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:  # what was recorded until then is wanted
        if end.code is None or isinstance(end.code, int):
            return int(end.code or 0)
        print(end.code, file=sys.stderr)
        return 1
    return 0
