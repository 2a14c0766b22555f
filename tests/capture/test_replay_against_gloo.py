"""T3's reduce-scatter, replayed update by update, against torch.distributed's on Gloo in real processes."""

from __future__ import annotations

import os
import socket

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; make test-capture runs this")
import torch
import torch.distributed as dist
import torch.multiprocessing as processes

import weft
from weft import parallel
from weft.models import SubLayer

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def scatter(rank: int, ranks: int, port: int, folder: str, dtype: str) -> None:
    """One process: its product in, its chunk of the sum out."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    given = torch.from_numpy(np.load(f"{folder}/in{rank}.npy")).to(DTYPES[dtype])
    chunk = torch.empty(len(given) // ranks, dtype=DTYPES[dtype])
    dist.reduce_scatter_tensor(chunk, given)
    np.save(f"{folder}/out{rank}.npy", chunk.to(torch.float32).numpy())
    dist.destroy_process_group()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_every_bit_is_that_of_gloo(ranks, dtype, tmp_path):
    graph = parallel.split(SubLayer.custom(512, 256, 64 * ranks, "fp16"), ranks)
    done = weft.replay(graph, "t3-paper", "t3-mca", dtype=dtype)
    owner = np.argmax(~np.isnan(done.chunks), axis=0).ravel()
    order = np.argsort(owner, kind="stable")  # the elements chunk by chunk
    for rank in range(ranks):
        np.save(tmp_path / f"in{rank}.npy", done.partials[rank].ravel()[order].astype(np.float32))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes.spawn(scatter, (ranks, port, str(tmp_path), dtype), nprocs=ranks)
    gloo = np.concatenate([np.load(tmp_path / f"out{rank}.npy") for rank in range(ranks)])
    assert np.array_equal(gloo, done.result.ravel()[order])
