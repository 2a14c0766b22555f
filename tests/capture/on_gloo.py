"""Real processes of torch.distributed on Gloo, as a program of its own: `on_gloo.py scatter|buckets FOLDER ...`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

DTYPES = ("fp16", "bf16")


def run(*words: object) -> None:
    """Run this program with arguments; raises CalledProcessError with what it said."""
    command = [sys.executable, __file__, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def scatter(rank: int, ranks: int, port: int, folder: str, dtype: str) -> None:
    """One process of a reduce-scatter: reads FOLDER/inRANK.npy, writes its chunk of the sum to FOLDER/outRANK.npy."""
    import numpy as np
    import torch
    import torch.distributed as dist

    _joined(rank, ranks, port)
    given = torch.from_numpy(np.load(f"{folder}/in{rank}.npy"))
    given = given.to({"fp16": torch.float16, "bf16": torch.bfloat16}[dtype])
    chunk = torch.empty(len(given) // ranks, dtype=given.dtype)
    dist.reduce_scatter_tensor(chunk, given)
    np.save(f"{folder}/out{rank}.npy", chunk.to(torch.float32).numpy())
    dist.destroy_process_group()


def buckets(width: int, layers: int, port: int, folder: str) -> None:
    """Writes the bytes of the buckets that DistributedDataParallel sends in its third step to FOLDER/sizes.npy."""
    import numpy as np
    import torch
    import torch.distributed as dist
    from torch import nn

    _joined(0, 1, port)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    wrapped, sizes = nn.parallel.DistributedDataParallel(model), []

    def hook(_, bucket):
        sizes.append(bucket.buffer().numel() * 4)
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    wrapped.register_comm_hook(None, hook)
    for _ in range(3):
        sizes.clear()
        wrapped(torch.ones(2, width)).sum().backward()
    np.save(Path(folder) / "sizes.npy", np.array(sizes))
    dist.destroy_process_group()


def _joined(rank: int, ranks: int, port: int) -> None:
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=ranks)


if __name__ == "__main__":
    import torch.multiprocessing as processes

    what, place, *more = sys.argv[1:]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    if what == "scatter":
        processes.spawn(scatter, (int(more[0]), number, place, more[1]), nprocs=int(more[0]))
    else:
        buckets(int(more[0]), int(more[1]), number, place)
