"""Passes: changes of a graph that decide order and sharing, each under a name that users type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from weft.errors import InputError
from weft.graph import Graph
from weft.hardware import Gpu
from weft.schedule.arbiters import ROUND_ROBIN, ArbiterPolicy


@dataclass(frozen=True)
class Pass(ABC):
    """A way to overlap: `apply` is called once for a run and returns another graph; it changes nothing.

    `name` is what users type. `needs` lists hardware that no GPU on sale has, or not all have. `arbiter` decides who
    enters a memory channel's queue, unless the options of a run say so.
    """

    name: str
    title: str
    summary: str
    needs: tuple[str, ...] = ()
    arbiter: ArbiterPolicy = ROUND_ROBIN

    @property
    def runs(self) -> tuple[str, ...]:
        """The passes whose runs decide what happens under this one: itself, unless it is an ideal."""
        return (self.name,)

    @abstractmethod
    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """The graph as it runs on GPUs like `gpu`; InputError for a graph that this way has no meaning for."""

    def takes(self, graph: Graph) -> bool:
        """Whether the pass has a meaning for a graph."""
        try:
            self._check(graph)
        except InputError:
            return False
        return True

    @abstractmethod
    def _check(self, graph: Graph) -> None:
        """Raise InputError for a graph that the pass has no meaning for."""


@dataclass(frozen=True)
class Ideal(Pass):
    """Parts that share nothing but time: every operator takes as long as in the run of another pass.

    `taken` names that pass for operators, `usually` for all others. The graph's edges alone decide when each begins.
    """

    usually: str = "sequential"
    taken: tuple[tuple[str, str], ...] = ()

    def source(self, operator: str) -> str:
        """The pass whose run an operator's time is from."""
        return dict(self.taken).get(operator, self.usually)

    @property
    def runs(self) -> tuple[str, ...]:
        """The passes whose runs it is assembled from."""
        return tuple(dict.fromkeys((self.usually, *(name for _, name in self.taken))))
