"""Sample inputs that several families share, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nbxtensor.ops.table import Sample, Samples

Array = np.ndarray[Any, Any]
Domain = Callable[[Array], Array]

UNARY_SHAPES = ((), (1,), (0,), (13,), (3, 0, 2), (5, 7), (2, 3, 5), (1031,))
BINARY_SHAPES = (
    ((), ()),
    ((7,), (7,)),
    ((0, 3), (1, 3)),
    ((5, 1), (1, 7)),
    ((3,), (2, 5, 3)),
    ((1031,), (1,)),
    ((2, 3, 4, 5), (3, 1, 5)),
)


def anything(values: Array) -> Array:
    """Return normally distributed values as they are."""
    return values


def positive(values: Array) -> Array:
    """Map values above zero."""
    return np.abs(values) + 0.25


def unit(values: Array) -> Array:
    """Map values into (-1, 1)."""
    return np.tanh(values) * 0.96


def above_one(values: Array) -> Array:
    """Map values above one."""
    return np.abs(values) + 1.0625


def nonzero(values: Array) -> Array:
    """Map values away from zero."""
    return np.where(values < 0, values - 0.5, values + 0.5)


def normal(generator: np.random.Generator, *shapes: tuple[int, ...]) -> tuple[Array, ...]:
    """Return one array of normally distributed values for each shape."""
    return tuple(np.asarray(generator.standard_normal(shape)) for shape in shapes)


def unary(domain: Domain = anything, **keywords: Any) -> Samples:
    """Return samples of one tensor."""

    def samples(generator: np.random.Generator) -> Iterator[Sample]:
        for shape in UNARY_SHAPES:
            (values,) = normal(generator, shape)
            yield Sample((domain(values),), keywords)

    return samples


def binary(
    first: Domain = anything, second: Domain = anything, number: float | int | None = 3
) -> Samples:
    """Return samples of two tensors that broadcast, and of a tensor with a number."""

    def samples(generator: np.random.Generator) -> Iterator[Sample]:
        for shapes in BINARY_SHAPES:
            a, b = normal(generator, *shapes)
            yield Sample((first(a), second(b)))
        if number is not None:
            (a,) = normal(generator, (4, 5))
            yield Sample((first(a), number))

    return samples


def along_axis(**keywords: Any) -> Samples:
    """Return samples of a tensor with every axis of it."""

    def samples(generator: np.random.Generator) -> Iterator[Sample]:
        for shape in ((1,), (17,), (5, 7), (3, 4, 5), (2, 1031)):
            for axis in range(-1, len(shape)):
                (values,) = normal(generator, shape)
                yield Sample((values,), {"axis": axis, **keywords})

    return samples
