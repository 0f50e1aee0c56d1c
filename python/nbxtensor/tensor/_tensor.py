"""The class of all tensors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from nbxtensor import _core
from nbxtensor.dtype import numpy_dtype, uint8, uint16
from nbxtensor.tensor.pickling import reduce_tensor
from nbxtensor.tensor.printing import tensor_text

# Of the array API, oldest first: the namespace satisfies each, and names the last.
API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")

# Integer types that carry the bits of types without a buffer format.
_CARRIERS = {8: uint8, 16: uint16}


class Tensor(_core.TensorBase):
    """A strided window into memory of one device.

    Metadata (shape, strides, dtype, device) never change. Views share memory; methods that end in
    an underscore write it. Made by :func:`asarray`, :func:`empty` and the other creation functions.
    """

    __slots__ = ()

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the elements as a NumPy array, without a copy where the host can read them.

        Raises
        ------
        TypeError
            If NumPy has no such type, or ml_dtypes is needed and not installed.
        """
        target = numpy_dtype(self.dtype)
        host = self.cpu()
        if target.type.__module__ == "numpy":
            return np.asarray(memoryview(host))
        carrier = host.view(_CARRIERS[self.dtype.bits])
        return np.asarray(memoryview(carrier)).view(target)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = self.numpy()
        shares = self.is_cpu
        if dtype is not None and np.dtype(dtype) != array.dtype:
            array = np.asarray(array, dtype=dtype)
            shares = False
        if copy and shares:
            return np.array(array)
        if copy is False and not shares:
            raise ValueError(
                f"__array__: {self.dtype!r} on {self.device} as {array.dtype} in NumPy needs a "
                "copy, and copy=False forbids it"
            )
        return array

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        """Return the package, the tensor's namespace of the array API.

        Raises
        ------
        ValueError
            If it does not follow the version asked for.
        """
        if api_version not in (None, *API_VERSIONS):
            raise ValueError(
                f"__array_namespace__: api_version {api_version!r} is unknown, expected one of "
                f"{', '.join(API_VERSIONS)}"
            )
        return sys.modules["nbxtensor"]

    def to_device(self, device: Any, /, *, stream: Any = None) -> Tensor:
        """Return the tensor on a device; the tensor itself where it lies there.

        Raises
        ------
        ValueError
            If a stream is given: the copy runs on the current one.
        """
        if stream is not None:
            raise ValueError(
                f"to_device: stream must be None, got {stream!r}; copy inside "
                "`with nbxtensor.stream(...)`"
            )
        moved: Tensor = self.to(device=device)
        return moved

    def __imatmul__(self, other: Any) -> Tensor:  # type: ignore[misc]
        if not isinstance(other, Tensor):
            return NotImplemented
        product = self @ other
        if product.shape != self.shape:
            raise ValueError(
                f"matmul: the result has shape {product.shape}, which cannot be written to a "
                f"tensor of shape {self.shape}"
            )
        if product.dtype is not self.dtype:
            raise TypeError(
                f"matmul: the result has dtype {product.dtype}, which cannot be written to a "
                f"tensor of {self.dtype}"
            )
        self[...] = product
        return self

    @property
    def is_cpu(self) -> bool:
        """Whether the memory is the host's."""
        return self.__dlpack_device__()[0] == 1

    @property
    def is_cuda(self) -> bool:
        """Whether the memory is that of a CUDA device."""
        return self.__dlpack_device__()[0] == 2

    def __repr__(self) -> str:
        return tensor_text(self)

    def __format__(self, specification: str) -> str:
        return (
            format(self.item(), specification)
            if self.ndim == 0
            else format(str(self), specification)
        )

    def __copy__(self) -> Tensor:
        return self.detach()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied = memo[id(self)] = self.clone()
        return copied

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return reduce_tensor(self, int(protocol))


_core.register_tensor_class(Tensor)
