"""Limits of devices and tags, and the options of a device's heap."""

from __future__ import annotations

import threading
from typing import Any

from nbxtensor import _core
from nbxtensor.errors import InvalidValueError
from nbxtensor.memory._arguments import flag, real, tag_path


class _Unset:
    def __repr__(self) -> str:
        return "unset"


_UNSET = _Unset()

# The scopes that run, by device and tag, in the order of their beginning.
_RUNNING: dict[tuple[str, str | None], list[budget]] = {}
_LOCK = threading.Lock()


class budget:  # noqa: N801
    """Limit the bytes of a device, or of one tag on it.

    The limit holds from the call on. In a ``with`` statement the former one comes back at the end;
    where scopes overlap, as those of two threads do, the one that was entered last holds, and the
    last to end brings back what was before them all. A limit below what is held frees nothing:
    nothing more is admitted until it fits.

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
        if tag is not None:
            tag_path("budget", tag)
        # The same device at both ends, also if another becomes the default.
        self._device = device = _core.device(device)
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
        with _LOCK:
            _RUNNING.setdefault((self._device.name, self._tag), []).append(self)
        return self

    def __exit__(self, *error: object) -> None:
        with _LOCK:
            later = self._leave()
            if self._hard:
                heir = next((other for other in later if other._hard), None)
                if heir is None:
                    _core.memory_set_limit(self._device, self._tag, self.former)
                else:
                    heir.former = self.former
            if self._has_soft:
                heir = next((other for other in later if other._has_soft), None)
                if heir is None:
                    _core.memory_set_limit(self._device, self._tag, self.former_soft, True)
                else:
                    heir.former_soft = self.former_soft

    def _leave(self) -> list[budget]:
        """Return the scopes of the same account that were entered later and run on.

        They end later too, in another thread maybe: their limits hold until then.
        """
        key = (self._device.name, self._tag)
        running = _RUNNING.get(key, [])
        if self not in running:
            return []
        place = len(running) - 1 - running[::-1].index(self)
        later = running[place + 1 :]
        del running[place]
        if not running:
            del _RUNNING[key]
        return later

    def __repr__(self) -> str:
        what = "the device" if self._tag is None else repr(self._tag)
        return f"<budget of {what}: {self.bytes} bytes, soft {self.soft}>"


def _all_but(reserve: int | str, device: Any) -> int:
    total = _core.device(device).memory_info()[1]
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
        if slack is not None:
            slack = real("options", "slack", slack, "a number from 0 to 1")
        for name, value in (("reuse_ordered", reuse_ordered), ("reuse_waits", reuse_waits)):
            if value is not None:
                flag("options", name, value)
        self._device = device = _core.device(device)
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
