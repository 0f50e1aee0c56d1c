"""Kernels by text name, compiled or found compiled, and loaded on a device."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from nbxtensor import _core
from nbxtensor._core import Device, DeviceKernel
from nbxtensor.errors import FileError, InvalidValueError, UnsupportedError
from nbxtensor.facts import facts_of
from nbxtensor.runtime import sources, targets
from nbxtensor.runtime.kernels import function_of, part
from nbxtensor.runtime.pack import key_of, packs, text_of
from nbxtensor.runtime.signature import check_type, leaves_of, slot_of

__all__ = ["Request", "loaded", "prepared", "require_language"]

_NONE: Mapping[str, Any] = {}
_prepared: dict[tuple[Any, ...], DeviceKernel] = {}


class Request:
    """One specialisation of a kernel: what is compiled."""

    def __init__(
        self,
        name: str,
        function: Callable[[], Any],
        source: Callable[[], str],
        *,
        types: Mapping[str, Any],
        constants: Mapping[str, Any],
        nested: Mapping[tuple[int, ...], Any] = _NONE,  # type: ignore[assignment]
        hints: Mapping[tuple[int, ...], str] | None = None,
        divisible: frozenset[str] = frozenset(),
        specialized: frozenset[str] = frozenset(),
        options: Mapping[str, Any] = _NONE,
    ) -> None:
        self.name = name
        self.function = function  # called on a miss only
        self.source = source
        self.types = types
        self.constants = constants
        self.nested = nested
        self.hints = hints
        self.divisible = divisible
        self.specialized = specialized
        self.options = options

    def key(self, target: targets.Target, version: str) -> str:
        """Return the hash of everything that the compiled kernel depends on."""
        return key_of(
            {
                "name": self.name,
                "source": self.source(),
                "types": {name: repr(text) for name, text in self.types.items()},
                "constants": {name: text_of(value) for name, value in self.constants.items()},
                "nested": {repr(path): text_of(value) for path, value in self.nested.items()},
                "hints": {repr(path): hint for path, hint in (self.hints or {}).items()},
                "divisible": sorted(self.divisible),
                "options": {name: text_of(value) for name, value in self.options.items()},
                "target": target.text,
                "triton": version,
                "environment": targets.environment(),
            }
        )

    def compiled(self, target: targets.Target) -> targets.Compiled:
        """Compile the kernel."""
        compiler = part("compiler")
        function = self.function()
        hints = self.hints
        if hints is None:
            names = list(compiler.parameter_names(function))
            unknown = [name for name in self.divisible if name not in names]
            if unknown:
                raise InvalidValueError(
                    f"kernel {self.name}: divisible names {unknown[0]!r}; its parameters are "
                    f"{', '.join(names)}"
                )
            hints = {(names.index(name),): "D" for name in self.divisible}
        made: targets.Compiled = compiler.compile_kernel(
            self.name,
            function,
            target,
            types=self.types,
            constants=self.constants,
            nested=self.nested,
            hints=hints,
            options=self.options,
        )
        return made


def require_language(device: Device, name: str) -> None:
    """Refuse a device that runs no kernels in Triton's language."""
    if device.kind not in ("cuda", "hip", "sim"):
        raise UnsupportedError(
            f"kernel {name}: kernels in Triton's language run on cuda, hip and sim, not on "
            f"{device.name}; move the tensors there, or call the op of that name"
        )


def found(request: Request, target: targets.Target) -> targets.Compiled:
    """Return a kernel from a pack, or compile it and keep it there."""
    version = targets.triton_version()
    known = packs()
    for pack in known:
        for candidate in (version,) if version is not None else pack.versions(target.text):
            kept = pack.read(request.name, target.text, request.key(target, candidate))
            if kept is not None:
                return kept
    compiled = request.compiled(target)
    key = request.key(target, str(compiled.record["triton"]))
    try:
        known[-1].write(request.name, target.text, key, compiled)
    except FileError as error:
        _core.log("warning", f"{error}; the kernel is compiled again by the next process")
    return compiled


def loaded(request: Request, device: Device) -> DeviceKernel:
    """Return a kernel on a device."""
    require_language(device, request.name)
    if device.kind == "sim":
        return _simulated(request, device)
    # Reading a device file takes longer than finding the kernel: only where lanes differ.
    lanes = 32 if device.kind == "cuda" else facts_of(device).lanes
    target = targets.target_of(device.architecture, lanes)
    image, record = found(request, target)
    return _core.load_kernel(
        device,
        image,
        request.name,
        record["symbol"],
        record["slots"],
        threads=record["threads"],
        shared_bytes=record["shared_bytes"],
        cluster=record["cluster"],
        cooperative=record["cooperative"],
        programmatic=record["programmatic"],
        scratch_bytes=record["scratch_bytes"],
        scratch_alignment=record["scratch_alignment"],
        hidden_words=record["hidden_words"],
        parameters=record["parameters"],
    )


def _simulated(request: Request, device: Device) -> DeviceKernel:
    names, run = part("interpreter").interpreted(
        request.name,
        request.function(),
        types=request.types,
        constants=request.constants,
        nested=request.nested,
        specialized=request.specialized,
    )
    part("compiler").check_options(request.name, request.options, names)
    leaves = leaves_of(
        tuple("constexpr" if n in request.constants else request.types[n] for n in names)
    )
    return _core.simulate_kernel(
        device, request.name, run, [slot_of(text) for text in leaves], list(names)
    )


def _named_function(place: sources.Named) -> Any:
    sources.file_of(place.module)  # names the known families
    module = importlib.import_module(place.module)
    value = getattr(module, place.function, None)
    function = function_of(value)
    if function is not None:
        return function
    if hasattr(value, "fn"):
        return value  # of Triton's own decorator
    raise InvalidValueError(
        f"prepare: {place.module} has no kernel {place.function!r}; declare it with @kernel"
    )


def _check_names(name: str, names: list[str], types: Mapping[str, Any], constants: Any) -> None:
    for missing in names:
        if missing not in types and missing not in constants:
            raise InvalidValueError(
                f"prepare: kernel {name}: parameter '{missing}' has neither a type nor a constant"
            )
    for extra in (*types, *constants):
        if extra not in names:
            raise InvalidValueError(
                f"prepare: kernel {name} has no parameter '{extra}'; it has {', '.join(names)}"
            )


def request_of(
    name: str,
    types: Mapping[str, str],
    constants: Mapping[str, object],
    divisible: frozenset[str],
    options: Mapping[str, object],
) -> Request:
    """Return what `prepare` compiles."""
    place = sources.named(name)
    for parameter, text in types.items():
        check_type(name, parameter, text)

    def function() -> Any:
        found = _named_function(place)
        _check_names(name, list(part("compiler").parameter_names(found)), types, constants)
        return found

    return Request(
        name,
        function,
        lambda: sources.hash_of(place.module),
        types=types,
        constants=constants,
        divisible=divisible,
        options=options,
    )


def prepared(
    name: str,
    which: Device,
    types: Mapping[str, str],
    constants: Mapping[str, object],
    divisible: frozenset[str],
    options: Mapping[str, object],
) -> DeviceKernel:
    """Return a kernel of a named specialisation, loaded once for each device."""
    key = (
        name,
        which.name,
        tuple(sorted(types.items())),
        tuple(sorted((n, text_of(v)) for n, v in constants.items())),
        divisible,
        tuple(sorted((n, text_of(v)) for n, v in options.items())),
    )
    known = _prepared.get(key)
    if known is None:
        require_language(which, name)
        request = request_of(name, dict(types), dict(constants), divisible, dict(options))
        known = _prepared.setdefault(key, loaded(request, which))
    return known
