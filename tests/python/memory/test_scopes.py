"""Scopes that do not end in the order of their beginning: in threads, in generators, by mistake."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import nbxtensor as nbx
import pytest
from nbxtensor import _core, memory

DEVICE = "sim:1"
MiB = 1 << 20


def tagged(name: str) -> Iterator[object]:
    with memory.tag(name, steady=True):
        while True:
            yield _core.Storage(256, DEVICE)


@pytest.mark.parametrize("first", [0, 1])
def test_tags_of_generators_leave_nothing_behind(first: int) -> None:
    scopes = [tagged("one"), tagged("two")]
    held = [next(scope) for scope in scopes]
    scopes[first].close()
    scopes[1 - first].close()
    assert _core.memory_set_tag("") == ""
    assert _core.memory_set_steady(False) is False
    del held


def test_the_tag_that_was_set_last_holds() -> None:
    with memory.tag("outer"):
        scopes = [tagged("one"), tagged("two")]
        held = [next(scope) for scope in scopes]
        scopes[0].close()  # "two" is still set
        held.append(_core.Storage(512, DEVICE))
        assert memory.report(DEVICE).by_tag()["two"] == 256 + 512
        scopes[1].close()
        held.append(_core.Storage(1024, DEVICE))
        assert memory.report(DEVICE).by_tag()["outer"] == 1024
    del held


@pytest.mark.parametrize("scope", [memory.tag("t"), memory.tag("t", True), memory.steady()])
def test_a_scope_that_was_not_entered_does_not_end(scope: memory.tag | memory.steady) -> None:
    with pytest.raises(ValueError, match=r"this scope ends where it was not entered; enter"):
        scope.__exit__()
    caught: list[BaseException] = []

    def leave() -> None:
        try:
            scope.__exit__()
        except ValueError as error:
            caught.append(error)

    with scope:
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    assert len(caught) == 1
    assert _core.memory_set_tag("") == ""
    assert _core.memory_set_steady(False) is False


@pytest.mark.parametrize(
    "order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
)
def test_overlapping_budgets_bring_back_what_was_before_all(order: tuple[int, ...]) -> None:
    """As those of threads that each limit the same tag while they work."""
    sizes = [8 * MiB, 6 * MiB, 4 * MiB]
    scopes = [memory.budget(n, DEVICE, "t", soft=n // 2).__enter__() for n in sizes]
    running = [0, 1, 2]
    for place in order:
        scopes[place].__exit__()
        running.remove(place)
        expected = sizes[running[-1]] if running else None
        assert _core.memory_limit(DEVICE, "t") == expected
        assert _core.memory_limit(DEVICE, "t", True) == (expected // 2 if expected else None)


def test_a_hard_and_a_soft_limit_end_apart() -> None:
    hard = memory.budget(8 * MiB, DEVICE, "t").__enter__()
    soft = memory.budget(device=DEVICE, tag="t", soft=2 * MiB).__enter__()
    hard.__exit__()
    assert _core.memory_limit(DEVICE, "t") is None
    assert _core.memory_limit(DEVICE, "t", True) == 2 * MiB
    soft.__exit__()
    assert _core.memory_limit(DEVICE, "t", True) is None


def test_scopes_end_on_the_device_where_they_began() -> None:
    before = {name: memory.stats(name) for name in ("cpu", DEVICE)}
    with nbx.device(DEVICE):
        limit = memory.budget(before[DEVICE].allocated + MiB)
        options = memory.options(slack=0.5)
        library = memory.external("lib", 1000)
        assert memory.stats(DEVICE).registered == before[DEVICE].registered + 1000
    limit.__exit__()
    options.__exit__()
    library.close()
    for name, was in before.items():
        now = memory.stats(name)
        assert (now.budget, now.registered) == (was.budget, was.registered)
    assert memory.options(DEVICE).slack == 0


def test_a_peak_outlives_its_epoch() -> None:
    with memory.peak("t", DEVICE) as scope, memory.tag("t"):
        held = _core.Storage(MiB, DEVICE)
        del held
        memory.new_epoch(DEVICE)
        later = _core.Storage(2 * MiB, DEVICE)
        assert scope.bytes == MiB
    assert scope.bytes == MiB
    with memory.peak("t", DEVICE) as scope:
        pass
    assert scope.bytes == 2 * MiB
    del later


def test_a_peak_that_is_dropped_ends() -> None:
    scope = memory.peak("gone", DEVICE).__enter__()
    del scope
    memory.trim(DEVICE)
    assert "gone" not in memory.report(DEVICE).by_tag()


# ---- libraries -----------------------------------------------------------------------------


def registered() -> tuple[int, int]:
    rows = [row for row in memory.report(DEVICE).rows if row.kind == "external" and not row.tag]
    return memory.stats(DEVICE).registered, rows[0].objects


def test_a_library_that_makes_room_for_itself_is_counted_right() -> None:
    """Its reclaimer makes it smaller while it waits to grow."""
    former, objects = registered()
    limit = memory.allocated(DEVICE) + 4 * MiB
    library = memory.external("lib", 3 * MiB, DEVICE)

    def shrink(missing: int) -> int:
        library.resize(library.bytes - missing if missing < library.bytes else 0)
        return missing

    with memory.budget(limit, DEVICE), memory.reclaimer(shrink, device=DEVICE):
        library.resize(3 * MiB + MiB + MiB // 2)
        # It grows by 1.5 MiB and gave up as much.
        assert (library.bytes, registered()) == (3 * MiB, (former + 3 * MiB, objects + 1))
        library.resize(4 * MiB)
        with pytest.raises(MemoryError):
            library.resize(9 * MiB)
        assert registered() == (former + library.bytes, objects + (library.bytes > 0))
    library.close()
    library.close()
    assert (library.bytes, registered()) == (0, (former, objects))


def test_threads_resize_a_library() -> None:
    former = registered()
    library = memory.external("lib", 0, DEVICE)

    def work(number: int) -> None:
        for step in range(200):
            library.resize(step * number % 7 * 1000)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert registered() == (former[0] + library.bytes, former[1] + (library.bytes > 0))
    library.close()
    assert registered() == former


def test_what_a_library_held_ends_with_the_epoch() -> None:
    library = memory.external("lib", 5000, DEVICE)
    memory.new_epoch(DEVICE)
    assert (library.bytes, registered()) == (0, (0, 0))
    library.close()
    assert registered() == (0, 0)
    library = memory.external("lib", 5000, DEVICE)
    memory.new_epoch(DEVICE)
    library.resize(700)
    assert (library.bytes, registered()) == (700, (700, 1))
    library.close()
    assert registered() == (0, 0)
