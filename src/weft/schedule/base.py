"""Passes: transformations of a graph that decide order and sharing, each with a name that users type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from weft.errors import InputError, check_type
from weft.fields import check_fields
from weft.graph import Graph
from weft.hardware import Gpu
from weft.schedule.arbiters import ROUND_ROBIN, ArbiterPolicy


@dataclass(frozen=True)
class Pass(ABC):
    """A way to overlap: `apply` is called once per run and returns a new graph.

    `name` is what users type. `needs` lists hardware that no GPU on sale, or not every GPU, has. `arbiter` is the
    memory arbitration policy, unless the options of a run set one.
    """

    name: str
    title: str
    summary: str
    needs: tuple[str, ...] = ()
    arbiter: ArbiterPolicy = ROUND_ROBIN

    def __post_init__(self) -> None:
        check_fields(self)
        check_type("arbiter", self.arbiter, ArbiterPolicy, "give what weft.arbiter makes of a function")

    @property
    def runs(self) -> tuple[str, ...]:
        """The passes to simulate for this one: itself; for an ideal, those that it is assembled from."""
        return (self.name,)

    @abstractmethod
    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """The graph as it runs on GPUs like `gpu`; InputError for a graph to which the pass does not apply."""

    def takes(self, graph: Graph) -> bool:
        """Whether the pass applies to a graph."""
        try:
            self._check(graph)
        except InputError:
            return False
        return True

    @abstractmethod
    def _check(self, graph: Graph) -> None:
        """Raise InputError for a graph to which the pass does not apply."""


@dataclass(frozen=True)
class Ideal(Pass):
    """An overlap without contention: every operator takes as long as in the run of another pass.

    `taken` names that pass by operator, `usually` the pass of all others. Only the graph's edges decide when each
    begins.
    """

    usually: str = "sequential"
    taken: tuple[tuple[str, str], ...] = ()

    def source(self, operator: str) -> str:
        """The pass from whose run an operator's time is taken."""
        return dict(self.taken).get(operator, self.usually)

    @property
    def runs(self) -> tuple[str, ...]:
        """The passes from whose runs this ideal is assembled."""
        return tuple(dict.fromkeys((self.usually, *(name for _, name in self.taken))))
