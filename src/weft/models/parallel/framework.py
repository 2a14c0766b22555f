"""What training frameworks do by default: operators, number formats, overlaps, and what the host spends on launches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

from weft.core.catalog import Quantity, read_leaves, read_toml, unknown_key
from weft.core.errors import ConfigError, check_name, check_type
from weft.core.fields import check_fields, declare
from weft.core.units import Dimension
from weft.graph import EXCHANGES
from weft.hardware import Gpu
from weft.models.block import FusionStyle
from weft.models.parallel.plan import GRAPH_MODULES
from weft.models.parallel.precision import RECIPES
from weft.models.update import Optimizer


@dataclass(frozen=True)
class Framework:
    """What a training framework does by default.

    `style` says how it writes the operators of a layer. `gradients` is the number format in which gradients of weights
    are added up over micro-batches, `reduces` that in which replicas add them (empty: the same). A rank of a sharded
    optimizer gets the sums of its own shard if the framework `scatters`, else all. With `accumulates` the GEMM adds to
    gradients itself. `async_tp` collectives of the backward pass run concurrently with the GEMMs of gradients; `tp`
    names the method that overlaps those of both passes (empty: none). With sequence parallelism the inputs of GEMMs
    whose weights are cut by columns are gathered again for the gradient of the weight if it `gathers_again`, else kept
    whole; if it `orders_tokens`, those of several sequences are copied after they are gathered and before they are
    scattered. With `dp_overlap` replicas reduce gradients during the backward pass of the last micro-batch, with
    `gather_overlap` they gather updated weights during the forward pass of the first, both in buckets of `bucket`
    parameters (0: all at once), at least `bucket_per_replica` for each replica. `zero` is the default stage of
    sharding; with stage 3 (FSDP) it `keeps_weights` from the forward to the backward pass, and where it `gathers_main`,
    weights are cast as they are gathered from the fp32 main copy, beside which no other is kept. Full recomputation of
    a layer `stops_early`, before what no gradient needs (PyTorch from 2.1, set_checkpoint_early_stop), or runs all of
    it. Of the `sends` between stages, "blocking" ones keep the sender from computing, "overlapped" ones do not, and
    "interleaved" ones only with several chunks a stage; with `scatter_gather` tensor-parallel ranks share them.
    `dispatcher` is the library by which tokens come to their experts, on `dispatcher_units` compute units (0: as many
    as it takes by itself), `dispatcher_holds` these all the time; where passes are `paired`, one micro-batch's tokens
    travel while another computes, and with `delay_wgrad` gradients of weights fill what is left of their way. With
    `fused_experts` one kernel does an expert's first GEMM of 8 bits, its activation and the cast for the second,
    forward and backward; what these keep is copied to `pages` and back, where a graph of the step has room for more
    tokens than come. Under recipes of 8 bits attention computes in the format `attention` (empty: 16 bits), to which
    queries, keys and values, and the gradient of its output, are cast. `optimizer` runs in one kernel over many tensors
    or, not `fused_optimizer`, in one per operation; `scales_loss` adds the check for overflow of fp16. Weights are kept
    in the number format `weights` (empty: that of the computation), beside `optimizer_bytes` of states per parameter:
    12 for Adam with fp32 master weights. Recipes of 8 or 4 bits cast weights once per step, or, with `casts_each_pass`,
    in every forward pass; where it `casts_apart`, kernels of their own make operands along rows and along columns:
    activations are kept in 8 bits along rows, inputs of SwiGLU too, outputs of attention in 12, and are turned in the
    backward pass, as are weights. Where it `keeps_low` weights, they are held and gathered in the formats that the
    recipe offers for that, else in 16 bits; `recipes` are those that it runs (empty: not stated). The host spends
    `launch` on each operator [s], ahead of the GPU; `likely_launch` is the middle of its plausible range, which no
    measured step decided. If the host is `synchronous`, it waits for each kernel (CUDA_LAUNCH_BLOCKING=1). In a layer
    of experts it spends `launch_experts` on each operator [s], and `launch_each` on each GEMM of a single expert;
    elsewhere the host runs ahead of the GPU. The host launches the kernels of a CUDA graph at once; `graphs` names the
    captured modules of each layer (`weft.models.parallel.plan.GRAPH_MODULES`), or the "full_iteration". A `current`
    framework is one that plans are searched for, and steps compared with, unless another one is named: on GPUs of its
    `vendor` (empty: any) that multiply its `matrix` number format (empty: any), and, if `low`, under recipes of 8 or 4
    bits alone.
    """

    name: str = "megatron"
    title: str = ""
    source: str = ""
    style: FusionStyle = field(default_factory=FusionStyle)
    gradients: str = "fp32"
    reduces: str = ""
    scatters: bool = True
    accumulates: bool = True
    async_tp: bool = True
    gathers_again: bool = True
    orders_tokens: bool = False
    tp: str = ""
    dp_overlap: bool = False
    gather_overlap: bool = False
    bucket: int = 0
    bucket_per_replica: int = 0
    zero: int = declare(0, "", least=0, most=3)
    keeps_weights: bool = False
    gathers_main: bool = False
    stops_early: bool = False
    weights: str = ""
    optimizer_bytes: int = 12
    sends: Literal["blocking", "interleaved", "overlapped"] = "interleaved"
    scatter_gather: bool = True
    dispatcher: str = "nccl"
    dispatcher_units: int = 0
    dispatcher_holds: bool = False
    paired: bool = False
    delay_wgrad: bool = False
    fused_experts: bool = False
    pages: bool = False
    pads: tuple[str, ...] = ()
    attention: str = ""
    casts_each_pass: bool = False
    casts_apart: bool = False
    keeps_low: bool = False
    recipes: tuple[str, ...] = ()
    optimizer: str = "adam"
    fused_optimizer: bool = True
    scales_loss: bool = False
    launch: float = 0.0
    likely_launch: float = 0.0
    synchronous: bool = False
    launch_experts: float = 0.0
    likely_launch_experts: float = 0.0
    launch_each: float = 0.0
    likely_launch_each: float = 0.0
    graphs: tuple[str, ...] = ()
    current: bool = False
    vendor: str = ""
    matrix: str = ""
    low: bool = False

    def unlike(self, gpu: Gpu, precision: str) -> str:
        """Return why the framework does not run like this on a GPU under a recipe; empty if it does."""
        if self.vendor and gpu.vendor != self.vendor:
            return f"it is for GPUs of {self.vendor}"
        if self.matrix and not gpu.supports(self.matrix):
            return f"it is for GPUs that multiply {self.matrix}, which {gpu.name} does not"
        if self.low and precision in ("", "bf16"):
            return "it is for recipes of 8 or 4 bits (--precision)"
        return ""

    def __post_init__(self) -> None:
        check_fields(self)
        check_type("style", self.style, FusionStyle, "give a weft.models.block.FusionStyle")
        for name, value in {"gradients": self.gradients, "reduces": self.reduce_dtype, "weights": self.weights}.items():
            if value:
                check_name(f"{name} of a framework", value, ("fp16", "bf16", "fp32"))
        check_name("format of attention", self.attention, ("", "fp8"))
        check_name("optimizer", self.optimizer, get_args(Optimizer))
        for library in (self.dispatcher, *self.pads):
            check_name("dispatcher", library, EXCHANGES)
        for recipe in self.recipes:
            check_name("recipe", recipe, RECIPES)
        for held in self.graphs:
            check_name("module of CUDA graphs", held, (*GRAPH_MODULES, "full_iteration"))

    @property
    def reduce_dtype(self) -> str:
        """Number format in which replicas add their gradients."""
        return self.reduces or self.gradients

    def launching(self, operators: float, experts: float, each: float) -> Framework:
        """The framework with another host: what it spends on operators, on those of experts, on GEMMs of each [s]."""
        return replace(self, launch=operators, launch_experts=experts, launch_each=each)

    def bucket_of(self, replicas: int) -> int:
        """Return the parameters of a bucket for `replicas` replicas; 0 if all gradients travel at once."""
        return max(self.bucket, self.bucket_per_replica * replicas)


USUAL, SHARDED = "megatron-core", "torchtitan"
"""Frameworks of plans that name none: of those with whole weights on each rank, and of those that shard them."""
_FILE = "frameworks.toml"
_RULES = dict.fromkeys(("launch", "launch_experts", "launch_each"), Quantity(Dimension.SECONDS, zero_allowed=True))


@cache
def frameworks() -> Mapping[str, Framework]:
    """Return the frameworks of the catalogue by name; ConfigError for an unknown key."""
    tables = read_toml(resources.files("weft.models.parallel") / _FILE)
    return {name: _read(name, tables) for name in tables}


def current_frameworks() -> list[str]:
    """Return the names of the frameworks that plans are searched for.

    >>> "megatron-bridge" in current_frameworks()
    True
    """
    return [name for name, one in frameworks().items() if one.current]


def framework(name: str) -> Framework:
    """Return the framework of that name; UnknownNameError lists the known ones.

    >>> framework("megatron-2022").gradients
    'fp32'
    """
    check_name("framework", name, frameworks())
    return frameworks()[name]


def _read(name: str, tables: Mapping[str, Any]) -> Framework:
    values: dict[str, Any] = {}
    chain, table = [name], tables[name]
    while "extends" in table:
        check_name("framework", table["extends"], tables)
        chain.append(table["extends"])
        table = tables[table["extends"]]
    for step in reversed(chain):
        own = {key: value for key, value in tables[step].items() if key != "extends"}
        values |= {**own, "style": {**values.get("style", {}), **own.get("style", {})}}
    return _built(name, values)


def _built(name: str, values: dict[str, Any]) -> Framework:
    label = f"{_FILE}: {name}"
    for known, given in ((Framework, values), (FusionStyle, values["style"])):
        names = [one.name for one in fields(known)]
        for key in given:
            if key not in names:
                raise unknown_key(key, names, label)
    if not values.get("source"):
        raise ConfigError("the source is missing; say where the defaults are documented", label, "source")
    leaves = read_leaves({key: values[key] for key in _RULES if values.get(key)}, _RULES, label)
    plain: dict[str, Any] = {path: leaf.value for path, leaf in leaves.items()}
    plain |= {f"likely_{path}": math.sqrt(math.prod(leaf.range)) for path, leaf in leaves.items()}
    plain |= {key: tuple(values.get(key, ())) for key in ("recipes", "pads", "graphs")}
    return Framework(**{**values, **plain, "name": name, "style": FusionStyle(**values["style"])})
