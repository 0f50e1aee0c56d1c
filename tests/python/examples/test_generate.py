"""The command line of the example."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbxtensor as nbx
import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "generate.py"


def generate(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def as_json(*arguments: str, **environment: str) -> Any:
    done = generate(*arguments, "--json", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_json(model_path: Path) -> None:
    given = ("--raw", "--greedy", "--prompt", "The capital of France is", "--max-new", "4")
    result = as_json("--model", str(model_path), "--device", "cpu", *given)
    assert set(result) == {
        "prompt_ids",
        "ids",
        "text",
        "prefill_tok_s",
        "decode_tok_s",
        "memory",
    }
    assert result["prompt_ids"] == [504, 3575, 282, 4649, 314]
    assert len(result["ids"]) == 4
    assert result["text"].startswith(" Paris.")
    assert result["prefill_tok_s"] > 0
    assert result["decode_tok_s"] > 0
    memory = result["memory"]
    assert sum(memory["by_tag"].values()) == memory["total"] <= memory["peak"]
    tensors = nbx.io.open_gguf(model_path).tensors
    assert memory["by_tag"]["weights"] == sum(entry.nbytes for entry in tensors.values())
    assert memory["by_tag"]["kv"] == 2 * 30 * 3 * 8 * 64 * 4
    assert "workspace" in memory["by_tag"]


def test_text_and_report() -> None:
    done = generate("--greedy", "--max-new", "3", "--prompt", "Say yes.")
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("prefill ", "decode ", "tokens/s", "weights", "kv", "workspace", "total"):
        assert word in done.stdout


def test_the_chat_template_and_the_end_of_an_answer() -> None:
    result = as_json("--greedy", "--prompt", "What is 2+2? Answer with one number.")
    assert result["prompt_ids"][0] == 1
    assert result["ids"][-1] == 2 or len(result["ids"]) == 128
    assert "<|" not in result["text"]


def test_seeds() -> None:
    given = ("--max-new", "8", "--temperature", "1.2", "--top-k", "50", "--prompt", "Hello")
    first = as_json(*given, "--seed", "7")
    assert as_json(*given, "--seed", "7")["ids"] == first["ids"]
    assert as_json(*given, "--seed", "8")["ids"] != first["ids"]


def test_one_new_token() -> None:
    result = as_json("--greedy", "--raw", "--prompt", "Hello", "--max-new", "1")
    assert len(result["ids"]) == 1
    assert result["decode_tok_s"] is None


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        (("--model", "none.gguf"), {}, "none.gguf"),
        (("--model", str(SCRIPT)), {}, "no GGUF file"),
        (("--device", "cuda:0"), {}, "cuda"),
        (("--device", "tpu:0"), {}, "tpu"),
        (("--context", "9000"), {}, "context is 9000"),
        (("--context", "4"), {}, "do not fit"),
        (("--raw", "--prompt", ""), {}, "no tokens"),
        (("--top-p", "1.5"), {}, "top_p 1.5"),
        ((), {"NBX_MEMORY_BUDGET": "64 MiB"}, "64 MiB"),
    ],
)
def test_one_clear_line(
    arguments: tuple[str, ...], environment: dict[str, str], expected: str
) -> None:
    done = generate(*arguments, **environment)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("generate.py: ")
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bad_option() -> None:
    done = generate("--max-new", "0")
    assert done.returncode == 2
    assert "--max-new: got 0; expected 1 or more" in done.stderr
