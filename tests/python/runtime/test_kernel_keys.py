"""The key of a call splits calls exactly where Triton's own specialisation splits them."""

from __future__ import annotations

import collections
import random
from typing import Any

import nbxtensor as nbx
import triton
import triton.language as tl
from nbxtensor import _core
from nbxtensor.runtime import compiler
from nbxtensor.runtime.foreign import foreign_kernel
from nbxtensor.runtime.signature import leaves_of, parameters_of, slot_of

CALLS = 4000
DTYPES = (
    nbx.float32,
    nbx.float16,
    nbx.bfloat16,
    nbx.int32,
    nbx.int64,
    nbx.float8_e4m3fn,
    nbx.float8_e5m2,
    nbx.bool,
    nbx.uint8,
    nbx.float64,
)
# Around every boundary: of 16, of 32 and 64 bits, signed and not.
INTEGERS = [
    *(0, 1, 2, 15, 16, 17, -16, -1, 4096, 4097),
    *(2**31 - 1, 2**31, 2**31 + 8, -(2**31), -(2**31) - 1),
    *(2**62, 2**63 - 1, -(2**63), 2**63, 2**64 - 16, 2**64 - 1),
]


@triton.jit(do_not_specialize=["b"], do_not_specialize_on_alignment=["c", "y"])
def many(
    x,
    y,
    a,
    b,
    c,
    f,
    flag,
    pair,
    n64: tl.int64,
    eps: tl.float32,
    g16: bf16,  # noqa: F821 - texts, which name types of Triton's
    on: u1,  # noqa: F821
    r: tl.const,
    B: tl.constexpr,
    MODE: tl.constexpr = None,
):
    pass


def tensors(device: str) -> list[nbx.Tensor]:
    made = []
    for dtype in DTYPES:
        whole = nbx.empty(256, dtype=dtype, device=device)
        made += [whole, whole[1:], whole[16:], whole[8:]]
    return made


class Recorded:
    """A compiler that notes what it is told, and makes kernels that do nothing."""

    def __init__(self) -> None:
        self.told: tuple[Any, ...] | None = None

    def __call__(self, device: nbx.Device, types: Any, constants: Any, *rest: Any) -> Any:
        self.told = (types, constants, *rest)
        names = many.arg_names
        leaves = leaves_of(tuple("constexpr" if n in constants else types[n] for n in names))
        return _core.simulate_kernel(device, "many", lambda grid, words: None, map(slot_of, leaves))


def recording_kernel(recorded: Recorded) -> _core.Kernel:
    rows = [
        (
            p.name,
            p.is_constexpr,
            p.is_const,
            p.type,
            p.specialize,
            p.align,
            False,
            None if p.name == "MODE" else ...,
        )
        for p in parameters_of(many.fn, ["b"], ["c", "y"])
    ]
    return _core.Kernel("many", rows, recorded)


def split(kind: Any, key: Any) -> list[tuple[Any, Any]]:
    """Triton's types and keys, tuples one by one."""
    if isinstance(kind, tuple):
        return [pair for k, v in zip(kind, key, strict=True) for pair in split(k, v)]
    return [(kind, key)]


def flat(value: Any, path: tuple[int, ...], told: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """What our compiler was told of one parameter, in the same form."""
    _, _, nested, hints, *_ = told
    if isinstance(value, tuple):
        return [pair for i, v in enumerate(value) for pair in flat(v, (*path, i), told)]
    if value == "constexpr":
        return [("constexpr", nested[path])]
    return [(value, hints.get(path, ""))]


def same(expected: tuple[Any, Any], ours: tuple[Any, Any]) -> bool:
    kind, key = expected
    if kind == "constexpr":
        return ours[0] == "constexpr" and type(ours[1]) is type(key) and ours[1] == key
    return ours == (kind, key if isinstance(key, str) else "")


def check_told(specialization: list[tuple[Any, Any]], told: tuple[Any, ...]) -> None:
    types, constants, *_ = told
    for index, name in enumerate(many.arg_names):
        expected = split(*specialization[index])
        if name in constants:
            ours = [("constexpr", constants[name])]
            if isinstance(constants[name], tuple):  # of a constexpr parameter
                expected = [specialization[index]]
        else:
            ours = flat(types[name], (index,), told)
        assert len(expected) == len(ours), (name, expected, ours)
        assert all(map(same, expected, ours)), (name, expected, ours)


def random_call(pick: random.Random, known: list[nbx.Tensor]) -> tuple[list[Any], dict[str, Any]]:
    def number() -> Any:
        return pick.choice([*INTEGERS, True, False, None])

    element: list[Any] = [*INTEGERS, True, None, 0.5, pick.choice(known)]
    arguments: list[Any] = [
        pick.choice(known),
        pick.choice(known),
        number(),
        number(),
        number(),
        pick.choice([1.0, 0.5, 2, 1, None, float("nan")]),
        pick.choice([True, False, 1, 0]),
        tuple(pick.choice(element) for _ in range(pick.choice([0, 1, 2])))
        if pick.random() < 0.5
        else number(),
        pick.choice(INTEGERS),
        pick.choice([0.5, 1, 1e-6]),
        pick.choice([0.25, 2]),
        pick.choice([True, False, 0, 1]),
        pick.choice(known),
        pick.choice([64, 128, 1, True, 1.0, 2**70, -1, (64, 128), (64, 1.0)]),
    ]
    if pick.random() < 0.5:
        arguments.append(pick.choice([None, 0, 1, 2, True, False, "gelu", "relu", "".join("relu")]))
    options = pick.choice([{}, {"num_warps": 4}, {"num_warps": 8}])
    if pick.random() < 0.2:
        # In any order.
        options = dict(pick.sample([("num_warps", 8), ("num_stages", 2), ("maxnreg", 64)], k=3))
    return arguments, options


def test_keys_split_calls_as_triton_does(seed: int) -> None:
    pick = random.Random(seed)
    triton_module = compiler.load()
    backend = triton_module.make_backend(triton_module.gpu_target("cuda", 90, 32))
    binder = triton.runtime.jit.create_function_from_signature(many.signature, many.params, backend)
    recorded = Recorded()
    kernel = recording_kernel(recorded)
    known = tensors("sim:0")
    repeated: list[tuple[list[Any], dict[str, Any]]] = []
    seen: set[str] = set()
    counts: collections.Counter[bool] = collections.Counter()
    for _ in range(CALLS):
        call = random_call(pick, known)
        if len(repeated) < 500:
            repeated.append(call)
        elif pick.random() < 0.5:
            call = pick.choice(repeated)
        arguments, options = call
        _, specialization, given = binder(*arguments, **options)
        # Triton itself lets 1, True and 1.0 share one kernel; types tell them apart.
        key = repr([(kind, type(value).__name__, value) for kind, value in specialization])
        key += repr(sorted(given.items()))
        before = kernel.misses
        recorded.told = None
        kernel(0, *arguments, **options)
        missed = kernel.misses != before
        counts[missed] += 1
        assert missed == (key not in seen), (arguments, options, key)
        seen.add(key)
        if recorded.told is not None:
            check_told(specialization, recorded.told)
            assert recorded.told[5] == options
    assert counts[True] == len(seen)
    assert counts[False] > CALLS // 5


def test_parameters_are_read_as_triton_reads_them() -> None:
    ours = parameters_of(many.fn, ["b"], ["c", "y"])
    for mine, theirs in zip(ours, many.params, strict=True):
        assert mine.name == theirs.name
        assert mine.is_constexpr == theirs.is_constexpr, mine
        assert mine.is_const == theirs.is_const, mine
        assert mine.type == theirs.annotation_type, mine
        assert mine.specialize == (not theirs.do_not_specialize), mine
        assert mine.align == (not theirs.do_not_specialize_on_alignment), mine


def test_functions_of_triton_make_one_kernel_each() -> None:
    assert foreign_kernel(many) is foreign_kernel(many)
    assert foreign_kernel(many).name == "many"


def test_names_of_triton_that_the_compiler_needs_exist() -> None:
    loaded = compiler.load()
    jit = loaded.jit_function(many.fn)
    for name in ("is_constexpr", "is_const", "annotation_type", "has_default", "default"):
        assert hasattr(jit.params[0], name)
    options = loaded.make_backend(loaded.gpu_target("cuda", 90, 32)).parse_options(
        {"enable_fp_fusion": True}
    )
    assert {"num_warps", "num_stages", "num_ctas", "enable_fp_fusion"} <= vars(options).keys()
