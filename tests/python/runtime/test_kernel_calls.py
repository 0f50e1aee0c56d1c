"""Kernels called from Python: what they compute, what the driver sees, what is refused."""

from __future__ import annotations

import threading
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import _core, runtime
from nbxtensor.runtime.foreign import foreign_argument

from .conftest import Package


def on_sim(array: np.ndarray[Any, Any]) -> nbx.Tensor:
    return nbx.asarray(array, device="sim:0")


def zeros(count: int, dtype: Any = nbx.float32) -> nbx.Tensor:
    return nbx.zeros(count, dtype=dtype, device="sim:0")


def test_grids_and_names(package: Package, rng: np.random.Generator) -> None:
    family = package.family()
    n = int(rng.integers(1, 700))
    x, y = (on_sim(rng.standard_normal(n).astype(np.float32)) for _ in range(2))
    expected = 2 * x.numpy() + np.float32(0.5) * y.numpy()
    for grid in (-(-n // 128), (-(-n // 128),), lambda meta: (-(-meta["n"] // meta["BLOCK"]), 1)):
        for launch in (
            lambda g, o: family.add[g](x, y, o, n, 0.5, BLOCK=128),
            lambda g, o: family.add(g, x, y, o, n, 0.5, 128),
            lambda g, o: nbx.launch(family.add, g, x, alpha=0.5, n=n, o_ptr=o, y_ptr=y, BLOCK=128),
        ):
            out = zeros(n)
            launch(grid, out)
            np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6)
    assert family.add.misses == len(family.add.variants) == 1
    assert family.add.name == family.add.__name__ == "add"
    family.add[0](x, y, x, n, 0.5, BLOCK=128)
    assert family.add.misses == 1


def test_helpers_constants_and_loops(package: Package, rng: np.random.Generator) -> None:
    family = package.family()
    for dtype in (np.float32, np.float16, np.int8):
        values = rng.integers(-100, 100, 333).astype(dtype)
        out = zeros(1)
        family.total[1](on_sim(values), out, 333, BLOCK=64)
        assert out.numpy()[0] == 2 * float(values.astype(np.float64).sum()) + 3


def test_every_kind_of_argument(package: Package) -> None:
    spread = package.family().spread
    a, b, c = on_sim(np.float32([1.5])), on_sim(np.int32([7])), on_sim(np.float64([0.25]))
    out = zeros(1, nbx.float64)
    cases: list[tuple[Any, Any, bool, int, float]] = [
        ((2, 3), None, False, 1, 0.5),
        ((2, 0.5), c, True, 2**40, 1e-3),
        ((1, 2**40), None, True, -(2**62) + 1, 2),
        ((2**63, 1), c, False, 16, 1),
        ((True, -1), None, False, 0, 0.0),
    ]
    for values, optional, flag, wide, real in cases:
        spread[1]((a, b), values, out, optional, flag, wide, real)
        expected = np.float64(1.5) + 7 + float(values[0]) + float(values[1]) + wide + real
        expected += 0.25 if optional is not None else 0
        assert out.numpy()[0] == pytest.approx(-expected if flag else expected, rel=1e-12)


def test_dtypes_are_constants(package: Package) -> None:
    typed = package.family().typed
    x = on_sim(np.float32([1.75, -2.5, 3.0]))
    out = zeros(3)
    for dtype, expected in ((nbx.int32, [1, -2, 3]), (nbx.float16, [1.75, -2.5, 3.0])):
        typed[1](x, out, 3, TYPE=dtype, BLOCK=4)
        assert out.numpy().tolist() == expected


def test_launches_are_ordered_and_keep_their_memory(package: Package) -> None:
    family = package.family()
    with nbx.stream(nbx.Stream("sim:0")) as stream:
        x = on_sim(np.ones(64, np.float32))
        for _ in range(5):
            out = zeros(64)
            family.add[1](x, x, out, 64, 0.0, BLOCK=64)
            x = out  # the former one is free, and not reused before it was read
        assert not stream.is_complete()
        assert x.numpy().tolist() == [2.0**5] * 64


def test_errors_inside_kernels_are_kept(package: Package) -> None:
    family = package.family()
    family.wrong[1](zeros(4), BLOCK=4)
    with pytest.raises(nbx.DeviceError, match=r"sim:0: kernel 'wrong' failed: .*undefined_name"):
        nbx.synchronize("sim:0")


def refused(error: type[Exception], match: str, call: Any, *args: Any, **keywords: Any) -> None:
    with pytest.raises(error, match=match):
        call(*args, **keywords)


def test_refusals_name_kernel_parameter_and_what_is_allowed(package: Package) -> None:
    add = package.family().add
    x = zeros(8)
    launch = add[1]
    good = (x, x, x, 8, 0.5, 8)
    launch(*good)
    refused(
        ValueError, "'y_ptr' is on cpu, 'x_ptr' on sim:0", launch, x, nbx.zeros(8), x, 8, 1.0, 8
    )
    other = nbx.zeros(8, device="sim:1")
    refused(ValueError, r"'o_ptr' is on sim:1.*\.to\('sim:0'\)", launch, x, x, other, 8, 1.0, 8)
    host = nbx.zeros(8)
    refused(
        NotImplementedError, "cuda, hip and sim, not on cpu", launch, host, host, host, 8, 1.0, 8
    )
    refused(TypeError, "'alpha' is missing", launch, x, x, x, 8, BLOCK=8)
    refused(TypeError, "'n' is given twice", launch, *good, n=3)
    refused(TypeError, "at most 6 arguments, got 7", launch, *good, 1)
    refused(TypeError, "'y_ptr' got numpy.ndarray", launch, x, np.zeros(8), x, 8, 1.0, 8)
    refused(TypeError, "'n' got numpy.int64", launch, x, x, x, np.int64(8), 1.0, 8)
    refused(OverflowError, "'n' is an integer that fits", launch, x, x, x, 2**64, 1.0, 8)
    refused(TypeError, "'y_ptr' took a tensor before", launch, x, x.data_ptr(), x, 8, 1.0, 8)
    refused(TypeError, "no option 'num_warp'", launch, *good, num_warp=8)
    refused(TypeError, "without a grid", add)
    refused(ValueError, "4 extents", add[1, 1, 1, 1], *good)
    refused(ValueError, "extent -1", add[-1], *good)
    refused(ValueError, "at most", add[1, 65536], *good)
    refused(TypeError, "the grid is 'x'", add["x"], *good)
    refused(TypeError, "expected a function", runtime.kernel, 3)
    refused(TypeError, "got builtin", nbx.launch, len, 1, x)
    z = nbx.zeros(8, dtype=nbx.complex64, device="sim:0")
    refused(TypeError, "'x_ptr' is of complex64", launch, z, x, x, 8, 1.0, 8)


def test_annotated_parameters_are_checked(package: Package) -> None:
    spread = package.family().spread
    out = zeros(1, nbx.float64)
    first = ((out, out), (1, 2), out, None, False)
    refused(TypeError, "'wide' is declared as i64, got the real", spread[1], *first, 1.5, 1.0)
    refused(TypeError, "'wide' is declared as i64, got a tensor", spread[1], *first, out, 1.0)
    refused(TypeError, "'real' is declared as fp64, got a tensor", spread[1], *first, 1, out)


def test_memory_that_is_gone_is_refused(package: Package) -> None:
    add = package.family().add
    with nbx.memory.tag("kernel_sleeper"):
        asleep = zeros(1 << 20)  # smaller ones share pages, and stay awake
    x = zeros(8)
    nbx.memory.sleep("kernel_sleeper", "sim:0")
    try:
        refused(ValueError, "parameter 'x_ptr' .*asleep", add[1], asleep, x, x, 8, 1.0, 8)
    finally:
        nbx.memory.wake("kernel_sleeper", "sim:0")
    add[1](asleep, x, x, 8, 1.0, 8)
    old = nbx.zeros(8, dtype=nbx.float32, device="sim:1")
    nbx.memory.new_epoch("sim:1")
    refused(ValueError, "parameter 'x_ptr' cannot be used: .*epoch", add[1], old, x, x, 8, 1.0, 8)
    fresh = nbx.zeros(8, dtype=nbx.float32, device="sim:1")
    add[1](fresh, fresh, fresh, 8, 1.0, 8)
    assert fresh.numpy().tolist() == [0.0] * 8


def test_the_driver_sees_these_words() -> None:
    seen: list[tuple[Any, Any]] = []
    slots = ["raw8", "skip", "raw4", "float32", "raw1", "bfloat16", "raw8"]
    kernel = _core.simulate_kernel(
        nbx.device("sim:0"), "seen", lambda grid, words: seen.append((grid, words)), slots
    )
    rows = [(name, False, False, "", True, True, False, ...) for name in "abcdefg"]
    rows[4] = ("e", False, False, "u1", True, True, False, ...)
    rows[5] = ("f", False, False, "bf16", True, True, False, ...)
    call = _core.Kernel("seen", rows, lambda *told: kernel)
    x = zeros(4)
    call((2, 3), x, None, -7, 0.1, True, 1, 2**63 + 5)
    call(1, x, 1, 2**31 - 1, 0.2, 0, -1.5, 2**63 + 6)
    nbx.synchronize("sim:0")
    bits = [int(np.float32(v).view(np.uint32)) for v in (0.1, 0.2)]
    assert seen == [
        ((2, 3, 1), (x.data_ptr(), 2**32 - 7, bits[0], 1, 0x3F80, 2**63 + 5)),
        ((1, 1, 1), (x.data_ptr(), 2**31 - 1, bits[1], 0, 0xBFC0, 2**63 + 6)),
    ]
    assert call.misses == 2


def test_observers_see_launches(package: Package) -> None:
    family = package.family()
    x = zeros(8)
    family.add[1](x, x, x, 8, 0.5, BLOCK=8)
    noted: list[nbx.runtime.Launch] = []
    with nbx.observe_launches(noted.append):
        family.add[2, 3](x, x, x, 8, 0.5, BLOCK=8)
    family.add[1](x, x, x, 8, 0.5, BLOCK=8)
    assert [(note.name, note.grid, note.device) for note in noted] == [("add", (2, 3, 1), "sim:0")]
    assert noted[0].nanoseconds > 0


class Foreign:
    """A tensor of another library's."""

    dtype = "torch.float32"

    def __init__(self, tensor: nbx.Tensor, device: tuple[int, int]) -> None:
        self.tensor = tensor
        self.device = device

    def data_ptr(self) -> int:
        return self.tensor.data_ptr()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def test_tensors_of_other_libraries(package: Package) -> None:
    add = package.family().add
    x, out = on_sim(np.arange(8, dtype=np.float32)), zeros(8)
    add[1](Foreign(x, (12, 0)), x, out, 8, 1.0, BLOCK=8)
    assert out.numpy().tolist() == [3.0 * i for i in range(8)]
    refused(ValueError, "'y_ptr' is on sim:1", add[1], x, Foreign(x, (12, 1)), out, 8, 1.0, 8)
    assert add.misses == 1

    class Array:
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {"data": (4096, False), "typestr": "<f2", "shape": (2,)}

    assert foreign_argument(Array()) == ("pointer", 4096, "fp16", "cuda:0")
    assert foreign_argument(object()) is None


def test_threads_share_one_kernel(package: Package) -> None:
    add = package.family().add
    x = on_sim(np.ones(64, np.float32))
    failures: list[Exception] = []

    def work() -> None:
        try:
            with nbx.stream(nbx.Stream("sim:0")):
                for block in (16, 32, 64):
                    out = zeros(64)
                    add[64 // block](x, x, out, 64, 1.0, BLOCK=block)
                    assert out.numpy().tolist() == [3.0] * 64
        except Exception as error:
            failures.append(error)

    nbx.synchronize("sim:0")
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(add.variants) == 3
