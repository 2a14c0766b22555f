"""How a GEMM and an independent collective share one GPU: driver, launch order, priority, compute units.

The strategies are those that C3 and ConCCL compare (arXiv:2412.14335): two plain streams, a collective with priority,
compute units set apart for it, and copies by DMA engines.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from weft.errors import InputError, check_name
from weft.fields import declared
from weft.graph import Collective, Gemm, Graph, Node
from weft.graph.graph import check_copies
from weft.hardware import Gpu
from weft.library.collectives import KERNELS
from weft.schedule.base import Pass
from weft.units import counted

Driver = Literal["cu", "dma"]
"""What moves a collective's data: compute units or DMA engines."""
Launched = Literal["collective", "gemm"]
LAUNCHED: tuple[Launched, ...] = ("collective", "gemm")
"""Which of the two streams the host launches first."""
COPY_OPTIONS = ("engines", "engines_per_peer", "broadcast", "swap", "prelaunched", "threads")
"""Options of copies by DMA engines (`weft.kernels.copies.DmaGather`)."""
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
    replaces the library's all-reduce by a plain ring with that many bytes in flight per workgroup.
    """

    driver: Driver = "cu"
    priority: bool = False
    partition: bool = False
    units: int | None = None
    channels: int | None = None
    algorithm: str | None = None
    first: Launched | None = declared(None, "", noun="first stream")
    copies: tuple[tuple[str, int | bool], ...] = ()
    in_flight: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_copies(self.copies)
        if self.units is not None and not self.partition:
            raise InputError(
                f"'{self.name}' sets no compute units apart, but units is {self.units}; "
                "choose partition, priority-partition or dma-partition"
            )
        if self.channels is not None and self.driver == "dma":
            raise InputError(
                f"'{self.name}' moves the data by DMA engines, which have no channels, but channels is "
                f"{self.channels}; leave it out, or choose streams, priority, partition or priority-partition"
            )
        if self.algorithm is not None:
            check_name("algorithm", self.algorithm, KERNELS)
        if self.algorithm is not None and self.driver == "dma":
            raise InputError(
                f"'{self.name}' moves the data by DMA engines, which push it to all peers, but algorithm is "
                f"'{self.algorithm}'; leave it out, or choose streams, priority, partition or priority-partition"
            )
        for name, _ in self.copies:
            check_name("option of DMA engines", name, COPY_OPTIONS)
        if self.copies and self.driver != "dma":
            options = ", ".join(name for name, _ in self.copies)
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
            moves, changed = isinstance(node.op, Collective), dict[str, Any]()
            if split:
                changed["compute_units"] = split.apart if moves else split.gemm
            if moves:
                changed |= {"driver": self._driver(node), "priority": int(self.priority) or node.choice.priority}
                changed["copies"] = self.copies or node.choice.copies
                if self.driver == "dma":
                    changed |= {"compute_units": None} if split else {}
                elif self.channels is not None:
                    changed["channels"] = self.channels
                if self.algorithm is not None:
                    changed["kernel"] = self.algorithm
                if self.in_flight is not None:
                    changed |= {"kernel": "plain-ring", "in_flight": self.in_flight}
            return replace(node, choice=replace(node.choice, **changed))

        first_is_gemm = self.launched_first == "gemm"
        ordered = sorted(graph.map(placed).nodes, key=lambda node: isinstance(node.op, Collective) is first_is_gemm)
        return replace(graph, nodes=tuple(ordered))

    def _driver(self, node: Node) -> Driver:
        """What moves the data of a collective; InputError for a node whose own choice contradicts that."""
        if node.choice.driver not in ("cu", self.driver):
            raise InputError(
                f"'{self.name}' moves the data of '{node.id}' by compute units, but its choice states driver = "
                f"'{node.choice.driver}'; leave it out, or choose dma or dma-partition"
            )
        return self.driver

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
        "dma", "DMA", "DMA engines push the data: no compute unit, no L2; memory and links are shared", driver="dma"
    ),
    Sharing(
        "dma-partition",
        "DMA and partition",
        "DMA engines, and a few compute units taken off the GEMM",
        driver="dma",
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
