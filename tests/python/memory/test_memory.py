"""Accounts, tags, budgets and reports as seen from Python."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from nbxtensor import _core, memory
from nbxtensor.memory import Report, rows_of

GRANULE = 64


def take(size: int) -> object:
    return _core.Storage(size, "cpu")


def granted(size: int) -> int:
    return -(-size // GRANULE) * GRANULE


@pytest.fixture
def before() -> memory.Stats:
    """Figures of the cpu before the test: other tests may hold memory."""
    return memory.stats("cpu")


def test_tag_counts_what_the_block_allocates(rng: np.random.Generator) -> None:
    sizes = [int(size) for size in rng.integers(0, 3_000_000, 40)]
    start = memory.report("cpu").by_tag().get("test_tag", 0)
    with memory.tag("test_tag"):
        held = [take(size) for size in sizes]
    outside = take(1000)
    report = memory.report("cpu")
    assert report.by_tag()["test_tag"] - start == sum(granted(size) for size in sizes)
    (row,) = [r for r in report.rows if r.tag == "test_tag" and r.kind == "device"]
    assert row.requested == sum(sizes)
    assert row.objects == len(sizes)
    del held, outside
    assert memory.report("cpu").by_tag()["test_tag"] == start


# answers: 69
def test_tags_nest_and_come_back_after_an_error() -> None:
    with memory.tag("outer"):
        with pytest.raises(KeyError), memory.tag("inner"):
            raise KeyError
        assert take(1).account.endswith("/device/outer")
    assert take(1).account.endswith("/device")


def test_tag_is_a_decorator_and_of_one_thread() -> None:
    accounts: list[str] = []

    @memory.tag("decorated/part")
    def function(depth: int) -> None:
        accounts.append(take(1).account)
        if depth:
            function(depth - 1)

    function(2)
    assert {a.partition("/device/")[2] for a in accounts} == {"decorated/part"}
    with memory.tag("here"):
        thread = threading.Thread(target=lambda: accounts.append(take(1).account))
        thread.start()
        thread.join()
    assert accounts[-1].endswith("/device")


def test_one_tag_entered_on_two_threads_at_once() -> None:
    shared = memory.tag("shared")
    inside, leave = threading.Event(), threading.Event()
    after: list[str] = []

    def other() -> None:
        with memory.tag("theirs"):
            with shared:
                inside.set()
                leave.wait()
            after.append(take(1).account)

    thread = threading.Thread(target=other)
    with memory.tag("mine"):
        with shared:
            thread.start()
            inside.wait()
        assert take(1).account.endswith("/device/mine")
        leave.set()
        thread.join()
    assert after[0].endswith("/device/theirs")


@pytest.mark.parametrize("path", ["/", "a/", "/a", "a//b"])
def test_bad_tags_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="empty part"), memory.tag(path):
        pass
    assert take(1).account.endswith("/device")


def test_a_tag_is_text() -> None:
    with pytest.raises(TypeError, match="path"):
        memory.tag(3)  # type: ignore[arg-type]


def test_report_adds_up_to_the_byte(rng: np.random.Generator) -> None:
    paths = ["", "weights", "weights/layer.0", "weights/layer.1", "kv", "a/b/c/d"]
    held = []
    for _ in range(100):
        with memory.tag(paths[rng.integers(len(paths))]):
            held.append(take(int(rng.integers(0, 100_000))))
    report = memory.report("cpu")
    assert sum(row.own for row in report.rows) == report.total
    assert sum(report.by_tag().values()) == report.total
    assert report.total == memory.allocated("cpu")
    stats = memory.stats("cpu")
    assert stats.allocated == report.total
    parts = stats.live + stats.in_place + stats.pinned + stats.registered
    assert stats.allocated == parts
    assert stats.mapped == stats.live + stats.parked + stats.pending
    assert stats.objects == report.rows[0].objects
    for row in report.rows:
        below = [
            r
            for r in report.rows
            if r.kind == row.kind and r.tag.rpartition("/")[0] == row.tag and r.tag and r is not row
        ]
        if row.kind:
            assert row.bytes == row.own + sum(r.bytes for r in below)
        assert 0 <= row.own <= row.bytes <= row.peak
    del held


def test_printed_lines_add_up_at_each_depth() -> None:
    report = Report(
        rows_of(
            [
                ("cpu", 1000, 1200, 900, 1100, 12, None),
                ("cpu/device", 700, 900, 600, 800, 9, None),
                ("cpu/device/weights", 500, 800, 450, 700, 5, 600),
                ("cpu/device/weights/layer.0", 300, 400, 250, 600, 3, None),
                ("cpu/device/kv", 0, 100, 0, 0, 0, None),
                ("cpu/mapped", 300, 300, 300, 300, 3, None),
                ("cpu/mapped/weights", 300, 300, 300, 300, 3, None),
                ("cpu/pinned", 0, 0, 0, 0, 0, None),
            ]
        ),
        {"device": "cpu", "parked": 5, "pending": 6, "external": 7},
    )
    assert list(report.lines()) == [
        ("device", 700, 900, 800, 9),
        ("  (untagged)", 200, None, None, 4),
        ("  weights", 500, 800, 700, 5),
        ("    (own)", 200, None, None, 2),
        ("    layer.0", 300, 400, 600, 3),
        ("  kv", 0, 100, 0, 0),
        ("mapped", 300, 300, 300, 3),
        ("  weights", 300, 300, 300, 3),
    ]
    assert report.by_tag() == {"weights": 800, "kv": 0, "untagged": 200}
    text = str(report)
    assert text.splitlines()[0] == "Memory of cpu"
    assert "1,000" in text
    assert "budget none" in text
    assert "<td>1,000</td>" in report._repr_html_()
    assert repr(report) == "<Report of cpu: 1000 bytes in 12 objects>"


def test_tags_of_requests_come_and_go() -> None:
    most = 0
    with memory.tag("request_kept"):
        kept = take(100)
    for number in range(2000):
        with memory.tag(f"request.{number}/kv"):
            held = take(1000)
        del held
        if number % 100 == 0:
            most = max(most, len(memory.report("cpu").rows))
    assert most < 1000
    memory.trim("cpu")
    tags = {row.tag for row in memory.report("cpu").rows}
    assert "request_kept" in tags
    assert not [tag for tag in tags if tag.startswith("request.")]
    del kept
    # A thread's tag stays, and so do limits and peak scopes.
    with (
        memory.tag("request_now"),
        memory.budget(1000, "cpu", "request_limit"),
        memory.peak("request_peak", "cpu"),
        memory.reclaimer(lambda missing: 0, device="cpu", tag="request_reclaimer"),
    ):
        take(1)
        memory.trim("cpu")
        tags = {row.tag for row in memory.report("cpu").rows}
        assert {f"request_{name}" for name in ("now", "limit", "peak", "reclaimer")} <= tags
    memory.trim("cpu")
    tags = {row.tag for row in memory.report("cpu").rows}
    assert not [tag for tag in tags if tag.startswith("request_")]


def test_the_recorder_knows_tags_that_have_ended() -> None:
    with memory.tag("ended_test"):
        take(123_457)
    memory.trim("cpu")
    assert "ended_test" not in {row.tag for row in memory.report("cpu").rows}
    names = _core.recorder_accounts("cpu").values()
    assert "cpu/device/ended_test" in names


def test_threads_tag_while_others_trim() -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def trim() -> None:
        while not stop.is_set():
            memory.trim("cpu")
            memory.report("cpu")

    def work(name: int) -> None:
        try:
            for number in range(300):
                with memory.tag(f"threads.{(number * 7 + name) % 40}/kv"):
                    held = take(1 + number * 97 % 90_000)
                    assert held.account.endswith("/kv")  # type: ignore[attr-defined]
        except BaseException as error:
            failures.append(error)

    trimmer = threading.Thread(target=trim)
    workers = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in (trimmer, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    stop.set()
    trimmer.join()
    assert not failures
    memory.trim("cpu")
    tags = {row.tag for row in memory.report("cpu").rows}
    assert not [tag for tag in tags if tag.startswith("threads.")]


# answers: 88
def test_memory_used_in_place_is_counted_under_the_tag() -> None:
    buffer = bytearray(12345)
    with memory.tag("mapped_test"):
        tensor = _core.map_buffer(buffer, "cpu")
    report = memory.report("cpu")
    assert report.by_tag()["mapped_test"] == 12345
    del tensor
    assert memory.report("cpu").by_tag()["mapped_test"] == 0


def test_budget_holds_to_the_byte_and_comes_back(before: memory.Stats) -> None:
    with memory.budget(before.allocated + 10 * GRANULE, "cpu") as limit:
        assert limit.former == before.budget
        assert limit.bytes == before.allocated + 10 * GRANULE
        assert memory.stats("cpu").budget == limit.bytes
        held = [take(GRANULE) for _ in range(10)]
        with pytest.raises(MemoryError) as caught:
            take(1)
        assert memory.allocated("cpu") == limit.bytes
        del held[0]
        held.append(take(1))
    assert memory.stats("cpu").budget == before.budget
    error = caught.value
    assert isinstance(error, _core.OutOfMemoryError)
    assert isinstance(error, RuntimeError)
    assert error.requested == 1
    assert error.budget == limit.bytes
    assert error.held == limit.bytes
    assert error.would_fit == 0
    assert error.shortfall == GRANULE
    assert error.device == "cpu"
    for name in ("live", "pool_cached", "pool_blocks", "pending", "largest_hole", "external"):
        assert getattr(error, name) >= 0
    del held
    assert memory.allocated("cpu") == before.allocated


# answers: 37
def test_budget_of_a_tag(before: memory.Stats) -> None:
    memory.budget("1 KiB", "cpu", tag="limited/part")
    with memory.tag("limited/part/below"):
        held = take(1024)
        with pytest.raises(MemoryError, match=r"budget of cpu/device/limited/part"):
            take(1)
    other = take(5000)
    memory.budget(None, "cpu", tag="limited/part")
    with memory.tag("limited/part"):
        more = take(1)
    del held, other, more
    assert memory.allocated("cpu") == before.allocated


def test_budget_as_a_share_of_the_device(before: memory.Stats) -> None:
    with memory.budget("80%", "cpu") as limit:
        assert limit.bytes == memory.mem_get_info("cpu")[1] * 80 // 100


@pytest.mark.parametrize("limit", ["2 potatoes", "", "-1", -1, 2**70])
def test_bad_budgets_are_refused(limit: int | str, before: memory.Stats) -> None:
    with pytest.raises((ValueError, OverflowError)):
        memory.budget(limit, "cpu")
    assert memory.stats("cpu").budget == before.budget


@pytest.mark.parametrize("limit", [1.5, True, b"1"])
def test_a_budget_is_bytes_or_text(limit: object) -> None:
    with pytest.raises(TypeError, match="budget"):
        memory.budget(limit, "cpu")  # type: ignore[arg-type]


def test_peaks_follow_and_reset(before: memory.Stats) -> None:
    held = take(5_000_000)
    del held
    assert memory.peak_allocated("cpu") >= before.allocated + 5_000_000
    memory.reset_peak("cpu")
    assert memory.peak_allocated("cpu") == memory.allocated("cpu") == before.allocated
    assert memory.peak_memory_allocated("cpu") == memory.memory_allocated("cpu")


def test_trim_gives_unused_memory_back() -> None:
    held = [take(3_000_000) for _ in range(4)]
    del held
    memory.trim("cpu")
    stats = memory.stats("cpu")
    # What stays lies between live tensors.
    assert stats.mapped == stats.live + stats.parked
    assert memory.trim("cpu") == 0
    with pytest.raises(ValueError, match="keep"):
        memory.trim("cpu", keep=-1)


def test_large_memory_goes_back_when_it_is_freed() -> None:
    held = [take(8 << 20) for _ in range(8)]
    mapped = memory.stats("cpu").mapped
    del held
    assert memory.stats("cpu").mapped <= mapped - (40 << 20)


def test_a_request_beyond_the_machine_is_refused_with_figures(before: memory.Stats) -> None:
    with pytest.raises(_core.OutOfMemoryError) as caught:
        take(1 << 55)
    assert caught.value.requested == 1 << 55
    assert caught.value.driver_total == before.device_total
    assert memory.allocated("cpu") == before.allocated


def test_an_unknown_device_is_named() -> None:
    with pytest.raises((ValueError, RuntimeError), match="potato"):
        memory.stats("potato")


def test_threads_share_one_account(before: memory.Stats) -> None:
    def work(index: int) -> None:
        with memory.tag(f"thread/{index}"):
            for size in range(300):
                held = take(size * 97)
                del held

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.allocated("cpu") == before.allocated


# answers: 71
def test_peak_scopes_nest_and_overlap(before: memory.Stats) -> None:
    with memory.peak(device="cpu") as outer:
        first = take(1_000_000)
        with memory.peak(device="cpu") as inner, memory.tag("scoped"):
            with memory.peak("scoped", "cpu") as tagged:
                second = take(300_000)
                del second
            assert tagged.bytes == granted(300_000)
            assert inner.bytes == before.allocated + granted(1_000_000) + granted(300_000)
        del first
        later = take(5000)
    assert inner.bytes == outer.bytes
    assert (inner.error, outer.error, tagged.error) == (0, 0, 0)
    with memory.peak(device="cpu") as empty:
        pass
    assert empty.bytes == before.allocated + granted(5000)
    memory.reset_peak("cpu")
    assert outer.bytes == before.allocated + granted(1_000_000) + granted(300_000)
    del later


def test_overlapping_peaks_end_in_any_order(before: memory.Stats) -> None:
    one, two = memory.peak(device="cpu"), memory.peak(device="cpu")
    one.__enter__()
    held = take(100_000)
    two.__enter__()
    one.__exit__(None, None, None)
    more = take(200_000)
    two.__exit__(None, None, None)
    assert one.bytes == before.allocated + granted(100_000)
    assert two.bytes == before.allocated + granted(100_000) + granted(200_000)
    with pytest.raises(RuntimeError, match="runs already"), one:
        one.__enter__()
    assert "bytes" in repr(one)
    del held, more
