"""Kernels under ``triton.autotune``: candidates timed with our events, the choice kept."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Mapping
from typing import Any

from nbxtensor._core import Event, current_stream
from nbxtensor.errors import DeviceError, Error, InvalidTypeError, InvalidValueError

__all__ = ["tuned"]

LAUNCHES = 7  # of each candidate, after one that compiles it; the median counts

Launcher = Callable[[Any, Any, tuple[Any, ...], Mapping[str, Any]], None]

_lock = threading.RLock()
_chosen: dict[tuple[int, tuple[Any, ...]], tuple[Any, Any]] = {}


def _key(tuner: Any, known: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return Triton's key of a call, and the devices of its tensors."""
    of_kernel = {name: value for name, value in known.items() if name in tuner.arg_names}
    key = [of_kernel[name] for name in tuner.keys if name in of_kernel]
    key += [str(value.dtype) for value in of_kernel.values() if hasattr(value, "dtype")]
    key += [str(value.device) for value in of_kernel.values() if hasattr(value, "device")]
    return tuple(key)


def _device(known: Mapping[str, Any]) -> Any:
    for value in known.values():
        if hasattr(value, "device") and hasattr(value, "dtype"):
            return str(value.device)
    return None


class _Trial:
    """One call that is repeated with candidates, and leaves its tensors as they were."""

    def __init__(
        self,
        tuner: Any,
        grid: Any,
        arguments: tuple[Any, ...],
        meta: Mapping[str, Any],
        launch: Launcher,
    ) -> None:
        self.tuner = tuner
        self.grid = grid
        self.arguments = arguments
        self.meta = dict(meta)
        self.launch = launch
        self.named = dict(zip(tuner.arg_names, arguments, strict=False))

    def _once(self, config: Any, events: tuple[Event, Event] | None) -> None:
        current = {**self.meta, **config.all_kwargs()}
        everything = {**self.named, **current}
        if config.pre_hook is not None:
            config.pre_hook(everything)
        self.tuner.pre_hook(everything)
        failure: Exception | None = None
        try:
            if events is not None:
                events[0].record()
            self.launch(self.tuner.fn, self.grid, self.arguments, current)
            if events is not None:
                events[1].record()
        except Exception as error:
            failure = error
            raise
        finally:
            self.tuner.post_hook(everything, exception=failure)

    def seconds(self, config: Any, device: Any) -> float:
        """Return how long a candidate takes; infinity for one that cannot run."""
        conflicts = self.meta.keys() & config.kwargs.keys()
        if conflicts:
            raise InvalidTypeError(
                f"launch: {', '.join(sorted(conflicts))} are given by the call and by the "
                "autotuner; leave them out of the call"
            )
        self._once(config, None)
        times = []
        for _ in range(LAUNCHES):
            events = Event(device, timing=True), Event(device, timing=True)
            self._once(config, events)
            events[1].synchronize()
            times.append(events[0].elapsed(events[1]))
        return statistics.median(times)

    def candidates(self) -> list[Any]:
        """Return the candidates that Triton's pruning leaves."""
        self.tuner.nargs = self.named
        try:
            return list(self.tuner.prune_configs(self.meta))
        finally:
            self.tuner.nargs = None

    def best(self, device: Any) -> Any:
        """Return the fastest candidate."""
        candidates = self.candidates()
        if len(candidates) == 1:
            return candidates[0]
        times: dict[Any, float] = {}
        failure: Error | None = None
        for config in candidates:
            try:
                times[config] = self.seconds(config, device)
            except (InvalidValueError, DeviceError) as error:
                failure = error  # does not compile, or asks for more than the device has
        if not times:
            raise DeviceError(
                f"launch: none of the {len(candidates)} candidates of "
                f"{self.tuner.base_fn.__name__} can run; the last one: {failure}"
            ) from failure
        self.tuner.configs_timings = times
        best = min(times, key=times.__getitem__)
        self.tuner.pre_hook({**self.named, **self.meta, **best.all_kwargs()}, reset_only=True)
        return best


def tuned(
    tuner: Any,
    grid: Any,
    arguments: tuple[Any, ...],
    meta: dict[str, Any],
    launch: Launcher,
) -> None:
    """Launch the kernel inside an autotuner with its best candidate, found on the first call."""
    known = {**dict(zip(tuner.arg_names, arguments, strict=False)), **meta}
    if len(tuner.configs) == 1:
        config = tuner.configs[0]
    else:
        key = id(tuner), _key(tuner, known)
        found = _chosen.get(key)
        if found is None:
            with _lock:
                found = _chosen.get(key)
                if found is None:
                    device = current_stream(_device(known)).device
                    trial = _Trial(tuner, grid, arguments, meta, launch)
                    # Kept with the autotuner, whose address names it.
                    found = _chosen[key] = tuner, trial.best(device)
        config = found[1]
    tuner.best_config = config
    if config.pre_hook is not None:
        config.pre_hook({**known, **config.all_kwargs()})
    launch(tuner.fn, grid, arguments, {**meta, **config.all_kwargs()})
