"""``info`` and ``devices``: what this installation can use, and why not the rest."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from nbxtensor import _core, env, runtime

# What the core reports of a kind: its library may be missing, or there and useless.
_STATES = {"ready": "usable", "no device": "unusable", "library absent": "absent"}


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


def _usable(name: str) -> dict[str, Any]:
    try:
        return {"state": "usable", **runtime.device_info(name)}
    except Exception as error:
        return {"state": "unusable", "reason": f"{type(error).__name__}: {error}"}


def _devices() -> dict[str, Any]:
    """Return every device, and every kind without one, as usable, unusable or absent."""
    found: dict[str, Any] = {}
    for report in _core.report_kinds():
        kind = report["kind"]
        if report["state"] != "ready":
            found[kind] = {"state": _STATES[report["state"]], "reason": report["reason"]}
            continue
        for index in range(report["count"]):
            name = kind if kind == "cpu" else f"{kind}:{index}"
            found[name] = _usable(name)
    return found


def collect() -> dict[str, Any]:
    """Return everything that ``info`` shows, each part probed on its own."""
    return {
        "versions": _probe(_versions),
        "platform": _probe(platform.platform),
        "threads": _probe(_core.get_num_threads),
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


def _device_lines(found: Any) -> list[str]:
    if error := _error_of(found):
        return [f"  {error}"]
    lines = []
    for name, info in found.items():
        if info["state"] != "usable":
            lines.append(f"  {name:<8} {info['state']}: {info['reason']}")
            continue
        free, total = (_core.format_bytes(info[key]) for key in ("free_bytes", "total_bytes"))
        lines.append(
            f"  {name:<8} usable: {info['name']} ({info['architecture']}), {free} of {total} free"
        )
    return lines


def _facts_lines(found: Any) -> list[str]:
    """Return the facts of every usable device, once for devices that share them."""
    shared: dict[str, tuple[list[str], dict[str, Any]]] = {}
    for name, info in {} if _error_of(found) else found.items():
        if info["state"] == "usable":
            key = json.dumps(info["facts"])
            shared.setdefault(key, ([], info["facts"]))[0].append(name)
    lines = []
    for names, facts in shared.values():
        lines += ["", f"facts of {', '.join(names)}: {facts['title']}, {facts['file']}"]
        rows = [
            (name, value["text"], f"{value['origin']}: {value['source']}")
            for name, value in facts["values"].items()
        ]
        left, middle = (max(len(row[column]) for row in rows) for column in (0, 1))
        lines += [f"  {name:<{left}}  {text:<{middle}}  {source}" for name, text, source in rows]
        lines += [f"  differs: {text}" for text in facts["disagreements"]]
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
        f"default device: {_error_of(data['default_device']) or data['default_device']}",
        "",
        "devices:",
        *_device_lines(data["devices"]),
        *_facts_lines(data["devices"]),
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
    """Print every device with its state, and every kind without one."""
    print("\n".join(_device_lines(_probe(_devices))))
    sys.stdout.flush()
    return 0
