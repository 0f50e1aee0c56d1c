"""The page of a trace: what it holds, and what a real browser shows."""

from __future__ import annotations

import html.parser
import json
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from nbxtensor.memory.trace import Trace
from nbxtensor.memory.trace._trace import Builder
from nbxtensor.memory.trace._view import page, view_data

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
BROWSER = next((path for path in map(shutil.which, BROWSERS) if path), None)
# The tests of what a browser shows are there where one is, and in CI: there they fail without. The
# ARM machines of Linux have none to install.
LINUX_ARM = (platform.system(), platform.machine()) == ("Linux", "aarch64")
BROWSES = BROWSER is not None or (bool(os.environ.get("CI")) and not LINUX_ARM)
EVIL = "</script><script>document.title='taken'</script><!-- & <b>"


def sample(rng: np.random.Generator, count: int) -> Trace:
    """Return a trace with tags, streams, origins, refusals and a block that stays."""
    builder = Builder("tsv", "sim:0", "ns")
    tags = ["weights", "kv", "activations", EVIL]
    live: list[tuple[int, int, int, int]] = []
    time = 0
    builder.add(1, 10**6, 3 << 20, time=0, address=1 << 40, tag="weights", origin="load.py:3 load")
    for block in range(count):
        time += int(rng.integers(100, 100000))
        if live and rng.random() < 0.48:
            victim, size, tag, address = live.pop(int(rng.integers(len(live))))
            builder.add(-1, victim, size, time=time, address=address, tag=tags[tag])
        else:
            size, tag = int(rng.integers(1, 1 << 22)), int(rng.integers(len(tags)))
            address = (1 << 30) + block * (1 << 22)
            builder.add(
                1,
                block,
                size,
                time=time,
                address=address,
                tag=tags[tag],
                stream=int(rng.integers(2)),
                origin=f"model.py:{tag} forward\nmain.py:1 f",
            )
            live.append((block, size, tag, address))
        if block == count // 2:
            builder.note("refuse", time, 0, 1 << 40, "kv")
    return builder.build().validate()  # fmt: skip


def live_at(trace: Trace, event: int) -> dict[str, int]:
    """Return live bytes by tag behind an event, by hand."""
    held: dict[int, tuple[str, int]] = {}
    for i in range(event + 1):
        block = int(trace.id[i])
        if trace.op[i] > 0:
            held[block] = (trace.tags[trace.tag[i]], int(trace.bytes[i]))
        else:
            del held[block]
    totals: dict[str, int] = {}
    for tag, size in held.values():
        totals[tag] = totals.get(tag, 0) + size
    return totals


@pytest.mark.parametrize("count", [0, 1, 300, 4000])
def test_the_data_of_the_page(count: int, rng: np.random.Generator) -> None:
    trace = sample(rng, count)
    data = view_data(trace)
    assert data["peak"] == trace.peak()
    assert data["peakEvent"] in data["samples"]
    assert data["samples"][0] == 0
    assert data["samples"][-1] == len(trace) - 1
    assert len(data["samples"]) <= 1402
    live = trace.live()
    for group in data["groups"]:
        table = np.array(group["series"])
        assert (table.sum(0) == live[data["samples"]]).all()
        assert (table >= 0).all()
        assert len(group["labels"]) == len(group["series"]) <= 12
        assert len(group["block"]) == data["blocks"]
    for event in rng.choice(data["samples"], 3).tolist():
        column = data["samples"].index(event)
        tags = data["groups"][0]
        assert tags["name"] == "tag"
        shown = {
            label: series[column]
            for label, series in zip(tags["labels"], tags["series"], strict=True)
            if series[column]
        }
        assert shown == live_at(trace, event)


def test_extents_cover_every_block_once(rng: np.random.Generator) -> None:
    data = view_data(sample(rng, 300))
    blocks = data["map"]
    for address, size in zip(blocks["address"], blocks["bytes"], strict=True):
        holding = [e for e in data["extents"] if e[0] <= address and address + size <= e[0] + e[1]]
        assert len(holding) == 1
    ends = [start + size for start, size in data["extents"]]
    assert all(end < start for end, (start, _) in zip(ends, data["extents"][1:], strict=False))


def test_an_empty_trace_has_a_page() -> None:
    assert "no events" not in page(Builder("tsv").build(), "empty")
    assert view_data(Builder("tsv").build())["samples"] == []


def test_many_labels_share_the_last_colour() -> None:
    builder = Builder("tsv")
    for block in range(40):
        builder.add(1, block, 1000 - block, tag=f"t{block}")
    group = view_data(builder.build())["groups"][0]
    assert group["labels"] == [*(f"t{i}" for i in range(11)), "29 others"]
    assert sum(series[-1] for series in group["series"]) == sum(1000 - i for i in range(40))


def test_texts_cannot_leave_their_place(rng: np.random.Generator) -> None:
    text = page(sample(rng, 50), EVIL)
    # Three elements at most: the data and the program; nothing that a tag or a title added.
    assert len(re.findall(r"<script", text)) == 2
    assert len(re.findall(r"</script", text)) == 2
    assert "taken'</" not in text
    assert not re.search(r"(src|href)\s*=|https?://|@import|url\(", text)
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    assert EVIL in data["groups"][0]["labels"]


class Dom(html.parser.HTMLParser):
    """Collects elements with data-* attributes, and texts by id."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, dict[str, str]] = {}
        self.cells: dict[str, int] = {}
        self.ready = False
        self.title = ""
        self._in_title = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        known = {key: value or "" for key, value in attributes}
        self._in_title = tag == "title"
        if tag == "body":
            self.ready = known.get("data-ready") == "1"
        if "id" in known:
            self.values[known["id"]] = known
        if "data-label" in known:
            self.cells[known["data-label"]] = int(known["data-bytes"])

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
            self._in_title = False


def browse(file: Path, *options: str) -> str:
    assert BROWSER is not None, f"no browser: install one of {', '.join(BROWSERS)}"
    profile = file.with_suffix(".profile")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
               f"--user-data-dir={profile}", "--window-size=1400,1150", *options,
               file.resolve().as_uri()]  # fmt: skip
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout


if BROWSES:

    def test_a_browser_shows_what_was_counted(rng: np.random.Generator, tmp_path: Path) -> None:
        trace = sample(rng, 3000)
        file = tmp_path / "run.html"
        file.write_text(page(trace, EVIL), "utf-8")
        dom = Dom()
        dom.feed(browse(file, "--dump-dom"))
        assert dom.ready
        assert dom.title.startswith(EVIL)
        assert int(dom.values["tile-peak"]["data-value"]) == trace.peak()
        assert int(dom.values["tile-end"]["data-value"]) == int(trace.live()[-1])
        assert int(dom.values["tile-events"]["data-value"]) == len(trace)
        event = int(np.argmax(trace.live()))
        assert int(dom.values["moment"]["data-event"]) == event
        expected = live_at(trace, event)
        assert dom.cells == expected
        assert int(dom.values["held"]["data-bytes"]) == sum(expected.values()) == trace.peak()
        # The map draws the same blocks, found by the page itself.
        assert int(dom.values["map-note"]["data-bytes"]) == trace.peak()

    def test_a_browser_paints_it(rng: np.random.Generator, tmp_path: Path) -> None:
        file, picture = tmp_path / "run.html", tmp_path / "run.png"
        file.write_text(page(sample(rng, 1000), "run"), "utf-8")
        browse(file, f"--screenshot={picture}", "--hide-scrollbars")
        data = picture.read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert int.from_bytes(data[16:20], "big") == 1400
        assert len(data) > 30_000  # an empty page is far smaller


def test_a_block_of_any_size_has_a_place() -> None:
    builder = Builder("tsv", "sim:0")
    for number, size in enumerate((0, 1, 2**32, 2**61, 2**62 - 1 - 2**61 - 2**32)):
        builder.add(1, number, size)
    data = view_data(builder.build().validate())
    sizes = next(group for group in data["groups"] if group["name"] == "size")
    assert sizes["labels"] == ["256 MiB and more", "below 64 KiB"]
    assert data["peak"] == 2**62
