"""The answer of rewriting: the best sequence of rules, what each gains, what else was found, and what was refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.core.answer import Answer, Record, to_plain
from weft.core.options import RunOptions
from weft.graph import Graph
from weft.hardware import System
from weft.rewrite.cost import Cost
from weft.rewrite.execute import Proof


@dataclass(frozen=True)
class RewriteStep(Record):
    """A rule at a place of the graph, and what the graph cost before and after; `choice` numbers its ways there."""

    rule: str
    nodes: tuple[str, ...]
    choice: int
    before: Cost
    after: Cost

    def to_dict(self) -> dict[str, Any]:
        """Return the rule, its nodes and what it saves as plain data."""
        return to_plain(
            rule=self.rule, nodes=self.nodes, gain_s=self.gain, saved_bytes=self.saved_bytes,
            saved_kernels=self.saved_kernels, after=self.after,
        )  # fmt: skip

    @property
    def gain(self) -> float:
        """Time that the step saves [s]; negative where it only prepares another."""
        return self.before.seconds - self.after.seconds

    @property
    def saved_bytes(self) -> int:
        """Bytes that need not be moved any more."""
        return self.before.bytes - self.after.bytes

    @property
    def saved_kernels(self) -> int:
        """Kernels that need not be launched any more."""
        return self.before.kernels - self.after.kernels


@dataclass(frozen=True)
class Alternative:
    """Another sequence of rules, by their names, and what the graph costs then."""

    rules: tuple[str, ...]
    cost: Cost


@dataclass(frozen=True)
class Refusal:
    """A rule that was refused at a place, and why."""

    rule: str
    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True, repr=False)
class Rewriting(Answer):
    """A graph before and after the best sequence of rules on a system.

    `proofs` hold the difference of both sides of each rule that was used, `whole` that of the two graphs, executed as
    they are or as a small `twin`; None where neither can be executed. `explored` graphs were costed; the search was
    `exhausted` if none was left to look at.
    """

    kind = "rewriting"

    system: System
    graph: Graph
    rewritten: Graph
    before: Cost
    after: Cost
    steps: tuple[RewriteStep, ...]
    alternatives: tuple[Alternative, ...]
    refused: tuple[Refusal, ...]
    proofs: Mapping[str, Proof]
    whole: Proof | None
    twin: bool
    explored: int
    exhausted: bool
    launch: float
    options: RunOptions

    @property
    def speedup(self) -> float:
        """Time before by time after."""
        return self.before.seconds / self.after.seconds

    def to_dict(self) -> dict[str, Any]:
        """Costs, steps, alternatives, refusals and proofs as plain data."""
        whole = None if self.whole is None else {**vars(self.whole), "of": "a small twin" if self.twin else "the graph"}
        return to_plain(
            work=str(self.graph), system=self.system.name, speedup=self.speedup, before=self.before, after=self.after,
            steps=self.steps,
            alternatives=[{"rules": list(one.rules), **one.cost.to_dict()} for one in self.alternatives],
            refused=self.refused, proofs=self.proofs, proof=whole, explored=self.explored, exhausted=self.exhausted,
            launch_s=self.launch,
        )  # fmt: skip
