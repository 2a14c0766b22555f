"""What an overlap method is: the abstract class of all methods, which is also the guide for authors of new ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, get_args

import numpy as np

from weft.core.errors import InputError, check_type, join_or
from weft.core.fields import check_fields
from weft.core.options import Fidelity, RunOptions
from weft.estimate.answer import FloatArray
from weft.graph import Driver, Graph
from weft.graph.choice import Kernel
from weft.graph.collective import Form
from weft.hardware import Gpu, System
from weft.kernels.library.software import costs as shipped_costs
from weft.models.parallel.deployment import Deployment
from weft.overlaps.arbiters import ROUND_ROBIN, ArbiterPolicy
from weft.overlaps.graphs import PATTERNS, Pattern, find_pattern

if TYPE_CHECKING:
    from weft.graph import Collective
    from weft.overlaps.lower import Lowered
    from weft.overlaps.pairs import PairTimes

Axis = Literal["tp", "cp", "ep", "dp"]
"""The axes of a step whose collectives take an overlap method."""
Place = Literal["sub-layer", "experts", "pair", "program", "tp", "cp", "ep", "dp"]
"""Patterns by the names that users type: "sub-layer" for all three forms of a GEMM and its own collective."""
Part = Literal["gemm", "collective"]
"""The two parts of a graph's work: its GEMMs, and the collectives among GPUs."""
Clock = Literal["engine", "closed form"]
"""What times a method: the request-level engine, or formulas."""
FORMS: tuple[Form, ...] = get_args(Form)
AXES: tuple[Axis, ...] = get_args(Axis)
PLACES: Mapping[Place, tuple[Pattern, ...]] = {
    "sub-layer": FORMS,
    "experts": ("moe_layer",),
    "pair": ("corun",),
    "program": ("program",),
    "tp": ("tp",),
    "cp": ("cp",),
    "ep": ("ep",),
    "dp": ("dp",),
}
"""The patterns of every place."""
SEQUENTIAL: Final = "sequential"
"""The name of the method with which others are compared."""


@dataclass(frozen=True)
class OverlapMethod(ABC):
    """A way to overlap compute with communication. To add one, write a subclass in a file of its own.

    **Say what it is.** A method is a frozen dataclass. Its fields have defaults: `name` is what users type, `title` a
    short name for tables, `summary` one line of help, `hardware_needs` the hardware that no GPU on sale, or not every
    GPU, has, and `arbiter` the memory arbitration policy (unless the options of a run set one). Fields of your own
    are parameters of the method. Class attributes say the rest: `joins`, what runs at once, and `patterns`, where
    the method applies; `applies_to` answers from these.

    **Say how it runs.** `apply` returns the graph as it runs: it sets each node's `KernelChoice` (one of the classes of
    `weft.graph.choice`, compute units, priority), its stream, and what it waits for. Lowering then asks the method that
    `lowers` the kernel which joins the nodes, so a method that combines existing kernels is done here. To run something
    that no kernel does, override `lower` and return a plan of your own kernels (`weft.engine.program.Plan`). `check`
    refuses graphs of other patterns; override it to refuse more. `graph` has the sizes of one GPU, and these nodes:

    ============  =============================  ==================================================================
    pattern       nodes, by id                   where it comes from
    ============  =============================  ==================================================================
    `ag_gemm`     `all_gather`, `gemm`           `weft.dependent("ag_gemm", ...)`; a step with sp, before a GEMM
    `gemm_rs`     `gemm`, `reduce_scatter`       `weft.dependent("gemm_rs", ...)`; a step with sp, behind a GEMM
    `gemm_ar`     `gemm`, `all_reduce`           `weft.dependent("gemm_ar", ...)`, `weft.sublayer`; a step without sp
    `moe_layer`   `dispatch`, `up`, `down`,      `weft.experts(...)`; a step with ep
                  `combine`
    `corun`       any, without edges             `weft.concurrent(...)`
    `program`     any operators of one GPU       `weft.capture(...)`
    ============  =============================  ==================================================================

    What the second node waits for stands in its `after`, as ids: "gemm" is the first iteration of a node, "gemm.1" the
    second. Iterations of one name share operator and kernel; compute units and priority are their own.

    **Say what it takes in closed form, if there is a formula.** `estimate` returns the time of a GEMM and its
    collective from the times of their parts; list the patterns in `closed_forms`. `pair` is a
    `weft.overlaps.pairs.PairTimes`: `pair.gemm` and `pair.collective` [s] and their pieces, numbers or arrays of one
    shape. `costs` are the values of `kernels/library/software.toml` by path, such as `costs["sequential.gap"]` [s]. A
    method that only formulas time derives from `ClosedFormMethod`.

    **Say what a step must know,** if an axis is among the patterns: `check_plan` raises InputError for plans that
    cannot use the method. Without a closed form, the engine times the pairs of a step.

    **Try it.** `weft.testing.check_overlap(MyMethod())` runs what all methods promise; what a method moves or computes
    less on purpose, it `leaves_out`. Commands take
    `my_file.py:MyMethod` or `my_package.module:MyMethod` as the name of a method. `weft.register_overlap`, or an entry
    point in the group "weft.overlaps", lets them take its own name. `weft.simulate` and `weft.compare` take the object.
    Another value of a parameter is an object of its own name in the file, `WIDE = MyMethod(name="wide", units=64)`, and
    `my_file.py:WIDE`.
    """

    name: str
    title: str
    summary: str
    hardware_needs: tuple[str, ...] = ()
    arbiter: ArbiterPolicy = ROUND_ROBIN

    joins: ClassVar[str] = ""
    """What runs at once, in a few words."""
    patterns: ClassVar[tuple[Pattern, ...]] = ()
    """Where the method applies."""
    closed_forms: ClassVar[tuple[Pattern, ...]] = ()
    """The patterns that formulas time."""
    kernels: ClassVar[tuple[type[Kernel], ...]] = ()
    """The kernels that join nodes of a graph and that `lower_joined` carries out."""
    simulated: ClassVar[bool] = True
    """Whether the engine runs the method."""
    compared: ClassVar[bool] = True
    """Whether a comparison of every method includes it; False for a part of another method."""
    leaves_out: ClassVar[tuple[Part, ...]] = ()
    """What a run under the method leaves out on purpose: "gemm", FLOPs; "collective", bytes, as where it compresses."""
    fills_waves: ClassVar[bool] = False
    """Whether the closed form holds only for GEMMs of many waves of tiles, which decode iterations lack."""

    def __new__(cls, *values: object, **named: object) -> Self:
        """Make a method; InputError for a class with fields of its own that is not decorated as a dataclass."""
        own = vars(cls)
        stated = [field for field in ("name", "title", "summary") if field in own]
        if stated and "__dataclass_fields__" not in own:
            raise InputError(
                f"{cls.__name__} states {' and '.join(stated)}, but is no dataclass of its own; decorate the class "
                "with @dataclass(frozen=True)"
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_fields(self)
        check_type("arbiter", self.arbiter, ArbiterPolicy, "give what weft.arbiter makes of a function")

    # -- where it applies

    def applies_to(self, pattern: Pattern) -> bool:
        """Return whether the method applies to a pattern."""
        return pattern in self.patterns

    def estimates(self, pattern: Pattern) -> bool:
        """Return whether formulas time the method on a pattern: on `tp`, too, where they time a form of its pairs."""
        return pattern in self.closed_forms or (
            pattern == "tp" and self.applies_to("tp") and any(form in FORMS for form in self.closed_forms)
        )

    def applies(self, place: Place, clock: Clock | None = None) -> bool:
        """Return whether the method applies in a place and, if `clock` is given, whether that clock times it there."""
        patterns = [pattern for pattern in PLACES[place] if self.applies_to(pattern)]
        if clock == "closed form":
            return any(map(self.estimates, patterns))
        return bool(patterns) and (clock is None or self.simulated)

    @property
    def places(self) -> tuple[Place, ...]:
        """Return the places where the method applies."""
        return tuple(place for place in PLACES if self.applies(place))

    @property
    def forms(self) -> tuple[Form, ...]:
        """Return the forms of a GEMM and its own collective that the method applies to."""
        return tuple(form for form in FORMS if self.applies_to(form))

    @property
    def timed_by(self) -> str:
        """Return what times the method: "engine", "closed form" or "both"."""
        closed = any(self.applies(place, "closed form") for place in PLACES)
        return "both" if self.simulated and closed else "engine" if self.simulated else "closed form"

    @property
    def engine_refusal(self) -> str:
        """Return a sentence on the commands that time the method, which the engine does not run."""
        step = f" or 'weft step --overlap tp={self.name}'" if "tp" in self.patterns else ""
        return (
            f"the overlap '{self.name}' is timed in closed form only, not by the engine; ask 'weft advise fuse'{step}"
        )

    @property
    def joins_gemms(self) -> bool:
        """Return whether the method joins collectives with the GEMMs before or behind them."""
        return bool(self.forms)

    @property
    def in_sequence(self) -> bool:
        """Return whether nothing runs at once under the method."""
        return False

    # -- how it runs

    def check(self, graph: Graph) -> None:
        """Raise InputError, which names the methods that do apply, for a graph of another pattern."""
        pattern = find_pattern(graph)
        if pattern is not None and self.applies_to(pattern):
            return
        found = f"is {PATTERNS[pattern]}" if pattern else "forms no pattern that overlaps know"
        known = [method for method in KNOWN.values() if method.simulated and method.compared]
        others = [method.name for method in known if pattern and method.applies_to(pattern)]
        own = " or ".join(PATTERNS[one] for one in self.patterns if one in PATTERNS)
        raise InputError(
            f"'{self.name}' is for {own}, but {graph} {found}; "
            + (f"choose {join_or(others)}" if others else "see weft.overlaps.OverlapMethod for your own")
        )

    @abstractmethod
    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """Return the graph as it runs on GPUs like `gpu`; InputError for one to which the method does not apply."""

    def accepts(self, graph: Graph) -> bool:
        """Return whether the method applies to a graph."""
        try:
            self.check(graph)
        except InputError:
            return False
        return True

    def resolve(self, graph: Graph, system: System, options: RunOptions) -> Self:
        """Return the method with parameters filled in that depend on the graph and the system."""
        return self

    def lower(self, graph: Graph, system: System, options: RunOptions) -> Lowered | None:
        """Return a plan of kernels of your own for a graph; None to run what `apply` makes of it."""
        return None

    def lowers(self, kernel: Kernel | None) -> bool:
        """Return whether `lower_joined` carries out a kernel that joins nodes of a graph."""
        return isinstance(kernel, self.kernels)

    def lower_joined(self, graph: Graph, system: System, options: RunOptions) -> Lowered:
        """Return the engine plan of a graph whose nodes run in one kernel of this method (see `lowers`)."""
        raise NotImplementedError

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the methods from whose runs this one is assembled; empty for a method that runs itself."""
        return ()

    def source(self, operator: str) -> str:
        """Return the method from whose run an operator's time is taken."""
        return self.name

    @property
    def moved_by(self) -> Driver:
        """Return what moves the data of an independent collective."""
        return Driver.CU

    # -- closed form

    def estimate(self, pair: PairTimes, costs: Mapping[str, float]) -> Any:
        """Return the time of a GEMM and its collective [s] from the times of their parts and the costs of software.

        None where no formula times the method.
        """
        return None

    def complete(self, pair: PairTimes, moved: Collective, system: System, options: RunOptions) -> PairTimes:
        """Return the times of the parts with those that only this method's formula needs."""
        return pair

    def seconds(self, pair: PairTimes, costs: Mapping[str, float] | None = None) -> FloatArray:
        """Return the time of both in closed form [s]; `costs` replaces the shipped values of some paths."""
        found = self.estimate(pair, {**shipped_costs(), **(costs or {})})
        if found is None:
            raise InputError(f"'{self.name}' has no closed form; the engine times it")
        return np.asarray(found, dtype=np.float64)

    # -- in a step

    def differs_from_default(self, axis: Axis, fidelity: Fidelity) -> bool:
        """Return whether a step of a fidelity can tell the method on an axis from the default."""
        return True

    def check_plan(  # noqa: B027  (most methods have nothing to refuse)
        self, axis: str, plan: Deployment, system: System
    ) -> None:
        """Raise InputError for a plan on a system that cannot use the method for the collectives of an axis."""

    def framework_changes(self, axis: str) -> dict[str, Any]:
        """Return the fields of a framework that change if its plan names the method for an axis."""
        return {"tp": self.name if self.joins_gemms else ""} if axis == "tp" else {}

    def missing_hardware(self, system: System) -> str:
        """Return a sentence on the hardware that the method needs and that the system, or every GPU on sale, lacks."""
        if not self.hardware_needs:
            return ""
        return f"{self.name} needs hardware that no GPU on sale has: {', '.join(self.hardware_needs)}."

    def check_in_node(self, axis: str, how: str, plan: Deployment, system: System, instead: str) -> None:
        """Raise InputError for ranks of an axis in several nodes; `how` says what the method does within one."""
        each = system.gpus_per_node if system.node else system.gpus
        if plan.stride(axis) * plan.degree(axis) > each:
            raise InputError(
                f"'{self.name}' {how} the {each} GPUs of a node, but the ranks of '{axis}' lie in several nodes; "
                f"choose {instead}"
            )


class ClosedFormMethod(OverlapMethod):
    """A method that formulas time, and the engine runs no graph under."""

    simulated: ClassVar[bool] = False

    def check(self, graph: Graph) -> None:
        """Raise InputError: the engine runs no graph under this method."""
        raise InputError(self.engine_refusal)

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """Raise InputError, as `check` does."""
        self.check(graph)
        return graph


class Methods(MutableMapping[str, OverlapMethod]):
    """Overlap methods by name, in the order of registration; a method's module is imported when the method is used."""

    def __init__(self, homes: Mapping[str, str] | None = None) -> None:
        self._methods: dict[str, OverlapMethod | str] = {}
        self.defer(homes or {})

    def defer(self, homes: Mapping[str, str]) -> None:
        """Register the names, with spaces between them, that each home has: "module:object" of this package."""
        for home, names in homes.items():
            self._methods.update(dict.fromkeys(names.split(), home))

    def __getitem__(self, name: str) -> OverlapMethod:
        method = self._methods[name]
        if isinstance(method, str):
            self._methods[name] = method = _load_methods(method)[name]
        return method

    def __setitem__(self, name: str, method: OverlapMethod) -> None:
        self._methods[name] = method

    def __delitem__(self, name: str) -> None:
        del self._methods[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._methods)

    def __len__(self) -> int:
        return len(self._methods)


@cache
def _load_methods(home: str) -> dict[str, OverlapMethod]:
    """Return the methods of "module:object" of this package by name: a class's default object, or those of a tuple."""
    module, _, attribute = home.partition(":")
    found = getattr(import_module(f"{__package__}.{module}"), attribute)
    methods = (found(),) if isinstance(found, type) else found
    return {method.name: method for method in methods}


KNOWN = Methods()
"""Every registered method by name, which errors list; `weft.overlaps.registry` fills it."""
