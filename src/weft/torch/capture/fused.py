"""Folds captured operators into the kernels that a compiler would make of them, and says which."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.graph import Call, Streaming, Tensor

if TYPE_CHECKING:
    from weft.torch.capture.recorder import NodeRecord

KERNELS = re.compile(r"norm|relu|gelu|silu|swish|sigmoid|tanh|softplus|activation|rotary|rope", re.IGNORECASE)
"""Classes of modules of which a compiler makes one kernel: norms, activations and rotary embeddings."""
_CHAIN = "pointwise chain"


def fold_records(records: Sequence[NodeRecord], described: Mapping[str, Tensor]) -> tuple[list[NodeRecord], str]:
    """Records with runs of operators as one, and a sentence that says what was folded.

    A run is of one phase and stream, without others in between: operators of one module whose class is a norm, an
    activation or a rotary embedding, or pointwise operators of one shape. It reads each tensor from outside once and
    whole, and writes what lives longer than itself.
    """
    made: list[NodeRecord] = []
    place: dict[int, int] = {}
    counts: Counter[str] = Counter()
    start = 0
    while start < len(records):
        stop = _end(records, start)
        run = records[start:stop]
        place.update(dict.fromkeys(range(start, stop), len(made)))
        kind = run[0].kernel or _CHAIN
        one = run[0] if len(run) == 1 else _fold(run, described, kind)
        after = {place[number] for each in run for number in each.after} - {len(made)}
        made.append(replace(one, after=tuple(sorted(after))))
        counts[kind] += len(run) > 1
        start = stop
    kinds = ", ".join(f"{count} x {kind}" for kind, count in counts.items() if count)
    said = f"{len(records)} operators folded into {len(made)} kernels: {kinds}" if kinds else "nothing was folded"
    return made, said


def _end(records: Sequence[NodeRecord], start: int) -> int:
    """The end of the run that begins with a record."""
    first = records[start]
    stop = start + 1
    while stop < len(records) and _joins(first, records[stop], start):
        stop += 1
    return stop


def _joins(first: NodeRecord, other: NodeRecord, start: int) -> bool:
    alike = first.phase == other.phase and first.stream == other.stream
    if not alike or not _foldable(first) or not _foldable(other):
        return False
    if first.kernel or other.kernel:
        return first.kernel == other.kernel and first.module == other.module
    return (
        first.pointwise
        and other.pointwise
        and any(number >= start for number in other.after)
        and first.op.writes[0].shape == other.op.writes[0].shape
    )


def _foldable(one: NodeRecord) -> bool:
    """Return whether a kernel may hold the operator: it computes no matrix product, and writes something."""
    return isinstance(one.op, Call | Streaming) and not one.op.matrix_dtype and bool(one.op.writes)


def _fold(run: Sequence[NodeRecord], described: Mapping[str, Tensor], kind: str) -> NodeRecord:
    made = {name for one in run for name in one.outputs}
    gone = made & {name for one in run for name in one.frees}
    inputs = tuple(dict.fromkeys(name for one in run for name in one.inputs if name not in made))
    outputs = tuple(dict.fromkeys(name for one in run for name in one.outputs if name not in gone))
    changed = () if outputs else run[-1].op.writes
    work = sum(one.op.flops for one in run)
    op = Call(
        f"fused {kind} of {len(run)}",
        tuple(described[name] for name in inputs),
        tuple(described[name] for name in outputs) or changed,
        operations=work,
    )
    frees = [name for one in run for name in one.frees if name not in gone]
    return replace(run[0], op=op, inputs=inputs, outputs=outputs, frees=frees)
