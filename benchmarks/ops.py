"""Time of ops at their rows' bench shapes: ``python -m nbxtensor bench`` with the machine named.

python benchmarks/ops.py [--device cpu] [--dtype float32] [--family F] [--json] [name ...]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys

from _machine import describe
from nbxtensor.cli import bench


def main() -> int:
    """Measure the chosen rows and print one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    bench.declare(parser)
    options = parser.parse_args()
    if not options.json:
        return bench.run(options)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        status = bench.run(options)
    report = {"machine": describe(options.device), **json.loads(text.getvalue())}
    print(json.dumps(report, indent=2))
    return status


if __name__ == "__main__":
    sys.exit(main())
