"""What new memory is counted under, and how long it is expected to stay."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from nbxtensor import _core
from nbxtensor.errors import InvalidValueError
from nbxtensor.memory._arguments import flag, tag_path

_State = TypeVar("_State")


class _Scopes(threading.local, Generic[_State]):
    """What one thread has set, one scope in another: (owner, what was set before).

    A generator's scope may end before or after one that was begun later. What was set before it is
    then what the later one brings back.
    """

    def __init__(self, name: str, setter: Callable[[_State], _State]) -> None:
        self._name = name
        self._set = setter
        self._running: list[tuple[object, _State]] = []

    def begin(self, owner: object, state: _State) -> None:
        self._running.append((owner, self._set(state)))

    def end(self, owner: object) -> None:
        running = self._running
        for place in range(len(running) - 1, -1, -1):
            if running[place][0] is owner:
                break
        else:
            raise InvalidValueError(
                f"{self._name}: this scope ends where it was not entered; enter and leave it in "
                "one thread, best by a with statement"
            )
        former = running.pop(place)[1]
        if place < len(running):
            running[place] = (running[place][0], former)
        else:
            self._set(former)


_PATHS: _Scopes[str] = _Scopes("tag", _core.memory_set_tag)
_LASTING: _Scopes[bool] = _Scopes("steady", _core.memory_set_steady)


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
        self._path = tag_path("tag", path, "path")
        self._steady = None if steady is None else flag("tag", "steady", steady)

    def _recreate_cm(self) -> tag:
        # A decorated function may run on several threads at once.
        return tag(self._path, self._steady)

    def __enter__(self) -> tag:
        _PATHS.begin(self, self._path)
        if self._steady is not None:
            _LASTING.begin(self, self._steady)
        return self

    def __exit__(self, *error: object) -> None:
        _PATHS.end(self)
        if self._steady is not None:
            _LASTING.end(self)


class steady(contextlib.ContextDecorator):  # noqa: N801
    """Say that what this thread allocates inside the ``with`` block stays for long.

    Weights and caches then lie on few large handles of the driver's, which are cheap to make; other
    memory lies on many small ones, which can be moved to where they are wanted. Only a hint: what
    fits into memory that is held already goes there. The loaders of `nbx.io` say it themselves.
    """

    def _recreate_cm(self) -> steady:
        return steady()

    def __enter__(self) -> steady:
        _LASTING.begin(self, True)
        return self

    def __exit__(self, *error: object) -> None:
        _LASTING.end(self)
