"""Processes end and fork in every state: the right code, no word on the error stream, no hang."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import pytest

TIMEOUT = 120


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NBX_")} | variables
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


# ---- states, each with every end -----------------------------------------------------------

STATES = {
    "live tensors": "held = [nbx.zeros(n, device=device) for n in (10, 100_000, 10_000_000)]",
    "in a capture": """
stream = nbx.Stream(device)
scope = nbx.Graph(stream)
scope.__enter__()
x = nbx.zeros(1000, device=device) + 1
""",
    "a captured graph": """
stream = nbx.Stream(device)
with nbx.Graph(stream) as recorded:
    x = nbx.zeros(1000, device=device) + 1
""",
    "asleep": """
with nbx.memory.tag("kv"): held = nbx.ones(4_000_000, device=device)
nbx.memory.sleep("kv", device)
""",
    "asleep and freed": """
with nbx.memory.tag("kv"): held = nbx.ones(4_000_000, device=device)
nbx.memory.sleep("kv", device)
del held
""",
    "work inside the driver": """
x = nbx.ones((1 << 21,), device=device)
for _ in range(20): x = x.exp().log()
def wait():
    nbx.synchronize(device)
threading.Thread(target=wait, daemon=True).start()
""",
    "threads allocate": """
def churn(seed):
    kept = []
    for i in range(1 << 60):
        kept.append(nbx.empty(1 + (i * seed) % 100_000, device=device))
        if len(kept) > 20: kept.pop(i % 20)
for seed in (3, 5, 7): threading.Thread(target=churn, args=(seed,), daemon=True).start()
time.sleep(0.02)
""",
    "threads wait for memory": """
nbx.memory.budget("8 MiB", device).__enter__()
def churn():
    while True:
        try: nbx.empty(1 << 22, device=device)
        except nbx.OutOfMemoryError: pass
nbx.memory.reclaimer(lambda missing: time.sleep(0.001) or 0, device=device).__enter__()
for _ in range(2): threading.Thread(target=churn, daemon=True).start()
time.sleep(0.02)
""",
    "recording": """
recording = nbx.memory.record(device=device)
recording.__enter__()
held = nbx.zeros(1000, device=device)
""",
    "reserved blocks": """
cache = nbx.memory.reserve(1 << 28, device)
cache.commit(1 << 24)
view = cache.tensor((1000,), "float32")
""",
    "arenas": """
arena = nbx.memory.Arena(1 << 20, device)
x = arena.empty((100,), "float32")
slab = nbx.memory.ReplaySlab(1 << 20, device)
""",
    "pinned memory in use": """
pinned = nbx.memory.pinned(1 << 20, device=device)
there = pinned.to(device, non_blocking=True)
more = [nbx.memory.pinned(1000, device=device) for _ in range(5)]
""",
    "a cycle of tensors": """
class Node: pass
node = Node(); node.self = node; node.tensor = nbx.zeros(1000, device=device)
""",
    "inside scopes": """
nbx.memory.budget("1 GiB", device).__enter__()
nbx.memory.tag("left/open").__enter__()
nbx.memory.peak(device).__enter__()
held = nbx.zeros(10, device=device)
""",
    "origins": """
nbx.memory.set_origins(8)
held = [nbx.zeros(n, device=device) for n in range(1, 50)]
del held[::2]
""",
}

ENDS = {
    "by itself": ("", 0),
    "by sys.exit": ("sys.exit(3)", 3),
    "by os._exit": ("sys.stdout.flush(); os._exit(4)", 4),
    "by sys.exit in a thread": (
        "t = threading.Thread(target=lambda: sys.exit(5)); t.start(); t.join()",
        0,
    ),
}

PROLOGUE = """
import atexit, os, sys, threading, time
import nbxtensor as nbx
from nbxtensor import runtime
device = "sim:0"
"""


# answers: 83, story 5
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("state", STATES)
def test_every_end_is_silent_in_every_state(state: str, end: str) -> None:
    last, code = ENDS[end]
    done = run(f"{PROLOGUE}{STATES[state]}\nprint('end')\n{last}\n")
    assert (done.returncode, done.stdout, done.stderr) == (code, "end\n", "")


# answers: 83
@pytest.mark.parametrize("state", ["live tensors", "in a capture", "asleep", "threads allocate"])
def test_check_mode_ends_in_silence(state: str) -> None:
    done = run(f"{PROLOGUE}{STATES[state]}\nprint('end')\n", NBX_MEMORY_CHECK="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


# answers: 83
@pytest.mark.parametrize("state", ["live tensors", "asleep", "pinned memory in use", "recording"])
def test_an_exception_at_the_end_is_the_only_word(state: str) -> None:
    late = """
        held_late = nbx.zeros(1000, device=device)
        @atexit.register
        def last():
            raise RuntimeError("planted")
    """
    done = run(f"{PROLOGUE}{STATES[state]}\n{textwrap.dedent(late)}\nraise SystemExit(6)\n")
    assert done.returncode == 6
    lines = done.stderr.splitlines()
    assert lines[-1] == "RuntimeError: planted"
    assert "nbxtensor" not in done.stderr


# answers: 83
def test_tensors_that_live_until_the_interpreter_is_gone_die_in_silence() -> None:
    # A module keeps them, a finalizer of another one allocates and frees once more.
    done = run(
        PROLOGUE
        + """
class Late:
    def __init__(self): self.tensor = nbx.zeros(1000, device=device)
    def __del__(self):
        self.tensor = nbx.empty(2000, device=device)
sys.modules["keeper"] = late = Late()
thread_local = threading.local()
thread_local.late = Late()
print("end")
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


# ---- forks ---------------------------------------------------------------------------------

# As many forks as fit in some seconds, 10,000 at most; `make test-full` asks for all of them.
FORKS = int(os.environ.get("TEST_FORKS", "0"))
SECONDS = 30.0

MANY_FORKS = """
import os, sys, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
import nbxtensor as nbx
from nbxtensor import _core
device = "sim:0"
with nbx.memory.tag("kv"):
    held = nbx.ones(1000, device=device)
pinned = nbx.memory.pinned(1000, device=device)
cache = nbx.memory.reserve(1 << 26, device)
cache.commit(1 << 22)
stream = nbx.Stream(device)
nbx.synchronize(device)
before = nbx.memory.allocated(device)

def look():
    # What the child finds; its code tells which handle was open.
    try:
        nbx.empty(4, device=device)
        return 10
    except nbx.DeviceError as error:
        if "fork" not in str(error): return 11
    try:
        cache.commit(1 << 23)
        return 12
    except nbx.Error:
        pass
    try:
        nbx.memory.pinned(10, device=device)
        return 13
    except nbx.Error:
        pass
    try:
        stream.synchronize()
        return 14
    except nbx.Error:
        pass
    if float(nbx.ones(10).sum()) != 10.0: return 15
    return 0

least, seconds = int(sys.argv[1]), float(sys.argv[2])
start, forks = time.monotonic(), 0
while forks < least or (forks < 10_000 and time.monotonic() - start < seconds):
    child = os.fork()
    if child == 0:
        code = 20
        try:
            code = look()
            global_names = globals()
            for name in ("held", "pinned", "cache", "stream"): del global_names[name]
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0: sys.exit(f"fork {forks}: the child ended with {status}")
    forks += 1
    if forks % 100 == 0:  # the parent goes on in between
        held = held + 1.0
assert nbx.memory.allocated(device) == before
assert float(held.sum()) == 1000.0 * (1 + forks // 100)
del held, pinned, cache
nbx.synchronize(device)
assert nbx.memory.allocated(device) == 0
print(forks)
"""


# answers: 84
def test_children_find_their_devices_closed_and_the_parent_goes_on() -> None:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", MANY_FORKS, str(FORKS), str(SECONDS)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT + FORKS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    print(f"{done.stdout.strip()} forks in {time.monotonic() - start:.1f} s")
    assert int(done.stdout) >= max(FORKS, 10)


FORK_IN_STATE = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
sys.stdout.flush()
child = os.fork()
if child == 0:
    try:
        nbx.empty(4, device=device)
    except nbx.DeviceError as error:
        if "fork" not in str(error): sys.exit(9)
    try:
        nbx.memory.reserve(4096, device)
    except nbx.DeviceError as error:
        sys.exit(0 if "fork" in str(error) else 10)
    sys.exit(8)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print("child", status)
"""


# answers: 84
@pytest.mark.parametrize("state", STATES)
def test_a_child_of_every_state_ends_like_any_process(state: str) -> None:
    done = run(f"{PROLOGUE}{STATES[state]}\n{FORK_IN_STATE}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "child 0\n", "")
