"""What the memory of the host holds in a step: how long it takes over the host's link, and what computing waits for."""

from __future__ import annotations

from dataclasses import replace

from weft.hardware import Gpu
from weft.models.block import LAYERS
from weft.models.parallel.framework import Framework
from weft.models.parallel.memory import SavedActivations
from weft.step.result.step import Chunk, Pass, add_parts, exposed_part

HOST_EFFICIENCY = 0.85
"""Share of the host link's line rate that copies reach: 26.8 of 31.5 GB/s on A100, 55.4 of 63 on H100 and 51 of 63 on
B200 (Azure/AI-benchmarking-guide @8fd0c6e); that GPUs behind one switch or socket share it is left out."""
HOST = "host"
"""The stream of the host's link in breakdowns."""
BUFFERS = 2
"""Parts of the model whose data are on the GPU while others travel: one in use, one being copied."""


def seconds_to_host(size: float, gpu: Gpu) -> float:
    """Return the time of `size` bytes over the link of a GPU to its host, in one direction [s]."""
    return size / (gpu.host.bandwidth * HOST_EFFICIENCY)


def hidden_and_exposed(size: float, beside: float, gpu: Gpu) -> tuple[float, float]:
    """Return the hidden and the exposed time [s] of a copy of `size` bytes to or from the host during `beside` seconds
    of computing. The copy is hidden if the bytes over the link's rate are at most the time until the data are used
    again.
    """
    moved = seconds_to_host(size, gpu)
    return min(moved, beside), max(moved - beside, 0.0)


def without_offloaded(name: str, kept: SavedActivations) -> SavedActivations:
    """Return what a part of the model leaves on the GPU if the activations of layers go to the host.

    The activations of the layer in use and of the one being copied count in every pass.
    """
    if name not in LAYERS:
        return kept
    buffers = BUFFERS * kept.bytes
    return SavedActivations({}, kept.forward + buffers, kept.backward + buffers)


def waiting_for_host(of: Chunk, gpu: Gpu) -> Chunk:
    """Return the passes of a chunk whose layers send what they keep to the host, and fetch it for the backward pass.

    Copies run concurrently with the pass of the whole chunk, in one direction each.
    """
    size = sum(part.kept.bytes for part in of.parts if part.name in LAYERS)
    return replace(of, forward=_waiting(of.forward, size, gpu), backward=_waiting(of.backward, size, gpu))


def _waiting(alone: Pass, size: float, gpu: Gpu) -> Pass:
    hidden, late = hidden_and_exposed(size, alone.seconds, gpu)
    parts = add_parts(alone.parts, {exposed_part(HOST): late} if late else {})
    seconds = alone.seconds + late
    return replace(alone, seconds=seconds, parts=parts, hidden=add_parts(alone.hidden, {HOST: hidden}))


def exposed_states(shard: int, update: float, framework: Framework, gpu: Gpu) -> float:
    """Return the exposed time [s] of the `update` of `shard` parameters whose optimizer states are on the host.

    The GPU computes the update: states arrive and leave at once, part by part, in both directions of the link.
    """
    return hidden_and_exposed(shard * framework.optimizer_bytes, update, gpu)[1]
