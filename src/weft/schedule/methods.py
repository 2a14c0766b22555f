"""Overlap methods by name: what each joins, where it applies, which hardware it needs, and what can time it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from weft.errors import InputError, check_name
from weft.graph import Graph
from weft.graph.collective import Form
from weft.hardware import Gpu
from weft.schedule.base import Pass
from weft.schedule.sharing import SHARING_PASSES
from weft.schedule.sublayer import SUBLAYER_PASSES

Place = Literal["sub-layer", "experts", "pair", "program", "tp", "cp", "ep", "dp"]
"""A GEMM with the collective of its operand or output, a layer of experts with the exchanges around it, a GEMM beside
an independent collective, the operators of one GPU, or the collectives of one axis of a training step."""
PLACES: tuple[Place, ...] = get_args(Place)
Clock = Literal["engine", "closed form"]
"""What times a method: the request-level engine, or formulas."""
SEQUENTIAL: Final = "sequential"

_ALL: tuple[Form, ...] = ("ag_gemm", "gemm_rs", "gemm_ar")
_SPLIT: tuple[Form, ...] = ("ag_gemm", "gemm_rs")
_REDUCED: tuple[Form, ...] = ("gemm_rs", "gemm_ar")
_AXES: tuple[Place, ...] = ("tp", "cp", "ep", "dp")


@dataclass(frozen=True)
class Overlap:
    """An overlap method, described for users; `simulation` is the pass that the engine runs, if it can.

    `joins` says what runs at once, `places` where the method applies. `forms` are the dependent pairs that it joins:
    an all-gather before a GEMM, or a reduce-scatter or an all-reduce behind one. `closed` says where formulas time it:
    in all of its places ("places"), only on the axes of a step ("axes"), or nowhere.
    """

    name: str
    summary: str
    joins: str
    places: tuple[Place, ...]
    forms: tuple[Form, ...] = ()
    needs: tuple[str, ...] = ()
    simulation: Pass | None = None
    closed: Literal["places", "axes", ""] = ""

    @property
    def timed(self) -> str:
        """What times the method: "engine", "closed form" or "both"."""
        return "both" if self.simulation and self.closed else "engine" if self.simulation else "closed form"

    @property
    def joins_gemms(self) -> bool:
        """Whether the method joins collectives with the GEMMs before or behind them."""
        return bool(self.forms) and self.name != SEQUENTIAL

    def applies(self, place: Place, clock: Clock | None = None) -> bool:
        """Whether the method applies in a place and, if `clock` is given, that clock times it there."""
        if place not in self.places:
            return False
        in_closed_form = self.closed == "places" or (self.closed == "axes" and place in _AXES)
        return clock is None or (in_closed_form if clock == "closed form" else self.simulation is not None)


def _simulated(
    simulation: Pass,
    joins: str,
    places: tuple[Place, ...],
    forms: tuple[Form, ...] = (),
    closed: Literal["places", "axes", ""] = "",
) -> Overlap:
    """The method of a pass that the engine runs."""
    return Overlap(simulation.name, simulation.summary, joins, places, forms, simulation.needs, simulation, closed)


@dataclass(frozen=True)
class InOrder(Pass):
    """A graph of operators on one GPU, such as a captured program, unchanged."""

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """The graph itself; InputError for one with collectives, or that waits for single tiles."""
        self._check(graph)
        return graph

    def _check(self, graph: Graph) -> None:
        for node in graph.collectives:
            raise InputError(
                f"'{self.name}' runs the operators of one GPU, but '{node.id}' is a collective; choose an overlap of a "
                "sub-layer, such as 'sequential', or ask weft.step for a whole model"
            )
        for node in graph:
            if any(edge.by == "tile" for edge in node.edges):
                raise InputError(
                    f"'{self.name}' runs whole operators, but '{node.id}' waits for single tiles; choose an overlap of "
                    "a sub-layer, such as 't3'"
                )


_TRACKED = ("t3", "t3-mca", "t3-critical", "t3-direct", "t3-direct-dma", "t3-nvls", "t3-two-level", "t3-split-k")
_TILES = "tiles of a GEMM and its reduce-scatter"
_ENGINE = {one.name: one for one in (*SUBLAYER_PASSES, *SHARING_PASSES)}
_SHARES = "a GEMM and an independent collective"
OVERLAPS: Mapping[str, Overlap] = {
    one.name: one
    for one in (
        _simulated(
            _ENGINE[SEQUENTIAL], "nothing: one after the other", ("sub-layer", "experts", "tp", "dp"), _ALL, "places"
        ),
        _simulated(_ENGINE["flux"], "tiles of a GEMM and its collective", ("sub-layer", "tp"), _ALL, "places"),
        _simulated(
            _ENGINE["userbuffers"], "chunks of a GEMM and its collective", ("sub-layer", "tp"), _SPLIT, "places"
        ),
        Overlap(
            "async-tp",
            "a GEMM for each rank's share of the rows, on two streams, beside copies (PyTorch's async TP)",
            "pieces of a GEMM and copies of its collective",
            ("sub-layer", "tp"),
            _SPLIT,
            closed="places",
        ),
        _simulated(
            _ENGINE["in-network"],
            "nothing: a shorter all-reduce behind its GEMM",
            ("sub-layer", "tp"),
            ("gemm_ar",),
            "places",
        ),
        *(_simulated(_ENGINE[name], _TILES, ("sub-layer", "tp"), _REDUCED) for name in _TRACKED),
        _simulated(
            _ENGINE["t3-all-gather"], "tile lines of an all-gather and its GEMM", ("sub-layer", "tp"), ("ag_gemm",)
        ),
        _simulated(
            _ENGINE["remote-loads"], "tiles of a GEMM and loads of its rows from peers", ("sub-layer",), ("ag_gemm",)
        ),
        _simulated(
            _ENGINE["t3-all-to-all"], "tiles of a layer of experts and the exchanges around it", ("experts", "ep")
        ),
        _simulated(_ENGINE["deepep"], "nothing: shorter exchanges around experts", ("experts",)),
        *(
            _simulated(_ENGINE[name], "a GEMM and its reduce-scatter, without contention", ("sub-layer",), _REDUCED)
            for name in ("ideal-overlap", "ideal-rs-nmc")
        ),
        _simulated(_ENGINE["rs-nmc"], "nothing: a reduce-scatter alone", ("sub-layer",), _REDUCED),
        *(
            _simulated(
                one,
                _SHARES,
                ("pair", *_AXES),
                closed="axes" if one.name in ("priority", "dma", "dma-partition") else "",
            )
            for one in SHARING_PASSES
        ),
        _simulated(
            InOrder("in-order", "In order", "operators of one GPU as the graph orders them: captured programs"),
            "nothing: operators of one GPU in order",
            ("program",),
        ),
    )
}
"""Every overlap method by name."""


def applicable(place: Place, clock: Clock | None = None) -> list[str]:
    """Names of the methods that apply in a place and, if `clock` is given, that the clock times there."""
    return [name for name, one in OVERLAPS.items() if one.applies(place, clock)]


def find_overlap(name: str, place: Place, clock: Clock | None = None) -> Overlap:
    """The method of a name that applies in a place and that the clock times there.

    Raises UnknownNameError for an unknown name, InputError with the methods that apply for any other.
    """
    known = applicable(place, clock)
    check_name("overlap", name, known if name not in OVERLAPS else OVERLAPS, listed=True)
    one = OVERLAPS[name]
    if one.applies(place, clock):
        return one
    where = f"{_WORDS[place]} ({place})" if place in _AXES else _WORDS[place]
    why = (
        f"does not apply to {where}; it is for {', '.join(one.places)}"
        if place not in one.places
        else f"has no {clock} there; {'the engine' if one.simulation else 'a closed form'} times it"
    )
    raise InputError(f"the overlap '{name}' {why}; choose one of {', '.join(known)}")


_WORDS: Mapping[Place, str] = {
    "sub-layer": "a GEMM with its own collective",
    "experts": "a layer of experts with its exchanges",
    "pair": "a GEMM beside an independent collective",
    "program": "a program of one GPU",
    "tp": "the collectives of tensor parallelism",
    "cp": "the collectives of context parallelism",
    "ep": "the collectives of expert parallelism",
    "dp": "the collectives of data parallelism",
}


def overlap_names(place: Place | None = None) -> list[str]:
    """Names of every overlap method, or of those that apply in a place; UnknownNameError for an unknown place."""
    if place is None:
        return list(OVERLAPS)
    check_name("place of an overlap", place, PLACES)
    return applicable(place)
