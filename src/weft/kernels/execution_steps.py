"""An execution plan for a collective of a size: what each step moves, in bytes of each rank's memories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from weft.core.errors import InputError
from weft.core.units import format_bytes
from weft.graph.execution_plan import BufferName, BufferPart, ExecutionPlan, PlanStep, step_words

_REUSED_SCRATCH = 64 << 20
"""Scratch buffer of plans that reuse it [bytes] (assumed; MSCCL++'s constant is a size of its build)."""


class ByteRange(NamedTuple):
    """Bytes of the memory "data" (the input), "collected" (the output unless in place) or "scratch" of a rank.

    At rank None, of every rank.
    """

    rank: int | None
    memory: str
    begin: int
    size: int
    packets: bool


class Motion(NamedTuple):
    """A copy or reduction: the sum of all sources goes to every target; all ranges are equally long."""

    sources: tuple[ByteRange, ...]
    targets: tuple[ByteRange, ...]


class Action(NamedTuple):
    """A step, or one turn of a step in a pipeline, with the bytes that it moves."""

    step: PlanStep
    place: str
    motions: tuple[Motion, ...]


class ExpandedPlan:
    """A plan for a collective of `bytes_`: actions[r][w] of workgroup w of rank r, and the memories' sizes by rank.

    Raises InputError for a size that the plan is not for, or cannot be cut for.
    """

    def __init__(self, plan: ExecutionPlan, bytes_: int) -> None:
        self.plan, self.bytes = plan, bytes_
        least, most = plan.sizes
        if not least <= bytes_ <= most:
            raise InputError(
                f"the plan '{plan.name}' is for {format_bytes(least)} to {format_bytes(most)}, not "
                f"{format_bytes(bytes_)}; choose a size in this range"
            )
        part = bytes_ // plan.ranks
        self.input = part if plan.collective == "all_gather" else bytes_
        self.output = part if plan.collective == "reduce_scatter" else bytes_
        divided = plan.collective in ("all_gather", "reduce_scatter") and bytes_ % plan.ranks
        for rank, chunks in enumerate(plan.chunks):
            grain = plan.alignment * max(chunks.groups, 1)
            uneven = self.input % grain or self.output % grain
            both = chunks.input and chunks.output
            if divided or uneven or (both and self.input * chunks.output != self.output * chunks.input):
                raise InputError(
                    f"{format_bytes(bytes_)} cannot be cut into the chunks of rank {rank} ({chunks.input} of input, "
                    f"{chunks.output} of output, at multiples of {grain} B) of the plan '{plan.name}'; try "
                    f"{format_bytes(self._fitting(grain))}"
                )
        self.actions = tuple(
            tuple(tuple(self._actions(rank, block, steps)) for block, steps in enumerate(blocks))
            for rank, blocks in enumerate(plan.steps)
        )

    def _fitting(self, grain: int) -> int:
        whole = grain * self.plan.ranks * max(max(c.input, c.output) for c in self.plan.chunks)
        return max(round(self.bytes / whole), 1) * whole

    def memories(self, rank: int) -> dict[str, int]:
        """Return the sizes of a rank's memories [bytes]."""
        scratch = self._offset(rank, self.plan.chunks[rank].scratch)
        if self.plan.reuse:
            scratch = min(scratch, _REUSED_SCRATCH)
        scratch *= (2 if self.plan.packets else 1) * (2 if self.plan.double else 1)
        data = {"data": self.bytes} if self.plan.in_place else {"data": self.input, "collected": self.output}
        return data | {"scratch": scratch}

    def base(self, rank: int, buffer: BufferName) -> tuple[str, int]:
        """Return the memory of a buffer, and where it begins there."""
        if buffer == "scratch" or not self.plan.in_place:
            return {"input": "data", "output": "collected"}.get(buffer, buffer), 0
        within = (self.plan.collective, buffer) in (("all_gather", "input"), ("reduce_scatter", "output"))
        return "data", rank * (self.bytes // self.plan.ranks) if within else 0

    def _offset(self, rank: int, index: int) -> int:
        """Return where chunk `index` of a rank's buffers begins [bytes]."""
        chunks, grain = self.plan.chunks[rank], self.plan.alignment
        total, count = (self.input, chunks.input) if chunks.input else (self.output, chunks.output)
        groups = chunks.groups or 1
        each, per = total // grain // groups, count // groups or 1
        group, within = divmod(index, per) if chunks.groups else (0, index)
        least, longer = divmod(each, per)
        return (group * each + within * least + min(within, longer)) * grain

    def _actions(self, rank: int, block: int, steps: Sequence[PlanStep]) -> Iterator[Action]:
        for index, step in enumerate(steps):
            if step.name != "pipeline":
                yield Action(step, step_words(rank, block, index, step.name), self._motions(rank, step, 0, 1 << 62))
                continue
            total = step.chunks * (self._offset(rank, 1) or self.plan.alignment)
            for turn in range(-(-total // step.unit)):
                for at, inner in enumerate(step.inner):
                    place = step_words(rank, block, f"{index}.{at}, turn {turn},", inner.name)
                    yield Action(inner, place, self._motions(rank, inner, turn * step.unit, step.unit))

    def _motions(self, rank: int, step: PlanStep, begin: int, unit: int) -> tuple[Motion, ...]:
        found = []
        for move in step.moves:
            spans = [self._span(rank, part, step.share, begin, unit) for part in (*move.sources, *move.targets)]
            sizes = {span.size for span in spans}
            if len(sizes) > 1:
                raise InputError(
                    f"a step '{step.name}' of rank {rank} of the plan '{self.plan.name}' joins parts of {sizes} bytes "
                    f"for {format_bytes(self.bytes)}; choose a size that all its chunks divide, like "
                    f"{format_bytes(self._fitting(self.plan.alignment))}"
                )
            if sizes != {0}:
                found.append(Motion(tuple(spans[: len(move.sources)]), tuple(spans[len(move.sources) :])))
        return tuple(found)

    def _span(self, rank: int, part: BufferPart, share: tuple[int, int], begin: int, unit: int) -> ByteRange:
        """The bytes of a part that a workgroup takes in a turn that begins `begin` bytes into it."""
        of = rank if part.rank is None else part.rank
        first, end = self._offset(of, part.index), self._offset(of, part.index + part.size)
        grains = (end - first) // self.plan.alignment
        low, high = (
            (k * (grains // share[1]) + min(k, grains % share[1])) * self.plan.alignment
            for k in (share[0], share[0] + 1)
        )
        size = max(min(high - low - begin, unit), 0)
        memory, base = self.base(of, part.buffer)
        at = first + low + begin
        if self.plan.reuse and part.buffer == "scratch":
            at = self._scratch_place(of, part.index, low + begin, at)
        return ByteRange(part.rank, memory, base + at, size, part.packets)

    def _scratch_place(self, rank: int, index: int, within: int, at: int) -> int:
        """Return where a chunk of scratch lies if the buffer is smaller than its chunks: pieces take turns."""
        count = self.plan.chunks[rank].scratch
        each = -(-_REUSED_SCRATCH // count // self.plan.alignment) * self.plan.alignment
        return index * each + within % each if each < self._offset(rank, 1) else at
