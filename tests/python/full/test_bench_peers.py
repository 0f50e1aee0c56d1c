"""What the benchmark of ops calls in torch computes what the rows do."""

from __future__ import annotations

import nbxtensor as nbx
import numpy as np
import pytest
import torch
from nbxtensor.cli import bench
from nbxtensor.cli.bench_peers import torch_call
from nbxtensor.ops import OPS, TABLE

OPTIONS = bench.Options("cpu", "float32", 0.001, 1, ())


@pytest.mark.parametrize("row", [r for r in TABLE.values() if r.bench], ids=lambda r: r.name)
def test_torch_computes_the_same(row: bench.Row) -> None:
    function = torch_call(row, torch)
    if function is None:
        assert row.name in {"rms_norm_add", "rope"}, "name torch's form of it in bench_peers.py"
        return
    shapes = tuple(tuple(min(size, 12) for size in shape) for shape in row.bench[0])
    tensors = bench.arguments_of(row, shapes, OPTIONS)
    own = OPS[row.name](*tensors, **bench.keywords_of(row))
    peer = function(*(torch.from_numpy(tensor.numpy()) for tensor in tensors))
    own, peer = (
        [part] if isinstance(part, (nbx.Tensor, torch.Tensor)) else list(part)
        for part in (own, peer)
    )
    for ours, theirs in zip(own, peer, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-4)
