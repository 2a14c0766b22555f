"""Rows on automatic parallelization: strategies of a product, resharding, borders of stages, Alpa's plans."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from weft.graph import Tensor
from weft.hardware import system
from weft.models import load_model
from weft.models.block import Tokens, layer
from weft.papers.memo.models import GPT3, SEQUENCE
from weft.papers.memo.values import Values, case
from weft.papers.textbook.alpa import alpa
from weft.papers.textbook.meshes import balance_stages
from weft.papers.textbook.strategies import (
    PARTIAL,
    REPLICATED,
    Layout,
    LayoutChange,
    MergedOperators,
    Mesh,
    MeshPrices,
    Training,
    groups,
    resharding,
    strategies,
)

_LAYOUTS: dict[str, tuple[Layout, Layout]] = {
    "slice": ((REPLICATED,), (0,)),
    "gather": ((0,), (REPLICATED,)),
    "exchange": ((0,), (1,)),
    "reduce": ((PARTIAL,), (REPLICATED,)),
    "scatter": ((PARTIAL,), (0,)),
}
"""Layouts of a tensor before and after, on an axis of a mesh."""


def sharding() -> Values:
    """Bytes of collectives by how a product is split, over those of its output, and what a rank sends to reshard.

    What is sent is over the tensor's bytes.
    """
    ranks = case("ranks")
    first = next(one for one in _groups() if one.name == "fc1")
    prices = MeshPrices(Mesh(system("dgx-a100"), 1, ranks))
    moved = {way.roles[1]: way.moves for way in strategies(first, prices, Training(1, recompute=False))}
    output, entry = first.tensor.bytes, SEQUENCE * GPT3.hidden * 2
    tensor = Tensor((1024, 1024))
    sent = {row: sum(one.sent for one in resharding(tensor, *each, [ranks])) for row, each in _LAYOUTS.items()}
    return {
        "inner": _bytes(moved["inner"]) / output,
        "rows": _bytes(moved["tokens"]) / output,
        "columns": _bytes(moved["columns"]) / entry,
        **{row: size / tensor.bytes for row, size in sent.items()},
    }


def _groups() -> list[MergedOperators]:
    """Return operators of a layer of GPT-3 on one sequence, as they are sharded."""
    how = Training(1, recompute=False)
    pieces = layer(GPT3, GPT3.layer_kinds[0], Tokens(1, SEQUENCE), how.framework.style, how.dtype)
    return groups(list(pieces), how.dtype, (SEQUENCE, GPT3.hidden))


def _bytes(moves: tuple[LayoutChange, ...]) -> float:
    return sum(move.bytes for move in moves)


def planning() -> Values:
    """Return largest error of the search for borders against all borders, and the places of Alpa's published plans."""
    drawn = np.random.default_rng(0)
    layers, stages, trials = case("borders")
    worst = 0.0
    for _ in range(trials):
        times = drawn.integers(1, 20, layers).tolist()
        worst = max(worst, abs(balance_stages(times, stages).bottleneck - _exhaustive(times, stages)))
    return {"borders": worst, **{row: _place(**plan) for row, plan in case("alpa").items()}}


def _exhaustive(times: list[float], stages: int) -> float:
    """Return the fastest slowest stage of all borders."""
    cuts = combinations(range(1, len(times)), stages - 1)
    return min(max(map(sum, np.split(np.asarray(times), cut))) for cut in map(list, cuts))


def _place(
    hidden: int, layers: int, heads: int, gpus: int, micro_batches: int, groups: int, meshes: tuple[int, ...]
) -> int:
    sizes = {"hidden": hidden, "layers": layers, "heads": heads, "sequence_length": 1024}
    model = load_model("gpt-3.6b").model_copy(update=sizes)
    found = alpa(model, system(f"{gpus}xv100-16gb"), 1024, micro_batches, groups=groups, best=4)
    return found.rank(meshes)
