"""A tensor runtime without torch."""

from __future__ import annotations

from math import e, inf, nan, pi
from typing import Any

from nbxtensor import env, errors, fft, io, linalg, memory, quant, random
from nbxtensor._core import get_num_threads, set_num_threads
from nbxtensor.dtype import *  # noqa: F403
from nbxtensor.dtype import __all__ as _dtype_names
from nbxtensor.dtype import bool_ as bool
from nbxtensor.errors import DeviceError, DeviceOOMError, Error, OutOfMemoryError, UnsupportedError
from nbxtensor.inspection import __array_namespace_info__
from nbxtensor.ops import FUNCTIONS as _FUNCTIONS
from nbxtensor.ops import fuse
from nbxtensor.quant import QuantizedTensor
from nbxtensor.runtime import (
    Device,
    Event,
    Graph,
    Stream,
    current_stream,
    default_device,
    device,
    device_info,
    devices,
    is_available,
    kernel,
    launch,
    observe_launches,
    stream,
    synchronize,
)
from nbxtensor.tensor import API_VERSIONS as _API_VERSIONS
from nbxtensor.tensor import (
    Tensor,
    asarray,
    from_dlpack,
    from_numpy,
    get_printoptions,
    printoptions,
    record_use,
    set_printoptions,
)

__version__: str

# Version of the array API that the namespace follows.
__array_api_version__ = _API_VERSIONS[-1]
# As an index: a new axis of extent 1.
newaxis = None

# Every op of the table, under its names in the namespace.
globals().update(_FUNCTIONS)

__all__ = [
    "Device",
    "DeviceError",
    "DeviceOOMError",
    "Error",
    "Event",
    "Graph",
    "OutOfMemoryError",
    "QuantizedTensor",
    "Stream",
    "Tensor",
    "UnsupportedError",
    "__array_api_version__",
    "__array_namespace_info__",
    "__version__",
    "asarray",
    "bool",
    "current_stream",
    "default_device",
    "device",
    "device_info",
    "devices",
    "e",
    "env",
    "errors",
    "fft",
    "from_dlpack",
    "from_numpy",
    "fuse",
    "get_num_threads",
    "get_printoptions",
    "inf",
    "io",
    "is_available",
    "kernel",
    "launch",
    "linalg",
    "memory",
    "nan",
    "newaxis",
    "observe_launches",
    "pi",
    "printoptions",
    "quant",
    "random",
    "record_use",
    "set_num_threads",
    "set_printoptions",
    "stream",
    "synchronize",
    *_dtype_names,
    *_FUNCTIONS,
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # Reading the installed metadata costs as much as half of the package's own import.
        from importlib.metadata import version

        return version("nbxtensor")
    raise AttributeError(f"module 'nbxtensor' has no attribute {name!r}")
