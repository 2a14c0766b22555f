"""How a node of a graph runs: the kernel that carries it out, and where and when its workgroups are placed.

`Kernel` is the union of all kernels. Each class has only the fields that its kernel uses, and raises InputError for
values that cannot go together. Code that picks a kernel matches on the class, and ends with `typing.assert_never`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Literal, Self, get_args

from weft.core.errors import InputError, check_type
from weft.core.fields import check_fields, declare
from weft.graph.collective import COLLECTIVES, EXCHANGES
from weft.graph.gemm import Gemm
from weft.graph.routing import Routing
from weft.graph.tiling import GemmTiling

if TYPE_CHECKING:
    from weft.graph.execution_plan import ExecutionPlan

LibraryAlgorithm = Literal["ring", "direct", "nvls", "pairwise"]
"""A ring, pushes to all peers, a switch that reduces (NVLS), or the sends and receives of an all-to-all."""
Protocol = Literal["ll", "ll128", "simple"]
"""How a library's kernel on compute units cuts and signals its data."""


class Driver(StrEnum):
    """What moves a collective's data: compute units or DMA engines."""

    CU = "cu"
    DMA = "dma"


class CollectivePlan:
    """The base class of `weft.ExecutionPlan`, which a graph holds without knowing its fields."""


@dataclass(frozen=True)
class _Kernel:
    carries_out: ClassVar[tuple[str, ...]] = ()
    """The collectives that the kernel carries out; empty for a kernel of a GEMM."""

    def __post_init__(self) -> None:
        check_fields(self)

    def check_carries_out(self, node: str, collective: str) -> None:
        """Raise InputError unless the kernel carries out the `collective` of a node, or a GEMM ("")."""
        if collective not in self.carries_out and (collective or self.carries_out):
            runs, asked = " or ".join(self.carries_out) or "a GEMM", collective or "no collective"
            raise InputError(
                f"the kernel of node '{node}', a {type(self).__name__}, carries out {runs}, but this is {asked}; leave "
                "the kernel to the library"
            )


@dataclass(frozen=True)
class TiledGemm(_Kernel):
    """A GEMM, or another operator made of products, cut by `tiling` in place of the library's own tile."""

    tiling: GemmTiling

    def __post_init__(self) -> None:
        _check_tiling(self.tiling)


@dataclass(frozen=True)
class LibraryCollective(_Kernel):
    """A kernel of the vendor's library on compute units, with what is left out as the library would choose.

    `channels` is the most that the collective may have, each one workgroup. A switch that reduces has no `protocol` to
    choose.
    """

    carries_out: ClassVar[tuple[str, ...]] = COLLECTIVES

    algorithm: LibraryAlgorithm | None = declare(None, "", noun="kernel of a library's collective")
    channels: int | None = declare(None, "", least=1)
    protocol: Protocol | None = declare(None, "")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol is not None and self.algorithm == "nvls":
            raise InputError(
                f"a switch that reduces (nvls) has no protocol to choose, but protocol is '{self.protocol}'; leave it "
                "out"
            )


@dataclass(frozen=True)
class PaperAllReduce(_Kernel):
    """The T3 paper's ring as one all-reduce: no slices or staging, `in_flight` bytes in flight per workgroup.

    The ring has `channels` workgroups (None: one on each compute unit that it may use).
    """

    carries_out: ClassVar[tuple[str, ...]] = ("all_reduce",)

    in_flight: int = declare(16384, "", least=1, example=16384)
    channels: int | None = declare(None, "", least=1)


@dataclass(frozen=True)
class DmaCopies(_Kernel):
    """Copies by DMA engines on command, which cannot add; the options are those of `weft.kernels.copies.DmaGather`."""

    carries_out: ClassVar[tuple[str, ...]] = ("all_gather", "all_to_all", "broadcast", "send_recv")

    engines: int | None = declare(None, "", least=1)
    engines_per_peer: int = declare(1, "")
    broadcast: bool = False
    swap: bool = False
    prelaunched: bool = False
    threads: int | None = declare(None, "", least=1)

    def check_carries_out(self, node: str, collective: str) -> None:
        """Raise InputError for a collective that adds, and for no collective ("")."""
        if collective in ("all_reduce", "reduce_scatter"):
            raise InputError(
                f"DMA engines cannot drive {collective}: they copy and cannot add; choose 'all_gather' or "
                "'all_to_all', or let compute units drive it"
            )
        super().check_carries_out(node, collective)

    @property
    def options(self) -> dict[str, int | bool]:
        """Return the options that differ from the default, by name."""
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}


@dataclass(frozen=True)
class ExecutionPlanKernel(_Kernel):
    """The workgroups of an execution plan (`weft.read_collective`)."""

    carries_out: ClassVar[tuple[str, ...]] = COLLECTIVES

    plan: ExecutionPlan

    def __post_init__(self) -> None:
        check_type("plan", self.plan, CollectivePlan, "give what weft.read_collective has read")


@dataclass(frozen=True)
class PaperRing(_Kernel):
    """A ring of the T3 paper over the chunks of a GEMM's output: on every compute unit, without slices or staging."""

    carries_out: ClassVar[tuple[str, ...]] = ("reduce_scatter", "all_gather")


@dataclass(frozen=True)
class NearMemoryRing(_Kernel):
    """The T3 paper's ring reduce-scatter of the output of `gemm`, which does not run; the memory does the additions."""

    carries_out: ClassVar[tuple[str, ...]] = ("reduce_scatter",)

    gemm: Gemm
    tiling: GemmTiling | None = None

    def __post_init__(self) -> None:
        check_type("gemm", self.gemm, Gemm, "give the GEMM whose tiles make up the chunks")
        if self.tiling is not None:
            _check_tiling(self.tiling)


@dataclass(frozen=True)
class TrackedRing(_Kernel):
    """T3's reduce-scatter around a ring: the tracker counts a tile's updates near memory and triggers DMA engines.

    With `two_level` each node has a ring, and DMA engines go from node to node. With `split_k` the GEMM's K is cut into
    parts that the memory adds up.
    """

    carries_out: ClassVar[tuple[str, ...]] = ("reduce_scatter",)

    two_level: bool = False
    split_k: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.two_level and self.split_k:
            raise InputError("a tracked ring is either two_level or split_k; leave one of them out")


@dataclass(frozen=True)
class TrackedDirect(_Kernel):
    """T3's reduce-scatter in one hop: tiles are stored at the GPU that owns them, whose memory adds them up.

    With `by_dma` DMA engines send a tile that is complete; with `in_switch` a switch adds up the tiles of all GPUs on
    their way.
    """

    carries_out: ClassVar[tuple[str, ...]] = ("reduce_scatter",)

    by_dma: bool = False
    in_switch: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by_dma and self.in_switch:
            raise InputError("a switch adds up stores, not copies by DMA engines; leave out by_dma or in_switch")


@dataclass(frozen=True)
class FusedTiles(_Kernel):
    """One kernel with a GEMM (Flux): tiles are stored at their owners, or wait for the gathered chunk of their rows."""

    carries_out: ClassVar[tuple[str, ...]] = ("reduce_scatter", "all_gather")


@dataclass(frozen=True)
class FusedChunks(_Kernel):
    """Chunks of the collective beside chunks of the GEMM on several streams (TransformerEngine's userbuffers)."""

    carries_out: ClassVar[tuple[str, ...]] = ("reduce_scatter", "all_gather")


@dataclass(frozen=True)
class TrackedArrivals(_Kernel):
    """Copies by DMA engines that T3's tracker counts: a tile begins once `tile_rows` rows of tiles have arrived."""

    carries_out: ClassVar[tuple[str, ...]] = ("all_gather",)

    tile_rows: int = declare(1, "", least=1)


@dataclass(frozen=True)
class RemoteLoads(_Kernel):
    """No copies: a GEMM's tiles load their rows from the GPUs that have them."""

    carries_out: ClassVar[tuple[str, ...]] = ("all_gather",)


@dataclass(frozen=True)
class MoEExchange(_Kernel):
    """The dispatch or combine of an MoE layer, which moves what `routing` says.

    A `dispatcher` such as "deepep" carries it out (None: the vendor's library, with at most `channels` workgroups).
    """

    carries_out: ClassVar[tuple[str, ...]] = ("all_to_all",)

    routing: Routing
    dispatcher: str | None = declare(None, "", noun="dispatcher", names=tuple(EXCHANGES))
    channels: int | None = declare(None, "", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_routing(self.routing)
        if self.dispatcher is not None and self.channels is not None:
            raise InputError(
                f"'{self.dispatcher}' has channels of its own, but channels is {self.channels}; leave it out"
            )


@dataclass(frozen=True)
class TrackedMoEExchange(_Kernel):
    """The dispatch or combine of an MoE layer by T3: DMA engines send tokens, their owners' memory adds up answers."""

    carries_out: ClassVar[tuple[str, ...]] = ("all_to_all",)

    routing: Routing

    def __post_init__(self) -> None:
        _check_routing(self.routing)


Alone = LibraryCollective | PaperAllReduce | DmaCopies | ExecutionPlanKernel
"""Kernels of a collective that shares no buffer with a GEMM."""
Tracked = TrackedRing | TrackedDirect | TrackedMoEExchange
"""Kernels whose copies or updates T3's tracker triggers."""
InSubLayer = PaperRing | NearMemoryRing | TrackedRing | TrackedDirect | FusedTiles | FusedChunks
"""Kernels of a reduce-scatter behind its GEMM."""
OfRows = PaperRing | FusedTiles | FusedChunks | TrackedArrivals | RemoteLoads
"""Kernels of an all-gather before its GEMM."""
Exchange = MoEExchange | TrackedMoEExchange
"""Kernels of the dispatch or combine of an MoE layer."""
Kernel = TiledGemm | Alone | InSubLayer | TrackedArrivals | RemoteLoads | Exchange
"""Every kernel that a choice may name."""
KERNEL_CLASSES: tuple[type[Kernel], ...] = get_args(Kernel)


@dataclass(frozen=True)
class KernelChoice:
    """How a node runs: its `kernel` (None: as the machine's library would), and where and when it is placed.

    `compute_units` are those that the kernel may use (None: all); workgroups beyond what they hold at once wait for the
    earlier ones. Waiting workgroups of higher `priority` are placed first. The host launches a kernel after
    `launches_before` others, one launch latency each.

    >>> KernelChoice(LibraryCollective("ring", channels=8), compute_units=(0, 1, 2, 3)).kernel.channels
    8
    """

    kernel: Kernel | None = None
    compute_units: tuple[int, ...] | None = None
    priority: int = 0
    launches_before: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.kernel is not None:
            rule = f"give an object of {', '.join(each.__name__ for each in KERNEL_CLASSES)}, or None"
            check_type("the kernel of a choice", self.kernel, KERNEL_CLASSES, rule)
        if self.kernel == _AS_THE_LIBRARY:
            object.__setattr__(self, "kernel", None)

    @property
    def tiling(self) -> GemmTiling | None:
        """Return the tiling of a GEMM; None where it is left to the library."""
        return self.kernel.tiling if isinstance(self.kernel, TiledGemm) else None

    def with_tiling(self, tiling: GemmTiling) -> Self:
        """Return the same placement of a GEMM that is cut by a tiling."""
        return replace(self, kernel=TiledGemm(tiling))

    @property
    def placement(self) -> dict[str, object]:
        """Return where and when the kernel is placed, as far as it is stated."""
        stated = {name: getattr(self, name) for name in ("compute_units", "priority", "launches_before")}
        return {name: value for name, value in stated.items() if value not in (None, 0)}


_AS_THE_LIBRARY = LibraryCollective()


def driver_of(kernel: Kernel | None) -> Driver:
    """Return what moves the data of a collective beside a GEMM: DMA engines on command, else compute units."""
    return Driver.DMA if isinstance(kernel, DmaCopies) else Driver.CU


def kernel_with_tiling(tiling: GemmTiling | None) -> TiledGemm | None:
    """Return the kernel of a GEMM with a tiling (None: left to the library)."""
    return None if tiling is None else TiledGemm(tiling)


def _check_tiling(tiling: object) -> None:
    check_type("tiling", tiling, GemmTiling, "give a weft.kernels.GemmTiling")


def _check_routing(routing: object) -> None:
    check_type("routing", routing, Routing, "give a weft.Routing")
