"""What is wrong in a device file is refused by file, key, value, and what is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from nbxtensor import errors, facts
from nbxtensor.facts import _schema

REAL = facts.folder()
GOOD = (REAL / "cuda" / "sm_90.yml").read_text("utf-8").replace("sm_90", "sm_99")


def clear() -> None:
    for cached in (facts.schema, facts.load, facts._file, facts._aliases):
        cached.cache_clear()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of device files of its own."""
    (tmp_path / "_schema.yml").write_text((REAL / "_schema.yml").read_text("utf-8"))
    (tmp_path / "cuda").mkdir()
    monkeypatch.setattr(facts, "folder", lambda: tmp_path)
    clear()
    yield tmp_path
    clear()


def refused(files: Path, text: str, name: str = "sm_99") -> str:
    path = files / "cuda" / f"{name}.yml"
    path.write_text(text, "utf-8")
    with pytest.raises(errors.FileError) as caught:
        facts.load("cuda", name)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_the_good_file_is_good(files: Path) -> None:
    (files / "cuda" / "sm_99.yml").write_text(GOOD, "utf-8")
    assert facts.load("cuda", "sm_99").lanes == 32


LANES = "{value: 32 threads, source: guide}"


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        # keys
        ("title:", "wings: 2\ntitle:", "unknown key 'wings'; known are kind, architecture, title"),
        ("title: NVIDIA Hopper (H100, H200)\n", "", "missing title"),
        ("facts:\n", "facts:\n  wings: 1\n", "facts: unknown key 'wings'; known are lanes, "),
        ("  lanes: ", "  lines: ", "facts: unknown key 'lines'; known are lanes, "),
        (f"  lanes:                  {LANES}\n", "", "facts: missing lanes"),
        ("  tensor_copies:", "  lanes:", "key 'lanes' stands more than once, the last time in"),
        # places
        ("kind: cuda", "kind: hip", "kind is 'hip'; the file's place says 'cuda'"),
        ("architecture: sm_99", "architecture: sm_98", "architecture is 'sm_98'; the file's place"),
        ("title:", "aliases: sm_91\ntitle:", "aliases must be a list of names, got 'sm_91'"),
        ("title:", "aliases: [91]\ntitle:", "aliases must be text, got 91"),
        ("title:", "aliases: [sm_99]\ntitle:", "aliases names 'sm_99', which leads here already"),
        ("title:", "aliases: [a, a]\ntitle:", "aliases names 'a', which leads here already"),
        ("NVIDIA Hopper (H100, H200)", "''", "title must be text, got ''"),
        # counts
        ("32 threads", "32", "lanes must be a whole number with its unit, such as '32 threads'"),
        ("32 threads", "many threads", "lanes must be a whole number with its unit"),
        ("32 threads", "32.5 threads", "lanes must be a whole number with its unit"),
        ("32 threads", "true", "lanes must be a whole number with its unit, such as '32 threads'"),
        ("32 threads", "[32]", "lanes must be a whole number with its unit"),
        ("32 threads", "32 registers", "lanes is in 'registers'; its unit is threads"),
        ("32 threads", "32 thread", "lanes is in 'thread'; its unit is threads"),
        ("32 threads", "0 threads", "lanes must be positive, got 0"),
        ("32 threads", "-32 threads", "lanes must be positive, got -32"),
        ("32 threads", "48 threads", "lanes must be a power of two, got 48"),
        ("227 KiB", "232448", "must be a whole number with its unit, such as '64 KiB', got"),
        ("227 KiB", "227 KB", "per_block is in 'KB'; its unit is B, KiB, MiB, GiB"),
        ("227 KiB", "0 KiB", "per_block must be positive, got 0"),
        # flags and names
        ("dependent_launch:       {value: true", "dependent_launch: {value: 1",
         "dependent_launch must be true or false, got 1"),
        ("[float16, bfloat16, float32,", "[float16, bfloat17, float32,",
         "compute_dtypes names 'bfloat17'; known are "),
        ("[float16, bfloat16, float32,", "[float16, tf32, float32,", "compute_dtypes names 'tf32'"),
        ("[float16, bfloat16, float32,", "[float16, float16, float32,",
         "compute_dtypes names 'float16' more than once"),
        ("value: [float16, bfloat16, float32, float64]", "value: float32",
         "compute_dtypes must be a list of names, got 'float32'"),
        ("value: [float16, bfloat16, float32, float64]", "value: []", "must be a list of names"),
        # sources
        (LANES, "{value: 32 threads}", "lanes has no source; name one of the file's"),
        (LANES, "32 threads", "lanes must be {value: ..., source: ...}, got '32 threads'"),
        (LANES, "{source: guide}", "lanes must be {value: ..., source: ...}, got {'source'"),
        (LANES, "{value: 32 threads, source: guide, unit: threads}", "lanes must be {value:"),
        (LANES, "{value: 32 threads, source: hearsay}", "lanes: source is 'hearsay'; the file's s"),
        ("guide: {document:", "guide: {heard:", "guide must hold one of document, measured"),
        ("guide: {document:", "guide: {measured: x, document:", "sources: guide must hold one of"),
        ("sources:\n", "sources:\n  spare: {measured: here}\n", "sources: no fact names spare; le"),
        # facts of others
        ("facts:\n", "facts:\n  argument_buffers: {value: true, source: guide}\n",
         "argument_buffers is no fact of cuda devices, only of metal; leave it out"),
        ("facts:\n", "facts:\n  page_bytes: {value: 2 MiB, source: guide}\n",
         "page_bytes is reported by cuMemGetAllocationGranularity(CU_"),
        # YAML
        ("title: NVIDIA", "title: [", "cannot be read"),
    ],
)  # fmt: skip
def test_bad_files_are_refused(files: Path, old: str, new: str, text: str) -> None:
    assert old in GOOD
    assert text in refused(files, GOOD.replace(old, new, 1))


@pytest.mark.parametrize("text", ["just text", "[1, 2]", "3", ""])
def test_a_file_must_hold_keys(files: Path, text: str) -> None:
    assert "expected keys with values" in refused(files, text)


@pytest.mark.parametrize("part", ["sources", "facts"])
def test_parts_must_hold_keys(files: Path, part: str) -> None:
    data = yaml.safe_load(GOOD)
    data[part] = ["guide"]
    assert part in refused(files, yaml.safe_dump(data))


def test_a_file_without_any_source_is_refused(files: Path) -> None:
    data = yaml.safe_load(GOOD)
    data["sources"] = {}
    assert "sources must map short names to document, measured or chosen" in refused(
        files, yaml.safe_dump(data)
    )


def test_every_required_fact_is_missed(files: Path) -> None:
    for name, row in facts.schema().items():
        if row.is_written("cuda") and row.is_required("cuda"):
            data = yaml.safe_load(GOOD)
            del data["facts"][name]
            assert f"facts: missing {name}" in refused(files, yaml.safe_dump(data))


def test_an_alias_leads_to_one_file(files: Path) -> None:
    for name, aliases in (("sm_98", "[sm_97]"), ("sm_99", "[sm_97]")):
        text = GOOD.replace("sm_99", name).replace("title:", f"aliases: {aliases}\ntitle:")
        (files / "cuda" / f"{name}.yml").write_text(text, "utf-8")
    with pytest.raises(
        errors.FileError, match=r"sm_99\.yml: aliases names 'sm_97', which leads to"
    ):
        facts.load("cuda", "sm_97")
    text = GOOD.replace("title:", "aliases: [sm_98]\ntitle:")
    (files / "cuda" / "sm_99.yml").write_text(text, "utf-8")
    clear()
    with pytest.raises(
        errors.FileError, match=r"aliases names 'sm_98', which leads to .*sm_98\.yml"
    ):
        facts.load("cuda", "sm_97")


def test_a_broken_file_hides_no_other(files: Path) -> None:
    (files / "cuda" / "sm_98.yml").write_text("[", "utf-8")
    (files / "cuda" / "sm_99.yml").write_text(GOOD, "utf-8")
    assert facts.load("cuda", "sm_99").lanes == 32


@pytest.mark.parametrize(("kind", "architecture"), facts.architectures())
def test_aliases_of_all_files_lead_to_one(kind: str, architecture: str) -> None:
    assert all(facts.find(kind, name) != architecture or name == architecture
               for which, name in facts.architectures() if which == kind)  # fmt: skip
    assert set(facts._aliases(kind)).isdisjoint(a for k, a in facts.architectures() if k == kind)


def test_the_schema_says_everything_of_every_fact() -> None:
    for name, row in facts.schema().items():
        assert row.name == name
        assert (row.unit is not None) == (row.type == "count"), name
        assert row.doc.endswith("."), name
        assert row.kinds, name
        assert row.driver.keys() <= row.kinds.keys(), name
        assert all(row.driver.values()), name
        assert (row.written == "always") or row.driver, name
        assert "_bytes" not in name or row.unit == "bytes", name


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("type", "integer", "lanes: type is 'integer'; allowed are count, flag, dtypes, inputs"),
        ("unit", "parsecs", "lanes: unit is 'parsecs'; allowed are bytes, threads"),
        ("unit", None, "lanes: unit is None; allowed are bytes, threads"),
        ("powers", 2, "lanes: powers is 2; allowed are True, False"),
        ("kinds", {"tpu": "required"}, "lanes: kinds is 'tpu'; allowed are cuda, hip"),
        ("kinds", {"cuda": "maybe"}, "lanes: kinds: cuda is 'maybe'; allowed are required, option"),
        ("driver", {"tpu": "call"}, "lanes: driver is 'tpu'; allowed are cpu, sim"),
        ("written", "sometimes", "lanes: written is 'sometimes'; allowed are always, unreported"),
        ("colour", "blue", "lanes: expected the keys type, kinds, written, doc"),
    ],
)
def test_bad_rows_of_the_schema_are_refused(files: Path, key: str, value: Any, text: str) -> None:
    path = files / "_schema.yml"
    rows = yaml.safe_load(path.read_text("utf-8"))
    rows["lanes"][key] = value
    path.write_text(yaml.safe_dump(rows, sort_keys=False), "utf-8")
    with pytest.raises(errors.FileError) as caught:
        facts.schema()
    assert f"{path}: {text}" in str(caught.value)


def test_values_are_written_as_they_are_read() -> None:
    for kind, architecture in facts.architectures():
        data = yaml.safe_load((REAL / kind / f"{architecture}.yml").read_text("utf-8"))
        for name, fact in facts.load(kind, architecture).all.items():
            given = data["facts"][name]["value"]
            if isinstance(given, str):
                count, unit = fact.text.split()
                assert _schema.parse_value(facts.schema()[name], fact.text, name) == fact.value
                assert int(count) * _schema.BYTES.get(unit, 1) == fact.value
            elif isinstance(given, list):
                assert fact.text == ", ".join(given)
            else:
                assert fact.text == ("yes" if given else "no")


def test_one_of_a_unit_is_singular() -> None:
    rows = facts.schema()
    assert _schema.value_text(rows["cluster_blocks"], 1) == "1 block"
    assert _schema.value_text(rows["dispatches_per_command_buffer"], 1) == "1 dispatch"
    assert _schema.value_text(rows["command_buffers_in_flight"], 2) == "2 buffers"
    assert _schema.value_text(rows["page_bytes"], 2 << 20) == "2 MiB"
    assert _schema.value_text(rows["page_bytes"], 1) == "1 B"
    assert _schema.parse_value(rows["cluster_blocks"], "1 block", "here") == 1
