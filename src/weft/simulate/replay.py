"""T3's reduce-scatter on real numbers: every update of every tile, in the order in which the memory performed them.

Near-memory units add in the format of the output and round at every update. On a ring each tile is updated twice on a
GPU, by its own part and by the sum of the GPUs before; addition of two numbers commutes, so that the result does not
depend on when either comes. Sent straight to its owner ("t3-direct"), a tile is updated once by every GPU, and order
matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from weft.core.answer import to_plain
from weft.core.errors import InputError, SimulationError, check_name, check_type, check_whole
from weft.core.options import RunOptions
from weft.graph import Gemm, Graph, RemoteLoads, TrackedDirect
from weft.graph.moe import moe_layer
from weft.hardware import Described
from weft.kernels import GemmTiling
from weft.overlaps import OverlapMethod, find_simulated
from weft.overlaps.graphs import find_consumed
from weft.overlaps.moe import expert_layer
from weft.simulate.gathered import GatherReplay, replay_gather
from weft.simulate.result import Timeline
from weft.simulate.result.timeline import TileUpdates
from weft.simulate.routed_replay import ExpertReplay, check_size, replay_experts
from weft.simulate.single import Runner, simulate

Floats = npt.NDArray[Any]
_MOST_ELEMENTS = 1 << 27
"""Most elements of all GPUs' outputs."""


def _to_bf16(values: Floats) -> Floats:
    """Return the numbers rounded to bf16, to the nearest and of two to the even one; kept in fp32."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def _to_fp16(values: Floats) -> Floats:
    """Return the numbers rounded to fp16."""
    return np.asarray(values).astype(np.float16)


ROUNDED: dict[str, Callable[[Floats], Floats]] = {"fp16": _to_fp16, "bf16": _to_bf16}
"""How sums are rounded, by the format of the output."""


class ReplayErrors(NamedTuple):
    """Root mean squares of errors relative to that of the exact sum, and shares of elements whose bits are equal.

    Of sums `near_memory`, of sums in `fp32` that are rounded once, and of sums `by_arrival`: every GPU's part sent
    straight to the owner and added in the order in which GPUs made it. `same_as_ring` are equal to the sums of a ring
    by the book, `same_by_arrival` to those by arrival.
    """

    near_memory: float
    fp32: float
    by_arrival: float
    same_as_ring: float
    same_by_arrival: float


@dataclass(frozen=True, eq=False)
class Replay:
    """What a reduce-scatter computed: `chunks[c]` is what GPU c holds, `partials[g]` the product of GPU g alone.

    Arrays of the output's rows and columns, NaN outside of a GPU's chunk. `updates` counts updates of wavefront tiles,
    `errors` says what rounding near memory costs, and what the order of arrival would if tiles went to their owner.
    """

    run: Timeline
    dtype: str
    partials: Floats
    chunks: Floats
    updates: int
    errors: ReplayErrors

    @property
    def result(self) -> Floats:
        """The output, every chunk from the GPU that owns it."""
        return _join_chunks(self.chunks)

    def to_dict(self) -> dict[str, Any]:
        """Counts and errors as plain data."""
        return to_plain(
            overlap=self.run.overlap, arbiter=self.run.arbiter, gpus=len(self.partials), dtype=self.dtype,
            updates=self.updates, seconds=self.run.seconds, **self.errors._asdict(),
        )  # fmt: skip


def replay(
    graph: Graph,
    system: Described,
    overlap: str | OverlapMethod = "t3",
    options: RunOptions | None = None,
    *,
    dtype: str = "fp16",
    seed: int = 0,
) -> Replay | GatherReplay | ExpertReplay:
    """Simulate a sub-layer on every GPU, then perform it on random numbers in the logged order.

    Of a GEMM with the collective behind it, that is the reduce-scatter; of an all-gather before a GEMM, its copies and
    the tiles (a tile multiplies the rows that are there when it begins). Of a layer of experts, it is all of it, under
    "t3-all-to-all" or "deepep".

    Operands are normal; each GPU multiplies its part of K in fp32 and rounds to `dtype`, "fp16" or "bf16". Raises
    UnknownNameError for another format, InputError for an overlap whose tiles are not updated near memory and for
    outputs of more than _MOST_ELEMENTS, SimulationError if the log does not hold every update once.
    """
    check_name("format of the sums", dtype, ROUNDED)
    check_whole("seed", seed, 0, 1)
    check_type("the graph", graph, Graph, 'give a sub-layer, like weft.sublayer("t-nlg", "fc-2", tp=8)')
    chosen = replace(options or RunOptions(), mode="explicit", updates=True)
    if moe_layer(graph) is not None:
        return _experts(graph, system, overlap, chosen, dtype, seed)
    gemm = next((node.op for node in graph.gemms if isinstance(node.op, Gemm)), None)
    if gemm is None or gemm.m * gemm.n * graph.ranks > _MOST_ELEMENTS:
        raise InputError(
            f"{graph} has no GEMM, or its outputs on all GPUs have more than {_MOST_ELEMENTS:,} elements; replay a "
            "smaller one, such as 1024 x 512 x 2048"
        )
    run = simulate(graph, system, overlap, chosen)
    kernels = [node.choice.kernel for node in run.graph]
    if any(isinstance(kernel, TrackedDirect) and kernel.in_switch for kernel in kernels):
        raise InputError(
            f"under '{overlap}' a switch adds up tiles before memory is updated, in an order that no log holds; replay "
            "'t3-direct', whose memory adds up the same tiles"
        )
    if any(isinstance(kernel, RemoteLoads) for kernel in kernels):
        raise InputError(
            f"under '{overlap}' tiles load rows from where they lie before the run, so that none can be early; replay "
            "'t3-all-gather', whose rows arrive while the GEMM runs"
        )
    if find_consumed(graph) is not None:
        return replay_gather(run, dtype, seed, ROUNDED[dtype])
    if run.updates is None or not (run.updates.peer_fs >= 0).any():
        raise InputError(f"'{overlap}' updates no tiles near memory, so there is nothing to replay; choose 't3'")
    tiling = run.graph.gemms[0].choice.tiling
    assert tiling is not None
    shape = gemm.m, gemm.n, gemm.k, graph.ranks, dtype, seed
    partials = products(*shape)
    cut = tiling.splits > 1
    parts = products(*shape, [n * tiling.step for n in tiling.part_steps(gemm)]) if cut else partials[:, None]
    chunks, count = perform_updates(run.updates, parts, tiling, dtype)
    return Replay(run, dtype, partials, chunks, count, _errors(run.updates, partials, parts, chunks, tiling, dtype))


def _experts(
    graph: Graph, system: Described, overlap: str | OverlapMethod, options: RunOptions, dtype: str, seed: int
) -> ExpertReplay:
    """Return the replay of a layer of experts."""
    check_size(graph, _MOST_ELEMENTS)
    runner = Runner(graph, system, options)
    run = runner.timeline(overlap)
    layer, _ = expert_layer(find_simulated(overlap), run.graph, runner.system, runner.options)
    return replay_experts(run, layer, dtype, seed, ROUNDED[dtype])


def products(
    m: int, n: int, k: int, ranks: int, dtype: str, seed: int = 0, steps: Sequence[int] | None = None
) -> Floats:
    """Return the product of every GPU's part of K, of the shape (ranks, m, n), rounded to the format; normal operands.

    With `steps`, that of every `steps` numbers of K in a row, of the shape (ranks, len(steps), m, n).
    """
    rng, rounded = np.random.default_rng(seed), ROUNDED[dtype]
    ends = np.cumsum(steps or [k])

    def operand(*shape: int) -> Floats:
        return rounded(rng.standard_normal(shape)).astype(np.float32)

    def of_rank() -> Floats:
        a, b = operand(m, k), operand(k, n)
        parts = zip((0, *ends[:-1]), ends, strict=True)
        return np.stack([rounded(a[:, begin:end] @ b[begin:end]) for begin, end in parts])

    found = np.stack([of_rank() for _ in range(ranks)])
    return found[:, 0] if steps is None else found


def _join_chunks(chunks: Floats) -> Floats:
    """Return every chunk from the GPU that owns it."""
    whole: Floats = np.where(np.isnan(chunks), -np.inf, chunks).max(axis=0)
    return whole


class _Part(NamedTuple):
    """A wavefront tile of a GPU: the position of its chunk, and the elements in the output's flat order.

    `here_fs` are the times of the GPU's own updates, `peer_fs` those of its peers by distance; -1 where there was none.
    """

    gpu: int
    position: int
    elements: npt.NDArray[np.int64]
    here_fs: npt.NDArray[np.int64]
    peer_fs: npt.NDArray[np.int64]

    def events(self, ranks: int) -> Iterator[tuple[int, str, int, int]]:
        """Yield the time, kind ("here" or "peer"), source GPU and part of K of every update."""
        yield from ((int(at), "here", self.gpu, part) for part, at in enumerate(self.here_fs) if at >= 0)
        yield from ((int(at), "peer", (self.gpu + d) % ranks, 0) for d, at in enumerate(self.peer_fs, 1) if at >= 0)


def _parts(updates: TileUpdates, columns: int, tiling: GemmTiling) -> Iterator[_Part]:
    gpus, tiles, wavefronts = updates.here_fs.shape[:3]
    for g, t in np.ndindex(gpus, tiles):
        position, row, column, high, wide = updates.tiles[g, t].tolist()
        rows = row * tiling.rows + np.arange(high)[:, None]
        flat = (rows * columns + column * tiling.columns + np.arange(wide)).ravel()
        each = -(-len(flat) // wavefronts)
        for w in range(wavefronts):
            part = flat[w * each : (w + 1) * each]
            if len(part):
                yield _Part(g, position, part, updates.here_fs[g, t, w], updates.peer_fs[g, t, w])


def perform_updates(updates: TileUpdates, partials: Floats, tiling: GemmTiling, dtype: str) -> tuple[Floats, int]:
    """Return what each GPU holds of its own chunk after all updates, in their order, and how many there were.

    `partials` has the shape (ranks, m, n) or, where K is cut, (ranks, parts of K, m, n). Memory begins with zeros. A
    GPU that updates a tile in its own memory forwards the sum; a GPU that does not has stored its part only at the
    receiver. Raises SimulationError for an update that is missing or early.
    """
    ranks, *_, m, n = partials.shape
    rounded, flat = ROUNDED[dtype], partials.reshape(ranks, -1, m * n)
    memory = np.zeros_like(flat[:, 0])
    parts = list(_parts(updates, n, tiling))
    events = sorted(
        (at, kind, source, cut, place)
        for place, part in enumerate(parts)
        for at, kind, source, cut in part.events(ranks)
    )
    awaited, included = np.zeros((2, ranks, m * n), dtype=np.int16)
    keeps = np.zeros((ranks, m * n), dtype=bool)
    for part in parts:
        awaited[part.gpu, part.elements] = sum(1 for _ in part.events(ranks))
        keeps[part.gpu, part.elements] = (part.here_fs >= 0).any()
    for _, kind, source, cut, place in events:
        g, position, elements = parts[place][:3]
        summed = kind == "peer" and keeps[source, elements[0]]
        if summed and awaited[source, elements].any():
            raise SimulationError(
                f"GPU {g} received a tile of its chunk {position} before GPU {source} had summed it; report this run"
            )
        value = memory[source, elements] if summed else flat[source, cut, elements]
        memory[g, elements] = rounded(memory[g, elements].astype(np.float32) + value.astype(np.float32))
        awaited[g, elements] -= 1
        included[g, elements] += included[source, elements] if summed else 1
    chunks = np.full((ranks, m * n), np.nan, dtype=np.float32)
    for part in parts:
        if part.position == ranks - 1:
            if (included[part.gpu, part.elements] != ranks * flat.shape[1]).any():
                raise SimulationError(f"the log of GPU {part.gpu} lacks updates of its own chunk; report this run")
            chunks[part.gpu, part.elements] = memory[part.gpu, part.elements]
    return chunks.reshape(ranks, m, n), len(events)


def _errors(
    updates: TileUpdates, partials: Floats, parts: Floats, chunks: Floats, tiling: GemmTiling, dtype: str
) -> ReplayErrors:
    rounded = ROUNDED[dtype]
    exact = parts.astype(np.float64).sum(axis=(0, 1))
    held = _join_chunks(chunks)
    direct = _by_arrival(updates, partials, tiling, dtype)

    def rms(values: Floats) -> float:
        return float(np.sqrt(np.mean((values.astype(np.float64) - exact) ** 2) / np.mean(exact**2)))

    fp32 = rounded(parts.astype(np.float32).sum(axis=(0, 1)))
    ring = ring_sums(partials, np.argmax(~np.isnan(chunks), axis=0), dtype)
    same = (float(np.mean(sums.astype(np.float32) == held)) for sums in (ring, direct))
    return ReplayErrors(rms(held), rms(fp32), rms(direct), *same)


def _by_arrival(updates: TileUpdates, partials: Floats, tiling: GemmTiling, dtype: str) -> Floats:
    """Return the sums if every GPU's part were added at its owner in the order in which the GPUs made it."""
    ranks, m, n = partials.shape
    flat, rounded = partials.reshape(ranks, -1), ROUNDED[dtype]
    made = np.full((ranks, m * n), -1)  # of a first chunk, sent on at once: before all others
    for part in _parts(updates, n, tiling):
        straight = part.position == ranks - 1 and (part.peer_fs >= 0).all()
        for at, kind, source, _ in part.events(ranks):
            if straight or kind == "here":
                made[source, part.elements] = np.maximum(made[source, part.elements], at)
    order = np.argsort(made, axis=0, kind="stable")
    total = np.zeros(m * n, dtype=flat.dtype)
    for place in range(ranks):
        own = np.take_along_axis(flat, order[place][None], axis=0)[0]
        total = rounded(total.astype(np.float32) + own.astype(np.float32))
    found: Floats = total.reshape(m, n)
    return found


def ring_sums(partials: Floats, chunk_of: npt.NDArray[np.int64], dtype: str) -> Floats:
    """The sums of a ring that begins at the GPU below each chunk's owner, as Gloo's and RCCL's; chunk by element."""
    ranks, m, n = partials.shape
    flat, rounded, owner = partials.reshape(ranks, -1), ROUNDED[dtype], chunk_of.ravel()
    total = np.take_along_axis(flat, ((owner - 1) % ranks)[None], axis=0)[0]
    for hop in range(2, ranks + 1):
        own = np.take_along_axis(flat, ((owner - hop) % ranks)[None], axis=0)[0]
        total = rounded(total.astype(np.float32) + own.astype(np.float32))
    found: Floats = total.reshape(m, n)
    return found
