"""What a step becomes on a device that runs Triton's kernels: launches, and what they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from nbxtensor.dtype import DType
from nbxtensor.ops.plan import Number, Window

if TYPE_CHECKING:
    from nbxtensor.ops.plan import Builder

INT32: Final = range(-(2**31), 2**31)
# Past 2^31 - 1 blocks in one axis of a grid there is nothing.
GREATEST_GRID: Final = 2**31 - 1


class NotLowered(Exception):  # noqa: N818 - a refusal, which the caller words
    """A step that no kernel here can do; the text says why."""


def memory_type(dtype: DType) -> tuple[str, str]:
    """Return the element type that kernels see in memory, and how they read its bits.

    Raises
    ------
    NotLowered
        If kernels have no such type.
    """
    if dtype.kind == "b":
        return "u8", "bool"
    if dtype.name.startswith("float8"):
        return "u8", "e4m3" if "e4m3" in dtype.name else "e5m2"
    if dtype.kind == "c" or dtype.bits < 8:
        raise NotLowered(f"kernels do not compute in {dtype}")
    return dtype.triton, "plain"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a window, as a pointer to elements of a type."""

    window: Window
    type: str

    @property
    def divisible(self) -> bool:
        """Whether it is a multiple of 16 in every call with the plan's key."""
        return self.window.aligned and self.window.offset % 16 == 0


@dataclass(frozen=True, slots=True)
class Real:
    """A real number, of the plan or of the call, passed as one of type `type`."""

    value: float | Number
    type: str


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer, of the plan or of the call, passed as one of type `type`; nothing is claimed."""

    value: int | Number
    type: str = "i64"


@dataclass(frozen=True, slots=True)
class Fixed:
    """A value that is part of the specialisation."""

    value: Any


@dataclass(frozen=True, slots=True)
class Pointer:
    """The address of 64-bit words that belong to no tensor."""

    value: int
    type: str = "*i64"


# An integer alone is passed in the width that it needs, and its divisibility by 16 is claimed.
Argument = Address | Real | Whole | Fixed | Pointer | int | None


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: a kernel by name, its specialisation, its grid and its arguments in order."""

    name: str
    types: dict[str, str]
    constants: dict[str, Any]
    divisible: frozenset[str]
    options: dict[str, Any]
    grid: tuple[int, ...]
    arguments: tuple[Argument, ...]
    operands: tuple[Window, ...]
    written: int


@dataclass(slots=True)
class Lowering:
    """Collects the launches of one step.

    Parameters
    ----------
    builder
        The plan at hand, for temporaries.
    site
        Registers a text for wrong indices and returns the device's fault word and a number.
    interpreted
        Whether Triton's interpreter runs the kernels: its dot multiplies the bits of bfloat16.
    """

    builder: Builder
    site: Callable[[str], tuple[Argument, int]] | None = None
    interpreted: bool = False
    launches: list[Launch] = field(default_factory=list)

    def fault(self, site: str) -> tuple[Argument, int]:
        """Return where kernels leave a wrong index, and the number that stands for a site."""
        return (None, 0) if self.site is None else self.site(site)

    def launch(
        self,
        name: str,
        grid: Sequence[int],
        arguments: Mapping[str, Argument],
        constants: Mapping[str, Any],
        written: Sequence[str] = ("out",),
        *,
        claims: bool = True,
        **options: Any,
    ) -> None:
        """Add a launch; arguments in the order of the kernel's parameters.

        Parameters
        ----------
        written
            The parameters through which the kernel writes.
        claims
            Whether alignments and divisibility are told to the compiler.
        """
        if any(extent == 0 for extent in grid):
            return
        if grid[0] > GREATEST_GRID or any(extent > 65535 for extent in grid[1:]):
            raise NotLowered(f"the grid {tuple(grid)} is past what devices take")
        types: dict[str, str] = {}
        fixed = dict(constants)
        divisible = set()
        passed: list[tuple[str, Argument]] = []
        windows: dict[str, Window] = {}
        for name_of, argument in arguments.items():
            if argument is None or isinstance(argument, Fixed):
                fixed[name_of] = None if argument is None else argument.value
                continue
            passed.append((name_of, argument))
            if isinstance(argument, Address):
                types[name_of] = f"*{argument.type}"
                windows[name_of] = argument.window
                if claims and argument.divisible:
                    divisible.add(name_of)
            elif isinstance(argument, int):
                types[name_of] = "i32" if argument in INT32 else "i64"
                if claims and argument % 16 == 0:
                    divisible.add(name_of)
            else:
                types[name_of] = argument.type
        ordered = [*written, *(name_of for name_of in windows if name_of not in written)]
        self.launches.append(
            Launch(
                name,
                types,
                fixed,
                frozenset(divisible),
                options,
                tuple(grid),
                tuple(argument for _, argument in passed),
                tuple(windows[name_of] for name_of in ordered),
                len(written),
            )
        )


def recipe(launch: Launch) -> list[tuple[str, Any]]:
    """Return the arguments as a plan's step takes them."""
    places = {id(window): i for i, window in enumerate(launch.operands)}
    listed: list[tuple[str, Any]] = []
    for argument in launch.arguments:
        if isinstance(argument, Address):
            listed.append(("address", places[id(argument.window)]))
        elif isinstance(argument, int):
            listed.append(("word", argument))
        else:
            assert isinstance(argument, (Real, Whole, Pointer))
            value = argument.value
            if isinstance(value, Number):
                listed.append(("scalar", value.index))
            elif isinstance(value, int):
                listed.append(("word", value))
            else:
                listed.append(("float", float(value)))
    return listed
