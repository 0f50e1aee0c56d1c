"""``python -m nbxtensor``: info, devices, selftest, ops, memory, trace, kernels, bench."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import NamedTuple

from nbxtensor import errors


class Command(NamedTuple):
    """One subcommand: what it does, its options, and what runs it."""

    summary: str
    declare: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _no_options(parser: argparse.ArgumentParser) -> None:
    """Declare nothing."""


def _info_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _selftest_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("devices", nargs="*", help="devices to test (default: all that are ready)")
    parser.add_argument("--seed", type=int, help="repeat the run of this seed")


def _ops_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the op to describe (default: list all)")


def _memory_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "devices", nargs="*", help="devices to report (default: all that are ready)"
    )


def _trace_options(parser: argparse.ArgumentParser) -> None:
    from nbxtensor.cli.trace import declare

    declare(parser)


def _kernels_options(parser: argparse.ArgumentParser) -> None:
    from nbxtensor.cli.kernels import declare

    declare(parser)


def _bench_options(parser: argparse.ArgumentParser) -> None:
    from nbxtensor.cli.bench import declare

    declare(parser)


def _info(arguments: argparse.Namespace) -> int:
    from nbxtensor.cli.info import info

    return info(arguments.json)


def _devices(arguments: argparse.Namespace) -> int:
    from nbxtensor.cli.info import devices

    return devices()


def _selftest(arguments: argparse.Namespace) -> int:
    from nbxtensor.cli.selftest import selftest

    return selftest(arguments.devices, arguments.seed)


def _ops(arguments: argparse.Namespace) -> int:
    from nbxtensor.ops.listing import ops_text

    print(ops_text(arguments.name))
    return 0


def _memory(arguments: argparse.Namespace) -> int:
    from nbxtensor.cli.memory import show

    return show(arguments.devices)


def _trace(arguments: argparse.Namespace) -> int:
    from nbxtensor.cli.trace import run

    return run(arguments)


def _kernels(arguments: argparse.Namespace) -> int:
    from nbxtensor.cli.kernels import run

    return run(arguments)


def _bench(arguments: argparse.Namespace) -> int:
    from nbxtensor.cli.bench import run

    return run(arguments)


COMMANDS = {
    "info": Command("show versions, devices and variables", _info_options, _info),
    "devices": Command("list device kinds and devices", _no_options, _devices),
    "selftest": Command("allocate, copy and compute on every device", _selftest_options, _selftest),
    "ops": Command("list the ops, or describe one", _ops_options, _ops),
    "memory": Command("show budgets and memory of every device", _memory_options, _memory),
    "trace": Command("record, replay, convert and view allocations", _trace_options, _trace),
    "kernels": Command(
        "compile kernels ahead of time, list compiled ones", _kernels_options, _kernels
    ),
    "bench": Command("time ops beside peers and the machine's limits", _bench_options, _bench),
}


def main(arguments: list[str] | None = None) -> int:
    """Run one subcommand; return the exit status."""
    parser = argparse.ArgumentParser(prog="nbxtensor", description="A tensor runtime.")
    subparsers = parser.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        command.declare(subparsers.add_parser(name, help=command.summary))
    parsed = parser.parse_args(arguments)
    try:
        return COMMANDS[parsed.command].run(parsed)
    except (errors.Error, ValueError) as error:
        print(f"nbxtensor {parsed.command}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
