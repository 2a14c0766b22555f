"""Defaults of serving frameworks: scheduling policy, tokens per step, KV-cache blocks, and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.core.catalog import Quantity
from weft.core.errors import InputError
from weft.core.units import Dimension, format_bytes
from weft.graph import DTYPE_BYTES
from weft.kernels.library.kits import KITS, framework_tables, resolve_framework
from weft.models.block import query_key_value
from weft.step.forward import Forward
from weft.step.memory import outside
from weft.step.serving_plan import FRAMEWORK, SECONDS, ServingPlan

_BYTES = Quantity(Dimension.BYTES)


@dataclass(frozen=True)
class ServingDefaults:
    """How a framework serves on a GPU.

    A step takes at most `tokens`, and at most `sequences` run at once; the KV cache lies in blocks of `block` tokens,
    and take `cache_bytes` of each GPU [bytes]. The host adds `host` to every step [s], plausibly `host_range`, and a
    request takes `frontend` and `token` for each token of its prompt outside of steps, up to its first token [s]. Each
    kernel of a step with prompts takes it `launch` [s], unless the step has at most `graphed` tokens; graphs hold
    `pieces` between the attention of two layers, or whole steps. Rules and times are those of a `version`, or of the
    `versions` whose rows they were fitted to. Of separate pools, a proxy `asks_again` for an answer once the prompt has
    been read, or only the KV cache is sent.
    """

    name: str
    title: str
    policy: str
    source: str
    tokens: int
    sequences: int
    block: int
    cache_bytes: int
    host: float
    host_range: tuple[float, float]
    frontend: float
    token: float
    launch: float
    graphed: int
    asks_again: bool = False
    pieces: bool = False
    version: str = ""
    versions: tuple[str, ...] = ()

    @property
    def about(self) -> str:
        """Which version's rules and host times these are."""
        if self.version:
            return f"{self.title.partition(' (')[0]} {self.version}"
        return f"{self.title}, host times fitted to versions {' to '.join((self.versions[0], self.versions[-1]))}"

    def outside(self, prompt: int) -> float:
        """Return what a request with such a prompt takes outside of steps, up to its first token [s]."""
        return self.frontend + self.token * prompt


def serves(forward: Forward, plan: ServingPlan) -> ServingDefaults:
    """Return what a framework does on the GPUs of a model; values that a plan states replace its defaults.

    The framework is vLLM unless stated. Rules and times are those of a version where it is known to differ, else what
    all versions have together. Raises InputError for weights that leave no room for the KV cache.
    """
    name, version = resolve_framework(plan.framework or FRAMEWORK)
    table, kit = framework_tables()[name], KITS[name]
    own = table["versions"].get(version, {})
    size = _size(table["sizes"], forward)
    tokens, sequences = plan.max_num_batched_tokens or size["tokens"], plan.max_num_seqs or size["sequences"]
    low, high = (SECONDS.parse(table["host"][end]) for end in ("low", "high"))
    if tokens < forward.queries:
        raise InputError(
            f"an engine iteration of {tokens} tokens does not hold the next token of a request and its "
            f"{plan.speculation.tokens} drafts; give max_num_batched_tokens {forward.queries} or more, or fewer drafts"
        )
    return ServingDefaults(
        name=name,
        title=table["title"],
        policy=table["policy"],
        source=table["source"],
        tokens=tokens,
        sequences=sequences,
        block=plan.block_size or table["block"],
        cache_bytes=_room(name, table, forward, tokens, sequences, plan.gpu_memory_utilization),
        host=SECONDS.parse(table["host"]["value"] if plan.cpu_overhead is None else plan.cpu_overhead),
        host_range=(low, high),
        frontend=SECONDS.parse(own.get("frontend", table["frontend"]["value"])),
        token=SECONDS.parse(table["token"]["value"]),
        launch=kit.launch,
        graphed=min(table["graphed"], 2 * sequences),
        asks_again=table.get("asks_again", False),
        pieces=own.get("graphs") == "pieces",
        version=version if own else "",
        versions=tuple(one for one, values in table["versions"].items() if "frontend" in values),
    )


def _size(rows: list[dict[str, Any]], forward: Forward) -> dict[str, Any]:
    gpu = forward.system.gpu
    for row in rows:
        small = "below" in row and gpu.memory.capacity < _BYTES.parse(row["below"])
        if small or gpu.architecture in row.get("architectures", ()) or not {"below", "architectures"} & row.keys():
            return row
    raise AssertionError("the last row of a framework holds for every GPU")


def _room(
    name: str, table: Mapping[str, Any], forward: Forward, tokens: int, sequences: int, share: float | None
) -> int:
    """Return the KV-cache memory of each GPU [bytes]."""
    capacity, tp, pp = int(forward.system.gpu.memory.capacity), forward.plan.tp, forward.plan.pp
    beside = table.get("reserved")
    if share and beside:
        working = 0  # the stated share is that of weights and the KV cache; the rest holds activations and graphs
    elif beside:
        size = {key: _BYTES.parse(beside[key]) for key in ("base", "each_token", "each_graph", "each_gpu")}
        graphs = 0 if forward.plan.enforce_eager else beside["graphs" if tp < 4 else "graphs_tp4"]
        working = size["base"] + size["each_token"] * max(tokens, beside["least_tokens"])
        working += size["each_graph"] * graphs + size["each_gpu"] * tp
    else:
        working = activations(forward, tokens, sequences)
    share = share or _value(table["memory_share"])
    held = forward.weights + working + outside(tp, forward.replicas // pp, pp, pp)
    room = int(_value(table["free_share"]) * (share * capacity - held))
    if room <= 0:
        raise InputError(
            f"{forward.model.name} leaves no memory for the KV cache under {name}: {format_bytes(held, 3)} of "
            f"weights and activations in {share:.2g} of {format_bytes(capacity, 3)} on each of its GPUs (TP {tp}); "
            f"give {_remedy(forward)}"
        )
    return room


def _remedy(forward: Forward) -> str:
    """Return what would leave memory for a KV cache, as options."""
    format, narrow = forward.served_format, "narrower weights, such as --weights int4-g128"
    released = forward.model.weight_format
    if not format.released and released not in ("bf16", "fp16") and not format.weights:
        narrow = f"the weights as released ({released}: leave out --dtype and --weights)"
    return f"a larger tp, {narrow}, or a GPU with more memory"


def activations(forward: Forward, tokens: int, sequences: int) -> int:
    """Return most memory of a step's tensors on one GPU [bytes].

    The widest operator between two GEMMs reads and writes at once, in addition to the residual stream; logits of all
    sequences are in fp32, gathered from all ranks.
    """
    model, tp = forward.model, forward.plan.tp
    first = (2 if model.is_gated else 1) * model.wide
    if model.experts:
        each = (2 if model.is_gated else 1) * model.expert_wide
        first = max(first, model.experts_per_token * each, model.shared_experts * each)
    inner = max(first * 3 // 2, query_key_value(model)) // tp
    flow = tokens * (2 * model.hidden + inner) * DTYPE_BYTES["bf16"]
    return flow + min(sequences, tokens) * model.vocabulary * DTYPE_BYTES["fp32"]


def _value(raw: Any) -> float:
    return float(raw["value"] if isinstance(raw, Mapping) else raw)
