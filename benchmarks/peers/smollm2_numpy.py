"""The peer of smollm2.py: the same equations in NumPy float32, weights expanded beforehand.

A process of its own: prints "ready", then answers each line "prefill" or "decode" with seconds.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python" / "oracles"))

import smollm2


def main() -> None:
    ids, new = json.loads(sys.argv[2]), int(sys.argv[3])
    model = smollm2.SmolLM2(Path(sys.argv[1]))
    model.forward(ids[:8])
    print("ready", flush=True)
    for line in sys.stdin:
        model.reset()
        if line.strip() == "decode":
            model.forward(ids[:16])
        start = time.perf_counter()
        if line.strip() == "decode":
            for token in ids[16 : 16 + new]:
                model.forward([token])
        else:
            model.forward(ids)
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
