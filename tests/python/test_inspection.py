"""What the namespace says about itself."""

from __future__ import annotations

import math

import nbxtensor as nbx
import pytest


def test_constants_and_version() -> None:
    assert (nbx.e, nbx.pi, nbx.inf) == (math.e, math.pi, math.inf)
    assert math.isnan(nbx.nan)
    assert nbx.newaxis is None
    assert nbx.__array_api_version__ == "2024.12"


def test_devices_and_capabilities() -> None:
    info = nbx.__array_namespace_info__()
    assert info.devices() == nbx.devices()
    assert info.default_device() == nbx.default_device()
    told = info.capabilities()
    assert told["boolean indexing"] is True
    assert told["data-dependent shapes"] is True
    most = told["max dimensions"]
    assert nbx.zeros((1,) * most).ndim == most
    with pytest.raises(ValueError, match=f"at most {most} axes"):
        nbx.zeros((1,) * (most + 1))


def test_dtypes() -> None:
    info = nbx.__array_namespace_info__()
    assert info.default_dtypes() == {
        "real floating": nbx.zeros(1).dtype,
        "complex floating": nbx.asarray(1j).dtype,
        "integral": nbx.asarray(1).dtype,
        "indexing": nbx.argsort(nbx.zeros(1)).dtype,
    }
    assert len(info.dtypes()) == 13
    for name, dtype in info.dtypes().items():
        assert getattr(nbx, name) is dtype
    assert info.dtypes(kind="bool") == {"bool": nbx.bool}
    assert set(info.dtypes(kind=("real floating", "signed integer"))) == {
        "float32",
        "float64",
        "int8",
        "int16",
        "int32",
        "int64",
    }
    with pytest.raises(ValueError, match="kind 'odd' is unknown"):
        info.dtypes(kind="odd")
