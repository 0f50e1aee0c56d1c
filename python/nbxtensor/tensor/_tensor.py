"""The class of all tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbxtensor import _core
from nbxtensor.dtype import numpy_dtype, uint8, uint16
from nbxtensor.tensor.pickling import reduce_tensor
from nbxtensor.tensor.printing import tensor_text

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
