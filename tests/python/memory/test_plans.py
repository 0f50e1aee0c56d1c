"""Static plans: small ones against exhaustive search, hard ones against their known capacity."""

from __future__ import annotations

import itertools
import random
import secrets
import threading
from pathlib import Path

import nbxtensor as nbx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nbxtensor import memory

DATA = Path(__file__).resolve().parents[2] / "data" / "traces" / "minimalloc"
CAPACITY = 1_048_576


@pytest.fixture
def numbers() -> random.Random:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return random.Random(seed)


def alive(interval: memory.Interval, time: int) -> bool:
    inside = interval.lower <= time < interval.upper
    return inside and not any(begin <= time < end for begin, end in interval.gaps)


def together(a: memory.Interval, b: memory.Interval) -> bool:
    times = range(max(a.lower, b.lower), min(a.upper, b.upper))
    return any(alive(a, time) and alive(b, time) for time in times)


def smallest_peak(intervals: list[memory.Interval]) -> int:
    """Over every order of placing each at the lowest place that is free."""
    best = None
    for order in itertools.permutations(range(len(intervals))):
        offsets: dict[int, int] = {}
        for k in order:
            others = [j for j in offsets if together(intervals[k], intervals[j])]
            tops = [offsets[j] + intervals[j].size for j in others]
            step = intervals[k].alignment
            places = sorted({0, *(-(-top // step) * step for top in tops)})
            offsets[k] = next(
                place
                for place in places
                if all(
                    place + intervals[k].size <= offsets[j]
                    or offsets[j] + intervals[j].size <= place
                    for j in others
                )
            )
        peak = max((offsets[k] + intervals[k].size for k in offsets), default=0)
        best = peak if best is None else min(best, peak)
    return best or 0


@st.composite
def interval(draw: st.DrawFn) -> memory.Interval:
    lower = draw(st.integers(-8, 8))
    length = draw(st.integers(1, 8))
    gaps = [(lower + 1, lower + length - 1)] if length > 2 and draw(st.booleans()) else []
    alignment = draw(st.sampled_from([1, 1, 2, 4]))
    return memory.Interval(lower, lower + length, draw(st.integers(1, 9)), alignment, gaps)


@settings(max_examples=60, deadline=None)
@given(st.lists(interval(), max_size=5))
def test_plans_are_as_small_as_possible(intervals: list[memory.Interval]) -> None:
    plan = memory.plan(intervals)
    plan.validate()
    assert plan.peak == smallest_peak(intervals)
    assert plan.optimal
    assert plan.lower_bound == plan.peak


@settings(max_examples=100, deadline=None)
@given(st.lists(interval(), min_size=1, max_size=12), st.data())
def test_validation_finds_any_damage(intervals: list[memory.Interval], data: st.DataObject) -> None:
    plan = memory.plan(intervals, seconds=0.05)
    changed = data.draw(st.integers(0, len(intervals) - 1))
    offsets = list(plan.offsets)
    offsets[changed] = data.draw(st.integers(0, plan.peak + 3))
    mine = intervals[changed]
    end = offsets[changed] + mine.size
    wrong = end > plan.peak or offsets[changed] % mine.alignment != 0
    for k, other in enumerate(intervals):
        overlap = offsets[k] < end and offsets[changed] < offsets[k] + other.size
        wrong |= k != changed and overlap and together(mine, other)
    damaged = memory.Plan(
        offsets=offsets,
        peak=plan.peak,
        lower_bound=plan.lower_bound,
        optimal=False,
        fits=True,
        seconds=0.0,
        method="damage",
        nodes=0,
        cancelled=False,
        alignment=1,
        intervals=plan.intervals,
    )
    if wrong:
        with pytest.raises(ValueError, match=r"plan: interval \d+"):
            damaged.validate()
    else:
        damaged.validate()


@pytest.mark.parametrize("name", ["A", "B", "C"])
def test_hard_instances_fit(name: str) -> None:
    intervals = memory.read_intervals(DATA / f"{name}.{CAPACITY}.csv")
    plan = memory.plan(intervals, capacity=CAPACITY, seconds=300)
    assert plan.fits
    plan.validate(CAPACITY)
    assert plan.lower_bound <= plan.peak <= CAPACITY


def test_a_capacity_that_cannot_hold_is_told() -> None:
    plan = memory.plan([(0, 2, 3), (1, 3, 3)], capacity=5)
    assert not plan.fits
    assert plan.peak == plan.lower_bound == 6
    with pytest.raises(ValueError, match="ends above the capacity of 5 bytes"):
        plan.validate(5)


def test_alignment_of_every_offset(numbers: random.Random) -> None:
    intervals = [
        (start, start + numbers.randint(1, 20), numbers.randint(0, 5000))
        for start in (numbers.randint(0, 50) for _ in range(200))
    ]
    plan = memory.plan(intervals, alignment=256, seconds=0.3)
    plan.validate()
    assert all(offset % 256 == 0 for offset in plan.offsets)


def test_buffers_may_lie_in_gaps() -> None:
    with_gap = memory.Interval(0, 10, 100, gaps=[(3, 7)])
    plan = memory.plan([with_gap, (3, 7, 100)])
    assert plan.peak == 100
    plan.validate()
    assert memory.plan([with_gap, (3, 8, 100)]).peak == 200


def test_no_intervals_need_nothing() -> None:
    plan = memory.plan([])
    assert (plan.peak, plan.offsets, plan.optimal) == (0, [], True)
    plan.validate()


@pytest.mark.parametrize(
    ("intervals", "error", "message"),
    [
        ([(0, 1, 1), (4, 4, 1)], ValueError, r"interval 1 is alive over \[4, 4\)"),
        ([(0, 1, -1)], ValueError, "size of interval 0 is -1; give 0 to"),
        ([(0, 1, 1, 0)], ValueError, "alignment of interval 0 is 0; give 1 to"),
        ([(0, 9, 1, 1, [(0, 3)])], ValueError, r"gap \[0, 3\)"),
        ([(0, 1)], TypeError, "interval 0 is"),
        ([5], TypeError, "interval 0 is 5"),
    ],
)
def test_bad_intervals_are_named(intervals: list[object], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        memory.plan(intervals)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"capacity": 0}, "capacity is 0"),
        ({"alignment": 0}, "alignment is 0"),
        ({"seconds": -1.0}, "seconds is -1.0"),
        ({"seconds": float("nan")}, "seconds is nan"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        memory.plan([(0, 1, 1)], **arguments)  # type: ignore[arg-type]


def test_another_thread_can_cancel() -> None:
    intervals = memory.read_intervals(DATA / f"D.{CAPACITY}.csv")
    cancel = threading.Event()
    threading.Timer(0.2, cancel.set).start()
    plan = memory.plan(intervals, capacity=986_112, seconds=3600, cancel=cancel)
    plan.validate()
    assert plan.fits or plan.cancelled


def test_planned_slab_serves_what_was_planned() -> None:
    # What one step asks for, and when it is used.
    requests = [("q", 4096), ("k", 4096), ("q", 1024), ("out", 4096)]
    lifetimes = [(0, 3), (1, 3), (2, 5), (3, 6)]
    spans = zip(lifetimes, requests, strict=True)
    plan = memory.plan([(*life, size) for life, (_, size) in spans], alignment=256)
    assert plan.peak < sum(size for _, size in requests)
    slab = memory.PlannedSlab(memory.planned_keys(requests), plan, "cpu", name="step")
    for _ in range(4):
        q = slab.empty((1024,), "float32", origin="q")
        k = slab.empty((1024,), "float32", origin="k")
        q2 = slab.empty((256,), "float32", origin="q")
        pointers = [tensor.data_ptr() - slab.base for tensor in (q, k, q2)]
        assert pointers == plan.offsets[:3]
        del q, k
        out = slab.empty((1024,), "float32", origin="out")
        assert out.data_ptr() - slab.base == plan.offsets[3]
        other = slab.empty((8,), "float32", origin="new")
        assert not slab.base <= other.data_ptr() < slab.base + slab.capacity
        del q2, out, other
        slab.begin_step()
    assert (slab.hits, slab.misses, slab.conflicts) == (16, 4, 0)


def test_planned_slab_never_overlaps_when_lifetimes_change() -> None:
    requests = [("a", 4096), ("b", 4096)]
    plan = memory.plan([(0, 1, 4096), (1, 2, 4096)], alignment=256)
    assert plan.peak == 4096
    slab = memory.PlannedSlab(memory.planned_keys(requests), plan, "cpu")
    a = nbx.full((1024,), 7.0, dtype="float32")
    kept = slab.empty((1024,), "float32", origin="a")
    kept[...] = a
    late = slab.empty((1024,), "float32", origin="b")  # `kept` lives longer than planned
    late[...] = nbx.zeros((1024,), dtype="float32")
    assert slab.conflicts == 1
    assert float(kept.sum()) == 7.0 * 1024
    with pytest.raises(ValueError, match="make it with alignment=256"):
        memory.PlannedSlab([("a", 0, 4)], memory.plan([(0, 1, 4)]), "cpu")
