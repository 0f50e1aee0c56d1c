"""nbxtensor's side of smollm2.py; the protocol is that of smollm2_numpy.py.

With the word "memory" it prints what a load, a prompt of all ids and 16 new tokens add to the
process's peak.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import nbxtensor as nbx
from decoder import Decoder, KeyValueCache
from tokenizer import TextTokenizer


def peak_bytes() -> int:
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def decode(model: Decoder, cache: KeyValueCache, ids: list[int]) -> None:
    for token in ids:
        logits = model.forward([token], cache)
        int(nbx.argmax(logits[-1]))


def memory(path: str, ids: list[int]) -> None:
    tokenizer = TextTokenizer(nbx.io.open_gguf(path).metadata)
    before = peak_bytes()
    file = nbx.io.open_gguf(path)
    model = Decoder(file, "cpu")
    cache = model.cache(len(ids))
    model.forward(ids[:-16], cache)
    decode(model, cache, ids[-16:])
    print(peak_bytes() - before, flush=True)
    del tokenizer


def main() -> None:
    path, ids, new = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    if sys.argv[4:] == ["memory"]:
        memory(path, ids)
        return
    model = Decoder(nbx.io.open_gguf(path), "cpu")
    cache = model.cache(len(ids))
    model.forward(ids[:8], cache)
    print("ready", flush=True)
    for line in sys.stdin:
        cache.reset()
        if line.strip() == "decode":
            model.forward(ids[:16], cache)
        start = time.perf_counter()
        if line.strip() == "decode":
            decode(model, cache, ids[16 : 16 + new])
        else:
            model.forward(ids, cache)
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
