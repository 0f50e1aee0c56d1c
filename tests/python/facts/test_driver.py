"""Device files against what the driver of a real card reports."""

from __future__ import annotations

import ctypes

import pytest
from nbxtensor import facts

# Numbers of CUdevice_attribute by the fact that they report.
ATTRIBUTES = {
    "threads_per_block": 1,
    "lanes": 10,
    "registers_per_block": 12,
    "shared_bytes_per_block": 97,
    "clusters": 120,
    "tensor_copies": 127,
}
MAJOR, MINOR = 75, 76


@pytest.mark.gpu
def test_cuda_files_say_what_the_driver_says() -> None:
    driver = ctypes.CDLL("libcuda.so.1")

    def attribute(number: int, ordinal: int) -> int:
        device, value = ctypes.c_int(), ctypes.c_int()
        assert driver.cuDeviceGet(ctypes.byref(device), ordinal) == 0
        assert driver.cuDeviceGetAttribute(ctypes.byref(value), number, device) == 0
        return value.value

    count = ctypes.c_int()
    assert driver.cuInit(0) == 0
    assert driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    assert count.value > 0
    for ordinal in range(count.value):
        name = f"sm_{attribute(MAJOR, ordinal)}{attribute(MINOR, ordinal)}"
        found = facts.load("cuda", name)
        reported = {fact: attribute(number, ordinal) for fact, number in ATTRIBUTES.items()}
        assert reported == {
            "threads_per_block": found.threads_per_block,
            "lanes": found.lanes,
            "registers_per_block": found.registers_per_block,
            "shared_bytes_per_block": found.shared_bytes_per_block,
            "clusters": int((found.cluster_blocks or 1) > 1),
            "tensor_copies": int(bool(found.tensor_copies)),
        }, name
