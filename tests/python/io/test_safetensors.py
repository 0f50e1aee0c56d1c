"""Safetensors files against the safetensors package, and files that lie."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import nbxtensor as nbx
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nbxtensor import _core, io
from nbxtensor.dtype import as_dtype


def build(header: Any, data: bytes, length: int | None = None) -> bytes:
    packed = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(packed) if length is None else length).to_bytes(8, "little") + packed + data


def entry(shape: list[Any], begin: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


FLOATS = np.arange(8, dtype=np.float32)
HEADER = {"__metadata__": {"k": "v"}, "a": entry([2, 2], 0, 16), "b": entry([4], 16, 32)}
GOOD = build(HEADER, FLOATS.tobytes())


@pytest.fixture
def save(tmp_path: Path) -> Callable[[bytes], Path]:
    def save(data: bytes) -> Path:
        path = tmp_path / "model.safetensors"
        path.write_bytes(data)
        return path

    return save


def arrays(rng: np.random.Generator) -> dict[str, np.ndarray[Any, Any]]:
    found: dict[str, np.ndarray[Any, Any]] = {
        "scalar": np.array(3.5, np.float32),
        "empty": np.zeros((0, 3), np.int16),
        "bool": rng.random((3, 3)) < 0.5,
        "bf16": rng.standard_normal((5, 3)).astype(ml_dtypes.bfloat16),
        "c64": (rng.standard_normal(3) + 1j * rng.standard_normal(3)).astype(np.complex64),
    }
    for name in ("float16", "float32", "float64"):
        found[name] = rng.standard_normal((2, 3, 4)).astype(name)
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        limits = np.iinfo(name)
        found[name] = rng.integers(limits.min, limits.max, (7,), dtype=name, endpoint=True)
    return found


def test_reads_what_the_package_writes(tmp_path: Path, rng: np.random.Generator) -> None:
    expected = {name: a for name, a in arrays(rng).items() if name != "c64"}
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(expected, path, metadata={"made": "here"})
    file = io.open_safetensors(path)
    assert file.metadata == {"made": "here"}
    loaded = file.load()
    assert set(loaded) == set(expected)
    for name, array in expected.items():
        assert loaded[name].dtype is as_dtype(array.dtype)
        np.testing.assert_array_equal(loaded[name].numpy(), array, err_msg=name)


def test_the_package_reads_what_we_write(tmp_path: Path, rng: np.random.Generator) -> None:
    expected = arrays(rng)
    path = tmp_path / "model.safetensors"
    tensors = {name: nbx.from_numpy(array) for name, array in expected.items()}
    tensors["turned"] = tensors["float32"].permute(2, 0, 1)[::-1]
    io.save_file(tensors, path, {"made": "here"})
    assert list(tmp_path.iterdir()) == [path]
    own = io.load_file(path)
    for name, array in expected.items():
        np.testing.assert_array_equal(own[name].numpy(), array, err_msg=name)
    del tensors["c64"]
    io.save_file(tensors, path, {"made": "here"})
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"made": "here"}
        assert set(file.keys()) == set(tensors)
        for name in tensors:
            got = file.get_tensor(name)
            wanted = expected["float32"].transpose(2, 0, 1)[::-1] if name == "turned" else None
            np.testing.assert_array_equal(got, expected[name] if wanted is None else wanted)


def test_float8_and_their_bits(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    bits = np.arange(256, dtype=np.uint8)
    tensors = {
        name: nbx.from_numpy(bits).view(dtype)
        for name, dtype in (("e4", nbx.float8_e4m3fn), ("e5", nbx.float8_e5m2))
    }
    io.save_file(tensors, path)
    loaded = io.load_file(path)
    for name, tensor in tensors.items():
        assert loaded[name].dtype is tensor.dtype
        np.testing.assert_array_equal(loaded[name].view(nbx.uint8).numpy(), bits)


def test_a_device_of_its_own_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    io.save_file({"x": nbx.from_numpy(FLOATS).to("sim:0")}, path)
    loaded = io.load_file(path, device="sim:1")["x"]
    assert loaded.device.name == "sim:1"
    np.testing.assert_array_equal(loaded.cpu().numpy(), FLOATS)


def test_misaligned_tensors_are_copied(save: Callable[[bytes], Path]) -> None:
    header = {"one": entry([1], 0, 1, "U8"), "a": entry([2], 1, 9)}
    loaded = io.load_file(save(build(header, b"\7" + FLOATS[:2].tobytes())))
    np.testing.assert_array_equal(loaded["a"].numpy(), FLOATS[:2])
    assert loaded["one"].item() == 7


def test_the_account_returns(save: Callable[[bytes], Path]) -> None:
    before = _core.memory_allocated("cpu", False)
    loaded = io.load_file(save(GOOD))
    assert _core.memory_allocated("cpu", False) == before + 32
    del loaded
    assert _core.memory_allocated("cpu", False) == before


def test_what_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(GOOD)
    with pytest.raises(nbx.errors.UnsupportedError, match="tensors\\['x'\\]: the format has no"):
        io.save_file({"x": nbx.zeros(2, dtype=nbx.complex128)}, path)
    with pytest.raises(TypeError, match="expected a Tensor, got ndarray"):
        io.save_file({"x": FLOATS}, path)  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="reserved"):
        io.save_file({"__metadata__": nbx.zeros(2)}, path)
    with pytest.raises(TypeError, match="metadata"):
        io.save_file({}, path, {"k": 1})  # type: ignore[dict-item]
    with pytest.raises(FileNotFoundError):
        io.save_file({}, tmp_path / "none" / "x")
    assert path.read_bytes() == GOOD
    assert list(tmp_path.iterdir()) == [path]


D = FLOATS[:4].tobytes()
BAD = {
    "empty": (b"", "the file is empty"),
    "short": (b"1234567", "has 7 bytes"),
    "long header": (build({"a": entry([4], 0, 16)}, D, length=2**40), str(2**40)),
    "huge header": (build({}, b"", length=100_000_001), "100000001"),
    "not JSON": (build(b"{'a'}", D), "not valid JSON"),
    "deep": (build(b"{" + b'"a":[' * 100000, D), "not valid JSON"),
    "not UTF-8": (build(b'{"\xff": 1}', D), "not valid JSON"),
    "a list": (build([], D), "not a JSON object"),
    "leading space": (build(b" {}", b""), "starts with '{'"),
    "a key twice": (build(b'{"a": 1, "a": 2}', D), "'a' is there twice"),
    "metadata": (build({"__metadata__": {"k": 1}}, b""), "dictionary of strings"),
    "fields": (build({"a": {"dtype": "F32", "shape": [4]}}, D), "has the fields"),
    "more fields": (build({"a": entry([4], 0, 16) | {"x": 1}}, D), "has the fields"),
    "no fields": (build({"a": 3}, D), "has the fields int"),
    "dtype": (build({"a": entry([4], 0, 16, "F33")}, D), "has dtype 'F33'"),
    "dtype list": (build({"a": entry([4], 0, 16, ["F32"])}, D), "has dtype"),
    "negative": (build({"a": entry([-4], 0, 16)}, D), "has shape"),
    "axes": (build({"a": entry([1] * 65, 0, 4)}, D[:4]), "65 axes; at most 64"),
    "many axes": (build({"a": entry([2] * 1_000_000, 0, 4)}, D[:4]), "1000000 axes"),
    "keys twice": (
        build(b"{" + b",".join(b'"%d":1' % (i % 99_999) for i in range(100_000)) + b"}", D),
        "the key '0' is there twice",
    ),
    "real extent": (build({"a": entry([4.0], 0, 16)}, D), "has shape"),
    "true extent": (build({"a": entry([True, 4], 0, 16)}, D), "has shape"),
    "huge extent": (build({"a": entry([2**64], 0, 16)}, D), "has shape"),
    "overflow": (build({"a": entry([2**62, 2**62], 0, 16)}, D), "needs"),
    "backwards": (build({"a": entry([4], 16, 0)}, D), "begin <= end"),
    "one offset": (build({"a": entry([4], 0, 16) | {"data_offsets": [0]}}, D), "data_offsets"),
    "text offset": (build({"a": entry([4], "0", 16)}, D), "data_offsets"),
    "size": (build({"a": entry([3], 0, 16)}, D), "needs 12"),
    "truncated": (build({"a": entry([4], 0, 16)}, D[:-1]), "the file holds 15"),
    "trailing": (build({"a": entry([4], 0, 16)}, D + b"x"), "1 bytes after it belong to no"),
    "late start": (build({"a": entry([3], 4, 16)}, D), "but the header ends at 0"),
    "gap": (build({"a": entry([1], 0, 4), "b": entry([2], 8, 16)}, D), "4 bytes between"),
    "overlap": (build({"a": entry([3], 0, 12), "b": entry([2], 8, 16)}, D), "inside tensor 'a'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(save: Callable[[bytes], Path], name: str) -> None:
    data, expected = BAD[name]
    path = save(data)
    before = _core.memory_allocated("cpu", False)
    with pytest.raises(io.FormatError, match=expected) as caught:
        io.open_safetensors(path)
    assert str(path) in str(caught.value)
    assert _core.memory_allocated("cpu", False) == before


def test_texts_of_errors_stay_short(save: Callable[[bytes], Path]) -> None:
    for fields in ({"a" * 10**6: entry([3], 0, 16)}, {"a": entry([4], 0, 16, "F" * 10**6)}):
        with pytest.raises(io.FormatError, match=r"needs 12|dtype 'FFF.*C64") as caught:
            io.open_safetensors(save(build(fields, D)))
        assert len(str(caught.value)) < 1500


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(GOOD) - 33), st.binary(min_size=1, max_size=3)), max_size=3
    ),
    cut=st.integers(0, 40),
    extra=st.binary(max_size=8),
)
def test_damaged_files_give_our_error_or_load(
    save: Callable[[bytes], Path], edits: list[tuple[int, bytes]], cut: int, extra: bytes
) -> None:
    data = bytearray(GOOD)
    for at, new in edits:
        data[at : at + len(new)] = new
    path = save(bytes(data[: len(data) - cut] + extra))
    before = _core.memory_allocated("cpu", False)
    try:
        loaded = io.load_file(path)
    except io.FormatError:
        assert _core.memory_allocated("cpu", False) == before
        return
    # What we accept, the format's own library accepts, and reads alike.
    expected = safetensors.numpy.load_file(path)
    assert set(loaded) == set(expected)
    for name, array in expected.items():
        assert loaded[name].contiguous().view(nbx.uint8).numpy().tobytes() == array.tobytes()
