"""Who is asked for memory before a refusal, and what the program does after one."""

from __future__ import annotations

import gc
import pickle
import threading
import time
import weakref
from collections.abc import Iterator

import nbxtensor as nbx
import pytest
from nbxtensor import _core, memory

DEVICE = "sim:0"
MiB = 1 << 20


@pytest.fixture(autouse=True)
def room() -> Iterator[int]:
    """64 MiB of the device are left."""
    nbx.synchronize(DEVICE)
    memory.trim(DEVICE)
    before = memory.allocated(DEVICE)
    with memory.budget(before + 64 * MiB, DEVICE):
        yield 64 * MiB
    gc.collect()  # errors and the frames that hold them are cycles
    assert memory.allocated(DEVICE) == before


def take(size: int) -> object:
    return _core.Storage(size, DEVICE)


# answers: 9, 39, story 3
def test_dead_tensors_in_a_queue_satisfy_the_request() -> None:
    """The account is short by 0.8 of what a queue of dead tensors still holds."""
    queue = [take(6 * MiB)]
    asked: list[int] = []

    def reclaim(missing: int) -> int:
        asked.append(missing)
        freed = 6 * MiB * len(queue)
        queue.clear()
        return freed

    with memory.reclaimer(reclaim, device=DEVICE):
        held = take(63 * MiB)
    assert asked == [63 * MiB]
    assert held.nbytes == 63 * MiB
    del held


# answers: 39
def test_reclaimers_are_asked_in_order_of_cost_until_it_is_enough() -> None:
    order: list[str] = []
    held = {name: [take(20 * MiB)] for name in ("dear", "cheap", "middle")}

    def dropper(name: str) -> object:
        def drop(missing: int) -> int:
            order.append(name)
            freed = 20 * MiB * len(held[name])
            held[name].clear()
            return freed

        return drop

    cost = {"dear": 9.0, "cheap": 0.5, "middle": 3.0}
    known = [memory.reclaimer(dropper(name), cost[name], DEVICE) for name in cost]
    first = take(30 * MiB)
    assert order == ["cheap", "middle"]
    for one in known:
        one.close()
        one.close()
    with pytest.raises(nbx.OutOfMemoryError):
        take(40 * MiB)
    assert order == ["cheap", "middle"]
    del first
    held.clear()


# answers: 34, 39
def test_an_error_in_a_reclaimer_is_logged_and_hides_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(missing: int) -> int:
        raise KeyError("the cache is gone")

    def wrong(missing: int) -> int:
        return "many"  # type: ignore[return-value]

    with (
        memory.reclaimer(broken, device=DEVICE),
        memory.reclaimer(wrong, device=DEVICE),
        pytest.raises(nbx.OutOfMemoryError, match="budget"),
    ):
        take(65 * MiB)
    _core.deliver_log()
    text = caplog.text
    assert "KeyError" in text
    assert "the cache is gone" in text
    assert "return the bytes" in text


def test_a_method_is_held_weakly_and_leaves_with_its_object() -> None:
    class Cache:
        calls = 0

        def drop(self, missing: int) -> int:
            Cache.calls += 1
            return 0

    cache = Cache()
    memory.reclaimer(cache.drop, device=DEVICE)
    alive = weakref.ref(cache)
    with pytest.raises(nbx.OutOfMemoryError):
        take(65 * MiB)
    calls = Cache.calls
    assert calls >= 1
    del cache
    assert alive() is None
    with pytest.raises(nbx.OutOfMemoryError):
        take(65 * MiB)
    assert Cache.calls == calls


def test_a_reclaimer_may_allocate_and_use_tensors() -> None:
    kept = [nbx.ones((4 * MiB,), dtype=nbx.uint8, device=DEVICE)]
    sums: list[int] = []

    def offload(missing: int) -> None:
        if kept:
            sums.append(int(kept[0].to("cpu").sum()))
            kept.clear()

    with memory.reclaimer(offload, device=DEVICE):
        held = take(62 * MiB)
    assert sums == [4 * MiB]
    del held


def test_reclaimers_and_threads() -> None:
    """Other threads allocate, free and use Python while a reclaimer runs."""
    pool = [take(8 * MiB) for _ in range(7)]
    lock = threading.Lock()
    failures: list[BaseException] = []

    def reclaim(missing: int) -> int:
        with lock:
            return pool.pop().nbytes if pool else 0  # type: ignore[attr-defined]

    def work() -> None:
        try:
            for size in range(60):
                held = take((1 + size % 7) * MiB)
                del held
                memory.options(DEVICE)
                memory.stats(DEVICE)
        except BaseException as error:
            failures.append(error)

    with memory.reclaimer(reclaim, device=DEVICE):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not [f for f in failures if not isinstance(f, nbx.OutOfMemoryError)]
    pool.clear()


# ---- soft limits ---------------------------------------------------------------------------


class Spare:
    """Memory under a tag that may go, and what was asked of it."""

    def __init__(self, tag: str, count: int, size: int = MiB) -> None:
        with memory.tag(tag):
            self.held = [take(size) for _ in range(count)]
        self.asked: list[int] = []

    def drop(self, missing: int) -> int:
        self.asked.append(missing)
        freed = 0
        while self.held and freed < missing:
            freed += self.held.pop().nbytes  # type: ignore[attr-defined]
        return freed


def test_crossing_a_soft_limit_asks_the_reclaimers_of_the_tag() -> None:
    spare, below, other = Spare("soft", 4), Spare("soft/below", 4), Spare("hard", 4)
    plain = Spare("", 4)
    with (
        memory.reclaimer(spare.drop, 2.0, DEVICE, tag="soft"),
        memory.reclaimer(below.drop, 1.0, DEVICE, tag="soft/below"),
        memory.reclaimer(other.drop, 0.0, DEVICE, tag="hard"),
        memory.reclaimer(plain.drop, 0.0, DEVICE),
        memory.budget(device=DEVICE, tag="soft", soft=10 * MiB),
        memory.tag("soft"),
    ):
        kept = [take(2 * MiB)]
        assert spare.asked == below.asked == []
        kept.append(take(5 * MiB))  # 15 MiB: by cost, until the tag is back at its limit
        assert below.asked == [5 * MiB]
        assert spare.asked == [MiB]
        kept.append(take(3 * MiB))
        kept.append(take(3 * MiB))
        assert spare.asked == [MiB, 3 * MiB, 3 * MiB]  # none is left: the tag stays above
        kept.append(take(MiB))
        assert spare.asked == [MiB, 3 * MiB, 3 * MiB]
        # Below it, and above it again.
        del kept[1:]
        kept.append(take(9 * MiB))
        assert below.asked == [5 * MiB, 3 * MiB, 3 * MiB, MiB]
        del kept
    assert other.asked == plain.asked == []
    assert len(other.held) == len(plain.held) == 4


def test_crossing_the_soft_limit_of_the_device_asks_every_reclaimer() -> None:
    tagged, plain = Spare("tagged", 2), Spare("", 2)
    soft = memory.allocated(DEVICE) + MiB
    with (
        memory.reclaimer(tagged.drop, 1.0, DEVICE, tag="tagged"),
        memory.reclaimer(plain.drop, 2.0, DEVICE),
        memory.budget(device=DEVICE, soft=soft),
    ):
        first = memory.pinned((4 * MiB,), nbx.uint8, DEVICE)  # page-locked memory counts too
        assert tagged.asked == [3 * MiB]
        assert plain.asked == [MiB]
        with memory.external("library", 2 * MiB, DEVICE):
            assert plain.asked == [MiB, 2 * MiB]
        keys = memory.reserve(8 * MiB, DEVICE)
        tagged.held.append(take(MiB))
        keys.commit(2 * MiB)
        assert not tagged.held
        del first, keys


def test_a_soft_limit_asks_in_a_thread_that_may_change_its_tag_and_allocate() -> None:
    seen: list[int] = []

    def drop(missing: int) -> int:
        with memory.tag("soft/inner"):
            held = take(missing)  # goes above the limit again: nobody is asked from in here
        seen.append(missing)
        del held
        return 0

    with (
        memory.reclaimer(drop, device=DEVICE, tag="soft"),
        memory.budget(device=DEVICE, tag="soft", soft=MiB),
        memory.tag("soft"),
    ):
        for _ in range(3):
            held = take(2 * MiB)
            del held
    assert seen == [MiB] * 3


def test_a_tag_above_its_soft_limit_is_asked_first_before_a_refusal(room: int) -> None:
    order: list[str] = []
    with memory.tag("greedy"):
        greedy = [take(8 * MiB)]

    def drop_greedy(missing: int) -> int:
        if missing > 8 * MiB:
            return 0  # the soft limit alone is no reason to
        order.append("greedy")
        greedy.clear()
        return 8 * MiB

    def drop_cheap(missing: int) -> int:
        order.append("cheap")
        return 0

    with (
        memory.budget(device=DEVICE, tag="greedy", soft=MiB),
        memory.reclaimer(drop_cheap, 0.0, DEVICE),
        memory.reclaimer(drop_greedy, 9.0, DEVICE, tag="greedy"),
    ):
        first = take(room - 12 * MiB)
        second = take(8 * MiB)
    assert order == ["greedy"]
    del first, second


def test_reclaimers_of_a_tag_stay_with_it_in_a_new_epoch() -> None:
    asked: list[int] = []

    def drop(missing: int) -> int:
        asked.append(missing)
        return 0

    with memory.reclaimer(drop, device="sim:1", tag="soft"):
        memory.new_epoch("sim:1")
        with memory.budget(device="sim:1", tag="soft", soft=MiB), memory.tag("soft"):
            held = _core.Storage(3 * MiB, "sim:1")
    assert asked == [2 * MiB]
    del held


# ---- page-locked memory --------------------------------------------------------------------


def test_a_refusal_of_page_locked_memory_asks_like_one_of_the_device() -> None:
    spare = Spare("", 10, 6 * MiB)
    with memory.reclaimer(spare.drop, device=DEVICE):
        staging = memory.pinned((20 * MiB,), nbx.uint8, DEVICE)
        assert staging.nbytes == 20 * MiB
        assert spare.asked
        asked = len(spare.asked)
        with pytest.raises(nbx.OutOfMemoryError, match="budget"):
            memory.pinned((65 * MiB,), nbx.uint8, DEVICE)
        assert len(spare.asked) == asked + 1
        assert not spare.held
    del staging


def test_page_locked_memory_asks_in_order_of_cost_over_device_and_host() -> None:
    order: list[str] = []

    def asked(name: str) -> object:
        def drop(missing: int) -> int:
            order.append(name)
            return 1

        return drop

    held = take(60 * MiB)
    with (
        memory.reclaimer(asked("host"), 2.0, "cpu"),  # type: ignore[arg-type]
        memory.reclaimer(asked("cheap"), 1.0, DEVICE),  # type: ignore[arg-type]
        memory.reclaimer(asked("dear"), 3.0, DEVICE),  # type: ignore[arg-type]
        pytest.raises(nbx.OutOfMemoryError),
    ):
        memory.pinned((8 * MiB,), nbx.uint8, DEVICE)
    assert order == ["cheap", "host", "dear"]
    del held


def test_device_and_page_locked_requests_of_many_threads_ask_the_same_reclaimers() -> None:
    spare = [take(2 * MiB) for _ in range(30)]
    lock = threading.Lock()
    failures: list[BaseException] = []

    def reclaim(missing: int) -> int:
        with lock:
            freed = spare.pop().nbytes if spare else 0  # type: ignore[attr-defined]
        memory.trim(DEVICE)
        held = take(1000)
        staging = memory.pinned((1000,), nbx.uint8, DEVICE)
        del held, staging
        return freed

    def work(locked: bool) -> None:
        for size in range(40):
            try:
                if locked:
                    held = memory.pinned(((1 + size % 5) * MiB,), nbx.uint8, DEVICE)
                else:
                    held = take((1 + size % 5) * MiB)
                del held
            except nbx.OutOfMemoryError:
                continue
            except BaseException as error:
                failures.append(error)

    with (
        memory.reclaimer(reclaim, device=DEVICE),
        memory.budget(device=DEVICE, soft=memory.allocated(DEVICE) + MiB),
    ):
        threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    spare.clear()


def test_a_library_asks_before_it_is_refused() -> None:
    spare = Spare("", 10, 6 * MiB)
    with memory.reclaimer(spare.drop, device=DEVICE):
        with memory.external("library", 10 * MiB, DEVICE) as library:
            assert spare.asked == [10 * MiB]
            library.resize(30 * MiB)
            assert spare.asked == [10 * MiB, 20 * MiB]
        assert len(spare.held) == 4
    spare.held.clear()


@pytest.mark.parametrize("cost", [-1.0, float("nan")])
def test_bad_costs_are_refused(cost: float) -> None:
    with pytest.raises(ValueError, match="cost"):
        memory.reclaimer(lambda missing: 0, cost, DEVICE)


def test_bad_reclaimers_are_refused() -> None:
    with pytest.raises(TypeError, match="function"):
        memory.reclaimer(3, device=DEVICE)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cost"):
        memory.reclaimer(lambda missing: 0, "much", DEVICE)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tag is 3"):
        memory.reclaimer(lambda missing: 0, 1.0, DEVICE, tag=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="empty part"):
        memory.reclaimer(lambda missing: 0, 1.0, DEVICE, tag="a//b")


# ---- memory of libraries -------------------------------------------------------------------


# answers: 36, 76
def test_libraries_are_shown_and_limited(room: int) -> None:
    before = memory.stats(DEVICE)
    with memory.external("nccl/rings", "10 MiB", DEVICE) as library:
        stats = memory.stats(DEVICE)
        assert stats.registered == 10 * MiB
        assert stats.allocated == before.allocated + 10 * MiB
        report = memory.report(DEVICE)
        (row,) = [r for r in report.rows if r.kind == "external" and r.tag == "nccl/rings"]
        assert (row.bytes, row.objects) == (10 * MiB, 1)
        assert "rings" in str(report)
        assert sum(report.by_tag().values()) == report.total
        with pytest.raises(nbx.OutOfMemoryError):
            take(room - 9 * MiB)
        library.resize(20 * MiB)
        assert memory.stats(DEVICE).registered == 20 * MiB
        with pytest.raises(nbx.OutOfMemoryError, match="budget"):
            library.resize(room + 1)
        assert memory.stats(DEVICE).registered == library.bytes == 20 * MiB
    assert memory.stats(DEVICE).registered == 0
    for name in ("", "a//b"):
        with pytest.raises(ValueError, match=r"name|empty part"):
            memory.external(name, 1, DEVICE)
    with pytest.raises((TypeError, ValueError), match="size"):
        memory.external("x", -1, DEVICE)


# ---- the error -----------------------------------------------------------------------------


# answers: 43, 44
def test_the_error_has_every_figure(room: int) -> None:
    with memory.tag("kv"):
        held = [take(10 * MiB), take(20 * MiB)]
    with pytest.raises(nbx.DeviceOOMError) as caught:
        take(room)
    error = caught.value
    assert isinstance(error, RuntimeError)
    assert isinstance(error, MemoryError)
    assert error.requested == error.granted == room
    assert (error.device, error.device_idx) == (DEVICE, 0)
    stats = memory.stats(DEVICE)
    assert error.live == stats.live
    assert error.parked == error.pool_cached
    assert error.blocks == stats.live_blocks
    assert error.driver_total == stats.device_total
    assert error.driver_free == stats.device_free
    assert error.shortfall == 30 * MiB
    assert error.would_fit == room - 30 * MiB
    assert error.tags[f"{DEVICE}/device/kv"] == 30 * MiB
    assert len(error.tags) <= 10
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is nbx.OutOfMemoryError
    assert vars(again) == vars(error)
    assert str(again) == str(error)
    del held


def test_unknown_figures_are_none_and_never_zero() -> None:
    error = nbx.OutOfMemoryError("made by hand")
    for name in ("requested", "device_idx", "live", "pool_cached", "pool_blocks", "driver_free"):
        assert getattr(error, name) is None
    for name in ("driver_total", "shortfall", "tags", "pending_streams", "external", "would_fit"):
        assert getattr(error, name) is None
    assert memory.what_would_have_fit(error) == ""


def test_pending_frees_are_named_by_stream() -> None:
    stream = nbx.Stream(DEVICE)
    with nbx.stream(stream):
        tensor = nbx.empty((8 * MiB,), dtype=nbx.uint8, device=DEVICE)
        tensor.fill_(1)
    del tensor
    with pytest.raises(nbx.OutOfMemoryError) as caught:
        take(65 * MiB)
    pending = caught.value.pending_streams
    if caught.value.pending:
        assert sum(pending.values()) == caught.value.pending
    stream.synchronize()


# ---- trying again --------------------------------------------------------------------------


# answers: 35
def test_the_error_pins_no_tensor_once_its_frames_are_cleared(room: int) -> None:
    def fails() -> None:
        held = [take(10 * MiB) for _ in range(3)]
        take(room)
        del held

    with pytest.raises(nbx.OutOfMemoryError) as caught:
        fails()
    error = caught.value.with_traceback(None)
    del caught
    gc.collect()
    assert error.requested == room
    held = take(room)
    del held


# answers: 35
def test_retry_recovers(room: int) -> None:
    size = [room + MiB]
    seen: list[int] = []

    def step() -> int:
        half = [take(size[0] // 2)]
        half.append(take(size[0] - size[0] // 2))
        return size[0]

    def shrink(error: nbx.OutOfMemoryError) -> None:
        seen.append(error.requested)
        # Nothing of the failed call is left.
        assert memory.allocated(DEVICE) == memory.stats(DEVICE).budget - room  # type: ignore[operator]
        size[0] //= 2

    assert memory.retry(step, 3, shrink) == (room + MiB) // 2
    assert len(seen) == 1


def test_retry_gives_up_with_the_last_error_and_passes_others_on() -> None:
    calls: list[int] = []

    def never() -> None:
        calls.append(1)
        take(65 * MiB)

    with pytest.raises(nbx.OutOfMemoryError):
        memory.retry(never, 3)
    assert len(calls) == 3

    def other() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        memory.retry(other)
    with pytest.raises(ValueError, match="attempts"):
        memory.retry(never, 0)


def test_annotate() -> None:
    with pytest.raises(nbx.OutOfMemoryError) as caught:
        take(128 * MiB)
    text = memory.annotate("loading layer.3 failed.", caught.value, (4, 32 * MiB))
    assert text.startswith("loading layer.3 failed. 128 MiB were asked for")
    assert "Cut axis" in text
    assert memory.annotate("x", KeyError()) == "x"


def test_an_interrupt_in_a_reclaimer_reaches_the_program() -> None:
    """The request ends first, whatever comes of it."""
    ended: list[str] = []

    def interrupted(missing: int) -> int:
        raise KeyboardInterrupt

    def work() -> None:
        with pytest.raises(MemoryError):
            take(65 * MiB)
        ended.append("refused")
        time.sleep(10)  # the interrupt comes before

    with memory.reclaimer(interrupted, device=DEVICE), pytest.raises(KeyboardInterrupt):
        work()
    assert ended in ([], ["refused"])


def test_the_missing_bytes_count_what_is_above_the_budget() -> None:
    held = take(27 * MiB)
    with memory.budget(memory.allocated(DEVICE) - 19 * MiB, DEVICE) as limit:
        with pytest.raises(MemoryError, match=r"release 20 MiB under sim:0, or raise") as caught:
            take(MiB)
        assert caught.value.shortfall == 20 * MiB
        with memory.budget(limit.bytes + 20 * MiB, DEVICE):
            more = take(MiB)
    del held, more
