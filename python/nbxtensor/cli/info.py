"""``info`` and ``devices``: what this installation can use, and why not the rest."""

from __future__ import annotations

import functools
import json
import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from nbxtensor import _core, env, runtime
from nbxtensor.facts import facts_of


def _probe(function: Callable[[], Any]) -> Any:
    """Return what the function returns, or its error: one failure must not hide the rest."""
    try:
        return function()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _versions() -> dict[str, str]:
    from importlib import metadata

    found = {"python": platform.python_version(), "numpy": np.__version__}
    for name in ("nbxtensor", "triton", "ml_dtypes"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _device(name: str) -> dict[str, Any]:
    info = runtime.device_info(name)
    info["facts_file"] = str(facts_of(runtime.device(name)).path)
    return info


def _devices() -> dict[str, Any]:
    names = [
        "cpu" if report["kind"] == "cpu" else f"{report['kind']}:{index}"
        for report in _core.report_kinds()
        if report["state"] == "ready"
        for index in range(report["count"])
    ]
    return {name: _probe(functools.partial(_device, name)) for name in names}


def collect() -> dict[str, Any]:
    """Return everything that ``info`` shows, each part probed on its own."""
    return {
        "versions": _probe(_versions),
        "platform": _probe(platform.platform),
        "threads": _probe(_core.get_num_threads),
        "kinds": _probe(_core.report_kinds),
        "default_device": _probe(lambda: str(runtime.default_device())),
        "devices": _probe(_devices),
        "environment": _probe(
            lambda: [
                {
                    "name": variable.name,
                    "value": variable.value,
                    "default": variable.default,
                    "description": variable.description,
                }
                for variable in env.variables()
            ]
        ),
        "unknown_variables": _probe(env.unknown),
    }


def _error_of(part: Any) -> str | None:
    return part["error"] if isinstance(part, dict) and set(part) == {"error"} else None


def _kind_lines(kinds: Any) -> list[str]:
    if error := _error_of(kinds):
        return [f"  {error}"]
    return [
        f"  {row['kind']:<6} {row['state']}"
        + (f" ({row['count']})" if row["state"] == "ready" else f": {row['reason']}")
        for row in kinds
    ]


def _device_lines(found: Any) -> list[str]:
    if error := _error_of(found):
        return [f"  {error}"]
    lines = []
    for name, info in found.items():
        if error := _error_of(info):
            lines.append(f"  {name:<6} {error}")
            continue
        free, total = (_core.format_bytes(info[key]) for key in ("free_bytes", "total_bytes"))
        lines.append(f"  {name:<6} {info['name']} ({info['architecture']}), {free} of {total} free")
        lines.append(f"         facts: {info['facts_file']}")
    return lines


def _variable_lines(rows: Any, unknown: Any) -> list[str]:
    if error := _error_of(rows):
        return [f"  {error}"]
    lines = []
    for row in rows:
        state = row["value"] if row["value"] is not None else f"{row['default'] or '-'} (default)"
        lines.append(f"  {row['name']:<18} {state}")
        lines.append(f"      {row['description']}")
    if isinstance(unknown, list):
        lines += [f"  {name:<18} means nothing to nbxtensor" for name in unknown]
    return lines


def render(data: dict[str, Any]) -> str:
    """Return the text form of what ``collect`` found."""
    versions = data["versions"]
    shown = _error_of(versions) or ", ".join(f"{k} {v}" for k, v in versions.items())
    lines = [
        shown,
        f"platform: {data['platform']}",
        f"threads: {data['threads']}",
        "",
        "device kinds:",
        *_kind_lines(data["kinds"]),
        "",
        f"default device: {_error_of(data['default_device']) or data['default_device']}",
        "",
        "devices:",
        *_device_lines(data["devices"]),
        "",
        "environment:",
        *_variable_lines(data["environment"], data["unknown_variables"]),
    ]
    return "\n".join(lines)


def info(as_json: bool) -> int:
    """Print what this installation can use."""
    data = collect()
    print(json.dumps(data, indent=2) if as_json else render(data))
    return 0


def devices() -> int:
    """Print every kind with its state, and every device."""
    print("\n".join([*_kind_lines(_probe(_core.report_kinds)), *_device_lines(_probe(_devices))]))
    sys.stdout.flush()
    return 0
