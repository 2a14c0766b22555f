"""Durations of a step's operators from closed forms, each distinct one computed once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from weft.core.options import SUSTAINED, Fidelity, RunOptions
from weft.estimate import BenchmarkProtocol, estimate
from weft.graph import Attention, Collective, Driver, Gemm, Graph, GroupedGemm, Op, Streaming, TokenExchange
from weft.hardware import Gpu, System
from weft.kernels.library.dispatchers import dispatcher
from weft.kernels.library.kits import KernelBackend
from weft.kernels.library.software import Residual, shipped_residual
from weft.models.parallel.deployment import Deployment
from weft.overlaps import find_strategy
from weft.step.corun import WaveGrowths
from weft.step.windows import Windows

FloatArray = NDArray[np.float64]
T = TypeVar("T")


def group(system: System, plan: Deployment, axis: str, size: int | None = None) -> System:
    """Return the GPUs of one group of an axis, as a system, with the GPUs per node of the plan's placement.

    `size` overrides the degree of the axis, as for pairs of neighbours; the replicas of the same weights ("dp") may
    include the context-parallel ranks. Without a node, all are alike.
    """
    return system.with_gpus(*place(system, plan, axis, plan.degree(axis) if size is None else size))


def place(system: System, plan: Deployment, axis: str, count: int) -> Place:
    """The GPUs of one group of an axis, and the nodes over which the plan's placement spreads them.

    How many nodes lie from one to the next is 1 where the network is not oversubscribed, and it decides nothing.
    """
    each = system.node.gpus_per_node if system.node else system.gpus
    outer = "cp" if axis == "dp" and count > plan.dp else axis
    stride = plan.stride(outer)
    together = max(each // stride, 1)
    while count % together:
        together -= 1
    apart = stride // each if system.node and system.node.network.oversubscribed else 1
    return count, count // together, max(apart, 1)


BETWEEN_OTHERS = BenchmarkProtocol(rotation=math.inf, after_others=True)
"""Operators of a step: others have used the caches since weights and saved tensors were written."""
_CALLERS: Mapping[Driver, BenchmarkProtocol] = {driver: BenchmarkProtocol(driver=driver) for driver in Driver}
"""Who carries out a collective: kernels of the library on compute units, or DMA engines."""


EXCHANGE_UNITS = 16
"""Compute units of an exchange whose library does not say [assumed, 8 to 32: channels of NCCL]."""
ROOM = "1000 TB"
"""Memory of the GPU on which operators are timed: whether a step fits is answered apart, for all tensors together."""


Place = tuple[int, int, int]
"""GPUs of a group, the nodes over which they are spread, and how many nodes lie from one of these to the next."""
Case = tuple[Op, Place | None, Driver | None]
"""An operator, the place of a collective's ranks, and who carries it out."""


class DurationCache:
    """Durations on a machine for any number of plans of a model and a framework, each computed once.

    Operators are estimated by themselves, by what decides their seconds (`Case`). What plans have in common beyond
    operators is found by a typed key (`weft.step.keys`). Operators that a `kit` of a framework of inference has
    libraries for are timed as these run them, GEMMs if their operands are of the `narrow` format.
    """

    def __init__(
        self,
        system: System,
        options: RunOptions = SUSTAINED,
        kit: KernelBackend | None = None,
        narrow: str = "",
        calibration: Residual | None = None,
    ) -> None:
        self.system, self.options, self.waves = system, options, WaveGrowths()
        self.kit, self.narrow = kit, narrow
        self.calibration = calibration or shipped_residual()
        self._roomy = system.replace({"memory.capacity": ROOM})
        self._seconds: dict[Case, float] = {}
        self.written: dict[Any, Any] = {}
        self._listed: set[Case] | None = None
        self._found: defaultdict[type, dict[Any, Any]] = defaultdict(dict)
        self._moved: dict[tuple[str, int, str, Place, str], float] = {}
        self._groups: dict[Place, System] = {}
        self._roomy_groups: dict[Place, System] = {}

    def among(self, place: Place) -> System:
        """Return the system of a group of ranks."""
        if place not in self._groups:
            self._groups[place] = self.system.with_gpus(*place)
        return self._groups[place]

    def get(self, key: Hashable) -> Any:
        """Return what was found by a key; None if nothing was."""
        return self._found[type(key)].get(key)

    def find(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what belongs to a key, made once."""
        found = self._found[type(key)]
        if key not in found:
            found[key] = make()
        return cast(T, found[key])

    def seconds(self, case: Case) -> float:
        """Return the seconds of an operator; 0 where operators are only listed (`estimate_at_once`)."""
        found = self._seconds.get(case)
        if found is None:
            if self._listed is not None:
                self._listed.add(case)
                return 0.0
            found = self._seconds[case] = float(self._estimate(case[0], case))
        return found

    def estimate_at_once(self, ask: Callable[[], T]) -> T:
        """Return what `ask` answers, whose operators are listed by a first call, and estimated at once."""
        self._listed, moved, self._moved = set(), self._moved, {}
        try:
            ask()
            listed = self._listed
        finally:
            self._listed, self._moved = None, moved
        self.fill(listed)
        return ask()

    def collective_seconds(self, kind: str, size: int, dtype: str, place: Place, driver: Driver) -> float:
        """Return the seconds of a collective of `size` bytes among the ranks of a place."""
        key = kind, size, dtype, place, driver
        if key not in self._moved:
            self._moved[key] = self.seconds((Collective(kind, size, place[0], dtype), place, driver))
        return self._moved[key]

    def fill(self, cases: Iterable[Case]) -> None:
        """Estimate operators that are alike but for their sizes at once."""
        alike: dict[tuple[object, ...], list[Case]] = {}
        for case in cases:
            if case not in self._seconds:
                alike.setdefault((self._sums_by(case[0]), *_kind(case)), []).append(case)
        for group in alike.values():
            seconds = self._estimate(_stack_ops([op for op, _, _ in group]), group[0])
            self._seconds.update(zip(group, np.broadcast_to(seconds, len(group)).tolist(), strict=True))

    def _estimate(self, op: Op, like: Case) -> FloatArray | float:
        _, place, driver = like
        if place is None or driver is None:
            return estimate(op, self._roomy, options=self.options, harness=self._between(op)).seconds
        if place not in self._roomy_groups:
            self._roomy_groups[place] = self._roomy.with_gpus(*place)
        caller = _CALLERS[driver]
        if library := self._sums_by(like[0]):
            caller = replace(caller, library=library)
        return estimate(op, self._roomy_groups[place], options=self.options, harness=caller).seconds

    def _sums_by(self, op: Op) -> str:
        """Return the library of the kit for an all-reduce of this size; "" for the vendor's and for other operators."""
        if self.kit is None or not isinstance(op, Collective) or op.name != "all_reduce":
            return ""
        gpu = self.system.gpu
        return self.kit.all_reduce_on(gpu.architecture, gpu.link.links > 0, float(op.bytes)) or ""

    def _between(self, op: Op) -> BenchmarkProtocol:
        """Return how an operator of a step is called: by the library of the kit that has values of it, else the
        vendor's.
        """
        if self.kit is None:
            return BETWEEN_OTHERS
        served, architecture = "", self.system.gpu.architecture
        if isinstance(op, Gemm) and op.dtype == self.narrow.removesuffix("-block") != "bf16":
            served = self.kit.gemm_on(architecture, self.narrow)
        elif isinstance(op, Streaming):
            served = self.kit.small_on(architecture, op.name)
        return replace(BETWEEN_OTHERS, served=served)


_SIZES: Mapping[type[Op], tuple[str, ...]] = {
    Gemm: ("m", "n", "k", "batch"),
    GroupedGemm: ("groups", "rows", "n", "k", "busiest"),
    Attention: ("batch", "heads", "query", "keys", "head", "kv_heads"),
    Streaming: ("rows", "columns"),
    Collective: ("bytes",),
    TokenExchange: ("bytes", "tokens", "hidden", "top_k", "experts"),
}
"""Fields of operators that may be arrays in `estimate`; all others are equal among those that are estimated at once."""


def _kind(case: Case) -> tuple[object, ...]:
    """Return what operators that are estimated at once have in common."""
    op, place, driver = case
    sizes = _SIZES.get(type(op))
    if sizes is None:
        return case
    return type(op), place, driver, *(value for name, value in vars(op).items() if name not in sizes)


def _stack_ops(ops: Sequence[Op]) -> Op:
    """Return operators of a kind as one with arrays of sizes."""
    first = ops[0]
    if len(ops) == 1:
        return first
    sizes = {name: np.array([getattr(op, name) for op in ops], np.float64) for name in _SIZES[type(first)]}
    return replace(first, **sizes)  # type: ignore[type-var]


class OperatorTimes:
    """Seconds of operators on a rank of a plan; equal operators are estimated once.

    `windows` say what kernels and collectives cost each other while they run at once. `known` may be shared among
    plans on a machine. Its calibration says what a training step takes beyond them.
    """

    def __init__(
        self,
        system: System,
        plan: Deployment,
        options: RunOptions,
        fidelity: Fidelity = "estimate",
        known: DurationCache | None = None,
    ) -> None:
        self._plan, self.options, self.known = plan, options, known or DurationCache(system, options)
        self._engine = fidelity == "windows"
        self._places: dict[tuple[str, int], Place] = {}

    @cached_property
    def windows(self) -> Windows:
        """What kernels and collectives cost each other while they run at once."""
        plan, waves = self._plan, self.known.waves
        return Windows(self.among, plan.overlap, plan.dtype or "bf16", self.options, engine=self._engine, waves=waves)

    def taken_share(self, library: str, units: int = 0) -> float:
        """The share of a GPU's compute units that a library takes for a dispatch or combine."""
        own = dispatcher(library).compute_units or EXCHANGE_UNITS
        return (units or own) / self.gpu.compute.compute_units

    @property
    def plan(self) -> Deployment:
        """The plan."""
        return self._plan

    @property
    def gpu(self) -> Gpu:
        """The GPU of the system."""
        return self.known.system.gpu

    def of(self, op: Op, axis: str = "compute") -> float:
        """Return the seconds of an operator, a collective among the ranks of an axis."""
        return self.known.seconds(self.case(op, axis))

    def residual(self, op: Op) -> float:
        """Return the seconds that an operator adds to a training step beyond its own time: its calibration residual."""
        return self.of(op) * self.known.calibration.streaming if isinstance(op, Streaming) else 0.0

    def case(self, op: Op, axis: str = "compute") -> Case:
        """Return what decides the seconds of an operator on a machine."""
        if not isinstance(op, Collective):
            return op, None, None
        return op, self.place(axis, op.ranks), self._driver(axis, op.reduces)

    def place(self, axis: str, ranks: int) -> Place:
        """Return the place of the ranks of an axis."""
        key = axis, ranks
        if key not in self._places:
            self._places[key] = place(self.known.system, self._plan, axis, ranks)
        return self._places[key]

    def collective_seconds(self, kind: str, size: int, ranks: int, dtype: str, axis: str) -> float:
        """Return the seconds of a collective of `size` bytes among `ranks` ranks of an axis."""
        reduces = kind in ("all_reduce", "reduce_scatter")
        return self.known.collective_seconds(kind, size, dtype, self.place(axis, ranks), self._driver(axis, reduces))

    def _driver(self, axis: str, reduces: bool) -> Driver:
        """Return what carries out a collective: the library, or DMA engines where the plan says so and they can."""
        strategy = None if reduces else find_strategy(self._plan.overlap.get(axis, ""))
        return Driver.CU if strategy is None else strategy.driver

    def among(self, axis: str, ranks: int) -> System:
        """Return the system of the ranks of an axis."""
        return self.known.among(self.place(axis, ranks))

    def graph(self, graph: Graph) -> dict[str, float]:
        """Return the seconds of every node of a graph by name."""
        return {node.name: self.of(node.op, node.stream) for node in graph}
