"""How a GEMM and an independent collective share one GPU: driver, launch order, priority, compute units.

The strategies are those that C3 and ConCCL compare (arXiv:2412.14335): two plain streams, a collective with priority,
compute units reserved for it, and copies by DMA engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Literal, Self, assert_never

from weft.core.errors import InputError, check_name, check_type
from weft.core.fields import declare
from weft.core.options import Fidelity, RunOptions
from weft.graph import (
    Collective,
    DmaCopies,
    Driver,
    ExecutionPlanKernel,
    Gemm,
    Graph,
    LibraryCollective,
    Node,
    PaperAllReduce,
)
from weft.graph.choice import Alone, LibraryAlgorithm
from weft.hardware import Gpu, System
from weft.kernels.compute_units import split_units
from weft.kernels.library.collectives import KERNELS
from weft.models.parallel.deployment import Deployment
from weft.overlaps.base import AXES, Axis, OverlapMethod
from weft.overlaps.graphs import Pattern
from weft.overlaps.lower.collectives import units_held
from weft.overlaps.registry import OVERLAPS

Launched = Literal["collective", "gemm"]
DMA_UNITS = 8
"""Compute units that `dma-partition` takes off the GEMM by default: one of each XCD of an MI300X."""


@dataclass(frozen=True)
class CoRunStrategy(OverlapMethod):
    """A way to share a GPU between independent streams of GEMMs and of collectives.

    `driver` moves the collectives' data. With `priority` they are launched first, and their workgroups are placed
    before the GEMMs'. With `partition` masks set `units` compute units apart: for the collectives or, if DMA engines
    drive them, simply off the GEMMs (None: as many as hold all channels at once; DMA_UNITS with DMA engines).
    `channels` is the most workgroups of a collective, one each (None: the library's own number, whatever the masks);
    `algorithm` is "ring", "direct" or "nvls" (None: the library's choice). `first` is what the host launches first
    (None: the collectives if they have priority, else the GEMMs). `copies` are options of DMA engines; `in_flight`
    replaces the library's all-reduce by the T3 paper's ring with `in_flight` bytes in flight per workgroup.
    """

    driver: Driver = declare(Driver.CU, "", noun="driver of a collective")
    priority: bool = False
    partition: bool = False
    units: int | None = None
    channels: int | None = None
    algorithm: LibraryAlgorithm | None = None
    first: Launched | None = declare(None, "", noun="first stream")
    copies: DmaCopies = field(default_factory=DmaCopies)
    in_flight: int | None = None

    joins: ClassVar[str] = "a GEMM and an independent collective"
    patterns: ClassVar[tuple[Pattern, ...]] = ("corun", *AXES)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_type("copies", self.copies, DmaCopies, "give a weft.graph.DmaCopies, like DmaCopies(engines=1)")
        if self.units is not None and not self.partition:
            raise InputError(
                f"'{self.name}' sets no compute units apart, but units is {self.units}; "
                "choose partition, priority-partition or dma-partition"
            )
        if self.channels is not None and self.driver is Driver.DMA:
            raise InputError(
                f"'{self.name}' moves the data by DMA engines, which have no channels, but channels is "
                f"{self.channels}; leave it out, or choose streams, priority, partition or priority-partition"
            )
        if self.algorithm is not None:
            check_name("algorithm", self.algorithm, KERNELS)
        if self.algorithm is not None and self.driver is Driver.DMA:
            raise InputError(
                f"'{self.name}' moves the data by DMA engines, which push it to all peers, but algorithm is "
                f"'{self.algorithm}'; leave it out, or choose streams, priority, partition or priority-partition"
            )
        if self.in_flight is not None and (self.driver is Driver.DMA or self.algorithm is not None):
            raise InputError(
                f"in_flight is {self.in_flight}, which makes the collective a ring of compute units, but "
                f"{'DMA engines move the data' if self.driver is Driver.DMA else 'algorithm is stated'}; leave one out"
            )
        if self.copies.options and self.driver is Driver.CU:
            options = ", ".join(self.copies.options)
            raise InputError(
                f"'{self.name}' moves the data by compute units and takes no options of DMA engines "
                f"({options}); choose dma or dma-partition, or leave them out"
            )

    @property
    def takes_turns(self) -> bool:
        """Return whether the order of launches alone decides who has the compute units."""
        return self.driver is Driver.CU and not self.priority and not self.partition

    @property
    def moved_by(self) -> Driver:
        """Return what moves the collectives' data."""
        return self.driver

    @property
    def launched_first(self) -> Launched:
        """What the host launches first."""
        return self.first or ("collective" if self.priority else "gemm")

    def check(self, graph: Graph) -> None:
        """Raise InputError for other operators than GEMMs and collectives, and for nodes that wait for each other."""
        for node in graph:
            if not isinstance(node.op, Gemm | Collective):
                raise InputError(
                    f"'{self.name}' shares a GPU between GEMMs and collectives, but '{node.id}' is a {node.op.kind}; "
                    "choose 'in-order' for a program"
                )
            if node.edges:
                raise InputError(
                    f"'{self.name}' shares a GPU between streams that do not wait for each other, but '{node.id}' "
                    f"waits for '{node.edges[0].node}'; choose an overlap of dependent operators, such as 'sequential'"
                )

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """Return the nodes in launch order, each with its driver, priority and compute units.

        Raises InputError for a partition that leaves one side without compute units.
        """
        self.check(graph)
        split = split_units(gpu, self.units) if self.partition and self.units is not None else None

        def placed(node: Node) -> Node:
            moves, choice = isinstance(node.op, Collective), node.choice
            if split:
                choice = replace(choice, compute_units=split.apart if moves else split.gemm)
            if moves:
                choice = replace(choice, kernel=self._kernel(node), priority=int(self.priority) or choice.priority)
                if split and self.driver is Driver.DMA:
                    choice = replace(choice, compute_units=None)
            return replace(node, choice=choice)

        first_is_gemm = self.launched_first == "gemm"
        ordered = sorted(graph.map(placed).nodes, key=lambda node: isinstance(node.op, Collective) is first_is_gemm)
        return replace(graph, nodes=tuple(ordered))

    def resolve(self, graph: Graph, system: System, options: RunOptions) -> Self:
        """Return the strategy with its number of partitioned compute units filled in: the given one, else the default.

        By default the collective gets as many as hold all its channels at once; DMA engines need none, so only a few
        are taken off the GEMM.
        """
        if not self.partition or self.units is not None or not graph.collectives:
            return self
        units = DMA_UNITS
        if self.driver is Driver.CU:
            moved = replace(self, partition=False).apply(graph, system.gpu).collectives
            units = max(map(partial(units_held, system=system), moved))
        return replace(self, units=min(units, system.gpu.compute.compute_units - 1))

    def held_units(self, moved: Collective, system: System) -> int:
        """Return the compute units that a collective takes off GEMMs: none by DMA engines, unless masks take some."""
        if self.driver is Driver.DMA:
            return DMA_UNITS if self.partition else 0
        return units_held(Node(moved, "moved"), system)

    def moves(self, reduces: bool) -> bool:
        """Return whether the strategy moves a collective that `reduces` or only copies."""
        return self.driver is Driver.CU or not reduces

    # -- in a step

    def estimates(self, pattern: Pattern) -> bool:
        """Return whether formulas time the strategy: on an axis, if it is the default or does not use compute units."""
        return pattern in AXES and (self.driver is Driver.DMA or (self.priority and not self.partition))

    def differs_from_default(self, axis: Axis, fidelity: Fidelity) -> bool:
        """Return whether formulas are not all that there is, or time the strategy."""
        return fidelity != "estimate" or self.estimates(axis)

    def check_plan(self, axis: str, plan: Deployment, system: System) -> None:
        """Raise InputError for copies by DMA engines of collectives that add, or between nodes."""
        if self.driver is Driver.CU:
            return
        if (axis == "tp" and not plan.sp) or (axis == "dp" and plan.zero == 0):
            raise InputError(
                f"'{self.name}' copies by DMA engines, which cannot add, but '{axis}' only all-reduces here; "
                + ("set sp" if axis == "tp" else "set zero to 1, 2 or 3")
                + ", or choose priority or partition"
            )
        self.check_in_node(axis, "copies by DMA engines, which reach", plan, system, "priority or partition")

    def _kernel(self, node: Node) -> Alone | None:
        """The kernel of a collective: its own, with what the strategy states; InputError where these contradict."""
        stated = node.choice.kernel
        match self.driver:
            case Driver.DMA:
                if stated is None:
                    return self.copies
                if isinstance(stated, DmaCopies):
                    return self.copies if self.copies.options else stated
                raise InputError(
                    f"'{self.name}' moves the data of '{node.id}' by DMA engines, but its choice is a "
                    f"{type(stated).__name__}, which runs on compute units; leave it out, or choose an overlap that "
                    "leaves compute units to it, like 'streams'"
                )
            case Driver.CU:
                return self._on_units(node)
            case _:
                assert_never(self.driver)

    def _on_units(self, node: Node) -> Alone | None:
        stated = node.choice.kernel or LibraryCollective()
        match stated:
            case LibraryCollective() if self.in_flight is not None and stated.protocol is None:
                return PaperAllReduce(self.in_flight, stated.channels if self.channels is None else self.channels)
            case LibraryCollective() if self.in_flight is None:
                algorithm = stated.algorithm if self.algorithm is None else self.algorithm
                channels = stated.channels if self.channels is None else self.channels
                return replace(stated, algorithm=algorithm, channels=channels)
            case PaperAllReduce() if self.algorithm is None:
                in_flight = stated.in_flight if self.in_flight is None else self.in_flight
                return PaperAllReduce(in_flight, stated.channels if self.channels is None else self.channels)
            case ExecutionPlanKernel() if self.algorithm is None and self.channels is None and self.in_flight is None:
                return stated
            case LibraryCollective() | PaperAllReduce() | ExecutionPlanKernel():
                names = [name for name in ("algorithm", "channels", "in_flight") if getattr(self, name) is not None]
                raise InputError(
                    f"'{self.name}' states {' and '.join(names)}, but the choice of '{node.id}' is a "
                    f"{type(stated).__name__}, which does not use it; leave one of them out"
                )
            case _:
                raise InputError(
                    f"'{self.name}' moves the data of '{node.id}' by compute units, but its choice is a "
                    f"{type(stated).__name__}; leave it out, or choose dma or dma-partition"
                )


CORUN_STRATEGIES: tuple[CoRunStrategy, ...] = (
    CoRunStrategy("streams", "Streams", "two streams, as launched: who comes first takes the compute units"),
    CoRunStrategy(
        "priority", "Priority", "the collective comes first and takes a compute unit per workgroup", priority=True
    ),
    CoRunStrategy(
        "partition",
        "Partition",
        "masks give the collective compute units of its own, the GEMM the rest",
        partition=True,
    ),
    CoRunStrategy(
        "priority-partition",
        "Priority and partition",
        "masks, and the collective comes first",
        priority=True,
        partition=True,
    ),
    CoRunStrategy(
        "dma",
        "DMA",
        "DMA engines push the data: no compute unit, no L2; memory and links are shared",
        driver=Driver.DMA,
    ),
    CoRunStrategy(
        "dma-partition",
        "DMA and partition",
        "DMA engines, and a few compute units taken off the GEMM",
        driver=Driver.DMA,
        partition=True,
    ),
)
"""The ways to share a GPU, plain streams first."""
STRATEGIES: Mapping[str, CoRunStrategy] = {one.name: one for one in CORUN_STRATEGIES}
"""The co-run strategies of Weft, by name."""
STREAMS, DMA = CORUN_STRATEGIES[0], CORUN_STRATEGIES[4]


def compare_alone(method: OverlapMethod) -> tuple[CoRunStrategy, CoRunStrategy]:
    """Return how a collective runs alone to be compared with a co-run: on compute units, and by the method's driver.

    On compute units it has the channels of the co-run: those that the method states, else the library's own.
    """
    sharing = method if isinstance(method, CoRunStrategy) else STREAMS
    on_units = replace(STREAMS, algorithm=sharing.algorithm, in_flight=sharing.in_flight, channels=sharing.channels)
    return on_units, replace(DMA, copies=sharing.copies) if sharing.driver is Driver.DMA else on_units


def alone_key(name: str, driver: Driver, channels: int | None = None) -> str:
    """Return the key of a collective's run alone in `Comparison.alone`: by its driver, on stated channels if any."""
    on = "" if channels is None else f" on {channels} channels"
    return f"{name} by {driver}{on}"


def find_strategy(name: str) -> CoRunStrategy | None:
    """Return the co-run strategy of a name; None for another method, and for no name."""
    method = OVERLAPS.get(name) if name else None
    return method if isinstance(method, CoRunStrategy) else None
