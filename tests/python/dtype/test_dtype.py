"""The dtype objects: names, codes, what they are found by, and their NumPy types."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import ml_dtypes
import nbxtensor as nbx
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from nbxtensor.dtype import DTYPES, as_dtype, numpy_dtype

WITH_NUMPY = [dtype for dtype in DTYPES if dtype.numpy]


def test_codes_are_places() -> None:
    assert [dtype.code for dtype in DTYPES] == list(range(len(DTYPES)))
    assert len({dtype.name for dtype in DTYPES}) == len(DTYPES) == 18


def test_every_type_of_the_design_is_there() -> None:
    names = {"bool", "int4", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"}
    names |= {"float8_e4m3fn", "float8_e5m2"}
    names |= {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
    assert {dtype.name for dtype in DTYPES} == names
    for name in names - {"bool"}:
        assert getattr(nbx, name) is as_dtype(name)
    assert nbx.bool is as_dtype("bool") is nbx.bool_


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_repr_and_copies_are_the_object(dtype: nbx.DType) -> None:
    assert repr(dtype) == f"nbxtensor.{dtype.name}"
    assert str(dtype) == dtype.name
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert copy.deepcopy(dtype) is dtype
    assert hash(dtype) == hash(as_dtype(dtype.name))
    with pytest.raises(AttributeError, match="shared"):
        dtype.bits = 3


@pytest.mark.parametrize("dtype", WITH_NUMPY, ids=str)
def test_numpy_type_there_and_back(dtype: nbx.DType) -> None:
    numpy = numpy_dtype(dtype)
    expected = getattr(ml_dtypes, dtype.name, None) or np.dtype(dtype.name)
    assert numpy == np.dtype(expected)
    assert numpy.itemsize == dtype.itemsize
    assert as_dtype(numpy) is dtype
    assert as_dtype(numpy.type) is dtype


def test_kinds_agree_with_numpy() -> None:
    for dtype in DTYPES:
        if dtype.numpy and not dtype.numpy.startswith("ml_dtypes"):
            assert np.dtype(dtype.numpy).kind == dtype.kind
            assert np.dtype(dtype.numpy).itemsize * 8 == dtype.bits


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("half", "float16"),
        ("float", "float32"),
        ("double", "float64"),
        ("long", "int64"),
        ("int", "int32"),
        ("short", "int16"),
        (bool, "bool"),
        (int, "int64"),
        (float, "float64"),
        (complex, "complex128"),
        (np.float32, "float32"),
        (np.dtype("<i2"), "int16"),
        (np.dtype(np.longlong), "int64"),
    ],
)
def test_other_names(given: object, name: str) -> None:
    assert as_dtype(given).name == name


@pytest.mark.parametrize("given", ["float17", np.dtype("U3"), object(), None, 3, np.dtype(object)])
def test_unknown_types_are_refused(given: object) -> None:
    with pytest.raises(TypeError, match="expected one of bool, int8"):
        as_dtype(given)


def test_the_other_byte_order_is_refused() -> None:
    swapped = np.dtype(np.int32).newbyteorder("S")
    with pytest.raises(TypeError, match="byte order"):
        as_dtype(swapped)


def test_int4_has_no_numpy_type() -> None:
    with pytest.raises(TypeError, match="int8"):
        numpy_dtype(nbx.int4)


def test_without_ml_dtypes_the_error_says_what_to_do() -> None:
    script = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "import nbxtensor as nbx\n"
        "from nbxtensor.dtype import numpy_dtype\n"
        "try: numpy_dtype(nbx.bfloat16)\n"
        "except TypeError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "nbxtensor[ml]" in done.stdout


def test_foreign_codes_are_unique_and_known() -> None:
    for dtype in DTYPES:
        if dtype.gguf >= 0:
            expected = {"bfloat16": "BF16"}.get(dtype.name, dtype.name.upper()[0] + str(dtype.bits))
            assert GGMLQuantizationType(dtype.gguf).name == expected
    for field in ("safetensors", "triton"):
        values = [getattr(dtype, field) for dtype in DTYPES if getattr(dtype, field)]
        assert len(values) == len(set(values))
    assert len({dtype.dlpack for dtype in DTYPES}) == len(DTYPES)
