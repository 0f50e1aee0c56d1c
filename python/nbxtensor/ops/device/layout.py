"""Layouts as kernels take them: few axes, the innermost first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nbxtensor.ops.device.launches import Argument, Fixed, NotLowered, Whole

RANK = 8
_RANKS = (1, 4, 8)
# Below this many elements a launch costs more than the work.
SMALL = 1 << 14


@dataclass(frozen=True, slots=True)
class Axes:
    """Common axes of some operands, innermost first, and each operand's strides along them."""

    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    general: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.extents)

    def in_general(self, *, general: bool = True) -> Axes:
        """Return the axes such that one kernel serves many layouts, if `general`.

        Nothing is claimed of strides, and the rank is one of a few, filled up with axes of one
        element. For operands so small that only the number of kernels counts.
        """
        if not general:
            return self
        rank = next(rank for rank in _RANKS if rank >= len(self.extents))
        more = rank - len(self.extents)
        return Axes(
            (*self.extents, *(1,) * more),
            tuple((*steps, *(0,) * more) for steps in self.strides),
            general=True,
        )

    def reach(self) -> int:
        """Return the greatest distance, in elements, of an operand's element from its first."""
        return max(
            (
                sum((e - 1) * abs(s) for e, s in zip(self.extents, steps, strict=True))
                for steps in self.strides
            ),
            default=0,
        )

    def extent_arguments(self, prefix: str, *, wide: bool = False) -> dict[str, Argument]:
        """Return the extents that a kernel divides by, by parameter name."""
        used = len(self.extents) - 1
        return {
            f"{prefix}{i}": _word(self.extents[i], claims=i == 0 and not self.general, wide=wide)
            if i < used
            else None
            for i in range(RANK - 1)
        }

    def stride_arguments(
        self, operand: int, prefix: str, *, wide: bool = False
    ) -> dict[str, Argument]:
        """Return an operand's strides by parameter name."""
        steps = self.strides[operand]
        arguments: dict[str, Argument] = {f"{prefix}{i}": None for i in range(RANK)}
        for i, step in enumerate(steps):
            fixed = not self.general and (step == 0 or (i == 0 and step == 1))
            claims = i <= 1 and not self.general
            arguments[f"{prefix}{i}"] = (
                Fixed(step) if fixed else _word(step, claims=claims, wide=wide)
            )
        return arguments


def _word(value: int, *, claims: bool, wide: bool) -> Argument:
    """Return an extent or stride; its divisibility is told only where loads get wider by it."""
    if wide or not claims:
        return Whole(value, "i64" if wide else "i32")
    return value


def coalesce(
    shape: Sequence[int], strides: Sequence[Sequence[int]], *, reorder: bool = True
) -> Axes:
    """Return the axes of operands of one shape, merged where every operand allows it.

    Parameters
    ----------
    reorder
        Whether the order of the elements is free: then axes follow the first operand's memory,
        and where that says nothing the others'.

    Raises
    ------
    NotLowered
        If more axes remain than kernels take.
    """
    axes = [i for i in range(len(shape)) if shape[i] != 1]
    if reorder:
        axes.sort(key=lambda i: tuple(-abs(steps[i]) for steps in strides))
    extents: list[int] = []
    kept: list[list[int]] = [[] for _ in strides]
    for axis in reversed(axes):
        merges = bool(extents) and all(
            steps[axis] == own[-1] * extents[-1] for steps, own in zip(strides, kept, strict=True)
        )
        if merges:
            extents[-1] *= shape[axis]
            continue
        extents.append(shape[axis])
        for steps, own in zip(strides, kept, strict=True):
            own.append(steps[axis])
    if len(extents) > RANK:
        raise NotLowered(f"the operands have {len(extents)} axes that do not merge, at most {RANK}")
    return Axes(tuple(extents), tuple(tuple(own) for own in kept))
