"""A layer's GEMMs concurrent with the encoding of the next layer's weights: both meet on a memory channel.

The requests of the GEMMs are spread over their time as evenly as their bytes ask for; as many are in flight as the
workgroups on the GPU have K steps fetched ahead. Groups of commands are spread over the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from weft.core.options import SHORT, RunOptions
from weft.estimate import gemm_kernel
from weft.estimate import pim as closed
from weft.estimate.gemm import as_tile, cold_rates
from weft.graph import Gemm
from weft.hardware import Gpu, system
from weft.hardware.pim import Pim
from weft.kernels import GemmTiling
from weft.kernels.library.tiles import candidates
from weft.kernels.pim import GROUP, INSTRUCTION_SETS, encode
from weft.models import Transformer
from weft.models.parallel.framework import framework
from weft.models.parallel.plan import TrainingPlan
from weft.simulate.channel import Requests
from weft.simulate.pim import IDLE, ChannelRun, meet
from weft.step.clock import train
from weft.step.result.step import Pass

ROOM = {"memory.capacity": "1 PiB"}
"""Memory in which a model fits on one GPU: degrees of parallelism divide GEMMs and encoding alike."""
REQUEST = 512
"""Bytes of a request of a GEMM."""
MOST_REQUESTS, GROUPS = 8000, 64
"""Groups of commands of a pass that are simulated, fewer (at least 8) where requests are too many."""
RESIDENT = 2
"""Workgroups of a GEMM on a compute unit at once [assumed; 1 to 4]."""
FORMAT = "mx9"
_STORE_SHARE = 8
"""One in `_STORE_SHARE` requests of a GEMM is a store [assumed]: results are smaller than operands that are reread."""


class Passed(NamedTuple):
    """The GEMMs of a layer's pass, forward or backward: time [s], bytes to and from memory, FLOPs, bytes in flight."""

    seconds: float
    bytes: float
    flops: float
    in_flight: float


@dataclass(frozen=True)
class LayerCase:
    """A model with a number of tokens on a GPU: its passes, and the shares of time that encoding costs them.

    `slowdown` is how much longer the GEMMs of each pass take beside the commands; `eager` the same where groups follow
    one another without a pause. `step` is the time of a training step [s], `layers` how many there are.
    """

    model: str
    gpu: str
    tokens: int
    instructions: str
    passes: tuple[Passed, Passed]
    slowdown: tuple[float, float]
    eager: tuple[float, float]
    step: float
    layers: int
    weights: float
    pim: Pim
    bandwidth: float
    copy_rate: float

    @property
    def gemm_seconds(self) -> float:
        """GEMMs of a layer, both passes [s]."""
        return sum(one.seconds for one in self.passes)

    @property
    def c(self) -> float:
        """Commands for each word of fp32."""
        return closed.commands_per_word(FORMAT, self.instructions)

    @property
    def gemm_eager(self) -> float:
        """How much longer all GEMMs of a step take beside commands without a pause, as a share."""
        return self._added_seconds(self.eager) / (self.layers * self.gemm_seconds)

    @property
    def lost(self) -> float:
        """Throughput lost over a training step, the commands spread over each pass."""
        return _share(self._added_seconds(self.slowdown), self.step)

    @property
    def lost_eagerly(self) -> float:
        """The same, the commands without a pause."""
        return _share(self._added_seconds(self.eager), self.step)

    def _added_seconds(self, slowdown: tuple[float, float]) -> float:
        """Time that a step takes more [s]."""
        return self.layers * sum(one.seconds * more for one, more in zip(self.passes, slowdown, strict=True))

    @property
    def gemm_loss(self) -> float:
        """How much longer all GEMMs of a step take, as a share, the commands spread over each pass."""
        return self._added_seconds(self.slowdown) / (self.layers * self.gemm_seconds)

    @property
    def bound(self) -> float:
        """The loss of the GEMMs if encoding and they took turns: 4 c F / (3 A BW n), A and F as simulated."""
        flops = sum(one.flops for one in self.passes)
        gain = closed.gain_while_encoding(self.pim, FORMAT, self.instructions)
        return closed.serialised_loss(self.c, flops / self.gemm_seconds, gain, self.bandwidth, self.tokens)

    @property
    def host(self) -> float:
        """Throughput lost if kernels of the GPU encode each layer's weights before its passes."""
        return _share(2 * self.layers * closed.host_seconds(4 * self.weights, 2 * self.copy_rate, FORMAT), self.step)

    @property
    def used_share(self) -> float:
        """Share of the memory's rate that the forward pass's GEMMs use."""
        return self.passes[0].bytes / (self.passes[0].seconds * self.bandwidth)

    def record(self) -> dict[str, object]:
        """Return the case as plain data."""
        names = ("model", "gpu", "tokens", "instructions", "c", "lost", "lost_eagerly", "gemm_eager", "bound", "host")
        return {**{name: getattr(self, name) for name in names}, "memory_used": self.used_share, "step_s": self.step}


def _share(added: float, step: float) -> float:
    """Throughput lost by what is added to a step."""
    return added / (step + added)


def cases(model: Transformer, gpu: Gpu, pim: Pim, tokens: Iterable[int], options: RunOptions) -> tuple[LayerCase, ...]:
    """Return the model at each number of tokens under both instruction sets, the commands spread over each pass."""
    found = []
    for n in tokens:
        forward, backward, seconds, layers = time_layer(model, gpu, n, options)
        weights = 12.0 * model.hidden**2
        for name in INSTRUCTION_SETS:
            spread_, eager = (
                (
                    slowdown(forward, weights, gpu, pim, name, at_once),
                    slowdown(backward, weights, gpu, pim, name, at_once),
                )
                for at_once in (False, True)
            )
            case = LayerCase(
                model.name, gpu.name, n, name, (forward, backward), spread_, eager, seconds, layers, weights, pim,
                gpu.memory.bandwidth, gpu.memory.copy_rate,
            )  # fmt: skip
            found.append(case)
    return tuple(found)


@cache
def time_layer(model: Transformer, gpu: Gpu, tokens: int, options: RunOptions) -> tuple[Passed, Passed, float, int]:
    """Return the GEMMs of a layer in both passes, the time of a step by closed forms [s], and the number of layers."""
    sequence = min(tokens, int(model.sequence_length))
    batch = tokens // sequence
    plan = TrainingPlan(batch=batch, micro_batch=batch, sequence=sequence)
    step = train(model, system(gpu.replace(ROOM), gpus=1), plan, framework("megatron-2022"), options, "estimate")
    parts = [part for part in step.chunks[0].parts if part.name not in ("embedding", "head")]
    return make_pass(parts[0].forward, gpu), make_pass(parts[0].backward, gpu), step.seconds, len(parts)


def make_pass(one: Pass, gpu: Gpu) -> Passed:
    """Return the GEMMs of a pass of a layer."""
    assert one.graph is not None
    found = []
    for node in one.graph:
        if isinstance(node.op, Gemm):
            begin, end = one.times[node.id]
            op, tiling = node.op, GemmTiling()
            held = (
                gpu.compute.compute_units * RESIDENT * tiling.slots * (tiling.rows + tiling.columns) * tiling.step * 2
            )
            loads = op.m * op.n * op.k * op.batch * 2 * (1 / tiling.rows + 1 / tiling.columns)
            moved = memory_bytes(op, gpu)
            found.append(Passed(end - begin, moved, op.flops, held * min(moved / loads, 1.0)))
    seconds = sum(each.seconds for each in found)
    in_flight = sum(each.in_flight * each.seconds for each in found) / seconds
    return Passed(seconds, sum(each.bytes for each in found), sum(each.flops for each in found), in_flight)


def memory_bytes(op: Gemm, gpu: Gpu) -> float:
    """Bytes that a GEMM moves to and from memory under the kernel that the closed form chooses, over all channels."""
    rates = cold_rates(op.dtype, gpu, SHORT)._replace(channels=0.0)
    shape = gemm_kernel.GemmShape(op.m, op.n, op.k, op.batch)
    tried = []
    for one in candidates(gpu.architecture, op.dtype):
        tile = as_tile(one)
        columns, _, _ = gemm_kernel.fit_tile(shape, tile, rates)
        tried.append(gemm_kernel.time_candidate(shape, tile, columns, 1.0, rates))
    best = min(tried, key=lambda attempt: attempt.total)
    return float(best.memory_time * rates.memory_rate)


def slowdown(one: Passed, weights: float, gpu: Gpu, pim: Pim, instructions: str, eager: bool) -> float:
    """Return how much longer the GEMMs of a pass take beside the encoding of `weights` of another layer, as a share."""
    alone, both = met(one, weights, gpu, pim, instructions, eager)
    return max(both.seconds, both.pim_seconds) / alone.seconds - 1


def met(
    one: Passed, weights: float, gpu: Gpu, pim: Pim, instructions: str, eager: bool = False
) -> tuple[ChannelRun, ChannelRun]:
    """A part of a pass on one channel, without the commands and beside them, as long as that part's commands are due.

    `eager`: groups of commands follow one another, from the start on.
    """
    words = 4 * weights / (gpu.memory.channels * pim.together * pim.units.word_bytes)
    sample = encode(GROUP * 64, pim, FORMAT, instructions)
    each = sample.words / sample.blocks  # words of a group of commands
    every = one.seconds * each / words
    rate = one.bytes / gpu.memory.channels / one.seconds / REQUEST  # requests/s
    groups = int(min(GROUPS, max(8, MOST_REQUESTS / (rate * every))))
    requests = spread(max(int(groups * every * rate), 1), groups * every)
    window = max(int(one.in_flight / gpu.memory.channels / REQUEST), 2)
    stream = encode(int(groups * each) // GROUP * GROUP, pim, FORMAT, instructions)
    alone = meet(IDLE, pim, requests, gpu, window)
    return alone, meet(stream, pim, requests, gpu, window, 0.0 if eager else every)


def spread(count: int, seconds: float) -> Requests:
    """Requests of a GEMM over a time [s]: two operands read in turn, each in the order of addresses, and stores."""
    i = np.arange(count)
    kind = (i % _STORE_SHARE == _STORE_SHARE - 1).astype(np.int64)
    operand = np.where(kind == 1, 2, i % 2)
    place = np.zeros(count, dtype=np.int64)
    for each in range(3):
        place[operand == each] = np.arange(int((operand == each).sum()))
    address = (operand << 28) + place * REQUEST
    at = (i * seconds / count * 1e15).astype(np.int64)
    return Requests(at, kind, np.zeros(count, dtype=np.int64), address, np.full(count, REQUEST))
