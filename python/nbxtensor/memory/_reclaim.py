"""Who is asked for memory before a request is refused, and what libraries hold."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

from nbxtensor import _core
from nbxtensor.errors import InvalidTypeError, InvalidValueError
from nbxtensor.memory._arguments import real, shown, tag_path, text


class reclaimer:  # noqa: N801
    """Ask a function for memory before a request is refused.

    The function is called with the bytes that are missing, frees what it can spare, and returns the
    bytes that it freed; None means that it does not know, and the request is tried again. Functions
    are asked in order of cost, each only if those before it did not free enough. It may allocate,
    and must not wait for other threads that do; several threads may call it at once. An exception
    in it is logged and counts as 0 bytes: it never takes the place of the refusal.

    When an allocation takes a tag above its soft limit (see `budget`), the functions of that tag,
    and of tags below it, are asked for the bytes above it, once the allocation is done. They are
    asked again the next time that it goes above. Functions without a tag are asked so for the
    soft limit of the device.

    It is asked until it is closed. A method is held weakly: it leaves with its object.

    Parameters
    ----------
    function : callable
        ``function(bytes: int) -> int | None``.
    cost : float
        What using the memory costs the program, in whatever unit: small is asked first.
    device : device or str, optional
        The device whose requests are meant, page-locked memory of it included; the default device
        if not given.
    tag : str, optional
        Path of the tag whose memory it frees: before a refusal it is asked ahead of others while
        that tag is above its soft limit.

    Examples
    --------
    >>> def drop(bytes):
    ...     return cache.evict(bytes)
    >>> with memory.reclaimer(drop, cost=2.0, device="cuda:0"):
    ...     serve()
    """

    def __init__(
        self,
        function: Callable[[int], int | None],
        cost: float = 1.0,
        device: Any = None,
        tag: str | None = None,
    ) -> None:
        if not callable(function):
            raise InvalidTypeError(
                f"reclaimer: got {shown(function)}; give a function of the bytes"
            )
        price = real("reclaimer", "cost", cost, "a number at least 0")
        if tag is not None:
            tag_path("reclaimer", tag)
        self._key: int | None = None
        if isinstance(function, MethodType):
            # The registration knows the object by the weak reference only.
            keys: list[int] = []
            method = weakref.WeakMethod(function, lambda _: _close_all(keys))
            call = _guarded(lambda missing: _call_weakly(method, missing))
            keys.append(_core.memory_add_reclaimer(device, price, call, tag))
            self._key = keys[0]
        else:
            call = _guarded(function)
            self._key = _core.memory_add_reclaimer(device, price, call, tag)

    def close(self) -> None:
        """Ask it no more; without effect the second time."""
        if self._key is not None:
            _core.memory_remove_reclaimer(self._key)
            self._key = None

    def __enter__(self) -> reclaimer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _close_all(keys: list[int]) -> None:
    for key in keys:
        _core.memory_remove_reclaimer(key)


def _call_weakly(method: weakref.WeakMethod[Any], missing: int) -> int | None:
    function = method()
    return 0 if function is None else function(missing)


def _guarded(function: Callable[[int], int | None]) -> Callable[[int], int]:
    """Turn errors into log lines: they must not hide the refusal."""

    def call(missing: int) -> int:
        try:
            freed = function(missing)
            if freed is None:
                return 1  # unknown: worth another try
            if isinstance(freed, bool) or not isinstance(freed, int) or freed < 0:
                raise TypeError(f"returned {freed!r}; return the bytes that it freed, or None")
            return min(freed, 2**63 - 1)
        except Exception as error:
            name = getattr(function, "__qualname__", repr(function))
            _core.log("error", f"reclaimer: {name}: {type(error).__name__}: {error}")
            return 0

    return call


class external:  # noqa: N801
    """Count memory that a library holds on a device outside of this one's heap.

    It is shown by name in the report and counted in the device's budget, from the call until
    `close` or the end of the ``with`` block.

    Parameters
    ----------
    name : str
        Such as ``"nccl"``, or a path as of a tag.
    bytes : int or str
        What the library holds, such as ``"512 MiB"``.
    device : device or str, optional
        The default device if not given.

    Raises
    ------
    OutOfMemoryError
        If a budget has no room for it; nothing is counted then.
    """

    def __init__(self, name: str, bytes: int | str, device: Any = None) -> None:
        self._name = text("external", "name", name, "such as 'nccl'")
        if not name:
            raise InvalidValueError("external: name is ''; give a text such as 'nccl'")
        self._core = _core.External(device, name, _core.parse_bytes(bytes))

    @property
    def bytes(self) -> int:
        """What it holds now; 0 once a later epoch of the device began."""
        return self._core.bytes

    def resize(self, bytes: int | str) -> None:
        """Set what the library holds now; as before if a budget refuses.

        A reclaimer that is asked meanwhile may resize it as well: what it takes off stays off.
        """
        self._core.resize(_core.parse_bytes(bytes))

    def close(self) -> None:
        """Count it no more."""
        self._core.resize(0)

    def __enter__(self) -> external:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<external {self._name!r}: {self.bytes} bytes>"
