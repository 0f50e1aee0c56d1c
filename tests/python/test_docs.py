"""What the pages say works: their code runs, their links resolve, their commands exist."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from nbxtensor.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "csrc/README.md", "benchmarks/README.md")
PAGES = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(text: str, language: str) -> list[tuple[int, str]]:
    """The blocks of a language, each with the number of lines before its code."""
    return [
        (text.count("\n", 0, found.start(2)), found.group(2))
        for found in FENCE.finditer(text)
        if found.group(1) == language
    ]


def program(page: Path) -> str:
    """The page's Python blocks as one program whose lines have the page's numbers."""
    lines: list[str] = []
    for before, code in blocks(page.read_text("utf-8"), "python"):
        lines += [""] * (before - len(lines)) + code.splitlines()
    return "\n".join(lines) + "\n"


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_the_pages_have_code() -> None:
    found = {name_of(page) for page in PAGES if program(page).strip()}
    assert {"README.md", "docs/tutorial.md", "docs/concepts/memory.md"} <= found


@pytest.mark.parametrize("page", [p for p in PAGES if program(p).strip()], ids=name_of)
def test_code_runs(page: Path, tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NBX_")}
    # The name in tracebacks is the page's, and so are the line numbers.
    run = "import sys; exec(compile(sys.stdin.read(), sys.argv[1], 'exec'), {'__name__': 'page'})"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", run, name_of(page)],
        input=program(page),
        env={**environment, "NBX_DEVICE": "cpu"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page: Path) -> None:
    text = re.sub(r"`[^`]*`", "", FENCE.sub("", page.read_text("utf-8")))
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{name_of(page)} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text("utf-8"), re.MULTILINE)
            assert anchor in map(slug, headings), f"{name_of(page)} links to {target}"


def test_every_page_is_linked() -> None:
    """From the README or docs/index.md one comes to every page."""
    start = [ROOT / "README.md", ROOT / "docs" / "index.md"]
    seen: set[Path] = set()
    while start:
        page = start.pop()
        if page in seen or page.suffix != ".md" or not page.is_file():
            continue
        seen.add(page)
        targets = (t.partition("#")[0] for t in LINK.findall(page.read_text("utf-8")))
        start += [(page.parent / t).resolve() for t in targets if t and ":" not in t]
    assert set(PAGES) <= seen


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    code = [*re.findall(r"`([^`\n]+)`", FENCE.sub("", text)), *(c for _, c in blocks(text, "sh"))]
    targets = set(re.findall(r"^([a-z-][a-z -]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    known = {target for line in targets for target in line.split()}
    for line in (line for part in code for line in part.splitlines()):
        command = line.partition("#")[0].split()
        if command[:1] == ["make"]:
            assert {c for c in command[1:] if "=" not in c} <= known, line
        if "nbxtensor" in command and command[0].endswith("python"):
            given = command[command.index("nbxtensor") + 1 :][:1]
            assert set(given) <= set(COMMANDS), line
        for word in command:
            if word.endswith(".py") and "/" in word and not re.search(r"[<>*]|test_x", word):
                assert (ROOT / word).is_file(), line


def test_the_memory_report_adds_up() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    report = text.partition("<!-- memory-report -->")[2].partition("<!-- /memory-report -->")[0]
    rows = re.findall(r"^( *)(\S+) +([\d,]+)  .* (\d+)$", report, re.MULTILINE)
    figures = [(len(a) // 2, n, int(b.replace(",", "")), int(o)) for a, n, b, o in rows]
    *accounts, (_, name, held, objects) = figures
    assert name == "total"
    for depth in (0, 1):
        level = [row for row in accounts if row[0] == depth]
        assert sum(row[2] for row in level) == held
        assert sum(row[3] for row in level) == objects


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda p: p.stem)
def test_the_table_of_figures_is_that_of_the_results(path: Path) -> None:
    table = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    assert f"results/{path.name}" in table
    top = (ROOT / "README.md").read_text("utf-8")
    figures = json.loads(path.read_text("utf-8"))
    for key, value in figures.items():
        if key.endswith(("_tok_s", "_ms", "_growth_mib")):
            assert str(value) in table, key
        if key.endswith("_tok_s") or key == "over_numpy_ms":
            assert str(value) in top, key
    for what in ("prefill", "decode") if "decode_ratio" in figures else ():
        rates = [figures[f"{what}_{side}_tok_s"] for side in ("nbxtensor", "numpy")]
        assert f"{rates[0] / rates[1]:.2f}x; pairs {figures[f'{what}_ratio']:.2f}x" in table
        assert f"{rates[0] / rates[1]:.1f}x" in top


def test_the_table_of_the_card_is_that_of_the_results() -> None:
    table = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    launch, graphs, memory, ops = (
        json.loads((RESULTS / "gpu" / f"{name}.json").read_text("utf-8"))
        for name in ("launch", "graphs", "gpu_memory", "ops")
    )
    times, empty = launch["nanoseconds"], memory["empty"]
    replay, driver = graphs["replay"], graphs["driver"]
    own, torch = empty["nbx_empty_1024_ns"], empty["torch_empty_1024_ns"]
    for figures in (
        f"{times['kernel(grid, ...), in turns']:.0f} | {times['bare driver, in turns']:.0f} | "
        f"the bare driver's call | {times['kernel(grid, ...) over bare']:.2f}x",
        f"{times['first launch of a process'] / 1e6:.2f} | |",
        f"torch | {ops['summary']['ratio_torch']['geometric_mean']}x",
        f"{replay['host_us']:.2f} | {driver['host_us']:.2f} | the bare driver's graph | "
        f"{replay['host_over_driver']:.2f}x",
        f"{replay['wall_us']:.1f} | {driver['wall_us']:.1f} | the bare driver's graph | "
        f"{replay['wall_over_driver']:.2f}x",
        f"{own:.0f} | {torch:.0f} | `torch.empty` | {own / torch:.2f}x",
    ):
        assert f"| {figures} |" in table
    large = [row["ratio"] for row in memory["traces"] if row["peak_live"] >= 2**28]
    assert f"at most {max(large):.4f}x of what is live" in table


def test_the_means_of_the_ops_are_those_of_the_results() -> None:
    table = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    summary = json.loads((RESULTS / "ops_cpu_float32.json").read_text("utf-8"))["summary"]
    means = {key: row["geometric_mean"] for key, row in summary.items()}
    assert f"means of {means['ratio_numpy']}x of NumPy" in table
    assert f"and of {means['ratio_torch']}x of torch" in table
    assert f"the geometric mean is {means['of_limit']}" in table


def test_the_table_of_plans_is_that_of_the_results() -> None:
    table = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    results = json.loads((RESULTS / "memory_plans.json").read_text("utf-8"))
    for name, row in (results["minimalloc"] | results["traces"]).items():
        figures = f"{row['ratio']:.4f} | {row['seconds']:.2f} | {row['processor_seconds']:.2f}"
        assert f"| {name} | {row['buffers']} | {row['peak']} | {figures} |" in table


def test_the_table_of_calls_is_that_of_the_results() -> None:
    table = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    for name, own, peer in (
        ("op_overhead", "nbxtensor", "numpy"),
        ("tensor_overhead", "ns", "numpy_ns"),
    ):
        for call, row in json.loads((RESULTS / f"{name}.json").read_text("utf-8")).items():
            ratio = f"{row[peer] / row[own]:.2f}x" if peer in row else ""
            cells = [str(row[own]), str(row.get(peer, "")), ratio]
            assert re.search(
                rf"^\| `?{re.escape(call)}`? \| {' [|] '.join(cells)} \|$", table, re.M
            )
