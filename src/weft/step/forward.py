"""A model's forward passes on a replica, as servers run them: prompts, chunks and decode tokens in one batch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from weft.core.errors import InputError, join_or, show_value
from weft.core.options import SUSTAINED, RunOptions
from weft.estimate.errors import SCANS
from weft.estimate.power import Activity, work_of
from weft.estimate.quantization import quantized_format, weight_only
from weft.graph import DTYPE_BYTES, Attention, Gemm, Graph, GroupedGemm, Node, Op, Opaque, Scan, Streaming
from weft.graph.op import BLOCK_BYTES, Role, width
from weft.graph.routing import MOST_EXPERTS, Routing
from weft.hardware import System
from weft.kernels.library.kits import KITS, kit
from weft.kernels.library.served import library as library_of
from weft.models import Transformer
from weft.models.block import LAYERS, FusionStyle, LayerKind, LayerOp, Tokens, embedding, head, layer
from weft.models.counts import kv_bytes, parameters, state_bytes
from weft.models.formats import FP8_BLOCK, half_format, served_format
from weft.models.parallel.cut import cut
from weft.models.parallel.deployment import Deployment
from weft.models.parallel.framework import Framework
from weft.models.parallel.rank import forward_graph
from weft.overlaps import OVERLAPS
from weft.step.drafts import OWN, drafter
from weft.step.durations import DurationCache, OperatorTimes
from weft.step.exchange_overlap import EXPERTS, overlap_exchange
from weft.step.expert_calls import ExpertCalls, slice_experts
from weft.step.layers import time_graph
from weft.step.overlaps import check_served, engine_note, needs
from weft.step.result.step import Pass, exposed_part, sum_layers
from weft.step.serving_plan import ServingPlan
from weft.step.spans import CONTENTION, class_of, time_nodes
from weft.step.sparse import best_tokens, index_ops, is_sparse
from weft.step.stages import ForwardStages

_ACTIVATIONS = "bf16"
"""Number format of everything but the GEMMs of layers, and of the KV cache if none is named."""
_SERVER = Framework(name="serving", style=FusionStyle())
_EAGER = (
    "Eager mode: the host launches {:,} kernels in each engine iteration, {:g} us each (calibrated), which takes "
    "{:.3g} ms or more; no CUDA graph replays them."
)
_LOADED = (
    "Expert load: the busiest expert gets {:.1f}x the mean number of tokens, the fullest of {} GPUs {:.2f}x the mean "
    "of all."
)
_STATES = (
    "Linear layers keep {:.3g} MB of states and of tokens for their convolutions per sequence on each GPU, whatever "
    "its length (states in fp32); their scans are not measured: {:g} to {:g} times the prediction is assumed."
)
_SUMMED = "The all-reduce behind routed experts follows them, as no method joins it with their GEMMs."


_MACHINES = 8
"""Machines and libraries whose durations are cached."""
_ROCM = ("cdna2", "cdna3", "cdna4")
"""Architectures whose own paged attention takes neither sinks nor windows: models with them run Triton's kernel
(vllm-project/vllm vllm/platforms/rocm.py, use_rocm_custom_paged_attention)."""
_LOW_LATENCY = 256
"""Most tokens of a rank that DeepEP's low-latency kernels exchange, above which its normal ones do [assumed, 128 (its
default) to 256 (SGLang's decode on 96 H100, 2025)]."""


@dataclass(frozen=True)
class Group:
    """`sequences` of a batch that are alike: each computes `new` tokens behind `cached` ones.

    Decode sequences compute their next token and verify drafts: `new` queries share one read of the KV cache.
    """

    sequences: int
    new: int
    cached: int = 0
    writes: bool = False

    @property
    def tokens(self) -> Tokens:
        """The tokens that attention works on."""
        return Tokens(self.sequences, self.new, cached=self.cached)


class Forward:
    """A model on a replica of a system: what a forward pass takes, and what its weights and its KV cache hold.

    The `plan` says how; rules of a server do not count. With `plan.wide` the GPUs that share the experts are taken to
    hold as many tokens as this one, and pass through layers in step with it. With `plan.pp` the layers are divided
    among stages, which pass `pp` batches on, one in each; a batch has the time of `tp` GPUs and a `pp`-th of the memory
    of all to itself. Methods of overlap join the all-reduces of "tp" with the GEMMs before them, and the exchanges of
    "ep" with experts. Without an expert load distribution, tokens choose experts by a power law
    (`weft.step.expert_calls.SERVED_LOAD`) that is balanced over the GPUs.

    All groups of a batch share every operator but attention, which is a kernel for each group. Raises InputError for a
    model that writes no tokens, and for a plan that does not fit the model or fill the GPUs.
    """

    def __init__(
        self, model: Transformer, system: System, plan: ServingPlan = ServingPlan(), options: RunOptions = SUSTAINED
    ) -> None:
        _check_experts(model, plan, system.gpus)
        _check_stages(model, plan, system.gpus)
        self.served_format = served_format(model, system.gpu, plan.dtype, plan.weights)
        self.dtype, self.format, *_ = self.served_format
        if system.gpus % plan.tp:
            fits = max(one for one in range(1, min(plan.tp, system.gpus) + 1) if system.gpus % one == 0)
            raise InputError(
                f"tp {plan.tp} does not fill the {system.gpus} GPUs of the system with whole replicas; give a divisor, "
                f"such as {fits}"
            )
        if model.encoder_layers or model.masked:
            raise InputError(f"{model.name} does not generate text token by token; give a decoder, such as llama-3-8b")
        if self.format:
            _check_weights(self.format, self.dtype)
        self.model, self.system, self.plan, self.replicas = model, system, plan, system.gpus // plan.tp
        self.products = self.dtype.removesuffix("-block")
        self.ranks = Deployment(
            tp=plan.tp, pp=plan.pp, ep=plan.ep if plan.wide else 1, dtype=self.products,
            overlap=plan.overlap, expert_load=plan.expert_load if plan.wide else None,
        )  # fmt: skip
        check_served(self.ranks, system, plan.ep)
        self.kit = kit(plan.operators)
        if plan.enforce_eager and self.kit is None:
            raise InputError(
                "enforce_eager is how a framework's host launches kernels, and the vendor's libraries have no host; "
                f"give library {join_or(tuple(KITS))}"
            )
        format = self.format.partition("-")[0] or self.dtype
        self._calls = ExpertCalls.by(self.kit, format, model, system.gpu, options, plan.tp, plan.ep)
        self._prices = OperatorTimes(
            system, self.ranks, options, known=_durations(system, options, plan.operators, self.dtype)
        )
        self._kinds = Counter(model.layer_kinds)
        self._alike = _alike_but_attention(self._kinds)
        self._prepared: dict[int, dict[str, Graph]] = {}
        self.speculation, self.joins, self.draft = plan.speculation, False, self._drafter(options)

    def _drafter(self, options: RunOptions) -> Forward | None:
        """Return the forward passes of the drafter on the same GPUs; None for a drafter without cost."""
        plan, name = self.plan, self.plan.speculation.draft
        model = drafter(self.model, name) if plan.speculation.tokens else None
        if model is None:
            return None
        own = name in OWN
        ep = plan.ep if own and model.experts else 1
        same = replace(
            plan, pp=1, ep=ep, two_batch_overlap=False,
            overlap={axis: method for axis, method in plan.overlap.items() if axis == "tp" or ep > 1},
            dispatcher=plan.dispatcher if ep > 1 else "",
            expert_load=plan.expert_load if model.experts == self.model.experts else None,
            dtype=self.dtype if own else plan.dtype, weights=self.format if own else plan.weights,
            num_speculative_tokens=None, acceptance_rate=None, speculative_method=None,
        )  # fmt: skip
        found = Forward(model, self.system, same, options)
        found.joins = own
        return found

    @property
    def queries(self) -> int:
        """Tokens of each sequence that writes in a step: its next one, and drafts."""
        return 1 + self.speculation.tokens

    @cached_property
    def overlaps(self) -> bool:
        """Whether any of its methods joins collectives with what is computed."""
        return any(not OVERLAPS[name].in_sequence for name in self.plan.overlap.values())

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """Sentences on the hardware that its methods of overlap need, and that GPUs on sale, or the system, lack."""
        return needs(self.ranks, self.system)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Sentences on its methods of overlap, and on its host."""
        sliced = self.model.experts and "tp" in self.plan.overlap and not self.plan.wide
        eager = self.kit and _EAGER.format(self.launches, self.kit.launch * 1e6, self.launching * 1e3)
        scans = [_STATES.format(self.states / 1e6, *SCANS)] if self.states else []
        return (
            *self._load_notes, *scans, *engine_note(self.ranks), *([_SUMMED] if sliced and self.overlaps else []),
            *([eager] if self.plan.enforce_eager and eager else []),
        )  # fmt: skip

    @property
    def _load_notes(self) -> tuple[str, ...]:
        """A sentence on how a stated expert load distribution spreads the rows."""
        plan, model = self.plan, self.model
        if plan.expert_load is None:
            return ()
        routing = Routing.under(plan.expert_load, MOST_EXPERTS, model.experts_per_token, model.experts, plan.ep)
        fullest = routing.fullest.sum() / routing.rows
        return (_LOADED.format(routing.imbalance, plan.ep, fullest),)

    def batch(self, groups: Sequence[Group]) -> Pass:
        """Return one rank's pass over a batch, up to the logits of the last token of each sequence, and of all that it
        verifies; a drafter passes over the same tokens once, and over the next of each sequence for each further draft.
        """
        halves = [half(one) for one in groups] if self.plan.two_batch_overlap else groups
        tokens = sum(one.tokens.count for one in halves)
        found = sum((self.attention(one) for one in halves), self.shared_pass(tokens))
        if self.plan.two_batch_overlap:
            found = self.pair_halves(found, tokens)
        logits = self.logits(sum(one.sequences * (one.new if one.writes else 1) for one in groups))
        again = [replace(one, new=1) for one in groups if one.writes]
        drafts = 0.0
        if self.draft:
            first, later = (self.draft.batch(each).seconds if each else 0.0 for each in (groups, again))
            drafts = self.drafting(first, later)
        send = self.send(sum(one.tokens.count for one in groups)) if self.plan.pp > 1 else 0.0
        stages = self.compose(found.seconds, logits.seconds, drafts, send)
        # with decode tokens, as many equal batches as stages follow each other
        bubble = max(stages.each) * stages.stages - stages.latency if again else 0.0
        more = {"draft": drafts, exposed_part("pp"): stages.sends, "bubble": bubble}
        found += logits
        for name, seconds in more.items():
            found += Pass(seconds, {name: seconds}) if seconds else Pass()
        waits = self.launching - found.seconds
        return found + Pass(waits, {"host": waits}) if waits > 0 else found

    def compose(self, layers: float, logits: float, drafts: float, send: float) -> ForwardStages:
        """Return the stages of an iteration of a batch whose parts take so long [s]; the last one has all but layers.

        Iterations of a server, whose parts are interpolated, and single passes are composed alike.
        """
        return ForwardStages(self.plan.pp, layers, logits + drafts, send)

    def drafting(self, first: float, again: float) -> float:
        """Seconds of a drafter: over all tokens of a batch, then over the next of each sequence for further drafts."""
        return first + max(self.speculation.tokens - 1, 0) * again

    @property
    def launching(self) -> float:
        """Seconds that the host takes at least to launch all kernels of a pass in eager mode; 0 by CUDA graphs."""
        return self.launches * self.kit.launch if self.plan.enforce_eager and self.kit else 0.0

    def send(self, tokens: int) -> float:
        """Return the time to send hidden states of `tokens` tokens to the next stage [s]; each rank sends a part."""
        size = max(tokens * self.model.hidden * DTYPE_BYTES[_ACTIVATIONS] // self.plan.tp, 1)
        return float(self._prices.collective_seconds("send_recv", size, 2, _ACTIVATIONS, "pp"))

    def pair_halves(self, one: Pass, tokens: int) -> Pass:
        """Return both halves of a batch: each of them computes while the other's `tokens` are exchanged.

        Compute units of the exchange lack to what computes meanwhile; low-latency kernels of DeepEP leave them free
        between sending and receiving.
        """
        exchange, library = one.parts.get(EXPERTS, 0.0), self.dispatcher(tokens)
        compute = one.seconds - exchange
        slower, late = overlap_exchange(
            exchange, compute, self._prices.taken_share(library) if library != "deepep-ll" else 0.0
        )
        parts = {name: 2 * time for name, time in one.parts.items() if name != EXPERTS}
        parts |= {CONTENTION: 2 * slower, EXPERTS: 2 * late}
        return Pass(2 * (compute + slower + late), parts, {"ep": 2 * (exchange - late)})

    def dispatcher(self, tokens: int) -> str:
        """Return the MoE dispatch library for a rank's tokens: the plan's, DeepEP's kernels, or NCCL's all-to-all."""
        if self.plan.dispatcher:
            return self.plan.dispatcher
        if self.system.gpu.architecture not in ("hopper", "blackwell"):
            return "nccl"
        return "deepep-ll" if tokens <= _LOW_LATENCY else "deepep"

    def shared_pass(self, tokens: int, hides: bool = False) -> Pass:
        """Return the part of the pass that batches all `tokens` together: the embedding, and layers without attention.

        With `hides`, overlap methods that the engine times are assumed to hide their communication completely.
        """
        graphs = self._prepared.pop(tokens, None) or self._parts(tokens)
        return sum_layers(
            (self._time_graph(name, graph, hides), self._alike.get(name, 1)) for name, graph in graphs.items()
        )

    def prepare(self, counts: Iterable[int]) -> None:
        """Estimate the operators of `shared_pass` for several numbers of tokens at once, which takes less time."""
        made = {tokens: self._parts(tokens) for tokens in counts}
        nodes = [node for graphs in made.values() for graph in graphs.values() for node in graph]
        self._prices.known.fill(self._prices.case(node.op, node.stream) for node in nodes)
        self._prepared |= made

    def _parts(self, tokens: int) -> dict[str, Graph]:
        flat = Tokens(tokens, 1)
        first = self._graph("embedding", embedding(self.model, flat, _SERVER.style, self._activations))
        of = replace(_SERVER, dispatcher=self.dispatcher(tokens)) if self.plan.wide else _SERVER
        return {"embedding": first, **{kind: self._graph(kind, self._layer(kind, flat), of) for kind in self._alike}}

    def logits(self, sequences: int) -> Pass:
        """The norm and the logits of the last token of each of `sequences`, without a loss and further predictions."""
        return self._time_graph("head", self._logits_graph(sequences))

    def _logits_graph(self, sequences: int) -> Graph:
        kept = self.model.model_copy(update={"predict_layers": 0})
        pieces = head(kept, Tokens(sequences, 1), _SERVER.style, self._activations)
        return self._graph("head", (one for one in pieces if one.role is not Role.LOSS))

    @cached_property
    def launches(self) -> int:
        """Kernels of a pass without CUDA graphs: operators, what quantises operands of blocks, what fills the cache.

        Shared experts that are part of a library's call count with their kernels.
        """
        quantizes = self.dtype in (FP8_BLOCK, *BLOCK_BYTES)
        joined = 3 if self._calls is not None and self._calls.has_shared and self.model.shared_experts else 0
        count = 0
        for kind, graph in self._parts(1).items():
            if kind not in self._alike:
                count += len(graph.nodes)
                continue
            products = sum(isinstance(node.op, Gemm | GroupedGemm) and node.role is not Role.ROUTER for node in graph)
            routed = any(node.role is Role.ROUTER for node in graph)
            count += self._alike[kind] * (len(graph.nodes) + 2 + joined * routed + products * quantizes)
        return count

    def work(self, groups: Sequence[Group]) -> Activity:
        """Return what matrix units and the memory of one rank do in a pass over a batch, as `batch` times it."""
        twice = 2 if self.plan.two_batch_overlap else 1
        halves = [half(one) for one in groups] if twice == 2 else groups
        ops: list[tuple[Op, float, int]] = []
        for name, graph in self._parts(sum(one.tokens.count for one in halves)).items():
            count = twice * self._alike.get(name, 1)
            ops += [(node.op, self._saved_bytes(name, node), count) for node in graph]
        for one in halves:
            ops += [(op, 0.0, twice * count) for kind, count in self._kinds.items() for op in self._attend(kind, one)]
        logits = self._logits_graph(sum(one.sequences * (one.new if one.writes else 1) for one in groups))
        ops += [(node.op, 0.0, 1) for node in logits]
        found = sum((work_of([(op, more)], self.system.gpu) * count for op, more, count in ops), Activity())
        if not self.draft:
            return found
        again = [replace(one, new=1) for one in groups if one.writes]
        later = self.draft.work(again) * max(self.speculation.tokens - 1, 0) if again else Activity()
        return found + self.draft.work(groups) + later

    def _saved_bytes(self, name: str, node: Node) -> float:
        """Return by how many bytes a node's weights of a format are larger than those of its products, in all < 0."""
        op = node.op
        if not self.format or name not in LAYERS or node.role is Role.ROUTER or not isinstance(op, Gemm | GroupedGemm):
            return 0.0
        whole = sum(one.bytes for one in op.reads if one.role == "weight")
        return whole * (quantized_format(self.format).bytes(1) / width(self.products) - 1)

    def attention(self, group: Group) -> Pass:
        """Return what mixes the tokens of a group in all layers: attention, and scans of linear layers."""
        return sum_layers(
            (self._alone(op), count) for kind, count in self._kinds.items() for op in self._attend(kind, group)
        )

    def _alone(self, op: Attention | Scan | Opaque) -> Pass:
        """Return the pass over an operator by itself; the indexer of sparse attention counts as attention."""
        seconds = self._prices.of(op)
        return Pass(seconds, {"attention" if isinstance(op, Opaque) else class_of(op): seconds})

    @cached_property
    def weights(self) -> int:
        """Weights of one GPU [bytes]; embedding and head keep 16 bits where layers have fewer."""
        found = parameters(self.model)
        each = quantized_format(self.format).bytes(1) if self.format else width(self.products)
        elsewhere = found.experts - -(-found.experts // self.plan.ep) if self.plan.wide else 0
        stages = -(-self.model.layers // self.plan.pp) / self.model.layers  # of the fullest
        padded = (found.experts - elsewhere) * (self._calls.padding - 1) if self._calls else 0.0
        size = (found.layers - elsewhere + padded) * each * stages
        if self.joins:  # embedding and head are the model's
            size += 2 * self.model.hidden**2 * DTYPE_BYTES[_ACTIVATIONS]
        else:
            ends = found.embedding, found.head
            size += (max(ends) if self.plan.pp > 1 else sum(ends)) * DTYPE_BYTES[_ACTIVATIONS]
        return math.ceil(size / self.plan.tp) + (self.draft.weights if self.draft else 0)

    def cache(self, length: int) -> int:
        """Return what a sequence of `length` tokens keeps on one GPU [bytes]: keys and values, and states."""
        drafted = self.draft.cache(length) if self.draft else 0
        return kv_bytes(self.model, length, self.plan.tp, self.plan.kv_dtype) + self.states + drafted

    @cached_property
    def states(self) -> int:
        """The states that linear layers keep of a sequence on one GPU, whatever its length [bytes].

        Of draft tokens that may be refused each has states of its own (vLLM's speculative decoding of such models).
        """
        return state_bytes(self.model, self.plan.tp) * self.queries

    @cached_property
    def _activations(self) -> str:
        """The format of activations: bf16, or fp16 on a GPU without it."""
        return half_format(self.system.gpu)

    def _layer(self, kind: str, flat: Tokens) -> Iterator[LayerOp]:
        """Yield the operators of a layer but attention and scans, as servers run them.

        Every rank holds a slice of each expert, as vLLM does by default, or with `ep` a share of them, to which as many
        tokens go as to the others; one sum over the ranks follows the last experts, shared ones included, or an
        exchange if attention is data parallel. Latent attention compresses queries and keys in one GEMM
        (fused_qkv_a_proj of vLLM and SGLang, kv_a_proj_with_mqa of TensorRT-LLM). What drafts begins with the product
        that joins hidden state and embedding.
        """
        model, plan = self.model, self.plan
        joined, called = model.query_rank > 0, self._calls is not None and self._calls.has_shared
        shared = model.shared_experts > 0 and not called
        if self.joins:
            yield LayerOp("join", Gemm(flat.count, model.hidden, 2 * model.hidden, self._activations), "mlp", "whole")
        for piece in layer(model, kind, flat, _SERVER.style, self._activations):
            op = piece.op
            if isinstance(op, Attention | Scan) or (isinstance(op, Streaming) and op.name == "residual_add"):
                continue
            if (joined and piece.role is Role.KV_DOWN) or (called and piece.role is Role.SHARED_EXPERT):
                continue
            if piece.role is Role.QUERY_DOWN and isinstance(op, Gemm):
                yield replace(piece, op=replace(op, n=op.n + model.kv_rank + model.rotary_head))
            elif isinstance(op, GroupedGemm):
                yield replace(
                    piece, op=slice_experts(model, op, flat.count, plan.tp, plan.ep, plan.expert_load), cut="whole"
                )
            elif plan.wide:
                yield piece
            elif piece.cut == "routed":
                yield replace(piece, cut="width")
            elif piece.cut == "combine" and isinstance(op, Streaming):
                whole = replace(op, rows=flat.count, columns=model.routed_hidden)
                yield replace(piece, op=whole, cut="whole" if shared else "vocabulary")  # which sums over the ranks
            else:
                yield piece

    def _attend(self, kind: str, group: Group) -> Iterator[Attention | Scan | Opaque]:
        """The attention of a group in a layer, by one rank; of next tokens on the compressed cache, where it is latent.

        Sparse attention of many tokens is the indexer, then attention to the best ones. Or the scan: in chunks for
        prompts, token by token for next tokens and drafts, from states in memory.

        Source: arXiv:2405.04434.
        """
        model, kernels = self.model, self._kernels(group)
        for piece in layer(model, kind, group.tokens, _SERVER.style, self._activations):
            op = piece.op
            if isinstance(op, Scan):
                served = replace(op, stateful=True, chunk=0 if group.writes else op.chunk)
                scan = cut(replace(piece, op=served), self.ranks)
                assert isinstance(scan, Scan)
                yield scan
                continue
            if not isinstance(op, Attention):
                continue
            if is_sparse(model, group.cached + group.new):
                yield from index_ops(model, group.sequences, group.new, group.cached, self.system.gpu)
                op, kernels = best_tokens(model, op), kernels if group.writes or group.new == 1 else ""
            elif model.kv_rank and (group.new == 1 or group.writes or (kernels and _absorbs(kernels))):
                wide, keys = model.kv_rank + model.rotary_head, group.cached + group.new
                op = replace(op, head=wide, value=model.kv_rank, kv_heads=1, keys=keys)
            if group.writes and op.query > 1:  # as heads that share keys
                op = replace(op, query=1, heads=op.heads * group.new, kv_heads=op.kv_heads or op.heads)
            expanded = self.kit and model.kv_rank and kernels in self.kit.attention
            dtype = self._activations if expanded or self.plan.kv_dtype == _ACTIVATIONS else self.plan.kv_dtype
            mine = cut(replace(piece, op=replace(op, kv_dtype=dtype)), self.ranks)
            assert isinstance(mine, Attention)
            yield replace(mine, library=kernels) if kernels else mine
            if not (LAYERS[kind].cross or LAYERS[kind].linear):
                return

    def _kernels(self, group: Group) -> str:
        """Return the library of the attention of a group; "" for the vendor's.

        Where that of latent attention works on the compressed cache, prompts whose keys and values are expanded pass
        through that of other models.
        """
        if self.kit is None:
            return ""
        phase = "generation" if group.cached and (group.new == 1 or group.writes) else "context"
        architecture, latent = self.system.gpu.architecture, bool(self.model.kv_rank)
        if architecture in _ROCM and not self.model.window:
            return ""
        found = self.kit.attention_on(architecture, latent, f"{phase}.{_ACTIVATIONS}-{self.plan.kv_dtype}")
        prompts = latent and phase == "context" and group.new > 1 and not group.writes
        if prompts and found and _absorbs(found) and self.kit.expands(group.sequences * group.cached):
            return self.kit.attention_on(architecture, False, f"{phase}.{_ACTIVATIONS}-{_ACTIVATIONS}")
        return found

    def _graph(self, name: str, pieces: Iterable[LayerOp], of: Framework = _SERVER) -> Graph:
        products = self.products if name in LAYERS else ""
        return forward_graph(name, tuple(pieces), self.ranks, of, products)

    def _time_graph(self, name: str, graph: Graph, hides: bool = False) -> Pass:
        seconds = self._prices.graph(graph)
        if self.format and name in LAYERS:
            seconds |= {node.name: self._narrow_seconds(seconds[node.name], node) for node in graph}
        if self._calls:
            seconds |= self._calls.within(graph)
        if not self.overlaps:
            return time_nodes(graph, seconds)
        method = self.plan.overlap.get("tp", "")
        return time_graph(graph, self._prices, method, seconds, hides=hides, framework=False)

    def _narrow_seconds(self, seconds: float, node: Node) -> float:
        """Time of a node whose weights are of a format: less what a roofline says that it saves; not of routers."""
        op = node.op
        if isinstance(op, GroupedGemm):
            op = Gemm(-(-op.rows // op.groups), op.n, op.k, op.dtype, op.groups)
        if node.role is Role.ROUTER or not isinstance(op, Gemm):
            return seconds
        found = weight_only(op, self._prices.gpu, self.format, self._prices.options)
        return max(seconds - max(found.plain - found.seconds, 0.0), found.seconds)


@lru_cache(_MACHINES)
def _durations(system: System, options: RunOptions, library: str, narrow: str) -> DurationCache:
    """Return the durations of operators on a machine by a library, which all replicas share."""
    return DurationCache(system, options, kit(library), narrow)


def _alike_but_attention(kinds: Mapping[str, int]) -> Mapping[str, int]:
    """Count layers by the first kind that differs in nothing but the window of its attention."""
    found: dict[LayerKind, tuple[str, int]] = {}
    for kind, count in kinds.items():
        key = replace(LAYERS[kind], window=False)
        first, before = found.get(key, (kind, 0))
        found[key] = first, before + count
    return dict(found.values())


def _absorbs(library: str) -> bool:
    """Return whether a library's kernel for prompts works on the compressed cache."""
    return bool(library_of("attention", library).how["context"].get("latent"))


def _check_experts(model: Transformer, plan: ServingPlan, gpus: int) -> None:
    ep, load = plan.ep, plan.expert_load
    if ep > 1 and not model.experts:
        raise InputError(f"{model.name} has no experts to spread over ep {ep} ranks; leave out ep")
    if ep > 1 and model.experts % ep and plan.tp > 1:
        raise InputError(f"ep {ep} does not divide the {model.experts} experts of {model.name}; leave it out")
    if plan.wide and gpus % ep:
        raise InputError(f"ep {ep} does not fill the {gpus} GPUs of the system; give a divisor of {gpus}")
    if ep > max(model.experts, 1):
        raise InputError(f"ep {ep} is more than the {model.experts} experts of {model.name}; give at most as many")
    if load is not None:
        if not model.experts:
            raise InputError(f"expert_load is {show_value(load)}, and {model.name} has no experts; leave it out")
        Routing.under(load, 1, model.experts_per_token, model.experts, ep)


def _check_stages(model: Transformer, plan: ServingPlan, gpus: int) -> None:
    tp, pp = plan.tp, plan.pp
    if pp > model.layers:
        raise InputError(f"pp {pp} is more than the {model.layers} layers of {model.name}; give at most as many stages")
    if pp > 1 and gpus % (tp * pp):
        raise InputError(f"tp {tp} and pp {pp} do not fill the {gpus} GPUs of the system; give divisors of {gpus}")


def half(group: Group) -> Group:
    """Return the larger half of a group: of its sequences, or of the tokens of a single prompt."""
    if group.sequences > 1 or group.writes:
        return replace(group, sequences=-(-group.sequences // 2))
    return replace(group, new=-(-group.new // 2), cached=group.cached + group.new // 4)


def _check_weights(weights: str, dtype: str) -> None:
    quantized_format(weights)
    if width(dtype.removesuffix("-block")) != 2:
        raise InputError(
            f"weights of {weights} are converted to 16 bits, and the products are of {dtype}; leave out one of the two"
        )
