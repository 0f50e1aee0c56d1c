"""GGUF files against the gguf package, and files that lie."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import nbxtensor as nbx
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nbxtensor import _core, io
from nbxtensor.io._ggml import TYPES

U32, I32, F32, STRING, ARRAY, BOOL, U64 = 4, 5, 6, 8, 9, 7, 10


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def pair(key: str, code: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", code) + value


def info(name: str, extents: tuple[int, ...], code: int, offset: int) -> bytes:
    packed = struct.pack(f"<I{len(extents)}Q", len(extents), *extents)
    return text(name) + packed + struct.pack("<IQ", code, offset)


def build(
    pairs: list[bytes],
    infos: list[bytes],
    data: bytes,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    pair_count: int | None = None,
    info_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A file of parts, each of which may lie."""
    header = magic + struct.pack(
        "<IQQ",
        version,
        len(infos) if info_count is None else info_count,
        len(pairs) if pair_count is None else pair_count,
    )
    header += b"".join(pairs) + b"".join(infos)
    return header + b"\0" * (-len(header) % alignment) + data


FLOATS = np.arange(16, dtype=np.float32)
GOOD = build(
    [pair("general.architecture", STRING, text("test"))],
    [info("a", (4, 2), 0, 0), info("b", (8,), 0, 32)],
    FLOATS.tobytes(),
)


@pytest.fixture
def save(tmp_path: Path) -> Callable[[bytes], Path]:
    def save(data: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return path

    return save


def test_values_and_places(save: Callable[[bytes], Path]) -> None:
    file = io.open_gguf(save(GOOD))
    assert file.version == 3
    assert file.metadata == {"general.architecture": "test"}
    start = len(GOOD) - 64
    assert file.tensors == {
        "a": io.TensorEntry((2, 4), "F32", start, 32),
        "b": io.TensorEntry((8,), "F32", start + 32, 32),
    }
    a = file.load("a")
    assert (a.shape, a.dtype, a.device.name) == ((2, 4), nbx.float32, "cpu")
    np.testing.assert_array_equal(a.numpy(), FLOATS[:8].reshape(2, 4))
    assert list(file.load(["b"])) == ["b"]
    assert list(file.load()) == ["a", "b"]


def test_against_the_gguf_package(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "test")
    values: dict[str, Any] = {
        "u8": 200,
        "i8": -5,
        "u16": 60000,
        "i16": -30000,
        "u32": 2**32 - 1,
        "i32": -(2**31),
        "f32": 0.25,
        "u64": 2**64 - 1,
        "i64": -(2**63),
        "f64": 1e300,
    }
    adders = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "uint64", "int64")
    for name, adder in zip(values, (*adders, "float64"), strict=True):
        getattr(writer, f"add_{adder}")(name, values[name])
    writer.add_bool("bool", True)
    writer.add_string("text", "Grüße, 世界")
    writer.add_array("words", ["a", "", "ü"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("reals", [0.5, -1.5])
    arrays = {
        "f32": rng.standard_normal((3, 5)).astype(np.float32),
        "f16": rng.standard_normal((2, 3, 4)).astype(np.float16),
        "f64": rng.standard_normal(7),
        "i8": rng.integers(-128, 128, (4, 1), dtype=np.int8),
        "i16": rng.integers(-(2**15), 2**15, (9,), dtype=np.int16),
        "i32": rng.integers(-(2**31), 2**31, (2, 2, 2, 2), dtype=np.int32),
        "i64": rng.integers(-(2**63), 2**63 - 1, (3,), dtype=np.int64),
    }
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    quantised = {}
    for name, kind in (
        ("q4_1", gguf.GGMLQuantizationType.Q4_1),
        ("q8_0", gguf.GGMLQuantizationType.Q8_0),
    ):
        blocks = gguf.quants.quantize(rng.standard_normal((6, 96)).astype(np.float32), kind)
        quantised[name] = dequantize(blocks, kind)
        writer.add_tensor(name, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = io.open_gguf(path)
    fields = gguf.GGUFReader(path).fields
    for key, value in file.metadata.items():
        assert value == fields[key].contents(), key
    loaded = file.load()
    assert list(loaded) == [*arrays, *quantised]
    for name, array in arrays.items():
        assert loaded[name].dtype.name == array.dtype.name
        np.testing.assert_array_equal(loaded[name].numpy(), array)
    for name, expected in quantised.items():
        weight = loaded[name]
        assert (weight.shape, weight.format.name) == ((6, 96), name)
        np.testing.assert_array_equal(weight.dequantize().numpy(), expected)


def test_types_are_those_of_the_format() -> None:
    assert {code: (row.block, row.bytes) for code, row in TYPES.items()} == {
        int(code): sizes for code, sizes in GGML_QUANT_SIZES.items()
    }


def test_mapped_bytes_are_counted_under_the_tag(save: Callable[[bytes], Path]) -> None:
    before = _core.memory_allocated("cpu", False)
    file = io.open_gguf(save(GOOD))
    assert _core.memory_allocated("cpu", False) == before
    with nbx.memory.tag("weights/test"):
        loaded = file.load()
    assert _core.memory_allocated("cpu", False) == before + 64
    a = loaded.pop("a")
    del loaded, file
    # The mapping lives as long as a tensor of it.
    np.testing.assert_array_equal(a.numpy().ravel(), FLOATS[:8])
    assert _core.memory_allocated("cpu", False) == before + 32
    del a
    assert _core.memory_allocated("cpu", False) == before


def test_tensors_are_read_only(save: Callable[[bytes], Path]) -> None:
    path = save(GOOD)
    a = io.open_gguf(path).load("a")
    with pytest.raises(ValueError, match="read-only"):
        a.fill_(0)
    assert path.read_bytes() == GOOD


def test_copies_on_another_device(save: Callable[[bytes], Path]) -> None:
    loaded = io.open_gguf(save(GOOD)).load(device="sim:0")
    assert loaded["b"].device.name == "sim:0"
    np.testing.assert_array_equal(loaded["b"].cpu().numpy(), FLOATS[8:])


def test_a_budget_that_does_not_fit(save: Callable[[bytes], Path]) -> None:
    file = io.open_gguf(save(GOOD))
    before = _core.memory_allocated("cpu", False)
    with (
        nbx.memory.budget(before + 63, device="cpu"),
        pytest.raises(nbx.errors.OutOfMemoryError) as caught,
    ):
        file.load()
    assert caught.value.requested == 32
    del caught
    assert _core.memory_allocated("cpu", False) == before


@pytest.mark.parametrize("device", ["cuda:0", "tpu"])
def test_a_device_that_is_not_there(save: Callable[[bytes], Path], device: str) -> None:
    file = io.open_gguf(save(GOOD))
    with pytest.raises((nbx.errors.Error, ValueError), match=device.partition(":")[0]):
        file.load(device=device)


def test_unknown_names_and_types(save: Callable[[bytes], Path]) -> None:
    file = io.open_gguf(save(build([], [info("k", (256,), 12, 0)], bytes(160))))
    assert file.tensors["k"] == io.TensorEntry((256,), "Q4_K", file.tensors["k"].offset, 144)
    with pytest.raises(nbx.errors.UnsupportedError, match="'k' is of type Q4_K"):
        file.load("k")
    with pytest.raises(KeyError, match="no tensor 'missing' among its 1"):
        file.load("missing")
    file = io.open_gguf(save(build([], [info("q", (32,), 3, 0)], bytes(20))))
    with pytest.raises(nbx.errors.UnsupportedError, match="expected two axes"):
        file.load("q")


def test_empty_tensors_and_no_tensors(save: Callable[[bytes], Path]) -> None:
    empty = io.open_gguf(save(build([], [info("e", (0, 3), 0, 0)], b""))).load("e")
    assert (empty.shape, empty.size) == ((3, 0), 0)
    assert io.open_gguf(save(build([], [], b""))).tensors == {}


def nested(depth: int) -> bytes:
    inner = struct.pack("<IQ", U32, 1) + bytes(4)
    for _ in range(depth):
        inner = struct.pack("<IQ", ARRAY, 1) + inner
    return inner


A = info("a", (8,), 0, 0)
DATA = FLOATS.tobytes()[:32]
BAD = {
    "empty": (b"", "the file is empty"),
    "short": (b"GGU", "magic number at byte 0 needs 4 bytes"),
    "magic": (build([], [A], DATA, magic=b"GGML"), "no GGUF file"),
    "version": (build([], [A], DATA, version=1), "version 1; expected one of 2, 3"),
    "later version": (build([], [A], DATA, version=4), "version 4"),
    "big-endian": (build([], [A], DATA, version=3 << 24), "big-endian"),
    "many tensors": (build([], [A], DATA, info_count=2**40), f"{2**40} tensors need at least"),
    "many pairs": (build([], [A], DATA, pair_count=2**63), f"{2**63} metadata entries need"),
    "pair type": (build([pair("k", 13, bytes(8))], [A], DATA), "'k' has type code 13"),
    "pair twice": (build([pair("k", U32, bytes(4))] * 2, [A], DATA), "'k' is there twice"),
    "empty key": (build([pair("", U32, bytes(4))], [A], DATA), "a metadata key has 0 bytes"),
    "long text": (build([pair("k", STRING, struct.pack("<Q", 2**62))], [A], DATA), str(2**62)),
    "not UTF-8": (build([pair("k", STRING, text(b"\xff\xfe"))], [A], DATA), "is not UTF-8"),
    "bool": (build([pair("k", BOOL, b"\2")], [A], DATA), "bool of value 2"),
    "bools": (build([pair("k", ARRAY, struct.pack("<IQ", BOOL, 2) + b"\0\3")], [], b""), "value 3"),
    "long array": (build([pair("k", ARRAY, struct.pack("<IQ", U64, 2**61))], [A], DATA), "items"),
    "array type": (build([pair("k", ARRAY, struct.pack("<IQ", 99, 1))], [A], DATA), "code 99"),
    "long texts": (
        build([pair("k", ARRAY, struct.pack("<IQ", STRING, 2) + text("a") + b"\xff" * 8)], [], b""),
        "item 1 of metadata 'k'",
    ),
    "bad texts": (
        build([pair("k", ARRAY, struct.pack("<IQ", STRING, 1) + text(b"\xff"))], [], b""),
        "item 0 of metadata 'k' at byte",
    ),
    "nested": (build([pair("k", ARRAY, nested(5))], [A], DATA), "nests arrays"),
    "alignment": (build([pair("general.alignment", U32, struct.pack("<I", 24))], [A], DATA), "24"),
    "alignment 0": (build([pair("general.alignment", U32, bytes(4))], [A], DATA), "power of two"),
    "alignment text": (build([pair("general.alignment", STRING, text("8"))], [A], DATA), "'8'"),
    "tensor twice": (build([], [A, A], DATA), "'a': the name is there twice"),
    "no name": (build([], [info("", (8,), 0, 0)], DATA), "empty name"),
    "rank": (build([], [info("a", (1,) * 5, 0, 0)], DATA), "'a': has 5 axes"),
    "type": (build([], [info("a", (8,), 4, 0)], DATA), "'a': has type code 4, which is unknown"),
    "unaligned": (build([], [info("a", (8,), 0, 8)], DATA), "starts at byte 8"),
    "half a block": (build([], [info("a", (33, 2), 3, 0)], DATA), "rows of 33 elements; Q4_1"),
    "overflow": (build([], [info("a", (2**32, 2**32), 0, 0)], DATA), "pass 2\\^63"),
    "extent": (build([], [info("a", (2**63, 0), 0, 0)], DATA), "pass 2\\^63"),
    "offset": (build([], [info("a", (8,), 0, 2**63)], DATA), "2\\^63"),
    "truncated": (
        build([], [A], DATA[:-1]),
        "needs bytes 0..32 .* the file holds 31",
    ),
    "beyond": (build([], [A, info("b", (8,), 0, 64)], DATA), "'b': needs bytes 64..96"),
    "overlap": (
        build([], [info("a", (16,), 0, 0), info("b", (8,), 0, 32)], FLOATS.tobytes()),
        "'b': starts at byte 32 of the data, inside tensor 'a', which ends at 64",
    ),
    "gap": (
        build([], [A, info("b", (8,), 0, 64)], bytes(96)),
        "32 bytes between belong to no tensor",
    ),
    "trailing": (build([], [A], DATA + bytes(32)), "32 bytes after it belong to no tensor"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(save: Callable[[bytes], Path], name: str) -> None:
    data, expected = BAD[name]
    path = save(data)
    before = _core.memory_allocated("cpu", False)
    with pytest.raises(io.FormatError, match=expected) as caught:
        io.open_gguf(path)
    assert caught.value.path == str(path)
    assert str(path) in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert _core.memory_allocated("cpu", False) == before


def test_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        io.open_gguf(tmp_path / "none.gguf")
    with pytest.raises(OSError, match="directory"):
        io.open_gguf(tmp_path)


@pytest.mark.parametrize("length", range(0, len(GOOD) - 32))
def test_every_truncation_is_refused(save: Callable[[bytes], Path], length: int) -> None:
    with pytest.raises(io.FormatError):
        io.open_gguf(save(GOOD[:length]))


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=9)), max_size=4
    ),
    cut=st.integers(0, 40),
    extra=st.binary(max_size=40),
)
def test_damaged_files_give_our_error_or_load(
    save: Callable[[bytes], Path], edits: list[tuple[int, bytes]], cut: int, extra: bytes
) -> None:
    data = bytearray(GOOD)
    for at, new in edits:
        data[at : at + len(new)] = new[: len(data) - at]
    data = data[: len(data) - cut] + extra
    before = _core.memory_allocated("cpu", False)
    try:
        file = io.open_gguf(save(bytes(data)))
        loaded = file.load()
    except (io.FormatError, nbx.errors.UnsupportedError):
        return
    finally:
        checksum = 0
    for name, entry in file.tensors.items():
        tensor = loaded[name]
        plain = tensor.blocks if hasattr(tensor, "blocks") else tensor
        assert tensor.shape == entry.shape
        checksum = zlib.crc32(plain.contiguous().reshape((-1,)).view(nbx.uint8).numpy(), checksum)
    del file, loaded
    tensor = plain = None
    assert _core.memory_allocated("cpu", False) == before


def test_progress_counts_bytes(
    save: Callable[[bytes], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[int, int]] = []
    file = io.open_gguf(save(GOOD))
    file.load(progress=lambda done, total: seen.append((done, total)))
    assert seen == [(32, 64), (64, 64)]
    file.load()
    file.load(progress=True)
    assert capsys.readouterr() == ("", "")
    with pytest.raises(TypeError, match="progress: got 3"):
        file.load(progress=3)  # type: ignore[call-overload]
