"""Experts of one layer on one GPU, in closed form: grouped GEMMs by load, and the kernels around them.

A grouped GEMM takes the longer of streaming its active experts' weights once and multiplying tiles, in which each
expert's rows are padded by themselves. Of a library's tiles the one with the least time is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from weft.core.errors import check_name, check_type, check_whole
from weft.core.options import RunOptions
from weft.estimate.answer import Estimate, FloatArray, blend_parts, floats, from_parts, in_sequence, side_by_side
from weft.estimate.gemm import gemm
from weft.estimate.streaming import streaming
from weft.estimate.target import BenchmarkProtocol, Target, target
from weft.graph import DTYPE_BYTES, Gemm, GroupedGemm, Streaming
from weft.graph.op import OUTPUT_DTYPES
from weft.graph.routing import Counts, Routing
from weft.hardware import Described
from weft.kernels.gemm import main_loop_flops, promoted_share
from weft.kernels.library.served import (
    ARCHITECTURES,
    EXPERT_FORMATS,
    ExpertFormat,
    Library,
    kernels_of,
    library,
    table_of,
    tables,
    values_of,
)

TILES = (16, 32, 64, 128)
"""Rows of a library's tiles; all have 128 columns."""
_SIDE = 128
"""Columns of a tile, and elements of K in a step of its main loop."""
_NORM = 4.0
"""How sharply the longer of units and memory decides [assumed, 2 to infinity, where it alone counts]."""
_CALLED = 8.0
"""The same of the device and the host's calls [assumed, 4 to infinity]."""
_CACHE_RATE = 3.0
"""Rate of the cache over that of memory, for weights that stay there [assumed, 2 to 5]."""
TRAINING = "grouped"
"""The grouped GEMMs of training libraries, with kernels of their own around them."""
_CONVERSION = 2.0
"""Vector instructions that widen a weight of 4 bits on its way to the matrix units: bit operations for two values at
once, and the product with a scale [assumed, 1 to 4]."""
_STAND_IN = "trtllm"
"""Whose grouped GEMMs stand for formats and GPUs on which none of a training library was measured."""


@dataclass(frozen=True)
class ExpertRows:
    """Rows of a GPU's experts: all, of the busiest, how many experts have any, and blocks of that many rows.

    `blocks` counts them for each of `TILES`, the last block of each expert padded. All may be arrays.
    """

    rows: FloatArray
    busiest: FloatArray
    active: FloatArray
    blocks: FloatArray

    @classmethod
    def of(cls, counts: Any) -> ExpertRows:
        """Return the load of a list of rows, one number for each expert."""
        rows = floats(counts)
        blocks = [np.ceil(rows / height).sum() for height in TILES]
        return cls(rows.sum(), rows.max(), (rows > 0).sum(), np.array(blocks))

    @classmethod
    def share_evenly(cls, rows: Any, groups: Any, busiest: Any = 0) -> ExpertRows:
        """`rows` shared evenly by `groups` experts, beside the `busiest` one, if it has more."""
        rows, groups = floats(rows), floats(groups)
        mean = rows / groups
        most = np.where(floats(busiest) > 0, busiest, np.ceil(mean))
        active = np.minimum(groups, rows)
        others = np.maximum(active - 1, 0)
        rest = np.divide(np.maximum(rows - most, 0), others, out=np.zeros_like(mean * others), where=others > 0)
        blocks = [np.ceil(most / height) + others * np.ceil(rest / height) for height in TILES]
        return cls(rows, most, active, np.stack(np.broadcast_arrays(*blocks)))

    def beside(self, other: ExpertRows) -> ExpertRows:
        """Return the load of these experts and others on the same GPU."""
        blocks = self.blocks + other.blocks
        return ExpertRows(
            self.rows + other.rows, np.maximum(self.busiest, other.busiest), self.active + other.active, blocks
        )


@dataclass(frozen=True)
class Grouped:
    """C_e = A_e B_e of a GPU's experts: columns of C, elements of K; over rows, the gradient of weights K x N."""

    load: ExpertRows
    n: Any
    k: Any
    kind: ExpertFormat
    over_rows: bool = False
    written: float = 2.0


def time_grouped(what: Grouped, machine: Target, own: Mapping[str, float]) -> dict[str, FloatArray]:
    """Return the parts of a grouped GEMM's time by values of a library, without its launch [s].

    compute (products at the library's rate), tail (padded rows, and units idle in the last wave), fill (begin and end
    of workgroups), memory (what streaming weights and rows adds).
    """
    gpu, load = machine.gpu, what.load
    n, k = floats(what.n), floats(what.k)
    lanes = gpu.vector_lanes * gpu.compute.clock
    units = gpu.compute.compute_units
    rate = own["peak"] * main_loop_flops(what.kind.products, gpu, machine.options)
    begin, columns = own["begin"], np.ceil(n / _SIDE)
    if what.over_rows:
        step, tiles = 2 * _SIDE**3 / rate, np.ceil(k / _SIDE) * columns
        ways = [_waves(tiles * load.active, tiles * load.blocks[-1] * step, np.ceil(load.busiest / _SIDE) * step,
                       begin, units)]  # fmt: skip
    else:
        aside = own.get("converted", 0.0) * _SIDE
        steps = [2 * height * _SIDE**2 / rate + (height * own.get("promoted", 0.0) + aside) * _SIDE / lanes
                 for height in TILES]  # fmt: skip
        depth = [np.ceil(k / _SIDE) * step for step in steps]
        ways = [
            _waves(blocks * columns, blocks * columns * each, each, begin, units)
            for each, blocks in zip(depth, load.blocks, strict=True)
        ]
    every = np.stack([np.stack(np.broadcast_arrays(*way)) for way in ways])
    best = every.sum(axis=1).argmin(axis=0)
    inside, fill = np.take_along_axis(every, best[None, None], axis=0)[0]
    moved = load.active * n * k * (what.written if what.over_rows else what.kind.weight)
    moved = moved + load.rows * (k * what.kind.row + n * (what.kind.row if what.over_rows else what.written))
    rotation = machine.harness.rotation
    kept = np.minimum(moved, own.get("cached", 0.0) * gpu.cache.capacity / rotation)
    memory = (moved - kept + kept / _CACHE_RATE) / (own["memory"] * gpu.memory.bandwidth)
    busy = blend_parts({"units": inside + fill, "memory": memory}, _NORM)
    products = 2 * load.rows * n * k / (units * rate)
    share = np.divide(busy["units"], inside + fill, out=np.zeros_like(memory), where=inside + fill > 0)
    return {
        "compute": products * share,
        "tail": (inside - products) * share,
        "fill": fill * share,
        "memory": busy["memory"],
    }


def _waves(workgroups: Any, work: Any, longest: Any, begin: float, units: int) -> tuple[FloatArray, FloatArray]:
    """Return the times in main loops, and in prologues and epilogues, of `workgroups` on `units` compute units: the
    longest workgroup alone, or an even share of all and half a workgroup for the tail.
    """
    few = workgroups <= units
    return (
        np.where(few, longest, work / units + 0.5 * longest),
        np.where(few, begin, (workgroups / units + 0.5) * begin),
    )


def grouped_gemm(op: GroupedGemm, machine: Target) -> Estimate:
    """Return the time of the products of an MoE layer's experts: in one launch, or one launch after the other.

    Those in one launch go by the form of `time_grouped`, with values of the harness's library (`served`, else of
    training libraries) where the GPU's architecture has any; other architectures take a batch of GEMMs. Raises as
    `gemm`.
    """
    if not (op.fused and machine.gpu.architecture in ARCHITECTURES and op.dtype in EXPERT_FORMATS):
        return _by_gemms(op, machine)
    machine.gpu.matrix_rate(op.dtype)  # raises the InputError that lists the supported data types
    of = library("experts", machine.harness.served or TRAINING)
    load = ExpertRows.share_evenly(op.rows, op.groups, op.busiest)
    written = 8.0 if op.accumulates else float(DTYPE_BYTES[OUTPUT_DTYPES.get(op.dtype, op.dtype)])
    what = Grouped(load, op.n, op.k, EXPERT_FORMATS[op.dtype], op.over_rows, written)
    own = values_of(table_for(of, op.dtype, machine.gpu.architecture))
    own["peak"] *= promoted_share(op.scaled, EXPERT_FORMATS[op.dtype].products, machine.gpu, machine.options)
    parts = time_grouped(what, machine, own)
    return from_parts({"launch": _launch(machine) + 0.0 * parts["memory"], **parts})


def _launch(machine: Target) -> float:
    achieved = machine.gpu.achieved
    host = machine.harness.timed == "host"
    return (achieved.gemm_host if host else achieved.gemm_launch) or machine.gpu.compute.launch_latency


_LIKE: Mapping[str, tuple[str, ...]] = {"fp16": ("bf16",), "fp8": ("fp8-block",), "mxfp8": ("fp8", "fp8-block")}
"""Formats whose kernels stand for those of a format that was not measured."""


def table_for(of: Library, kind: str, architecture: str) -> str:
    """Return the path of a library's values for a format of experts on an architecture.

    Training libraries take the values of `_STAND_IN` for what was not measured, those of the nearest format. Raises
    InputError for what a library of inference has no values of.
    """
    if of.name == TRAINING:
        formats = (kind, *_LIKE.get(kind, ()), "bf16")
        for name, other in ((TRAINING, kind), *((_STAND_IN, each) for each in formats)):
            if (place := f"experts.{name}.{other}.{kernels_of(architecture)}") in tables():
                return place
        return table_of("experts", _STAND_IN, "bf16", architecture)
    return table_of("experts", of.name, kind, architecture)


def own_values(place: str, changed: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the values of a table, and what its library's main loop does on vector units.

    `promoted`: instructions for each sum of 128 products that is scaled and added to others in fp32; `converted`: for
    each weight that becomes wider, in each block of rows.
    """
    _, name, kind, architecture = place.split(".")
    how = library("experts", name).how
    kind = how.get("stored", {}).get(kind, kind)
    promoted = how.get("promoted", {}).get(architecture, 0.0) if kind == "fp8-block" else 0.0
    converted = _CONVERSION if EXPERT_FORMATS[kind].products == "bf16" and EXPERT_FORMATS[kind].weight < 1 else 0.0
    return {**values_of(place, changed), "promoted": promoted, "converted": converted}


def _by_gemms(op: GroupedGemm, machine: Target) -> Estimate:
    """Return the time as batched GEMMs or serially; each group takes its share of a batch of equal groups."""
    mean = floats(op.rows) / op.groups
    most = np.where(floats(op.busiest) > 0, op.busiest, mean)
    if np.all(most == mean):
        return _of_groups(op, np.ceil(mean), machine)
    others = np.maximum(floats(op.groups) - 1, 1.0)
    rest = np.maximum((floats(op.rows) - most) / others, 1.0)
    return _mix_estimates([_of_groups(op, np.ceil(rows), machine) for rows in (most, rest)], 1 / floats(op.groups))


def _of_groups(op: GroupedGemm, rows: FloatArray, machine: Target) -> Estimate:
    """Return the time of all groups of `rows` rows each."""
    n, k, count = floats(op.n), floats(op.k), floats(op.groups)
    m, k = (k, rows) if op.over_rows else (rows, k)
    shape = Gemm(*cast("tuple[int, int, int]", (m, n, k)), op.dtype, accumulates=op.accumulates, scaled=op.scaled)
    if op.fused:
        return gemm(replace(shape, batch=cast(int, count)), machine)
    one = gemm(shape, machine)
    return replace(one, seconds=one.seconds * count, parts={name: part * count for name, part in one.parts.items()})


def _mix_estimates(ends: Sequence[Estimate], first: FloatArray) -> Estimate:
    """Return the mean of two estimates, the first with weight `first`."""
    every = side_by_side(ends)
    shares = np.stack(np.broadcast_arrays(first, 1 - first))
    parts = {name: (part * shares).sum(axis=0) for name, part in every.parts.items()}
    return Estimate((every.seconds * shares).sum(axis=0), every.bound[0], parts)


@dataclass(frozen=True)
class GpuExperts:
    """What the experts of one layer do on one GPU: `tokens` of all GPUs that share them, each to `top_k` experts.

    `hidden` and `ffn` are elements of a token and of an expert's inner width, that a `gated` activation halves from
    twice as many. All but `kind`, a name of `EXPERT_FORMATS`, may be arrays.
    """

    load: ExpertRows
    tokens: Any
    top_k: Any
    hidden: Any
    ffn: Any
    kind: str
    gated: Any = True

    @property
    def products(self) -> tuple[Grouped, Grouped]:
        """The grouped GEMMs into the inner width and back."""
        kind, wide = EXPERT_FORMATS[self.kind], floats(self.ffn)
        return (
            Grouped(self.load, wide * (1 + floats(self.gated)), self.hidden, kind),
            Grouped(self.load, self.hidden, wide, kind),
        )

    @property
    def least_bytes(self) -> FloatArray:
        """Weights of the experts that have rows, which are read at least once [bytes]."""
        weights = self.load.active * floats(self.hidden) * floats(self.ffn) * (2 + floats(self.gated))
        return weights * EXPERT_FORMATS[self.kind].weight

    @property
    def flops(self) -> FloatArray:
        """Floating-point operations of the products, a multiply-add as two."""
        return 2 * self.load.rows * floats(self.hidden) * floats(self.ffn) * (2 + floats(self.gated))


def served_layer(what: GpuExperts, of: Library, machine: Target) -> Estimate:
    """Return the experts of a layer by a library of inference: one call, with all its kernels.

    Beside its grouped GEMMs: launches, passes over rows (permuted and quantised, activation, results added up), of
    which some libraries have a row for each token's every expert wherever it lies, and time for each of these rows
    that the router sorts. A host that calls eagerly hides behind the device or waits for it.
    """
    own = own_values(table_for(of, what.kind, machine.gpu.architecture), machine.harness.values)
    what = replace(what, kind=of.how.get("stored", {}).get(what.kind, what.kind))
    first, second = (time_grouped(each, machine, own) for each in what.products)
    parts = {name: first[name] + second[name] for name in first}
    chosen = floats(what.tokens) * floats(what.top_k)
    parts["copy"] = _pass_bytes(what, of, chosen) / (own["copy"] * machine.gpu.memory.bandwidth)
    parts["units"] = own["token"] * chosen
    parts["launch"] = own["start"] + 0.0 * chosen
    if "host" in own:
        device = sum(parts.values(), np.zeros_like(chosen))
        parts["host"] = (device**_CALLED + own["host"] ** _CALLED) ** (1 / _CALLED) - device
    return from_parts(parts)


def _pass_bytes(what: GpuExperts, of: Library, chosen: Any) -> FloatArray:
    """Return the bytes moved by a library's passes around its grouped GEMMs, for `chosen` experts of all tokens.

    Rows are permuted, unless the GEMM gathers them; activated, unless the GEMM does; quantised, by these passes or in
    kernels of their own ("apart"), which read 16 bits again; and added up.
    """
    kind, how = what.kind, of.how
    row, tokens, rows = EXPERT_FORMATS[kind].row, floats(what.tokens), what.load.rows
    hidden, wide = floats(what.hidden), floats(what.ffn)
    handled = chosen if kind in how.get("all", ()) else rows
    again = 2 + row if kind in how.get("apart", ()) else 0.0
    if how.get("gathers"):
        entered = tokens * (2 + row) * (row < 2)
    else:
        entered = 2 * np.minimum(tokens, rows) + rows * (2 + again if again else row)
    activated = 0.0 if kind in how.get("fused", ()) else 2 * (1 + floats(what.gated)) + (2 + again if again else row)
    return np.asarray(hidden * entered + handled * wide * activated + 2 * hidden * (handled + tokens))


@dataclass(frozen=True)
class Experts:
    """The experts of one layer as `weft predict experts` takes them: how tokens are routed, sizes, and the format.

    `dtype` is a name of `EXPERT_FORMATS`. Raises InputError for sizes below one, UnknownNameError for an unknown
    format.
    """

    routing: Routing
    hidden: int
    ffn: int
    dtype: str = "bf16"
    gated: bool = True

    def __post_init__(self) -> None:
        check_type("the routing", self.routing, Routing, "give weft.Routing(tokens, top_k, experts, ranks)")
        check_whole("hidden", self.hidden, 1, 4096)
        check_whole("ffn", self.ffn, 1, 4096)
        check_name("format of experts", self.dtype, tuple(EXPERT_FORMATS))

    def layer(self, counts: Any) -> GpuExperts:
        """Return the layer on a GPU whose experts have these rows."""
        routing = self.routing
        tokens = routing.tokens * routing.ranks
        return GpuExperts(ExpertRows.of(counts), tokens, routing.top_k, self.hidden, self.ffn, self.dtype, self.gated)

    @property
    def busiest(self) -> Counts:
        """Rows of the experts of the GPU that has the most, the first of several."""
        return self.routing.fullest

    @property
    def imbalance(self) -> float:
        """Rows of the busiest expert over the mean of all."""
        return self.routing.imbalance

    @property
    def even(self) -> Experts:
        """The same experts with as many rows each."""
        return replace(self, routing=replace(self.routing, loads=()))


def _time_training(what: Experts, layer: GpuExperts, of: Library, machine: Target) -> list[Estimate]:
    """Return the grouped GEMMs of training libraries, each with its launch."""
    kind, load = what.dtype, layer.load
    if machine.gpu.architecture in ARCHITECTURES:
        own = own_values(table_for(of, kind, machine.gpu.architecture))
        launch = np.asarray(_launch(machine))
        return [from_parts({"launch": launch, **time_grouped(each, machine, own)}) for each in layer.products]
    rows, most = max(int(load.rows), 1), int(load.busiest)
    widths = (what.ffn * (1 + what.gated), what.hidden), (what.hidden, what.ffn)
    groups = len(what.busiest)
    return [
        grouped_gemm(GroupedGemm(groups, rows, n, k, EXPERT_FORMATS[kind].products, most), machine) for n, k in widths
    ]


def experts(
    what: Experts,
    system: Described,
    library_name: str = TRAINING,
    *,
    options: RunOptions | None = None,
    rotation: float = np.inf,
) -> Estimate:
    """Return how long the experts of a layer take on the GPU with the most rows, what bounds them, and where the time
    goes.

    Libraries of inference run one call; those of training grouped GEMMs and kernels of their own, as in a step, whose
    estimates `operators` holds. Weights come from memory, or stay in the cache as far as they fit with a `rotation` of
    1, as where a benchmark repeats one layer. Raises UnknownNameError for an unknown library or GPU, InputError for
    what the library or the GPU cannot do.

    >>> from weft import Routing
    >>> found = experts(Experts(Routing(4096, 8, 256, 64), 7168, 2048, "fp8"), "h100-sxm")
    >>> list(found.operators)
    ['permute', 'fc1', 'activation', 'fc2', 'unpermute']
    """
    machine = target(system, options, BenchmarkProtocol(rotation=rotation, after_others=True))
    of, layer = library("experts", library_name), what.layer(what.busiest)
    machine.gpu.matrix_rate(EXPERT_FORMATS[what.dtype].products)
    if of.name != TRAINING:
        return served_layer(layer, of, machine).case()
    first, second = _time_training(what, layer, of, machine)
    rows, hidden = max(int(layer.load.rows), 1), what.hidden
    inner = Streaming("swiglu" if what.gated else "gelu", rows * what.ffn, 1, "bf16")
    steps = {
        "permute": streaming(Streaming("permute", rows, hidden, "bf16"), machine),
        "fc1": first,
        "activation": streaming(inner, machine),
        "fc2": second,
        "unpermute": streaming(Streaming("permute", rows, hidden, "bf16"), machine),
    }
    found = in_sequence(list(steps.values()))
    return replace(found, operators=steps).case()
