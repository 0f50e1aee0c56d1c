"""Memory shared with NumPy, DLPack, buffers and mapped files."""

from __future__ import annotations

import array as arrays
import ctypes
import gc
import mmap
import sys
import weakref
from pathlib import Path
from typing import Any

import ml_dtypes
import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import _core, memory

NATIVE = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
          "float16", "float32", "float64", "complex64", "complex128"]  # fmt: skip
NARROW = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


@pytest.mark.parametrize("dtype", NATIVE + NARROW)
def test_numpy_shares_memory_both_ways(dtype: Any, rng: np.random.Generator) -> None:
    array = rng.integers(0, 16, size=(3, 4)).astype(dtype)
    tensor = nbx.from_numpy(array)
    back = tensor.numpy()
    assert back.dtype == array.dtype
    assert np.shares_memory(back, array)
    tensor[0] = 1
    assert (array[0].astype(np.float64) == 1).all() if array.dtype.kind != "c" else True
    view = nbx.from_numpy(array[::-1, ::2]).T
    assert np.asarray(view).tobytes() == array[::-1, ::2].T.tobytes()


def test_numpy_array_protocol() -> None:
    tensor = nbx.asarray([[1.0, 2.0]])
    assert np.asarray(tensor).base is not None
    assert np.asarray(tensor, dtype=np.float64).dtype == np.float64
    assert tensor.__array__(np.int32).dtype == np.int32
    assert not np.shares_memory(tensor.__array__(copy=True), tensor.numpy())
    with pytest.raises(ValueError, match="copy=False"):
        tensor.__array__(np.int32, copy=False)
    with pytest.raises(ValueError, match="copy=False"):
        tensor.to("sim:0").__array__(copy=False)
    half = tensor.to("bfloat16")
    assert np.asarray(half).dtype == ml_dtypes.bfloat16
    assert np.asarray(tensor.to("sim:0")).tolist() == [[1.0, 2.0]]
    assert np.concatenate([tensor, tensor]).shape == (2, 2)
    with pytest.raises(TypeError, match="int4 has no NumPy type"):
        tensor.to("int4").numpy()


@pytest.mark.parametrize(
    ("array", "error", "message"),
    [
        (np.zeros(3, ">f4"), TypeError, "byte order"),
        (np.zeros(3, "U4"), TypeError, "expected one of"),
        (np.zeros(3, object), TypeError, "expected one of"),
        (np.zeros(3, "M8[s]"), TypeError, "expected one of"),
        (np.zeros(3, [("a", "i4"), ("b", "i1")])["a"], ValueError, "not multiples"),
        (np.frombuffer(bytes(17), np.uint8)[1:].view(np.int32), ValueError, "not multiples"),
        ([1, 2], TypeError, "expected a numpy.ndarray, got list"),
    ],
)
def test_from_numpy_refuses(array: Any, error: type[Exception], message: str) -> None:
    if isinstance(array, np.ndarray) and array.dtype == np.int32 and array.flags.aligned:
        array = np.frombuffer(bytes(21), np.uint8)[2:18].view(np.int32)
    if isinstance(array, np.ndarray) and array.dtype == np.int32 and array.flags.aligned:
        assert nbx.from_numpy(array).tolist() == array.tolist()
        return
    with pytest.raises(error, match=message):
        nbx.from_numpy(array)


def test_asarray_copies_what_from_numpy_refuses() -> None:
    odd = np.array([(1, 2), (3, 4)], [("a", "i4"), ("b", "i1")])["a"]
    assert nbx.asarray(odd).tolist() == [1, 3]
    assert nbx.asarray(np.array([1.5, 2.5], ">f8")).tolist() == [1.5, 2.5]
    with pytest.raises(ValueError, match="copy=False"):
        nbx.asarray(odd, copy=False)


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (True, "bool", ()),
        (3, "int64", ()),
        (2.5, "float32", ()),
        (1j, "complex64", ()),
        ([[1, 2], [3, 4]], "int64", (2, 2)),
        ([1, 2.5], "float32", (2,)),
        ([], "float32", (0,)),
        (np.float64(2), "float64", ()),
        ([np.float64(2)], "float64", (1,)),
        (np.arange(3, dtype=np.int16), "int16", (3,)),
        (arrays.array("h", [1, 2]), "int16", (2,)),
        (bytearray(b"ab"), "uint8", (2,)),
        (range(3), "int64", (3,)),
    ],
)
def test_asarray_chooses_the_dtype(value: Any, dtype: str, shape: tuple[int, ...]) -> None:
    tensor = nbx.asarray(value)
    assert (tensor.dtype.name, tensor.shape) == (dtype, shape)
    assert np.array_equal(tensor.numpy(), np.asarray(value))


def test_asarray_arguments() -> None:
    array = np.arange(3)
    assert np.shares_memory(nbx.asarray(array).numpy(), array)
    assert not np.shares_memory(nbx.asarray(array, copy=True).numpy(), array)
    tensor = nbx.asarray(array)
    assert nbx.asarray(tensor).shares_storage(tensor)
    assert nbx.asarray([0.1, 1.7], dtype="float64").tolist() == [0.1, 1.7]
    assert nbx.asarray([0.1], dtype="bfloat16").item() == 0.10009765625
    assert str(nbx.asarray([1], device="sim:1").device) == "sim:1"
    assert nbx.asarray([tensor, tensor]).shape == (2, 3)
    for value in ([[1, 2], [3]], "text", [None], object(), {"a": 1}):
        with pytest.raises((TypeError, ValueError)):
            nbx.asarray(value)
    with pytest.raises(ValueError, match="copy=False"):
        nbx.asarray([1], copy=False)


@pytest.mark.parametrize("dtype", NATIVE)
def test_dlpack_with_numpy(dtype: str, rng: np.random.Generator) -> None:
    array = rng.integers(0, 2, size=(2, 3, 4)).astype(dtype)
    tensor = nbx.from_dlpack(array)
    assert tensor.dtype.name == dtype
    assert np.shares_memory(tensor.numpy(), array)
    out = np.from_dlpack(tensor.permute(2, 0, 1)[::2])
    assert np.shares_memory(out, array)
    np.testing.assert_array_equal(out, array.transpose(2, 0, 1)[::2])


class Legacy:
    """A producer from before DLPack 1.0: no keywords, the old capsule."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.tensor.__dlpack__(stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_dlpack_versions_and_flags() -> None:
    tensor = nbx.asarray([1, 2, 3])
    assert "dltensor_versioned" in repr(tensor.__dlpack__(max_version=(1, 0)))
    assert "dltensor_versioned" not in repr(tensor.__dlpack__(max_version=(0, 8)))
    assert "dltensor_versioned" not in repr(tensor.__dlpack__())
    again = nbx.from_dlpack(Legacy(tensor))
    assert again.data_ptr() == tensor.data_ptr()
    assert nbx.from_dlpack(tensor, copy=True).data_ptr() != tensor.data_ptr()
    copied = nbx.from_dlpack(tensor.__dlpack__(max_version=(1, 0), copy=True))
    assert copied.data_ptr() != tensor.data_ptr()
    capsule = tensor.__dlpack__()
    nbx.from_dlpack(capsule)
    with pytest.raises(BufferError, match="taken already"):
        nbx.from_dlpack(capsule)
    frozen = np.arange(3)
    frozen.flags.writeable = False
    locked = nbx.from_numpy(frozen)
    assert nbx.from_dlpack(locked.__dlpack__(max_version=(1, 1))).is_read_only()
    assert not np.from_dlpack(locked).flags.writeable
    with pytest.raises(BufferError, match="read-only"):
        locked.__dlpack__()
    with pytest.raises(BufferError, match="int4"):
        tensor.to("int4").__dlpack__()


def test_dlpack_devices() -> None:
    tensor = nbx.asarray([1, 2, 3], device="sim:1")
    assert tensor.__dlpack_device__() == (12, 1)
    assert nbx.asarray([1]).__dlpack_device__() == (1, 0)
    host = nbx.from_dlpack(tensor.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
    assert (str(host.device), host.tolist()) == ("cpu", [1, 2, 3])
    shared = nbx.from_dlpack(tensor.__dlpack__(max_version=(1, 0)))
    assert (str(shared.device), shared.tolist()) == ("sim:1", [1, 2, 3])
    with pytest.raises(BufferError, match="copy to the cpu"):
        tensor.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(ValueError, match="copy=False"):
        nbx.from_dlpack(tensor, device="cpu", copy=False)
    assert nbx.from_dlpack(tensor, device="cpu").tolist() == [1, 2, 3]


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_dlpack_streams(device: str) -> None:
    tensor = nbx.asarray([1, 2, 3], device=device)
    for stream in (None, -1):
        back = nbx.from_dlpack(tensor.__dlpack__(stream=stream, max_version=(1, 0)))
        assert back.tolist() == [1, 2, 3]
    for stream in (0, 1, 2, -2):
        with pytest.raises(BufferError, match=f"stream is {stream}; {device}.* takes None or -1"):
            tensor.__dlpack__(stream=stream)
    for wrong in ("1", 1.5, object()):
        with pytest.raises(TypeError, match="stream"):
            tensor.__dlpack__(stream=wrong)


class Lying(ctypes.Structure):
    """DLPack's managed tensor of before 1.0, filled in by hand."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": (2**62,), "strides": (1,)}, "pass 2\\^63 - 1 bytes"),
        ({"shape": (2, 2), "strides": (2**62, -(2**62))}, "pass 2\\^63 - 1 bytes"),
        ({"shape": (2**40, 2**40)}, "2\\^63 - 1"),
        ({"shape": (-1,)}, "negative extent"),
        ({"ndim": -1}, "64 axes"),
        ({"ndim": 65}, "64 axes"),
        ({"data": None}, "without memory"),
        ({"lanes": 4}, "4 lanes"),
        ({"bits": 24}, "24 bits"),
        ({"device_type": 99}, "device type 99"),
        ({"device_type": 2}, "cuda"),
        ({"device_id": 7, "device_type": 12}, "sim:7"),
    ],
)
def test_producers_that_lie(change: dict[str, Any], message: str) -> None:
    data = np.zeros(4, np.float32)
    shape = change.get("shape", (4,))
    strides = change.get("strides")
    fields = {"data": data.ctypes.data, "device_type": 1, "ndim": len(shape), "code": 2, "bits": 32}
    fields |= {"lanes": 1} | {k: v for k, v in change.items() if k not in ("shape", "strides")}
    given = Lying(**fields)
    given.shape = (ctypes.c_int64 * 65)(*shape, *[1] * (65 - len(shape)))
    if strides is not None:
        given.strides = (ctypes.c_int64 * len(strides))(*strides)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
    )
    gc.collect()
    before = memory.stats("cpu")
    capsule = new(ctypes.addressof(given), b"dltensor", None)
    with pytest.raises((BufferError, ValueError, OverflowError, nbx.Error), match=message):
        nbx.from_dlpack(capsule)
    after = memory.stats("cpu")
    assert (after.allocated, after.objects) == (before.allocated, before.objects)
    assert '"dltensor"' in repr(capsule)


def test_exporters_outlive_their_objects() -> None:
    tensor = nbx.asarray(np.arange(1000), copy=True)
    out = np.from_dlpack(tensor)
    view = memoryview(tensor)
    del tensor
    gc.collect()
    assert out.tolist() == view.tolist() == list(range(1000))
    source = np.arange(1000)
    alive = weakref.ref(source)
    tensor = nbx.from_numpy(source)[10:20]
    references = sys.getrefcount(alive())
    del source
    gc.collect()
    assert alive() is not None
    assert references >= 2
    assert tensor.tolist() == list(range(10, 20))
    del tensor
    assert alive() is None


def test_buffer_requests() -> None:
    tensor = nbx.asarray(np.arange(12, dtype=np.int32).reshape(3, 4), copy=True)
    view = memoryview(tensor)
    assert (view.format, view.shape, view.strides, view.readonly) == ("i", (3, 4), (16, 4), False)
    view[1, 1] = 99
    assert tensor.item(1, 1) == 99
    assert memoryview(tensor.T).strides == (4, 16)
    assert bytes(tensor) == tensor.numpy().tobytes()
    assert memoryview(tensor[:0]).nbytes == 0
    assert memoryview(tensor[:1].expand(5, 4)).readonly
    with pytest.raises(BufferError, match="strides, which were not asked for"):
        arrays.array("i").frombytes(tensor.T)
    with pytest.raises(BufferError, match="bfloat16 has no buffer format"):
        memoryview(tensor.to("bfloat16"))
    with pytest.raises(BufferError, match="sim:0, not in host memory"):
        memoryview(tensor.to("sim:0"))


def test_mapped_files_are_used_in_place(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(64)) * 64)
    before = nbx_mapped()
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    tensor = _core.map_buffer(mapped, "cpu")
    assert nbx_mapped() == before + 4096
    assert (tensor.dtype.name, tensor.shape, tensor.is_read_only()) == ("uint8", (4096,), True)
    assert tensor.storage().borrowed
    words = tensor[64:128].view("uint32")
    assert words.numpy().tobytes() == bytes(range(64))
    with pytest.raises(ValueError, match="read-only"):
        tensor[0] = 1
    with pytest.raises(BufferError):
        mapped.close()
    with pytest.raises((BufferError, TypeError)):
        _core.map_buffer(mapped, "cpu", writable=True)
    del tensor, words
    mapped.close()
    assert nbx_mapped() == before
    block = bytearray(8)
    writable = _core.map_buffer(block, "cpu", writable=True)
    writable[3] = 7
    assert block[3] == 7
    with pytest.raises(Exception, match="in place on sim:0"):
        _core.map_buffer(block, "sim:0")


def nbx_mapped() -> int:
    return sum(row.own for row in memory.report("cpu").rows if row.kind == "mapped")


def test_bytes_as_tensors() -> None:
    tensor = nbx.asarray(np.arange(6, dtype=np.int16).reshape(2, 3), copy=True)
    raw = _core.as_bytes(tensor)
    assert raw.numpy().tobytes() == tensor.numpy().tobytes()
    assert _core.from_bytes(raw, (3, 2), "int16").tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match="needs 10 bytes, got 12"):
        _core.from_bytes(raw, (5,), "int16")
    with pytest.raises(ValueError, match="aligned to 4"):
        _core.from_bytes(raw[2:6], (1,), "int32")
    with pytest.raises(ValueError, match="contiguous"):
        _core.as_bytes(tensor.T)


def test_cuda_description_is_for_cuda_only() -> None:
    assert not hasattr(nbx.asarray([1]), "__cuda_array_interface__")
    with pytest.raises(AttributeError, match="lives on cpu"):
        _ = nbx.asarray([1]).__cuda_array_interface__
