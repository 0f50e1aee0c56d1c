"""Pickling: contiguous host bytes, out of band where the protocol allows."""

from __future__ import annotations

import pickle
from typing import Any

from nbxtensor import _core


def reduce_tensor(tensor: Any, protocol: int) -> tuple[Any, ...]:
    """Return what pickle needs to make an equal tensor on the device of the same name."""
    raw = memoryview(_core.as_bytes(tensor.cpu().contiguous()))
    data = pickle.PickleBuffer(raw) if protocol >= 5 else raw.tobytes()
    return rebuild_tensor, (data, tensor.shape, tensor.dtype, str(tensor.device))


def rebuild_tensor(data: Any, shape: tuple[int, ...], dtype: Any, device: str) -> Any:
    """Make a tensor from pickled bytes; a buffer passed out of band is used in place."""
    view = memoryview(data)
    raw = _core.map_buffer(view, "cpu", writable=not view.readonly)
    if isinstance(data, (bytes, bytearray)) or view.readonly or raw.data_ptr() % 16:
        raw = raw.clone()
    return _core.from_bytes(raw, shape, dtype).to(device=device)
