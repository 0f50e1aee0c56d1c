"""What new memory is counted under, and how long it is expected to stay."""

from __future__ import annotations

import contextlib
import threading

from nbxtensor import _core


class tag(contextlib.ContextDecorator):  # noqa: N801
    """Count what this thread allocates inside the ``with`` block under a name.

    Also a decorator. The path is absolute: an inner tag takes the place of the outer one.

    Parameters
    ----------
    path : str
        Names joined by single slashes, such as ``"weights/layer.3"``; ``""`` for no tag.
    steady : bool, optional
        Whether the memory stays for long, as in `steady`; as outside the block if not given.

    Examples
    --------
    >>> with memory.tag("kv"):
    ...     cache = nbx.zeros((8, 1024, 64))
    """

    def __init__(self, path: str, steady: bool | None = None) -> None:
        if not isinstance(path, str):
            raise TypeError(f"tag: got {path!r}; give a path as text, such as 'weights/layer.3'")
        if steady is not None and not isinstance(steady, bool):
            raise TypeError(f"tag: steady is {steady!r}; give True, False or None")
        self._path = path
        self._steady = steady
        # By thread: one object may be entered on several at once.
        self._former: dict[int, list[tuple[str, bool | None]]] = {}

    def _recreate_cm(self) -> tag:
        # A decorated function may run on several threads at once.
        return tag(self._path, self._steady)

    def __enter__(self) -> tag:
        path = _core.memory_set_tag(self._path)
        lasting = None if self._steady is None else _core.memory_set_steady(self._steady)
        self._former.setdefault(threading.get_ident(), []).append((path, lasting))
        return self

    def __exit__(self, *error: object) -> None:
        thread = threading.get_ident()
        path, lasting = self._former[thread].pop()
        if not self._former[thread]:
            del self._former[thread]
        _core.memory_set_tag(path)
        if lasting is not None:
            _core.memory_set_steady(lasting)


class steady(contextlib.ContextDecorator):  # noqa: N801
    """Say that what this thread allocates inside the ``with`` block stays for long.

    Weights and caches then lie on few large handles of the driver's, which are cheap to make; other
    memory lies on many small ones, which can be moved to where they are wanted. Only a hint: what
    fits into memory that is held already goes there. The loaders of `nbx.io` say it themselves.
    """

    def __init__(self) -> None:
        self._former: dict[int, list[bool]] = {}

    def _recreate_cm(self) -> steady:
        return steady()

    def __enter__(self) -> steady:
        former = _core.memory_set_steady(True)
        self._former.setdefault(threading.get_ident(), []).append(former)
        return self

    def __exit__(self, *error: object) -> None:
        thread = threading.get_ident()
        former = self._former[thread].pop()
        if not self._former[thread]:
            del self._former[thread]
        _core.memory_set_steady(former)
