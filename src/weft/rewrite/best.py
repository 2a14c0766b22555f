"""Best-first search for the sequence of rules that makes a graph cheapest, with backtracking (TASO, SOSP'19)."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from weft.core.errors import InputError
from weft.graph import Graph
from weft.rewrite.answer import Alternative, Refusal, RewriteStep
from weft.rewrite.cost import Cost, OperatorCosts
from weft.rewrite.flow import Flow, GraphChange, apply_change
from weft.rewrite.rules import Rule

ALPHA = 1.05
"""A graph is expanded if its time is at most `ALPHA` times the best (TASO)."""
MOST = 1000
"""Most graphs that are costed."""
KEPT = 5
"""Alternatives that are kept."""


@dataclass(frozen=True)
class RewriteState:
    """A graph on the way, its cost, and the steps that led to it."""

    graph: Graph
    cost: Cost
    steps: tuple[RewriteStep, ...] = ()


@dataclass
class RewriteSearch:
    """A search for the cheapest graph; after `run`, the `states` that were costed."""

    prices: OperatorCosts
    rules: Sequence[Rule]
    alpha: float = ALPHA
    most: int = MOST
    states: list[RewriteState] = field(default_factory=list)
    exhausted: bool = True

    def run(self, graph: Graph) -> RewriteState:
        """Return the cheapest state that rules reach from a graph; ties go to the fewest kernels and launches."""
        best = RewriteState(graph, self.prices.cost(graph))
        self.states = [best]
        seen = {_key(graph)}
        waiting = [(_rank(best), 0, best)]
        while waiting:
            _, _, state = heapq.heappop(waiting)
            if state.cost.seconds > self.alpha * best.cost.seconds:
                continue
            for found in self._next(state, seen):
                if len(self.states) >= self.most:
                    self.exhausted = False
                    return best
                self.states.append(found)
                best = min(best, found, key=_rank)
                heapq.heappush(waiting, (_rank(found), len(self.states), found))
        return best

    def _next(self, state: RewriteState, seen: set[Hashable]) -> Iterator[RewriteState]:
        """States one step further that have not been seen."""
        flow = Flow(state.graph)
        for rule in self.rules:
            for nodes, choice, change in number_places(rule, flow):
                if isinstance(change, str):
                    continue
                graph = apply_change(state.graph, change)
                key = _key(graph)
                if key not in seen:
                    seen.add(key)
                    cost = self.prices.cost(graph)
                    step = RewriteStep(rule.name, nodes, choice, state.cost, cost)
                    yield RewriteState(graph, cost, (*state.steps, step))

    def alternatives(self, best: RewriteState) -> tuple[Alternative, ...]:
        """Return the cheapest state of each set of rules that the best does without."""
        found: dict[frozenset[str], RewriteState] = {}
        for state in sorted(self.states, key=_rank):
            more = _names(state) - _names(best)
            if more:
                found.setdefault(more, state)
        cheapest = list(found.values())[:KEPT]
        return tuple(Alternative(tuple(sorted(_names(state))), state.cost) for state in cheapest)


def refusals(graph: Graph, rules: Sequence[Rule]) -> tuple[Refusal, ...]:
    """The places of a graph where rules are refused."""
    flow = Flow(graph)
    places = ((rule.name, *place) for rule in rules for place in number_places(rule, flow))
    return tuple(Refusal(name, nodes, why) for name, nodes, _, why in places if isinstance(why, str))


def number_places(rule: Rule, flow: Flow) -> Iterator[tuple[tuple[str, ...], int, GraphChange | str]]:
    """The places of a rule: nodes, the number of the change among those at the same nodes, and the change or reason."""
    counts: dict[tuple[str, ...], int] = {}
    for found in rule.find(flow):
        if found.change is None:
            yield found.nodes, 0, found.why
        else:
            counts[found.nodes] = counts.get(found.nodes, -1) + 1
            yield found.nodes, counts[found.nodes], found.change


def replay_steps(graph: Graph, steps: Iterable[RewriteStep], rules: Mapping[str, Rule]) -> Graph:
    """Return a graph of equal node names after the same steps; InputError if one of them has no place there."""
    for step in steps:
        places = number_places(rules[step.rule], Flow(graph))
        change = next((one for nodes, choice, one in places if (nodes, choice) == (step.nodes, step.choice)), None)
        if not isinstance(change, GraphChange):
            raise InputError(
                f"the rule {step.rule} has no place at {', '.join(step.nodes)}; give the graph it came from"
            )
        graph = apply_change(graph, change)
    return graph


def _rank(state: RewriteState) -> tuple[float, int, int, int]:
    return state.cost.seconds, state.cost.launches, state.cost.kernels, state.cost.bytes


def _names(state: RewriteState) -> frozenset[str]:
    return frozenset(step.rule for step in state.steps)


def _key(graph: Graph) -> Hashable:
    """Equal for graphs that compute the same by the same operators, whatever the order of the rules was."""
    nodes = frozenset((node.op, node.inputs, node.outputs, node.phase) for node in graph)
    return nodes, frozenset(graph.tensors.items()), frozenset(graph.labels.items())
