"""The errors that nbxtensor raises; each is also the built-in class of its kind."""

from __future__ import annotations

from nbxtensor._core import (
    DeviceError,
    Error,
    FileError,
    InvalidBufferError,
    InvalidIndexError,
    InvalidTypeError,
    InvalidValueError,
    OutOfMemoryError,
    RangeError,
    UnsupportedError,
)

DeviceOOMError = OutOfMemoryError

__all__ = [
    "DeviceError",
    "DeviceOOMError",
    "Error",
    "FileError",
    "InvalidBufferError",
    "InvalidIndexError",
    "InvalidTypeError",
    "InvalidValueError",
    "OutOfMemoryError",
    "RangeError",
    "UnsupportedError",
]
