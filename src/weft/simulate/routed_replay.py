"""A layer of experts on real numbers: tokens to their experts, both GEMMs and back, in the order of a run's log.

Every tile multiplies the rows that its GPU has when it begins. Under T3 the memory of a token's owner adds what its
experts answer, and rounds each time; DeepEP's kernels add up by GPU, then at the owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from weft.core.answer import to_plain
from weft.core.errors import InputError, SimulationError
from weft.graph import Graph, GroupedGemm
from weft.overlaps.deepep import At, PerRankLayer
from weft.overlaps.moe import ExpertLayer
from weft.simulate.result import Timeline

Floats = npt.NDArray[Any]
Rounding = Callable[[Floats], Floats]


@dataclass(frozen=True, eq=False)
class ExpertReplay:
    """What a layer of experts computed: `result[g]` are the sums of GPU g's tokens, of the shape (ranks, tokens, n).

    `reference` are the sums of the same answers in fp64, experts computed one by one. `answers` counts the rows of
    experts that became part of a sum, `error` is the root mean square of the errors relative to that of the reference,
    `fp32` that of sums in fp32 that are rounded once.
    """

    run: Timeline
    dtype: str
    result: Floats
    reference: Floats
    answers: int
    error: float
    fp32: float

    def to_dict(self) -> dict[str, Any]:
        """Counts and errors as plain data."""
        return to_plain(
            overlap=self.run.overlap, gpus=len(self.result), dtype=self.dtype, answers=self.answers, error=self.error,
            fp32=self.fp32, seconds=self.run.seconds,
        )  # fmt: skip


class Event(NamedTuple):
    """What happened on a GPU at a time: what came goes before what was computed."""

    at: int
    order: int
    gpu: int
    what: Callable[[int], None]


def replay_experts(run: Timeline, layer: ExpertLayer, dtype: str, seed: int, rounded: Rounding) -> ExpertReplay:
    """Perform a recorded run of a layer of experts on normal numbers.

    Raises InputError for an overlap whose exchanges are those of a library whose order no log tells,
    SimulationError for a tile, a kernel or an answer that came before its numbers, and for a token without all answers.
    """
    memory = _GpuNumbers(layer, seed, rounded)
    steps = _per_rank(run, layer, memory) if isinstance(layer, PerRankLayer) else _tracked_events(run, layer, memory)
    for event in sorted([*steps, *_tiles(run, layer, memory)], key=lambda event: event[:3]):
        event.what(event.gpu)
    expected = memory.expected_experts()
    if (memory.included != expected).any():
        g, token, expert = (int(one[0]) for one in np.nonzero(memory.included != expected))
        raise SimulationError(
            f"token {token} of GPU {g} has {memory.included[g, token, expert]} answers of expert {expert} in place of "
            f"{expected[g, token, expert]}; report this run"
        )
    reference, fp32 = memory.reference()

    def rms(values: Floats) -> float:
        return float(np.sqrt(np.mean((values.astype(np.float64) - reference) ** 2) / np.mean(reference**2)))

    result = memory.sums
    return ExpertReplay(run, dtype, result, reference, int(memory.included.sum()), rms(result), rms(fp32))


class _GpuNumbers:
    """The numbers of all GPUs; NaN is what is not there yet. `included` counts answers in sums by token and expert."""

    def __init__(self, layer: ExpertLayer, seed: int, rounded: Rounding) -> None:
        self.layer, self.rounded = layer, rounded
        routing, rng = layer.routing, np.random.default_rng(seed)
        self.ranks, self.hidden = routing.ranks, layer.up.k

        def normal(*shape: int) -> Floats:
            return rounded(rng.standard_normal(shape).astype(np.float32)).astype(np.float32)

        self.tokens = normal(self.ranks, routing.tokens, self.hidden)
        self.up = normal(routing.experts, layer.up.k, layer.up.n) / np.float32(layer.up.k**0.5)
        self.down = normal(routing.experts, layer.down.k, layer.down.n) / np.float32(layer.down.k**0.5)
        self.weights = rng.random((self.ranks, routing.tokens, routing.experts)).astype(np.float32)
        lines = self.ranks, max(map(layer.lines, range(self.ranks))) * layer.tiling.rows
        self.rows = self._empty(*lines, self.hidden)
        self.inner = self._empty(*lines, layer.up.n)
        self.outer = self._empty(*lines, layer.down.n)
        self.weight_of, self.owner_of = np.zeros(lines, dtype=np.float32), np.full((*lines, 2), -1)
        self.landed = self.partial = self._empty(0)
        self.sums = np.zeros((self.ranks, routing.tokens, self.hidden), dtype=np.float32)
        self.included = np.zeros((self.ranks, routing.tokens, routing.experts), dtype=np.int16)
        for g in range(self.ranks):
            self._place(g)

    def _empty(self, *shape: int) -> Floats:
        return np.full(shape, np.nan, dtype=np.float32)

    def _place(self, g: int) -> None:
        """Write down whose token every row of GPU g's lines will hold, and with which weight."""
        layer = self.layer
        for slot in layer.slots:
            if piece := layer.came(g, slot):
                owner, rows = (g + slot.distance) % self.ranks, self.place_of(piece.line, piece.at, piece.rows)
                token = layer.routing.token_of(piece.row + np.arange(piece.rows))
                expert = g * layer.routing.experts_per_rank + slot.expert
                self.owner_of[g, rows, 0], self.owner_of[g, rows, 1] = owner, token
                self.weight_of[g, rows] = self.weights[owner, token, expert]

    def place_of(self, line: int, at: int, rows: int) -> slice:
        """Return rows of a line."""
        first = line * self.layer.tiling.rows + at
        return slice(first, first + rows)

    def take(self, values: Floats, what: str) -> Floats:
        """Return the values; SimulationError if they are not there yet."""
        if np.isnan(values).any():
            raise SimulationError(f"{what} before its numbers were there; report this run")
        return values

    def multiply(self, g: int, tile: tuple[int, ...], first: bool) -> None:
        """Compute a tile of the `first` or second GEMM of GPU g: line, column, rows and columns."""
        line, column, high, wide = tile
        op = self.layer.up if first else self.layer.down
        columns = -(-op.n // self.layer.tiling.columns)
        expert, place = column // columns, column % columns * self.layer.tiling.columns
        rows, cut = self.place_of(line, 0, high), slice(place, place + wide)
        what = f"a tile of line {line} of GPU {g}'s {'first' if first else 'second'} GEMM began"
        expert += g * self.layer.routing.experts_per_rank
        if first:
            self.inner[g, rows, cut] = self.rounded(self.take(self.rows[g, rows], what) @ self.up[expert][:, cut])
        else:
            inner = self.activate(self.take(self.inner[g, rows], what))
            weighted = (inner @ self.down[expert][:, cut]) * self.weight_of[g, rows, None]
            self.outer[g, rows, cut] = self.rounded(weighted)

    def activate(self, rows: Floats) -> Floats:
        """Return what the first GEMM's epilogue makes of its rows: the product of both halves, of gated experts."""
        k = self.layer.down.k
        return rows if rows.shape[1] == k else self.rounded(rows[:, :k] * rows[:, k:]).astype(np.float32)

    def expected_experts(self) -> npt.NDArray[np.int16]:
        """Return which experts every token goes to, by the routing alone."""
        routing, found = self.layer.routing, np.zeros_like(self.included)
        for g in range(self.ranks):
            for expert, first in enumerate(routing.first_rows(g)):
                found[g, routing.token_of(first + np.arange(routing.counts[expert])), expert] = 1
        return found

    def reference(self) -> tuple[Floats, Floats]:
        """Return the sums in fp64 of what every expert answers to every token, and in fp32, rounded once."""
        exact = np.zeros(self.sums.shape)
        single = np.zeros_like(self.sums)
        expected = self.expected_experts()
        for g, expert in np.ndindex(self.ranks, self.layer.routing.experts):
            token = np.flatnonzero(expected[g, :, expert])
            inner = self.activate(self.rounded(self.tokens[g, token] @ self.up[expert]).astype(np.float32))
            answer = self.rounded((inner @ self.down[expert]) * self.weights[g, token, expert, None])
            exact[g, token] += answer.astype(np.float64)
            single[g, token] += answer.astype(np.float32)
        return exact, self.rounded(single)


def _tiles(run: Timeline, layer: ExpertLayer, memory: _GpuNumbers) -> Iterator[Event]:
    """Yield both GEMMs, tile by tile."""
    assert run.updates is not None
    for g, t in np.ndindex(run.updates.begun_fs.shape):
        region, *tile = run.updates.tiles[g, t].tolist()
        if tile[2] and tile[3]:
            first = region == 0
            yield Event(int(run.updates.begun_fs[g, t]), 2 if first else 3, g, _tile(memory, tuple(tile), first))


def _tile(memory: _GpuNumbers, tile: tuple[int, ...], first: bool) -> Callable[[int], None]:
    return lambda g: memory.multiply(g, tile, first)


def _times(run: Timeline, buffer: str) -> dict[tuple[int, int], int]:
    """Return when the last byte of each chunk of a buffer was in memory [fs], by GPU and position."""
    return {
        (one.gpu, one.position): max(one.last_local_fs or 0, one.last_remote_fs or 0)
        for one in run.chunks
        if one.buffer == buffer
    }


def _when(times: dict[tuple[int, int], int], g: int, position: int, what: str) -> int:
    if (g, position) not in times:
        raise SimulationError(f"{what} {position} never came to GPU {g}; report this run")
    return times[g, position]


def _tracked_events(run: Timeline, layer: ExpertLayer, memory: _GpuNumbers) -> Iterator[Event]:
    """Under T3: pieces arrive in lines, and answers at their tokens."""
    arrived, summed = _times(run, "arriving"), _times(run, "summed")
    if not summed:
        raise InputError(
            f"the exchanges of '{run.overlap}' are those of the vendor's library, whose sums no log holds; replay "
            "'t3-all-to-all' or 'deepep'"
        )
    for g in range(layer.routing.ranks):
        for p, slot in enumerate(layer.slots):
            if layer.came(g, slot):
                at = _when(arrived, g, p, "piece") if slot.distance else 0
                yield Event(at, 0, g, _arrive(layer, memory, p))
            if layer.sent_piece(g, slot):
                yield Event(_when(summed, g, p, "the answers to piece"), 4, g, _answer(layer, memory, p))


def _arrive(layer: ExpertLayer, memory: _GpuNumbers, p: int) -> Callable[[int], None]:
    """Piece p comes to a GPU."""

    def act(g: int) -> None:
        slot = layer.slots[p]
        piece = layer.came(g, slot)
        assert piece is not None
        owner, rows = (g + slot.distance) % memory.ranks, memory.place_of(piece.line, piece.at, piece.rows)
        memory.rows[g, rows] = memory.tokens[owner, layer.routing.token_of(piece.row + np.arange(piece.rows))]

    return act


def _answer(layer: ExpertLayer, memory: _GpuNumbers, p: int) -> Callable[[int], None]:
    """A GPU's memory has added what an expert answers to piece p that it sent."""

    def act(g: int) -> None:
        slot = layer.slots[p]
        piece = layer.sent_piece(g, slot)
        assert piece is not None
        at, token = (g - slot.distance) % memory.ranks, layer.routing.token_of(piece.row + np.arange(piece.rows))
        rows = memory.place_of(piece.line, piece.at, piece.rows)
        answer = memory.take(memory.outer[at, rows], f"an answer to piece {p} of GPU {g} was added")
        memory.sums[g, token] = memory.rounded(memory.sums[g, token] + answer)
        memory.included[g, token, at * layer.routing.experts_per_rank + slot.expert] += 1

    return act


def _per_rank(run: Timeline, layer: PerRankLayer, memory: _GpuNumbers) -> Iterator[Event]:
    """Under DeepEP: tokens land, are spread to lines, added up by GPU, put back, and added up by their channels."""
    ranks = layer.routing.ranks
    most = max(sum(layer.copies((g + d) % ranks, d) for d in range(ranks)) for g in range(ranks))
    memory.landed, memory.partial = np.full((2, ranks, most, memory.hidden), np.nan, dtype=np.float32)
    back = np.full((ranks, ranks, layer.routing.tokens, memory.hidden), np.nan, dtype=np.float32)
    came, returned = _times(run, "arriving"), _times(run, "coming")
    assert run.residency is not None
    rows, names = run.residency.rows, run.residency.kernels
    for g in range(ranks):
        for p, place in enumerate(layer.places):
            if layer.landing(g, place):
                yield Event(_when(came, g, p, "run"), 0, g, _land(layer, memory, p))
            if layer.leaving(g, place):
                yield Event(_when(returned, g, p, "the answers to run"), 4, g, _return(layer, memory, back, p))
        starts = {span.kernel: span.first_workgroup_fs for span in run.spans if span.gpu == g}
        yield Event(starts["expand"], 1, g, lambda g: _expand(layer, memory, g))
        yield Event(starts["fold"], 4, g, lambda g: _fold(layer, memory, g))
        ends = rows[(rows[:, 0] == g) & (rows[:, 1] == names.index("combine"))][1::2, 4]  # those that receive
        for channel, end in enumerate(ends.tolist()):
            for block in layer.blocks(channel):
                yield Event(end, 5, g, _sum(layer, memory, back, block))


def _row(layer: ExpertLayer, place: At) -> int:
    return place[2] // layer.row_bytes


def _land(layer: PerRankLayer, memory: _GpuNumbers, p: int) -> Callable[[int], None]:
    def act(g: int) -> None:
        place = layer.places[p]
        run = layer.landing(g, place)
        assert run is not None
        first = layer.landed_row(g, place.distance, run.row)
        owner = (g + place.distance) % memory.ranks
        memory.landed[g, first : first + run.rows] = memory.tokens[owner, run.row : run.row + run.rows]

    return act


def _expand(layer: PerRankLayer, memory: _GpuNumbers, g: int) -> None:
    for part in layer.expand_parts(g):
        count, source = part.size // layer.row_bytes, _row(layer, part.sources[0])
        moved = memory.take(memory.landed[g, source : source + count], f"GPU {g} spread tokens")
        for target in part.targets:
            first = _row(layer, target)
            memory.rows[g, first : first + count] = moved


def _fold(layer: PerRankLayer, memory: _GpuNumbers, g: int) -> None:
    for part in layer.fold_parts(g):
        count = part.size // layer.row_bytes
        total = np.zeros((count, memory.hidden), dtype=np.float32)
        for source in part.sources:
            first = _row(layer, source)
            total += memory.take(memory.outer[g, first : first + count], f"GPU {g} added up answers")
            for owner, token in memory.owner_of[g, first : first + count]:
                memory.included[owner, token, _expert(layer, g, first)] += 1
        target = _row(layer, part.targets[0])
        memory.partial[g, target : target + count] = memory.rounded(total)


def _expert(layer: ExpertLayer, g: int, row: int) -> int:
    """Return the expert in whose lines a row of GPU g lies."""
    lines = np.cumsum(-(-layer.routing.received_rows(g) // layer.tiling.rows))
    within = int(np.searchsorted(lines, row // layer.tiling.rows, side="right"))
    return g * layer.routing.experts_per_rank + within


def _return(layer: PerRankLayer, memory: _GpuNumbers, back: Floats, p: int) -> Callable[[int], None]:
    def act(g: int) -> None:
        place = layer.places[p]
        run, at = layer.leaving(g, place), (g - place.distance) % memory.ranks
        assert run is not None
        first = layer.landed_row(at, place.distance, run.row)
        values = memory.take(memory.partial[at, first : first + run.rows], f"GPU {at} sent answers")
        back[g, place.distance, run.row : run.row + run.rows] = values

    return act


def _sum(layer: PerRankLayer, memory: _GpuNumbers, back: Floats, block: int) -> Callable[[int], None]:
    def act(g: int) -> None:
        for part in layer.sum_parts(g, block):
            count, target = part.size // layer.row_bytes, _row(layer, part.targets[0])
            values = [back[g, distance, _row(layer, (name, 0, at)) :][:count] for name, distance, at in part.sources]
            added = memory.take(np.stack(values), f"GPU {g} added up block {block}").sum(axis=0)
            memory.sums[g, target : target + count] = memory.rounded(added)

    return act


def check_size(graph: Graph, most: int) -> None:
    """Raise InputError for a layer of more than `most` numbers, all GPUs' weights and rows together."""
    ops = [node.op for node in graph if isinstance(node.op, GroupedGemm)]
    size = sum(op.groups * op.k * op.n + op.rows * (op.k + op.n) for op in ops) * graph.ranks
    if size > most:
        raise InputError(
            f"the experts and their rows have {size:,} numbers, more than the {most:,} of a replay; give a smaller "
            "layer, such as 256x512x256,top2/8"
        )
