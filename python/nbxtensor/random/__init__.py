"""Random numbers: streams that are the same on every device, and sampling for decoding."""

from __future__ import annotations

from nbxtensor.random._generator import Generator, State, default_generator, sample

uniform = default_generator.uniform
normal = default_generator.normal
rand = default_generator.rand
randn = default_generator.randn
randint = default_generator.randint
manual_seed = default_generator.manual_seed
get_state = default_generator.get_state
set_state = default_generator.set_state

__all__ = [
    "Generator",
    "State",
    "default_generator",
    "get_state",
    "manual_seed",
    "normal",
    "rand",
    "randint",
    "randn",
    "sample",
    "set_state",
    "uniform",
]
