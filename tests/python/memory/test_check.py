"""Check mode from Python: in processes of their own, as the variable is read once."""

from __future__ import annotations

import os
import subprocess
import sys

import nbxtensor as nbx
import pytest
from nbxtensor.memory import check

CORRECT = """
import numpy as np
import nbxtensor as nbx
from nbxtensor.memory import check
streams = [nbx.Stream("sim:0") for _ in range(3)]
x = nbx.asarray(np.arange(1000, dtype=np.float32), device="sim:0")
for step in range(12):
    stream = streams[step % 3]
    stream.wait_stream(nbx.current_stream("sim:0"))
    for other in streams:
        stream.wait_stream(other)
    with nbx.stream(stream):
        x = (x + 1.0) * 1.0
np.testing.assert_array_equal(x.numpy(), np.arange(1000, dtype=np.float32) + 12)
y = nbx.asarray([1.0, 2.0])
assert float((y * y).sum()) == 5.0
del x, y
for device in ("sim:0", "cpu"):
    assert check(device) == [], check(device)
print("fine")
"""

UNORDERED = """
import nbxtensor as nbx
x = nbx.ones((1000,), device="sim:0")
try:
    with nbx.stream(nbx.Stream("sim:0")):
        x + 1
except nbx.DeviceError as error:
    print(error)
"""

OVERRUN = """
import nbxtensor as nbx
from nbxtensor import _core
from nbxtensor.memory import check
x = nbx.empty((1000,), device="sim:0")
_core.sim.foreign_fill(0, x.data_ptr() + 4000, 1, 8, 0)
try:
    check("sim:0")
    nbx.synchronize("sim:0")
except nbx.DeviceError as error:
    print(error)
"""

# The same bytes are looked at by every call, by the free, and when the block leaves quarantine.
TOLD_ONCE = """
import nbxtensor as nbx
from nbxtensor import _core
from nbxtensor.memory import check
x = nbx.empty((1000,), device="sim:0")
_core.sim.foreign_fill(0, x.data_ptr() + 4000, 1, 8, 0)
first = check("sim:0")
assert len(first) == 1 and "past the end" in first[0], first
assert check("sim:0") == first
try:
    nbx.synchronize("sim:0")
except nbx.DeviceError as error:
    assert first[0] in str(error)
nbx.synchronize("sim:0")
del x
nbx.synchronize("sim:0")
assert check("sim:0") == first
print("fine")
"""

# Copies between host and device, and from one tensor into another, are work like any other. An
# upload of some size takes its time on the virtual clock, so that it is under way when they begin.
COPIES = """
import numpy as np
import nbxtensor as nbx
host = np.ones(1 << 20, np.float32)
other = nbx.Stream("sim:0")
def late(): return nbx.asarray(host, device="sim:0")
for what, work in (
    ("download", lambda x: x.numpy()),
    ("upload", lambda x: x.copy_(nbx.zeros((1 << 20,)))),
    ("source", lambda x: nbx.empty((1 << 20,), device="sim:0").copy_(x)),
    ("other device", lambda x: x.to("sim:1")),
):
    x = late()
    try:
        with nbx.stream(other):
            work(x)
        print(what, "allowed")
    except nbx.DeviceError as error:
        assert "does not wait for stream" in str(error), error
        print(what, "refused")
    del x  # a free waits in check mode
x = late()
other.wait_stream(nbx.current_stream("sim:0"))
with nbx.stream(other):
    y = nbx.zeros((1 << 20,), device="sim:0")
    y.copy_(x)
    assert y.numpy().sum() == 1 << 20
print("ordered")
"""

EPOCH = """
import nbxtensor as nbx
from nbxtensor.memory import check
old = nbx.ones((1000,), device="sim:0")
nbx.memory.new_epoch("sim:0")
try:
    old + 1
except ValueError as error:
    print(error)
del old
new = nbx.ones((1000,), device="sim:0")
assert float(new.sum()) == 1000.0
assert check("sim:0") == []
"""


def run(program: str) -> str:
    environment = {**os.environ, "NBX_MEMORY_CHECK": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_is_said_of_a_correct_program() -> None:
    assert run(CORRECT) == "fine\n"


def test_a_missing_wait_is_refused_at_the_launch() -> None:
    assert "does not wait for stream" in run(UNORDERED)


def test_an_overrun_is_raised_by_the_next_wait() -> None:
    out = run(OVERRUN)
    assert "past the end of block" in out
    assert "at offset 4000" in out


def test_copies_need_an_order_too() -> None:
    lines = run(COPIES).splitlines()
    assert lines == [
        "download refused",
        "upload refused",
        "source refused",
        "other device allowed",  # the host waits for what one device hands to another
        "ordered",
    ]


def test_a_tensor_of_an_ended_epoch_is_refused() -> None:
    assert "of epoch 1 of sim:0, which ended" in run(EPOCH)


def test_it_must_be_on() -> None:
    nbx.empty((1,), device="sim:0")
    with pytest.raises(ValueError, match="NBX_MEMORY_CHECK=1"):
        check("sim:0")


def test_damage_is_told_once() -> None:
    assert run(TOLD_ONCE).strip().endswith("fine")
