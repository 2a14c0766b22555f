"""Cached runs: the inputs that determine the timeline of a run, and its record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from inspect import getfile
from pathlib import Path
from types import FunctionType
from typing import Any

from weft.core.options import RunOptions
from weft.core.store import Record, Store
from weft.core.store.task import question
from weft.graph import Collective, Gemm, Graph
from weft.hardware import System
from weft.overlaps import OverlapMethod, find_simulated
from weft.overlaps.arbiters import ArbiterPolicy, find_policy
from weft.simulate.result import Timeline
from weft.simulate.result.stored import as_record, from_record, plain, summary

_FLOPS_PER_WEIGHT = 1e9
_BYTES_PER_WEIGHT = 1e6


@dataclass(frozen=True)
class RunInputs:
    """A graph on a system under an overlap: everything that decides its timeline.

    Its record is the timeline, with spans and series only if `whole`. `about` is a note for people.
    """

    graph: Graph
    system: System
    overlap: str | OverlapMethod = "streams"
    options: RunOptions = field(default_factory=RunOptions)
    whole: bool = False
    about: str = field(default="", compare=False)

    @property
    def title(self) -> str:
        """A short description of the run."""
        return ", ".join(filter(None, (str(self.graph), find_simulated(self.overlap).name, self.about)))

    @property
    def weight(self) -> float:
        """Rough relative duration of the run."""
        return work_weight(self.graph)

    def inputs(self) -> Mapping[str, Any]:
        """Return the inputs that determine the record."""
        return {
            "graph": plain(replace(self.graph, title="", labels={})),
            "system": self.system.inputs(),
            "overlap": method_identity(find_simulated(self.overlap)),
            "options": plain(self.options),
            "arbiter": policy_identity(find_policy(self.options.arbiter or find_simulated(self.overlap).arbiter)),
            "whole": self.whole,
        }

    def run(self) -> Mapping[str, Any]:
        """Make the record; a description alone cannot."""
        raise NotImplementedError

    def record(self, timeline: Timeline) -> Record:
        """Return what is kept of a timeline: all but the system, title and labels, which the description holds."""
        return as_record(retitle(None, "", {}, timeline if self.whole else summary(timeline)))

    def read(self, record: Mapping[str, Any]) -> Timeline:
        """Return the timeline that a record holds, on this system, under this title and labels."""
        return retitle(self.system, self.graph.title, self.graph.labels, from_record(record))


def kept_or_made(store: Store, described: RunInputs, make: Callable[[], Timeline]) -> Timeline:
    """The timeline of a run: read from the store, else made and stored."""
    asked = question(described)
    record = store.get(asked)
    if record is not None:
        return described.read(record)
    made = make()
    store.keep(asked, described.record(made))
    return made


def work_weight(graph: Graph) -> float:
    """Rough relative duration of a simulation of a graph."""
    moved = sum(node.op.bytes for node in graph if isinstance(node.op, Collective))
    work = sum(node.op.flops for node in graph if isinstance(node.op, Gemm))
    return work / _FLOPS_PER_WEIGHT + moved / _BYTES_PER_WEIGHT


def policy_identity(policy: ArbiterPolicy) -> list[str]:
    """Return the identity of an arbitration policy: its name, and the byte code of its function."""
    code = policy.rule.__code__
    return [policy.name, code.co_code.hex(), repr(code.co_consts), repr(code.co_names)]


def method_identity(method: OverlapMethod) -> Any:
    """The identity of an overlap method: its class and parameters, and the source of a class that is not Weft's."""
    own = [kind for kind in type(method).__mro__ if not kind.__module__.startswith(("weft.", "builtins", "abc"))]
    known = plain(replace(method, summary="", title=""))
    return {"method": known, "source": [_source(kind) for kind in own]} if own else known


def _source(kind: type) -> str:
    """Return the source of a class's file; without a file, the names and byte code of its functions."""
    try:
        return Path(getfile(kind)).read_text(encoding="utf-8")
    except (OSError, TypeError):
        functions = (value for value in vars(kind).values() if isinstance(value, FunctionType))
        return "".join(f"{one.__name__} {one.__code__.co_code.hex()} {one.__code__.co_consts}" for one in functions)


def retitle(system: Any, title: str, labels: Mapping[str, str], timeline: Timeline) -> Timeline:
    """Return a timeline and its parts on another system, under another title and labels."""
    parts = tuple(retitle(system, title, labels, part) for part in timeline.parts)
    return replace(timeline, system=system, graph=replace(timeline.graph, title=title, labels=labels), parts=parts)
