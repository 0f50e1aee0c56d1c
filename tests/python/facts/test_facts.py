"""Facts are found by the name that a driver reports, and an open device's own report counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nbxtensor import _core, errors, facts, runtime


class Opened:
    """What facts_of asks of a device."""

    def __init__(self, kind: str, architecture: str, **properties: int) -> None:
        self.kind = kind
        self.architecture = architecture
        self.name = f"{kind}:0"
        unreported = {row.property: 0 for row in facts.schema().values() if row.property}
        self.properties = {**unreported, **properties}


def facts_of(*arguments: Any, **properties: int) -> facts.Facts:
    return facts.facts_of.__wrapped__(Opened(*arguments, **properties))


@pytest.mark.parametrize(("kind", "architecture"), facts.architectures())
def test_every_file_loads(kind: str, architecture: str) -> None:
    found = facts.load(kind, architecture)
    assert (found.kind, found.architecture) == (kind, architecture)
    assert found.path.is_file()
    assert kind in {row["kind"] for row in _core.report_kinds()}
    for name in (architecture, *found.aliases):
        assert len(name.encode()) < 32, "the field of csrc/device/primitives.h"
        assert facts.find(kind, name) == architecture
    for name, fact in found.all.items():
        assert getattr(found, name) == fact.value
        assert fact.source
        assert fact.origin in {"document", "measured", "chosen"}
        assert fact.unit == facts.schema()[name].unit
    assert json.loads(json.dumps(found.as_dict()))["architecture"] == architecture
    assert repr(found) == f"nbxtensor.facts.Facts({kind}/{architecture})"


def test_facts_have_a_field_for_every_row() -> None:
    own = {"kind", "architecture", "title", "aliases", "path", "all", "disagreements"}
    assert set(facts.Facts._fields) - own == set(facts.schema())


@pytest.mark.parametrize("name", ["cpu", "sim:1"])
def test_what_a_device_reports_is_read_from_it(name: str) -> None:
    device = runtime.device(name)
    found = facts.facts_of(device)
    assert found.alignment_bytes == device.properties["base_alignment"]
    assert (found.page_bytes or 0) == device.properties["page_granularity"]
    assert found.all["alignment_bytes"].origin == "device"
    assert found.disagreements == ()
    for row in facts.schema().values():
        assert row.property is None or row.property in device.properties
        assert not row.is_required(device.kind) or row.name in found.all
    written = facts.load(device.kind, device.architecture)
    assert written.alignment_bytes is None
    assert written.page_bytes is None


def test_what_a_file_and_its_device_say_apart_is_told() -> None:
    agreed = facts_of("cuda", "sm_90", base_alignment=256, page_granularity=2 << 20)
    assert (agreed.alignment_bytes, agreed.page_bytes) == (256, 2 << 20)
    assert agreed.disagreements == ()
    assert agreed.all["alignment_bytes"].origin == "device"
    assert agreed.shared_bytes_per_block == 227 << 10

    other = facts_of("cuda", "sm_90", base_alignment=512)
    assert (other.alignment_bytes, other.page_bytes) == (512, None)
    (text,) = other.disagreements
    assert text.startswith("alignment_bytes: cuda:0 reports 512 B, ")
    assert text.endswith("sm_90.yml says 256 B")

    with pytest.raises(errors.FileError, match="base_alignment must be a power of two, got 48"):
        facts_of("cuda", "sm_90", base_alignment=48)


def test_every_device_that_opens_has_a_file() -> None:
    found = {(device.kind, device.architecture) for device in runtime.devices()}
    assert ("sim", "sim") in found
    assert "cpu" in {kind for kind, _ in found}
    assert found <= set(facts.architectures())


def test_a_dry_run_has_the_facts_of_the_simulator() -> None:
    code = "from nbxtensor import facts, runtime\nprint(facts.facts_of(runtime.device('hip')).path)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "NBX_CENSUS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip().endswith("sim.yml"), done.stderr


def test_names_lead_to_files() -> None:
    assert facts.find("cuda", "sm_90") == "sm_90"
    assert facts.find("cuda", "sm_121") == "sm_120"
    assert facts.find("hip", "gfx1101") == "gfx1100"
    assert facts.find("hip", "gfx90a:sramecc+:xnack-") == "gfx90a"
    assert facts.load("hip", "gfx1101") == facts.load("hip", "gfx1100")


@pytest.mark.parametrize(
    ("kind", "name", "known"),
    [
        ("cuda", "sm_87", "sm_70, sm_75, sm_80, sm_86, sm_89, sm_90, sm_100, sm_120, sm_121"),
        ("cuda", "sm_103", "sm_70"),  # no float64 in its tensor cores: not as sm_100
        ("cuda", "sm_9", "sm_70"),
        ("hip", "gfx950", "gfx908, gfx90a, gfx942, gfx1100, gfx1101, gfx1102, gfx1103"),
        ("metal", "apple6", "apple7, apple8, apple9, apple10"),
        ("cpu", "vax", "arm64, x86_64, aarch64"),
    ],
)
def test_an_unknown_architecture_is_refused_by_name(kind: str, name: str, known: str) -> None:
    with pytest.raises(errors.InvalidValueError) as caught:
        facts.load(kind, name)
    text = str(caught.value)
    assert f"nothing is known of {kind} architecture '{name}'; known are {known}" in text
    assert str(Path(kind) / f"{name}.yml") in text


def test_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(errors.InvalidValueError, match="the kind 'tpu'; known are cpu, cuda, hip,"):
        facts.load("tpu", "v4")
