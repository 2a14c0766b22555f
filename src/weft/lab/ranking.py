"""Whether plans come out in the measured order: rows that differ in nothing but their plan."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from weft.lab.subjects import Predicted

DIFFER = 0.02
"""Measured times that differ by less count as equal: the same plan differs by more from day to day."""
_MODEL = ("model", "layers", "hidden", "heads", "seq_len", "gbs_seq")
_QUESTION = (*_MODEL, "task", "framework", "gpu", "gpus", "network", "precision")
_PLAN = ("tp", "pp", "vp", "cp", "ep", "dp", "zero_stage", "mbs_seq", "recompute", "overlap_or_schedule")
_LOAD = ("model", "gpu", "framework", "version", "precision", "isl", "osl", "concurrency")
_ERA = re.compile(r"era \w")


@dataclass(frozen=True)
class Ranking:
    """How plans rank: of `pairs` whose measured times differ, `right` are predicted in the measured order.

    `regrets` are, for each question with several plans, how much longer than the best the plan with the least predicted
    time was measured to take, as a fraction.
    """

    pairs: int
    right: int
    regrets: tuple[float, ...]

    @property
    def share(self) -> float:
        """The share of pairs in the right order."""
        return self.right / self.pairs

    @property
    def regret(self) -> float:
        """The mean regret of the chosen plans."""
        return sum(self.regrets) / len(self.regrets)


@dataclass(frozen=True)
class _RankedRow:
    """A row: its plan, and predicted and measured time [s]."""

    plan: tuple[Any, ...]
    predicted: float
    measured: float


def ranking(predictions: Sequence[Predicted], framework: str) -> Ranking | None:
    """Return how the plans of a framework's measured steps rank, each model and batch for itself; None without a pair.

    Plans count together if they ran the same model and batch on the same machine, in the same software. Rows whose
    notes name an era, within which nothing else changed, count by it.
    """
    return _rank_rows(one for part in predictions for one in _rows(part, framework))


def dispatchers_ranked(predictions: Sequence[Predicted]) -> Ranking | None:
    """Return how MoE dispatch libraries rank by measured steps of one plan each; None without a pair."""
    return _rank_rows(one for part in predictions for one in _by_dispatcher(part))


def replicas_ranked(predictions: Sequence[Predicted]) -> Ranking | None:
    """Return how replicas of other numbers of GPUs rank by TPOT of one load; None without a pair."""
    return _rank_rows(one for part in predictions for one in _by_replica(part))


def _by_replica(part: Predicted) -> Iterator[tuple[tuple[Any, ...], _RankedRow]]:
    subject = part.subject
    if subject.kind != "serving":
        return
    rows = zip(subject.rows.to_dict("records"), part.seconds.tolist(), subject.measured.tolist(), strict=True)
    for row, predicted, measured in rows:
        if row["quantity"] == "TPOT":
            yield tuple(str(row[column]) for column in _LOAD), _RankedRow((row["gpus"],), predicted, measured)


def _rank_rows(rows: Iterable[tuple[tuple[Any, ...], _RankedRow]]) -> Ranking | None:
    questions: dict[tuple[Any, ...], list[_RankedRow]] = {}
    for asked, ran in rows:
        questions.setdefault(asked, []).append(ran)
    pairs = [pair for ran in questions.values() for pair in combinations(ran, 2) if _differs(*pair)]
    if not pairs:
        return None
    right = sum((one.measured < two.measured) == (one.predicted < two.predicted) for one, two in pairs)
    return Ranking(len(pairs), right, tuple(_regret(ran) for ran in questions.values() if _plans(ran) > 1))


def _by_dispatcher(part: Predicted) -> Iterator[tuple[tuple[Any, ...], _RankedRow]]:
    subject = part.subject
    if subject.kind != "step" or "dispatcher" not in subject.rows:
        return
    rows = zip(subject.rows.to_dict("records"), part.seconds.tolist(), subject.measured.tolist(), strict=True)
    for row, predicted, measured in rows:
        if row["dispatcher"]:
            asked = tuple(str(row[column]) for column in (*_QUESTION, *_PLAN, "overlap_ep", "routing"))
            yield asked, _RankedRow((row["dispatcher"],), predicted, measured)


def _rows(part: Predicted, framework: str) -> Iterator[tuple[tuple[Any, ...], _RankedRow]]:
    subject = part.subject
    if subject.kind != "step":
        return
    rows = subject.rows.to_dict("records")
    columns = zip(rows, part.seconds.tolist(), subject.measured.tolist(), subject.labels["framework"], strict=True)
    for row, predicted, measured, name in columns:
        if name == framework:
            era = _ERA.search(row["notes"])
            asked = tuple(str(row[column]) for column in _QUESTION)
            plan = tuple(str(row[column]) for column in _PLAN)
            yield (*asked, era and era[0]), _RankedRow(plan, predicted, measured)


def _differs(one: _RankedRow, two: _RankedRow) -> bool:
    ratio = max(one.measured, two.measured) / min(one.measured, two.measured)
    return one.plan != two.plan and ratio > 1 + DIFFER


def _plans(ran: Sequence[_RankedRow]) -> int:
    return len({one.plan for one in ran})


def _regret(ran: Sequence[_RankedRow]) -> float:
    chosen = min(ran, key=lambda one: one.predicted)
    return chosen.measured / min(one.measured for one in ran) - 1
