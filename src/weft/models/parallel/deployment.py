"""What runs where: the degrees, number format, MoE dispatch and overlap methods of training and of serving plans."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from weft.core.answer import Record
from weft.core.errors import InputError, check_name, check_type
from weft.core.fields import Options, check_fields, declare
from weft.graph import DTYPE_BYTES, EXCHANGES
from weft.graph.op import BLOCK_BYTES
from weft.graph.routing import Loads, check_loads, loads_of
from weft.models.parallel.precision import RECIPES, Recipe


def overlap_of(text: str) -> dict[str, str]:
    """Parse "tp=t3-mca,dp=dma" into overlap methods by axis; InputError for anything else, or an axis given twice."""
    found: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        axis, equals, method = (word.strip() for word in part.partition("="))
        if not (axis and equals and method):
            raise InputError(f"the overlap '{text}' has no axis or no method; name both, like tp=t3-mca")
        if axis in found:
            raise InputError(f"the overlap names {axis} twice, {found[axis]} and {method}; give it once")
        found[axis] = method
    return found


@dataclass(frozen=True)
class Deployment(Options, Record):
    """What the plans of training (`TrainingPlan`) and of serving (`ServingPlan`) share.

    `tp` ranks share every layer, `pp` stages the layers, `ep` ranks the experts. `dtype` is the number format of the
    layers' products. `dispatcher` names the library that exchanges tokens among experts, `expert_load` how many tokens
    each expert gets (the GPU with the most tokens is timed): "power:0.6", its exponent, or relative numbers. `overlap`
    names the method for the collectives of an axis, such as {"tp": "t3-mca"} or "tp=t3-mca".

    Raises UnknownNameError for an unknown field or name, InputError for a value of another type or out of its range.
    """

    tp: int = declare(1, "Tensor parallelism: GPUs that share every layer.")
    pp: int = declare(1, "Pipeline parallelism: stages.")
    ep: int = declare(1, "Expert parallelism: GPUs that share the experts of an MoE layer.")
    dtype: str | None = declare(None, "Data type of the layers' GEMMs.")
    dispatcher: str = declare(
        "",
        "Library of MoE dispatch and combine: {names}.",
        default="as the framework",
        example="hybridep",
    )
    expert_load: Loads | None = declare(
        None,
        "Expert load distribution: even, power:0.6 (the expert of rank p gets p to the power -0.6), or a number for "
        "each, "
        "like 3,2,2,1.",
        default="as the framework",
    )
    overlap: Mapping[str, str] = declare(
        dict, "Overlap methods by axis, such as tp=t3-mca, see 'weft overlaps list --axis tp'.", default="in sequence"
    )

    # What only a plan of training divides: its fields take the place of these.
    dp = cp = micro_batch = 1
    sp, zero = False, 0

    def __post_init__(self) -> None:
        if isinstance(self.overlap, str):
            object.__setattr__(self, "overlap", overlap_of(self.overlap))
        if isinstance(self.expert_load, str | list):
            load = loads_of(self.expert_load) if isinstance(self.expert_load, str) else tuple(self.expert_load)
            object.__setattr__(self, "expert_load", load)
        if self.expert_load is not None:
            rule = "give numbers, one for each expert, or 'power:0.6'"
            check_type("expert_load", self.expert_load, (tuple, float), rule)
            check_loads(self.expert_load)
        own = "one of your own is 'my_file.py:MyMethod', or its name behind weft.register_overlap(MyMethod())"
        rule = f"give methods by axis, such as {{'tp': 'flux'}} or 'tp=flux,dp=dma'; {own}"
        check_type("overlap", self.overlap, Mapping, rule)
        for axis, method in self.overlap.items():
            check_type("the axis of an overlap", axis, str, "name one, like 'tp'")
            rule = f"name a method, like 'flux', or leave the axis out; {own}"
            check_type(f"the overlap of {axis}", method, str, rule)
        if self.dtype is not None:
            check_type("dtype", self.dtype, str, "name one, like 'bf16'")
            self._check_format(self.dtype)
        check_fields(self)
        if self.dispatcher:
            check_name("dispatcher", self.dispatcher, EXCHANGES)
            self._check_dispatcher()

    def _check_format(self, dtype: str) -> None:
        """Raise UnknownNameError for a format that no layer's products have."""
        check_name("dtype", dtype, (*DTYPE_BYTES, *BLOCK_BYTES))  # those of blocks: servers' products

    def _check_dispatcher(self) -> None:
        """Raise InputError for a library that exchanges no tokens."""
        if self.ep == 1:
            raise InputError(
                f"dispatcher {self.dispatcher} exchanges tokens among the ranks that share experts, but ep is 1; "
                "give ep 2 or more, or leave it out"
            )

    @property
    def ranks(self) -> str:
        """The ranks of a replica in words: "TP 8", or "TP 1, EP 72" where others hold its experts."""
        degrees = {"PP": self.pp, "EP": self.ep}
        return f"TP {self.tp}" + "".join(f", {name} {degree}" for name, degree in degrees.items() if degree > 1)

    def alter(self, **fields: Any) -> Self:
        """Return this plan with other fields, not checked: what each may be beside the others has been seen before.

        A search makes plans by the 100,000 out of few values.
        """
        found = object.__new__(type(self))
        vars(found).update(vars(self), **fields)
        return found

    @property
    def shard(self) -> int | None:
        """Replicas among which weights and their states are sharded."""
        return None

    @property
    def context(self) -> str:
        """How attention sees the keys of context-parallel ranks."""
        return "ring"

    @property
    def order(self) -> tuple[str, ...]:
        """The axes as they are placed, the innermost first."""
        return "tp", "cp", "pp", "dp"

    @property
    def chunks(self) -> int:
        """Parts of the model on each stage."""
        return 1

    @property
    def recipe(self) -> Recipe:
        """Which tensors have fewer bits than `dtype`."""
        return RECIPES["bf16"]

    @property
    def micro_batches(self) -> int:
        """Micro-batches of each pipeline per step."""
        return 1

    @property
    def gathers_each_pass(self) -> bool:
        """Whether sharded weights are gathered for every pass, rather than once a step."""
        return False

    def degree(self, axis: str) -> int:
        """The degree of an axis; "dp" counts the ranks that hold the same weights, context-parallel ones included."""
        degree: int = getattr(self, axis)
        return degree

    def stride(self, axis: str) -> int:
        """Distance between neighbours of a group, in GPUs counted through the machine.

        The groups "ep" join neighbours with different tokens, and the groups "experts" the ranks that hold the same
        experts.
        """
        if axis == "experts":
            return self.stride("ep") * self.ep
        if axis == "ep":
            return 1 if self.sp else self.stride("cp" if self.cp > 1 else "dp")
        inner = self.order[: self.order.index(axis)] if axis in self.order else ()
        return math.prod(self.degree(name) for name in inner)

    def __hash__(self) -> int:
        return hash(tuple(value for name, value in vars(self).items() if name != "overlap"))
