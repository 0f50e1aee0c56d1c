"""Values of the device files against figures noted down apart from them."""

from __future__ import annotations

import os

import pytest
from nbxtensor import facts, runtime

# The opt-in maximum, below what a multiprocessor has: 163 of 164 KiB, 227 of 228, 99 of 100.
SHARED = {
    ("cuda", "sm_70"): 98_304,
    ("cuda", "sm_75"): 65_536,
    ("cuda", "sm_80"): 166_912,
    ("cuda", "sm_86"): 101_376,
    ("cuda", "sm_89"): 101_376,
    ("cuda", "sm_90"): 232_448,
    ("cuda", "sm_100"): 232_448,
    ("cuda", "sm_120"): 101_376,
    ("hip", "gfx908"): 65_536,
    ("hip", "gfx90a"): 65_536,
    ("hip", "gfx942"): 65_536,
    ("hip", "gfx1100"): 65_536,
    ("metal", "apple7"): 32_768,
    ("metal", "apple8"): 32_768,
    ("metal", "apple9"): 32_768,
    ("metal", "apple10"): 32_768,
}
GPUS = [pair for pair in facts.architectures() if pair[0] in ("cuda", "hip", "metal")]
FP8 = ("float8_e4m3fn", "float8_e5m2")


def cuda(name: str) -> facts.Facts:
    return facts.load("cuda", name)


@pytest.mark.parametrize(("kind", "architecture"), GPUS)
def test_shared_memory_and_threads(kind: str, architecture: str) -> None:
    found = facts.load(kind, architecture)
    assert found.shared_bytes_per_block == SHARED[kind, architecture]
    assert found.threads_per_block == 1024
    assert found.threads_per_block % found.lanes == 0


def test_cdna3_has_not_the_local_memory_of_cdna4() -> None:
    assert facts.load("hip", "gfx942").shared_bytes_per_block == 64 << 10  # not 160 KiB


def test_ampere_blocks_get_less_than_their_multiprocessor_has() -> None:
    assert cuda("sm_80").shared_bytes_per_block == 163 << 10  # not 164 KiB


def test_tf32_begins_with_ampere() -> None:
    for name in ("sm_70", "sm_75"):
        assert "tf32" not in (cuda(name).matrix_inputs or ())
    for name in ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"):
        assert "tf32" in (cuda(name).matrix_inputs or ())
    with_tf32 = [
        architecture
        for kind, architecture in GPUS
        if kind != "cuda" and "tf32" in (facts.load(kind, architecture).matrix_inputs or ())
    ]
    assert with_tf32 == ["gfx942"]


def test_bfloat16_begins_with_ampere_and_cdna() -> None:
    for name in ("sm_70", "sm_75"):
        assert "bfloat16" not in cuda(name).compute_dtypes
        assert "bfloat16" not in (cuda(name).matrix_inputs or ())
    for kind, architecture in GPUS:
        if (kind, architecture) not in {("cuda", "sm_70"), ("cuda", "sm_75")}:
            assert "bfloat16" in (facts.load(kind, architecture).matrix_inputs or ())


def test_float8() -> None:
    for name in ("sm_89", "sm_90", "sm_100", "sm_120"):
        assert cuda(name).fp8_inputs == FP8
    for name in ("sm_70", "sm_75", "sm_80", "sm_86"):
        assert cuda(name).fp8_inputs == ()
    assert facts.load("hip", "gfx942").fp8_inputs == ("float8_e4m3fnuz", "float8_e5m2fnuz")
    for kind, name in (("hip", "gfx908"), ("hip", "gfx90a"), ("hip", "gfx1100")):
        assert facts.load(kind, name).fp8_inputs == ()
    assert facts.load("metal", "apple10").fp8_inputs == ()
    assert facts.load("cpu", "x86_64").fp8_inputs == ()


def test_float64() -> None:
    for kind, architecture in GPUS:
        found = facts.load(kind, architecture)
        assert ("float64" in found.compute_dtypes) == (kind != "metal")
    with_matrices = [
        architecture
        for kind, architecture in GPUS
        if "float64" in (facts.load(kind, architecture).matrix_inputs or ())
    ]
    assert with_matrices == ["sm_80", "sm_90", "sm_100", "gfx90a", "gfx942"]


def test_lanes() -> None:
    lanes = {pair: facts.load(*pair).lanes for pair in facts.architectures()}
    assert {lanes["hip", name] for name in ("gfx908", "gfx90a", "gfx942")} == {64}
    assert lanes["hip", "gfx1100"] == 32
    assert {n for (kind, _), n in lanes.items() if kind in ("cuda", "metal", "sim")} == {32}
    assert {n for (kind, _), n in lanes.items() if kind == "cpu"} == {1}


def test_registers() -> None:
    for kind, architecture in GPUS:
        found = facts.load(kind, architecture)
        if kind == "cuda":
            assert (found.registers_per_block, found.registers_per_thread) == (65_536, 255)
    per_thread = {n: facts.load("hip", n).registers_per_thread for k, n in GPUS if k == "hip"}
    assert per_thread == {"gfx908": 256, "gfx90a": 512, "gfx942": 512, "gfx1100": 256}


def test_clusters_and_what_came_with_them_begin_with_hopper() -> None:
    for kind, architecture in GPUS:
        if kind != "cuda":
            continue
        found = facts.load(kind, architecture)
        hopper = int(architecture.removeprefix("sm_")) >= 90
        assert found.cluster_blocks == (8 if hopper else 1)
        assert found.dependent_launch is hopper
        assert found.tensor_copies is hopper


def test_metal_limits() -> None:
    families = [a for kind, a in GPUS if kind == "metal"]
    assert families == ["apple7", "apple8", "apple9", "apple10"]
    for family in families:
        found = facts.load("metal", family)
        assert found.dispatches_per_command_buffer == 512
        assert found.command_buffers_in_flight == 32
        assert found.argument_buffers is True


def test_every_generation_is_there() -> None:
    titles = " ".join(facts.load(*pair).title for pair in facts.architectures())
    for name in ("Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell", "CDNA (", "CDNA 2",
                 "CDNA 3", "RDNA 3", "M1", "M2", "M3", "M4", "M5"):  # fmt: skip
        assert name in titles


def test_the_cache_line_is_what_this_system_reports() -> None:
    found = facts.facts_of(runtime.device("cpu"))
    name = "SC_LEVEL1_DCACHE_LINESIZE"
    reported = os.sysconf(name) if name in os.sysconf_names else 0
    assert found.cache_line_bytes in (64, 128)
    assert reported in (0, found.cache_line_bytes)  # 0: the system says nothing
