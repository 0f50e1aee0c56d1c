"""Model files: GGUF and safetensors, read strictly and mapped in place."""

from __future__ import annotations

from nbxtensor.io._errors import FormatError
from nbxtensor.io.gguf import GgufFile, TensorEntry, open_gguf
from nbxtensor.io.safetensors import (
    SafetensorsEntry,
    SafetensorsFile,
    load_file,
    open_safetensors,
    save_file,
)

__all__ = [
    "FormatError",
    "GgufFile",
    "SafetensorsEntry",
    "SafetensorsFile",
    "TensorEntry",
    "load_file",
    "open_gguf",
    "open_safetensors",
    "save_file",
]
