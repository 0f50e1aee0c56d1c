"""Errors are their own class and the built-in one, and carry their figures."""

from __future__ import annotations

import pickle

import pytest
from nbxtensor import _core, errors, runtime


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("InvalidValueError", ValueError),
        ("InvalidTypeError", TypeError),
        ("InvalidIndexError", IndexError),
        ("RangeError", OverflowError),
        ("InvalidBufferError", BufferError),
        ("FileError", OSError),
        ("DeviceError", RuntimeError),
        ("UnsupportedError", NotImplementedError),
        ("OutOfMemoryError", MemoryError),
        ("OutOfMemoryError", RuntimeError),
    ],
)
def test_every_class_is_its_builtin_too(name: str, builtin: type[Exception]) -> None:
    own = getattr(errors, name)
    assert issubclass(own, errors.Error)
    assert issubclass(own, builtin)
    with pytest.raises(builtin, match="text"):
        raise own("text")


def test_the_former_name_of_running_out_of_memory() -> None:
    assert errors.DeviceOOMError is errors.OutOfMemoryError


def test_figures_are_attributes_and_survive_pickling() -> None:
    with pytest.raises(errors.DeviceError) as caught:
        runtime.device("sim:99")
    assert caught.value.device == "sim:99"  # type: ignore[attr-defined]
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is errors.DeviceError
    assert again.device == "sim:99"
    assert str(again) == str(caught.value)


def test_a_failed_driver_call_names_call_device_and_status() -> None:
    sim = runtime.device("sim:1")
    _core.sim.add_fault(1, "memory_info", status=999)
    with pytest.raises(errors.DeviceError, match="sim:1: memory_info failed with status 999") as e:
        sim.memory_info()
    assert (e.value.call, e.value.status) == ("memory_info", 999)  # type: ignore[attr-defined]
    _core.sim.clear_faults(1)
    assert sim.memory_info()[1] == sim.properties["total_bytes"]


@pytest.mark.parametrize(
    ("size", "total", "expected"),
    [
        (0, None, 0),
        (12345, None, 12345),
        ("2 GiB", None, 2 << 30),
        ("1.5KiB", None, 1536),
        ("3 MB", None, 3_000_000),
        ("80%", 1000, 800),
        ("33.4%", 1000, 334),
    ],
)
def test_sizes(size: int | str, total: int | None, expected: int) -> None:
    assert _core.parse_bytes(size, total) == expected


@pytest.mark.parametrize(
    ("size", "error"),
    [
        (-1, ValueError),
        ("x", ValueError),
        ("5 bananas", ValueError),
        ("120%", ValueError),
        ("80%", ValueError),  # of nothing
        (True, TypeError),
        (1.5, TypeError),
        (None, TypeError),
        (1 << 63, OverflowError),
        ("9223372036854775808", OverflowError),
    ],
)
def test_bad_sizes_are_refused(size: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="size"):
        _core.parse_bytes(size)
