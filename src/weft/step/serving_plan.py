"""How a model is served: the replicas, their formats and kernels, the KV cache, and the scheduler of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from weft.core.catalog import Quantity
from weft.core.errors import InputError, check_name, check_type, show_value
from weft.core.fields import declare, describe_fields, redeclare, stated_fields
from weft.core.units import Dimension
from weft.estimate.quantization import FORMATS
from weft.graph.routing import Loads
from weft.kernels.library.kits import KITS, VENDOR, kit, resolve_framework
from weft.models.formats import SERVED_DTYPES
from weft.models.parallel.deployment import Deployment
from weft.step.drafts import NONE, OWN, Speculation

KvDtype = Literal["bf16", "fp8"]
"""Number formats of the KV cache."""
Router = Literal["round-robin", "least-loaded"]
"""Which replica gets a request: each in turn, or the one with the fewest requests."""
FRAMEWORK = "vllm"
"""The framework of a server whose plan names none."""
SECONDS = Quantity(Dimension.SECONDS, zero_allowed=True)
_MOST_DRAFTS = 16
OWN_PREFILL = ("prefill_tp", "prefill_ep", "prefill_max_num_batched_tokens")
"""Fields of a plan by which prefill replicas differ from the others."""


@dataclass(frozen=True)
class ServingPlan(Deployment):
    """How a model is served on a system: `replicas` of `tp` GPUs each.

    Each GPU holds a slice of all experts, or with `ep` = `tp` whole ones. With `ep` above a `tp` of 1 attention is data
    parallel: a replica is one GPU with a queue of its own, `ep` of them share the experts, and a `dispatcher` exchanges
    tokens; `two_batch_overlap` computes one half of a batch while the other half's tokens are exchanged. With `pp`, as
    many replicas share a pipeline of `tp` x `pp` GPUs, each with its own queue and its share of the memory.

    Without `dtype` (the layers' products) and `weights` (a narrower format of their weights), the formats are those in
    which the model was released. Operators are those of `library`; None: those of the `framework`, and without one the
    vendor's. With `enforce_eager` the host launches each kernel, without CUDA graphs. `num_speculative_tokens` are
    drafted for each engine iteration; each is accepted with probability `acceptance_rate` if those before it are.
    `speculative_method` drafts: "mtp", the model's own layer of multi-token prediction (the default), "eagle", a dense
    layer, "none", a lookup that takes no time, or a model by name.

    The other fields are rules of a server: `prefill_replicas` of the `replicas` only prefill and send the KV cache to
    the others (disaggregated prefill), in a layout of their own with `prefill_tp`, `prefill_ep` or
    `prefill_max_num_batched_tokens` (`of_prefill`). A `scheduler` is a name of `weft.serving.policies.POLICIES` or a
    function of a replica. None is as the `framework` does, and the framework is vLLM unless stated.

    Raises UnknownNameError for an unknown field or name, InputError for values that contradict each other.

    >>> ServingPlan(tp=4, num_speculative_tokens=1, acceptance_rate=0.85).speculation.expected_tokens
    1.85
    """

    overlap: Mapping[str, str] = redeclare(
        Deployment,
        "overlap",
        dict,
        help="An overlap method for all-reduces (tp) or MoE dispatch and combine (ep), such as tp=t3-mca, see "
        "'weft overlaps list --axis tp'.",
    )
    ep: int = redeclare(
        Deployment,
        "ep",
        help="Expert parallelism: GPUs that share the experts of an MoE layer. 1: a slice of each expert per GPU; the "
        "number of --tp: whole experts; with --tp 1, any number: data-parallel attention with dispatch and combine.",
    )
    pp: int = redeclare(
        Deployment, "pp", help="Pipeline parallelism: stages, each with a part of the layers.", example=2
    )
    two_batch_overlap: bool = declare(
        False,
        "Two-batch overlap (vLLM: DBO): compute one half of a batch during dispatch and combine of the other.",
    )
    dispatcher: str = redeclare(
        Deployment, "dispatcher", default="DeepEP's on NVIDIA's Hopper and Blackwell, else nccl"
    )
    expert_load: Loads | None = redeclare(
        Deployment, "expert_load", default="power:0.55, balanced over the GPUs that share the experts"
    )
    dtype: str | None = redeclare(
        Deployment,
        "dtype",
        help="Data type of GEMMs and their weights: bf16, fp16, fp8, int8, mxfp4, nvfp4, or fp8-block (block scales); "
        "of the weights alone where the GPU has no matrix rate for it.",
        default="as the model was released",
    )
    weights: str = declare(
        "",
        "Weight-only quantization: int8, int4-g128, mxfp4, nvfp4.",
        default="as --dtype",
        noun="format",
    )
    kv_dtype: KvDtype = declare("bf16", "Data type of the KV cache.", noun="number format of the KV cache")
    library: str | None = declare(
        None,
        "Kernels: those of vllm, sglang or trtllm, or the vendor's libraries.",
        default="serve: those of --framework; prefill and decode: the vendor's",
        noun="library of a step",
    )
    enforce_eager: bool = declare(
        False, "Launch every kernel from the CPU, without CUDA graphs (a framework's --library)."
    )
    num_speculative_tokens: int | None = declare(
        None, "Speculative decoding: draft tokens of each sequence that an iteration verifies.", least=0, example=3,
        most=_MOST_DRAFTS,
    )  # fmt: skip
    acceptance_rate: float | None = declare(
        None, "Probability that a draft token is accepted if the tokens before it are.", bounds=(0, 1), example=0.8
    )
    speculative_method: str | None = declare(
        None, f"Drafter: {', '.join(OWN)} (n-gram lookup), or a model by name.", default="mtp"
    )
    framework: str | None = declare(
        None,
        "Serving framework whose defaults apply: vllm, sglang, trtllm, or a version, such as vllm@0.10.",
        default=FRAMEWORK,
    )
    replicas: int | None = declare(
        None,
        "Copies of the model (data-parallel replicas).",
        example=2,
        default="as many as the system holds",
        scope="server",
    )
    prefill_replicas: int = declare(
        0,
        "Disaggregated prefill: replicas that only prefill, and send the KV cache to the others; 1 with --replicas 2 "
        "is 1P1D.",
        least=0,
        example=1,
        scope="server",
    )
    prefill_tp: int | None = declare(
        None,
        "Tensor parallelism of the prefill replicas; --tp then describes the replicas that decode.",
        least=1,
        example=4,
        default="as --tp",
        scope="server",
    )
    prefill_ep: int | None = declare(
        None,
        "Expert parallelism of the prefill replicas.",
        least=1,
        example=4,
        default="as --ep, or 1 with --prefill-tp",
        scope="server",
    )
    prefill_max_num_batched_tokens: int | None = declare(
        None,
        "Maximum tokens of an engine iteration of the prefill replicas.",
        least=1,
        example=8192,
        default="as --max-num-batched-tokens",
        scope="server",
    )
    router: Router = declare("least-loaded", "How requests are routed to replicas.", scope="server")
    scheduler: str | Callable[[Any], None] | None = declare(
        None,
        "Scheduling policy of an engine, such as vllm or sglang.",
        default="the framework's",
        noun="scheduling policy",
        names="weft.serving.policies:POLICIES",
        scope="server",
    )
    max_num_batched_tokens: int | None = declare(
        None,
        "Maximum tokens of an engine iteration (the chunk of chunked prefill).",
        example=256,
        default="the framework's",
        scope="server",
    )
    max_num_seqs: int | None = declare(
        None,
        "Maximum requests that run at once in a replica (the batch).",
        example=256,
        default="the framework's",
        scope="server",
    )
    block_size: int | None = declare(
        None, "Tokens of a KV-cache block.", example=256, default="the framework's", scope="server"
    )
    gpu_memory_utilization: float | None = declare(
        None,
        "Share of a GPU's memory for weights, activations and KV cache.",
        bounds=(0.01, 1),
        example=0.9,
        default="the framework's",
        scope="server",
    )
    max_model_len: int | None = declare(
        None,
        "Maximum tokens of a prompt and its output together.",
        example=8192,
        default="the model's context",
        scope="server",
    )
    cpu_overhead: str | None = declare(
        None,
        "CPU time that an engine iteration adds to its kernels, like 1ms.",
        default="the framework's, assumed",
        scope="server",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights:
            check_name("format", self.weights, FORMATS)
        if self.library is not None:
            kit(self.library)
        if self.framework is not None:
            resolve_framework(self.framework)
        self._check_degrees()
        self._check_speculation()
        self._check_server()

    def _check_format(self, dtype: str) -> None:
        check_name("number format", dtype, SERVED_DTYPES)

    def _check_degrees(self) -> None:
        if self.ep not in (1, self.tp) and self.tp > 1:
            raise InputError(
                f"ep {self.ep} is neither 1 nor tp {self.tp}: the ranks of a replica share its experts, whole or in "
                f"slices; give ep {self.tp}, or tp 1 for attention by data parallelism on {self.ep} GPUs"
            )
        if self.pp > 1 and self.wide:
            raise InputError(
                f"ep {self.ep} shares experts among GPUs that hold all layers, and pp is {self.pp}; leave one of them "
                "out"
            )
        if self.two_batch_overlap and not self.wide:
            raise InputError(
                "two_batch_overlap computes one half of a batch while the other half's tokens are exchanged, and none "
                "are without ep above tp 1; give ep, or leave out two_batch_overlap"
            )
        if self.two_batch_overlap and "ep" in self.overlap:
            raise InputError(
                f"two_batch_overlap hides exchanges beside the other half's experts, and ep={self.overlap['ep']} "
                "beside their own; leave out one of them"
            )

    def _check_dispatcher(self) -> None:
        if not self.wide:
            raise InputError(
                f"dispatcher {self.dispatcher} exchanges tokens among GPUs that share experts, and the GPUs of a "
                "replica hold the same tokens; give ep above tp 1, or leave it out"
            )

    def _check_speculation(self) -> None:
        """Raise InputError for contradicting choices; with 0 drafts the others are of no account."""
        if not self.num_speculative_tokens:
            for name in ("acceptance_rate", "speculative_method"):
                value = getattr(self, name)
                if value is not None and self.num_speculative_tokens is None:
                    raise InputError(
                        f"{name} is {show_value(value)}, and no token is drafted; give num_speculative_tokens, such as "
                        "3, "
                        "too"
                    )
        elif self.acceptance_rate is None:
            raise InputError(
                "acceptance_rate is not given: which share of drafts is accepted is measured, not computed; give one "
                "from 0 to 1, such as 0.8"
            )

    def _check_server(self) -> None:
        if self.cpu_overhead is not None:
            check_type("cpu_overhead", self.cpu_overhead, str, "give a time, such as '1 ms'")
            SECONDS.parse(self.cpu_overhead)
        if not (self.scheduler is None or isinstance(self.scheduler, str) or callable(self.scheduler)):
            known = ", ".join(describe_fields(ServingPlan)["scheduler"].choices)
            raise InputError(
                f"scheduler is {show_value(self.scheduler)}; give one of {known}, or a function of a replica"
            )
        for name, value in list(self.own_prefill.items())[:1]:
            if not self.prefill_replicas:
                raise InputError(
                    f"{name} is {value}, and no replica only prefills; give prefill_replicas, such as 1, too"
                )
            self._check_prefill()
        if self.replicas is not None:
            self.check_replicas(self.replicas)

    def _check_prefill(self) -> None:
        """Raise InputError for a layout of prefill replicas that no replica has."""
        try:
            _ = self.of_prefill
        except InputError as error:
            raise InputError(f"of the prefill replicas {error}") from error

    def check_replicas(self, count: int) -> None:
        """Raise InputError for numbers of replicas that do not fill groups, or of which none decodes."""
        own = [("replicas", count, self), ("prefill replicas", self.prefill_replicas, self)]
        if self.own_prefill:
            readers = self.prefill_replicas
            own = [("replicas that decode", count - readers, self), ("prefill replicas", readers, self.of_prefill)]
        for what, number, plan in own:
            if number % plan.together:
                why = f"groups of ep {plan.ep}, which share their experts"
                if plan.pp > 1:
                    why = f"pipelines of pp {plan.pp}, each of which passes on as many"
                per = "one GPU" if plan.tp == 1 else f"{plan.tp} GPUs"
                raise InputError(f"{number} {what} of {per} do not fill {why}; give a multiple of {plan.together}")
        if self.prefill_replicas >= count and self.prefill_replicas:
            raise InputError(
                f"{self.prefill_replicas} of {count} replicas only prefill, so that none decodes; give fewer"
            )

    @property
    def wide(self) -> bool:
        """Whether attention is data parallel: `ep` GPUs with batches of their own share the experts."""
        return self.ep > self.tp

    @property
    def gpus(self) -> int:
        """Number of GPUs: those of all replicas, or of one where their number is not stated."""
        count = self.replicas or 1
        if not self.own_prefill:
            return self.tp * count
        return self.tp * (count - self.prefill_replicas) + self.of_prefill.tp * self.prefill_replicas

    @property
    def own_prefill(self) -> Mapping[str, int]:
        """What the prefill replicas have of their own, by its field; empty where all replicas are alike."""
        found = {name: getattr(self, name) for name in OWN_PREFILL}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def of_prefill(self) -> ServingPlan:
        """The plan of the prefill replicas by themselves; InputError for a layout that no replica has."""
        tp, ep = self.prefill_tp or self.tp, self.prefill_ep or (1 if self.prefill_tp else self.ep)
        fields: dict[str, Any] = {"max_num_batched_tokens": self.prefill_max_num_batched_tokens}
        if fields["max_num_batched_tokens"] is None:
            fields["max_num_batched_tokens"] = self.max_num_batched_tokens
        if ep <= tp:  # no rank of a replica sends tokens to another
            fields |= {"dispatcher": "", "two_batch_overlap": False}
        kept = {"tp": tp > 1, "ep": ep > tp}
        overlap = {axis: method for axis, method in self.overlap.items() if kept.get(axis, True)}
        count = self.prefill_replicas or None
        return replace(self.alone, tp=tp, ep=ep, replicas=count, overlap=overlap, **fields)

    @property
    def alone(self) -> ServingPlan:
        """The same plan with as many replicas as decode, none of which only prefills."""
        count = self.replicas and self.replicas - self.prefill_replicas
        alike: dict[str, Any] = dict.fromkeys(OWN_PREFILL)
        return replace(self, replicas=count, prefill_replicas=0, **alike)

    @property
    def together(self) -> int:
        """Replicas of an engine: those that share experts, or a pipeline."""
        return self.ep if self.wide else self.pp

    @property
    def operators(self) -> str:
        """The library of the operators: the stated one, that of the framework's version, or the vendor's."""
        if self.library is not None or self.framework is None:
            return self.library or VENDOR
        framework, version = resolve_framework(self.framework)
        return f"{framework}@{version}" if version in KITS[framework].versions else framework

    @property
    def speculation(self) -> Speculation:
        """What is drafted for an engine iteration."""
        if not self.num_speculative_tokens:
            return NONE
        return Speculation(
            self.num_speculative_tokens, float(self.acceptance_rate or 0.0), self.speculative_method or "mtp"
        )

    @property
    def queries(self) -> int:
        """Tokens of each decoding sequence in an engine iteration: its next one, and drafts."""
        return 1 + self.speculation.tokens

    @property
    def of_pass(self) -> ServingPlan:
        """The same plan without rules of a server: all that decides how long a forward pass takes."""
        rules = {
            name: one.value for name, one in describe_fields(ServingPlan).items() if one.declared.scope == "server"
        }
        return replace(self, **rules)

    def refuse_server(self, function: str) -> None:
        """Raise InputError for a rule of a server, which one forward pass has not."""
        for name, value in stated_fields(self).items():
            one = describe_fields(ServingPlan).get(name)
            if one and one.declared.scope == "server":
                raise InputError(
                    f"{name} is {show_value(value)}, which is a rule of a server, and {function} times one pass of a "
                    "replica; leave it out, or ask weft.serve"
                )

    __hash__ = Deployment.__hash__
