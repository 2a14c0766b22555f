"""How a GEMM and an independent collective share one GPU: driver, launch order, priority, compute units.

The strategies are those that C3 and ConCCL compare (arXiv:2412.14335): two plain streams, a collective with priority,
compute units set apart for it, and copies by DMA engines.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, assert_never

from weft.errors import InputError, check_name, check_type
from weft.fields import declared
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
from weft.hardware import Gpu
from weft.library.collectives import KERNELS
from weft.schedule.base import Pass
from weft.units import counted

Launched = Literal["collective", "gemm"]
LAUNCHED: tuple[Launched, ...] = ("collective", "gemm")
"""Which of the two streams the host launches first."""
DMA_UNITS = 8
"""Compute units that `dma-partition` takes off the GEMM by default: one of each XCD of an MI300X."""


@dataclass(frozen=True)
class Sharing(Pass):
    """A way to share a GPU between independent streams of GEMMs and of collectives.

    `driver` moves the collectives' data. With `priority` they are launched first, and their workgroups are placed
    before the GEMMs'. With `partition` masks set `units` compute units apart: for the collectives or, if DMA engines
    drive them, simply off the GEMMs (None: as many as hold all channels at once; DMA_UNITS with DMA engines).
    `channels` is the most workgroups of a collective, one each (None: the library's own number, whatever the masks);
    `algorithm` is "ring", "direct" or "nvls" (None: the library's choice). `first` is what the host launches first
    (None: the collectives if they have priority, else the GEMMs). `copies` are options of DMA engines; `in_flight`
    replaces the library's all-reduce by the T3 paper's ring with that many bytes in flight per workgroup.
    """

    driver: Driver = declared(Driver.CU, "", noun="driver of a collective")
    priority: bool = False
    partition: bool = False
    units: int | None = None
    channels: int | None = None
    algorithm: LibraryAlgorithm | None = None
    first: Launched | None = declared(None, "", noun="first stream")
    copies: DmaCopies = field(default_factory=DmaCopies)
    in_flight: int | None = None

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
    def launched_first(self) -> Launched:
        """What the host launches first."""
        return self.first or ("collective" if self.priority else "gemm")

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """The nodes in launch order, each with its driver, priority and compute units.

        Raises InputError for a partition that leaves one side without compute units.
        """
        self._check(graph)
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

    def _check(self, graph: Graph) -> None:
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


SHARING_PASSES: tuple[Sharing, ...] = (
    Sharing("streams", "Streams", "two streams, as launched: who comes first takes the compute units"),
    Sharing("priority", "Priority", "the collective comes first and takes a compute unit per workgroup", priority=True),
    Sharing(
        "partition",
        "Partition",
        "masks give the collective compute units of its own, the GEMM the rest",
        partition=True,
    ),
    Sharing(
        "priority-partition",
        "Priority and partition",
        "masks, and the collective comes first",
        priority=True,
        partition=True,
    ),
    Sharing(
        "dma",
        "DMA",
        "DMA engines push the data: no compute unit, no L2; memory and links are shared",
        driver=Driver.DMA,
    ),
    Sharing(
        "dma-partition",
        "DMA and partition",
        "DMA engines, and a few compute units taken off the GEMM",
        driver=Driver.DMA,
        partition=True,
    ),
)
"""The ways to share a GPU, plain streams first."""


class Split(NamedTuple):
    """The compute units that a GEMM may use, and those set apart for the collective, as indices from 0."""

    gemm: tuple[int, ...]
    apart: tuple[int, ...]


def split_units(gpu: Gpu, apart: int) -> Split:
    """Partition the compute units of a GPU, with `apart` of them set apart.

    On AMD GPUs each XCD gives equally many (the first ones one more if `apart` is no multiple), so that no XCD becomes
    the slowest; unit u lies in XCD u * XCDs // units. On other GPUs they are the last ones. Raises InputError if either
    side has no unit.
    """
    units = gpu.compute.compute_units
    if not 1 <= apart < units:
        raise InputError(
            f"{apart} of {units} compute units cannot be set apart on {gpu.name}: each side needs at least one; "
            f"choose 1 to {units - 1}"
        )
    parts = gpu.dies
    chosen = tuple(unit for part in range(parts) for unit in _last(units, parts, part, apart))
    return Split(tuple(unit for unit in range(units) if unit not in chosen), chosen)


def _last(units: int, parts: int, part: int, apart: int) -> range:
    """The last compute units of an XCD: its share of those set apart."""
    end = -(-(part + 1) * units // parts)
    return range(end - (apart // parts + (part < apart % parts)), end)


def units_needed(workgroups: int, resident: int, gpu: Gpu) -> int:
    """The least number of compute units to set apart that run all workgroups at once, `resident` on each.

    Workgroups are dealt round robin to the XCDs of an AMD GPU, so each gives equally many.
    """
    parts = min(gpu.dies, workgroups)
    return -(-workgroups // (parts * resident)) * parts


def run_at_once(mask: tuple[int, ...], resident: int, gpu: Gpu) -> int:
    """The most workgroups that run at once on the compute units of a mask, `resident` on each, dealt as above."""
    held = Counter(unit * gpu.dies // gpu.compute.compute_units for unit in mask)
    return len(held) * min(held.values()) * resident


def rounds_of(workgroups: int, mask: tuple[int, ...] | None, resident: int, gpu: Gpu) -> int:
    """Rounds in which the workgroups of a kernel run on the compute units of a mask; 1 if all fit at once."""
    return 1 if mask is None else -(-workgroups // run_at_once(mask, resident, gpu))


def why_in_rounds(name: str, workgroups: int, mask: tuple[int, ...], resident: int, gpu: Gpu) -> str:
    """Why the channels of a collective run in rounds on the compute units of a mask, and what to set instead."""
    units, at_once = len(mask), run_at_once(mask, resident, gpu)
    needed = units_needed(workgroups, resident, gpu)
    return (
        f"the {workgroups} channels of the {name} run in {rounds_of(workgroups, mask, resident, gpu)} rounds, as "
        f"{counted(units, 'compute unit')} {'holds' if units == 1 else 'hold'} no more at once: give it "
        f"{counted(at_once, 'channel')} (--channels {at_once}) or {counted(needed, 'compute unit')}"
    )


def apart_of(gemm: int, apart: int, gpu: Gpu) -> int:
    """Units set apart by a split "gemm-apart"; InputError if both numbers do not add up to the GPU's."""
    units = gpu.compute.compute_units
    if gemm + apart != units:
        raise InputError(
            f"the split {gemm}-{apart} has {gemm + apart} compute units, but {gpu.name} has {units}; "
            f"write {units - apart}-{apart}"
            if 0 < apart < units
            else f"the split {gemm}-{apart} does not add up to the {units} compute units of {gpu.name}"
        )
    split_units(gpu, apart)
    return apart
