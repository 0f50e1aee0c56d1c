"""Device files follow their schema, and errors name file and key."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbxtensor import _core, dtype, errors, facts, runtime


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of device files of its own."""
    (tmp_path / "_schema.yml").write_text((facts.folder() / "_schema.yml").read_text("utf-8"))
    (tmp_path / "sim").mkdir()
    monkeypatch.setattr(facts, "folder", lambda: tmp_path)
    facts.load.cache_clear()
    facts.schema.cache_clear()
    yield tmp_path / "sim"
    facts.load.cache_clear()
    facts.schema.cache_clear()


GOOD = (facts.folder() / "sim" / "sim.yml").read_text("utf-8")
GOOD = GOOD.replace("architecture: sim", "architecture: odd")


@pytest.mark.parametrize(("kind", "architecture"), facts.architectures())
def test_every_file_loads(kind: str, architecture: str) -> None:
    found = facts.load(kind, architecture)
    assert (found.kind, found.architecture) == (kind, architecture)
    assert found.path.is_file()
    assert found.alignment_bytes & (found.alignment_bytes - 1) == 0


@pytest.mark.parametrize("name", ["cpu", "sim:1"])
def test_opened_devices_agree_with_their_file(name: str) -> None:
    device = runtime.device(name)
    found = facts.facts_of(device)
    assert found.alignment_bytes == device.properties["base_alignment"]
    assert (found.page_bytes or 0) == device.properties["page_granularity"]


def test_every_device_that_opens_has_a_file() -> None:
    found = {(device.kind, device.architecture) for device in runtime.devices()}
    assert ("sim", "sim") in found
    assert "cpu" in {kind for kind, _ in found}
    assert found <= set(facts.architectures())


@pytest.mark.parametrize(("kind", "architecture"), facts.architectures())
def test_files_say_what_the_core_can_say(kind: str, architecture: str) -> None:
    assert kind in {row["kind"] for row in _core.report_kinds()}
    assert len(architecture.encode()) < 32  # the field of csrc/device/primitives.h
    for name in facts.load(kind, architecture).compute_dtypes:
        assert dtype.as_dtype(name).name == name


def test_the_schema_describes_every_key() -> None:
    for key, row in facts.schema().items():
        assert row.keys() == {"type", "required", "doc"}, key
        assert row["type"] in {"text", "integer", "number", "dtypes"}, key
        assert isinstance(row["required"], bool), key
        assert row["doc"].endswith("."), key


def test_an_unknown_architecture_names_the_file_to_add() -> None:
    with pytest.raises(errors.InvalidValueError, match=r"no file for cpu/vax, expected .*vax\.yml"):
        facts.load("cpu", "vax")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("lanes: 32", "lanes: many"), "lanes must be integer, got 'many'"),
        (("lanes: 32", "lanes: true"), "lanes must be integer, got True"),
        (("lanes: 32\n", ""), "missing lanes"),
        (("lanes: 32", "lanes: 32\nwings: 2"), "unknown key 'wings'"),
        (("lanes: 32", "lanes: ["), "cannot be read"),
        (("architecture: odd", "architecture: sim"), "architecture is 'sim'; the file's place"),
        (("kind: sim", "kind: cpu"), "kind is 'cpu'"),
        (("[float16", "[float31"), "compute_dtypes names \\['float31'\\]; known are"),
    ],
)
def test_bad_files_are_refused(files: Path, change: tuple[str, str], text: str) -> None:
    (files / "odd.yml").write_text(GOOD.replace(*change))
    with pytest.raises(errors.FileError, match=text) as caught:
        facts.load("sim", "odd")
    assert "odd.yml" in str(caught.value)


def test_a_file_must_hold_keys(files: Path) -> None:
    (files / "odd.yml").write_text("just text")
    with pytest.raises(errors.FileError, match="holds str"):
        facts.load("sim", "odd")
