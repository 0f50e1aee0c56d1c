"""What each account keeps from the driver: pages counted by hand from the addresses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import memory

DEVICE = "sim:0"
MiB = 1 << 20
PAGE = 2 * MiB


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    nbx.synchronize(DEVICE)
    memory.trim(DEVICE)
    before = memory.stats(DEVICE).allocated
    yield
    nbx.synchronize(DEVICE)
    memory.trim(DEVICE)
    assert memory.stats(DEVICE).allocated == before


def mapped() -> dict[tuple[str, str], int]:
    return {(r.kind, r.tag): r.mapped for r in memory.report(DEVICE).rows}


def pages_of(tensors: list[Any]) -> set[int]:
    """Pages that hold a byte of what the blocks are granted."""
    found: set[int] = set()
    for tensor in tensors:
        end = tensor.data_ptr() + -(-tensor.nbytes // 256) * 256
        found.update(range(tensor.data_ptr() // PAGE, -(-end // PAGE)))
    return found


def test_pages_count_once_an_account_and_once_above(rng: np.random.Generator) -> None:
    tags = ["report_test", "report_test/a", "report_test/b", "report_other", ""]
    held: dict[str, list[Any]] = {tag: [] for tag in tags}
    sizes = [1, 300, 5_000, 60_000, 70_000, 900_000, 3 * MiB, 9 * MiB + 1]
    for _ in range(120):
        tag = tags[rng.integers(len(tags))]
        if held[tag] and rng.random() < 0.3:
            held[tag].pop(int(rng.integers(len(held[tag]))))
        with memory.tag(tag):
            size = sizes[rng.integers(len(sizes))] + int(rng.integers(0, 5_000))
            held[tag].append(nbx.empty((size,), dtype=nbx.uint8, device=DEVICE))
    nbx.synchronize(DEVICE)
    found = mapped()
    below = {tag: [x for t in tags if t.startswith(tag) for x in held[t]] for tag in tags}
    for tag in tags[:4]:
        assert found["device", tag] == len(pages_of(below[tag])) * PAGE, tag
    # Others may hold memory of the device that is not known here.
    whole = found["device", ""]
    assert whole >= len(pages_of(below[""])) * PAGE
    stats = memory.stats(DEVICE)
    assert stats.occupied == whole
    assert stats.live <= stats.occupied <= stats.mapped
    # What no live block keeps is what goes back.
    memory.trim(DEVICE)
    after = memory.stats(DEVICE)
    assert after.mapped == after.occupied == whole
    held.clear()
    below.clear()


def test_a_shared_page_counts_for_both_and_once_for_their_parent() -> None:
    with memory.tag("report_test/a"):
        first = nbx.empty((MiB // 2,), dtype=nbx.uint8, device=DEVICE)
    with memory.tag("report_test/b"):
        second = nbx.empty((MiB // 2,), dtype=nbx.uint8, device=DEVICE)
    assert first.data_ptr() // PAGE == second.data_ptr() // PAGE
    found = mapped()
    assert found["device", "report_test/a"] == found["device", "report_test/b"] == PAGE
    assert found["device", "report_test"] == PAGE
    del first
    found = mapped()
    assert found["device", "report_test/a"] == 0
    assert found["device", "report_test"] == PAGE
    del second
    assert mapped()["device", "report_test"] == 0


def test_large_pages_count_whole() -> None:
    with memory.tag("report_test", steady=True):
        held = nbx.empty((40 * MiB + 1,), dtype=nbx.uint8, device=DEVICE)
    kept = mapped()["device", "report_test"]
    assert kept >= 42 * MiB
    assert kept % PAGE == 0
    del held


def test_reserved_blocks_and_sleeping_tensors() -> None:
    with memory.tag("report_test"):
        keys = memory.reserve(64 * MiB, DEVICE)
        held = nbx.empty((3 * MiB,), dtype=nbx.uint8, device=DEVICE)
    pages = len(pages_of([held])) * PAGE
    assert mapped()["device", "report_test"] == pages
    keys.commit(5 * MiB)
    assert mapped()["device", "report_test"] == pages + 6 * MiB
    keys.decommit(MiB)
    assert mapped()["device", "report_test"] == pages + 2 * MiB
    keys.decommit(0)
    memory.sleep("report_test", DEVICE)
    assert mapped()["device", "report_test"] == 0
    memory.wake("report_test", DEVICE)
    assert mapped()["device", "report_test"] == pages
    del keys, held


def test_other_kinds_add_up() -> None:
    with memory.tag("report_test"):
        staging = memory.pinned((MiB,), nbx.uint8, DEVICE)
    with memory.external("report_library", 3 * MiB, DEVICE):
        found = mapped()
    assert found["pinned", "report_test"] >= MiB  # the whole of what was locked at once
    assert found["pinned", ""] == found["pinned", "report_test"]
    assert found["external", "report_library"] == found["external", ""] == 3 * MiB
    kinds = sum(found[kind, ""] for kind in ("device", "mapped", "pinned", "external"))
    assert found["", ""] == kinds
    del staging


def test_arrays_in_place_count_as_they_are() -> None:
    before = {(r.kind, r.tag): r.mapped for r in memory.report("cpu").rows}
    with memory.tag("report_array"):
        array = np.zeros(1 << 16, dtype=np.float64)
        tensor = nbx.from_dlpack(array)
    rows = {(r.kind, r.tag): r for r in memory.report("cpu").rows}
    assert rows["mapped", "report_array"].mapped == rows["mapped", "report_array"].bytes > 0
    grown = rows["mapped", ""].mapped - before["mapped", ""]
    assert grown == rows["mapped", "report_array"].bytes
    del tensor


def test_segments_where_there_are_no_pages() -> None:
    with memory.tag("report_test"):
        held = nbx.empty((5 * MiB,), dtype=nbx.uint8, device="cpu")
    (row,) = [r for r in memory.report("cpu").rows if (r.kind, r.tag) == ("device", "report_test")]
    stats = memory.stats("cpu")
    assert row.bytes <= row.mapped <= stats.occupied <= stats.mapped
    assert "mapped" in str(memory.report("cpu")).splitlines()[1]
    del held


def test_names_that_would_break_the_table_are_escaped() -> None:
    with memory.tag("a\tb\n\x1b[2Jc"):
        held = nbx.empty((16,), device="sim:1")
    text = str(memory.report("sim:1"))
    assert r"a\tb\n\x1b[2Jc" in text
    assert all(line.isprintable() for line in text.splitlines())
    assert "a\tb\n\x1b[2Jc" in [row.tag for row in memory.report("sim:1").rows]
    assert r"a\tb\n\x1b[2Jc" in memory.report("sim:1")._repr_html_()
    del held
