"""Limits of devices and tags, and the options of a device's heap."""

from __future__ import annotations

from typing import Any

from nbxtensor import _core
from nbxtensor.errors import InvalidValueError


class _Unset:
    def __repr__(self) -> str:
        return "unset"


_UNSET = _Unset()


class budget:  # noqa: N801
    """Limit the bytes of a device, or of one tag on it.

    The limit holds from the call on. In a ``with`` statement the former one comes back at the end.
    A limit below what is held frees nothing: nothing more is admitted until it fits.

    Parameters
    ----------
    limit : int, str or None
        Bytes, or a text such as ``"2 GiB"`` or ``"80%"`` (of the device); None for no limit.
    device : device or str, optional
        The default device if not given.
    tag : str, optional
        Limits tensors under this tag path instead of the whole device.
    soft : int, str or None, optional
        In the same forms: a limit that may be crossed, but at which reclaimers are asked.
    reserve : int or str, optional
        In place of `limit`: leaves this much of the device to others.

    Attributes
    ----------
    bytes, soft : int or None
        The limits that hold from the call on.
    former, former_soft : int or None
        Those before.

    Examples
    --------
    >>> memory.budget(reserve="2 GiB", device="cuda:0")
    >>> with memory.budget("512 MiB", tag="kv"):
    ...     serve()
    """

    def __init__(
        self,
        limit: int | str | _Unset | None = _UNSET,
        device: Any = None,
        tag: str | None = None,
        *,
        soft: int | str | _Unset | None = _UNSET,
        reserve: int | str | None = None,
    ) -> None:
        if reserve is not None:
            if limit is not _UNSET:
                raise InvalidValueError(
                    f"budget: limit is {limit!r} and reserve is {reserve!r}; give one of them"
                )
            limit = _all_but(reserve, device)
        if limit is _UNSET and soft is _UNSET:
            raise InvalidValueError("budget: no limit is given; give limit, reserve or soft")
        self._device = device
        self._tag = tag
        self._hard = limit is not _UNSET
        self._has_soft = soft is not _UNSET
        self.former: int | None = _core.memory_limit(device, tag)
        self.former_soft: int | None = _core.memory_limit(device, tag, True)
        if self._has_soft:
            _core.memory_set_limit(device, tag, soft, True)
        if self._hard:
            try:
                _core.memory_set_limit(device, tag, limit)
            except BaseException:
                if self._has_soft:
                    _core.memory_set_limit(device, tag, self.former_soft, True)
                raise
        self.bytes: int | None = _core.memory_limit(device, tag)
        self.soft: int | None = _core.memory_limit(device, tag, True)

    def __enter__(self) -> budget:
        return self

    def __exit__(self, *error: object) -> None:
        if self._hard:
            _core.memory_set_limit(self._device, self._tag, self.former)
        if self._has_soft:
            _core.memory_set_limit(self._device, self._tag, self.former_soft, True)

    def __repr__(self) -> str:
        what = "the device" if self._tag is None else repr(self._tag)
        return f"<budget of {what}: {self.bytes} bytes, soft {self.soft}>"


def _all_but(reserve: int | str, device: Any) -> int:
    total = _core.memory_info(device)[1]
    kept = _core.parse_bytes(reserve, total)
    if kept > total:
        raise InvalidValueError(
            f"budget: reserve is {reserve!r}, but the device has {_core.format_bytes(total)}; "
            "give at most that"
        )
    return total - kept


class options:  # noqa: N801
    """Read the options of a device's heap, or change those that are given.

    A change holds from the call on. In a ``with`` statement the former ones come back at the end.

    Parameters
    ----------
    device : device or str, optional
        The default device if not given.
    slack : float, optional
        Share of the peak of live bytes, from 0 to 1, that may be held beyond it before free pages
        are moved to where they are wanted: memory against the work of moving. ``NBX_MEMORY_SLACK``
        sets the first one.
    reuse_ordered : bool, optional
        Whether a block that one stream freed serves another that waits for the first one already.
    reuse_waits : bool, optional
        Whether such a wait is inserted instead of asking the driver for memory.

    Attributes
    ----------
    slack, reuse_ordered, reuse_waits
        What holds from the call on.
    """

    def __init__(
        self,
        device: Any = None,
        *,
        slack: float | None = None,
        reuse_ordered: bool | None = None,
        reuse_waits: bool | None = None,
    ) -> None:
        if slack is not None and (isinstance(slack, bool) or not isinstance(slack, (int, float))):
            raise TypeError(f"options: slack is {slack!r}; give a number from 0 to 1")
        for name, value in (("reuse_ordered", reuse_ordered), ("reuse_waits", reuse_waits)):
            if value is not None and not isinstance(value, bool):
                raise TypeError(f"options: {name} is {value!r}; give True or False")
        self._device = device
        self._former = _core.memory_options(device)
        given = {"slack": slack, "reuse_ordered": reuse_ordered, "reuse_waits": reuse_waits}
        given = {name: value for name, value in given.items() if value is not None}
        if given:
            _core.memory_set_options(device, **{**self._former, **given})
        now = _core.memory_options(device)
        self._changes = bool(given)
        self.slack: float = now["slack"]
        self.reuse_ordered: bool = now["reuse_ordered"]
        self.reuse_waits: bool = now["reuse_waits"]

    def __enter__(self) -> options:
        return self

    def __exit__(self, *error: object) -> None:
        if self._changes:
            _core.memory_set_options(self._device, **self._former)

    def __repr__(self) -> str:
        return (
            f"<options: slack {self.slack}, reuse_ordered {self.reuse_ordered}, "
            f"reuse_waits {self.reuse_waits}>"
        )
