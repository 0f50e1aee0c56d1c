"""Recordings: every allocation of a stretch of a program."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from io import BufferedRandom
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from nbxtensor import _core
from nbxtensor.errors import FileError, InvalidValueError
from nbxtensor.memory._arguments import text as text_of
from nbxtensor.memory._arguments import whole
from nbxtensor.memory.trace import _events
from nbxtensor.memory.trace._events import Batch, Held, Words
from nbxtensor.memory.trace._formats import format_of_name, write
from nbxtensor.memory.trace._state import Snapshot
from nbxtensor.memory.trace._trace import Trace

_UNBOUNDED = 2**62
_DEVICE = re.compile(r"cpu|(?:cuda|hip|metal|sim):\d+", re.ASCII)
_PERIOD = 0.05  # seconds between two looks at what filled up


class record:  # noqa: N801
    """Record every allocation and free while a ``with`` statement runs.

    Nothing is missed: each thread hands its events over before they are overwritten.

    Parameters
    ----------
    path : str or Path, optional
        Where the trace is written at the end; the ending tells the format (`memory.trace.FORMATS`),
        .gz packs it. Meanwhile a file beside it holds the events, so that memory does not grow.
    device : device or str, optional
        Whose events; of the device with the most, if not given.
    limit : int, optional
        The most events that are held in memory; further ones are counted as missing.

    Attributes
    ----------
    trace : Trace
        After the end.

    Examples
    --------
    >>> with nbx.memory.record("run.tsv.gz") as recording:
    ...     model(batch)
    >>> recording.trace.peak()
    """

    def __init__(
        self, path: str | Path | None = None, device: Any = None, limit: int | None = None
    ) -> None:
        if limit is not None:
            limit = whole("record", "limit", limit, 1, _UNBOUNDED, "events")
        if path is not None:
            format_of_name(Path(path).name)
        self._path = None if path is None else Path(path)
        self._device = None if device is None else str(device)
        self._limit = limit
        self._batches: list[Batch] = []
        self._spool: _Spool | None = None
        self._recording: Any = None
        self._trace: Trace | None = None

    @property
    def trace(self) -> Trace:
        """Return what was recorded, once it has ended."""
        if self._trace is None:
            raise InvalidValueError("record: the trace is there when the with statement has ended")
        return self._trace

    def start(self) -> None:
        """Begin; the ``with`` statement does so."""
        if self._recording is not None:
            raise InvalidValueError("record: this recording was started before; make another")
        spool = None if self._path is None else _opened(self._path)
        self._recording = _core.Recording(_UNBOUNDED if self._limit is None else self._limit)
        if spool is not None:
            self._spool = _Spool(self._recording, *spool)

    def stop(self) -> Trace:
        """End, write the file if there is to be one, and return the trace."""
        if self._recording is None or self._trace is not None:
            return self.trace
        if self._spool is not None:
            self._batches.append(self._spool.finish())
        # Before the end: what is allocated in between has an event.
        held = {name: _held_on(name) for name in _devices(self._device)}
        self._batches.append(self._recording.stop())
        self._trace = trace_of(self._batches, self._device, held)
        self._batches = []
        if self._path is not None:
            write(self._trace, self._path)
        return self._trace

    def __enter__(self) -> record:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _opened(path: Path) -> tuple[Path, BufferedRandom]:
    """Return the file beside a trace that holds its events meanwhile."""
    beside = path.with_name(path.name + ".events")
    try:
        return beside, beside.open("w+b")
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from error


class _Spool:
    """Moves events to a file while a recording runs."""

    def __init__(self, recording: Any, path: Path, file: BufferedRandom) -> None:
        self._recording = recording
        self._path = path
        self._file = file
        self._missing = 0
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nbxtensor recorder", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ended.wait(_PERIOD):
                self._keep(self._recording.take())
        except OSError as error:  # raised where the recording ends
            self._error = error

    def _keep(self, batch: Batch) -> None:
        words, threads, missing = batch
        self._missing += missing
        if len(words):
            np.column_stack([words, threads]).tofile(self._file)

    def finish(self) -> Batch:
        """End the thread, remove the file and return what it held."""
        self._ended.set()
        self._thread.join()
        try:
            if self._error is not None:
                raise self._error
            self._file.seek(0)
            table = np.fromfile(self._file, np.uint64).reshape(-1, 5)
        finally:
            self._file.close()
            self._path.unlink()
        words: Words = np.ascontiguousarray(table[:, :4])
        return words, table[:, 4].copy(), self._missing


def _devices(device: str | None) -> list[str]:
    """Return the devices whose live blocks may be asked for: the one, or all that have a heap."""
    if device is not None:
        return [device]
    names = {_core.recorder_heap_name(heap) for heap in range(1, 255)}
    return sorted(name for name in names if _DEVICE.fullmatch(name))


def _held_on(device: str) -> list[Held]:
    return list(Snapshot(device, history=False).held())


def trace_of(batches: list[Batch], device: str | None, held: Mapping[str, Sequence[Held]]) -> Trace:
    """Return the events of one device, or of the busiest, as a trace.

    Parameters
    ----------
    batches
        What the recorder gave, in order.
    device
        Its name.
    held
        Live blocks by device, for those that were allocated before.
    """
    words, threads, missing = _events.joined(batches)
    events = _events.unpack(words, threads)
    if device is None:
        names = [name for name in _events.devices_of(events) if name in held]
        device = names[0] if names else ""
    return _events.build(events, device, missing, held.get(device, ()))


def events(device: Any = None) -> Trace:
    """Return what the recorder's rings hold: the last events of every thread.

    Older events are overwritten; how many are, and how many frees are of blocks that were
    allocated before, is the trace's `missing`.

    Parameters
    ----------
    device : device or str, optional
        Whose; of the device with the most, if not given.
    """
    name = None if device is None else str(device)
    held = {one: _held_on(one) for one in _devices(name)}
    return trace_of([_core.recorder_events()], name, held)


def set_events(count: int) -> int:
    """Set how many events each thread keeps from now on, 0 for none; return the former number."""
    number = whole("set_events", "count", count, what="events")
    return int(_core.recorder_set_events(number))


def set_origins(frames: int) -> int:
    """Set how many Python frames are kept of every allocation; return the former number."""
    number = whole("set_origins", "frames", frames, what="frames")
    return int(_core.recorder_set_origins(number))


def mark(text: str) -> None:
    """Note a point in time under a name."""
    name = text_of("mark", "text", text, "such as 'prefill done'")
    _core.recorder_note(_events.ACTIONS["mark"], origin=_core.recorder_intern(name))


def annotate(address: int, text: str) -> None:
    """Attach a text to the block at an address; what was attached before stays."""
    place = whole("note", "address", address, what="as the address")
    note = text_of("note", "text", text, "such as 'cache of layer 3'")
    _core.recorder_note(
        _events.ACTIONS["annotate"], address=place, origin=_core.recorder_intern(note)
    )
