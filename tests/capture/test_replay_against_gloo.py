"""T3's reduce-scatter, replayed update by update, against torch.distributed's on Gloo in real processes."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; make test-capture runs this")
import on_gloo

import weft
from weft.models import SubLayer, parallel


@pytest.mark.parametrize("dtype", on_gloo.DTYPES)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_every_bit_is_that_of_gloo(ranks, dtype, tmp_path):
    graph = parallel.split(SubLayer.custom(512, 256, 64 * ranks, "fp16"), ranks)
    done = weft.replay(graph, "t3-paper", "t3-mca", dtype=dtype)
    owner = np.argmax(~np.isnan(done.chunks), axis=0).ravel()
    order = np.argsort(owner, kind="stable")  # the elements chunk by chunk
    for rank in range(ranks):
        np.save(tmp_path / f"in{rank}.npy", done.partials[rank].ravel()[order].astype(np.float32))
    on_gloo.run("scatter", tmp_path, ranks, dtype)
    gloo = np.concatenate([np.load(tmp_path / f"out{rank}.npy") for rank in range(ranks)])
    assert np.array_equal(gloo, done.result.ravel()[order])
