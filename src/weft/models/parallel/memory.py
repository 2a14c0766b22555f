"""What a rank must hold: weights, gradients and optimizer states, and activations of each part of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from weft.graph import DTYPE_BYTES, Attention, Gemm, Op, Streaming, Tensor
from weft.graph.op import Role, width
from weft.models.block import PREDICTION, LayerOp
from weft.models.parallel.deployment import Deployment
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.recompute import OperatorSaves, check_recomputed, list_saves, own_bytes, saved_bytes


@dataclass(frozen=True)
class SavedActivations:
    """Bytes that one micro-batch needs in a part of the model on one rank.

    `saved` are kept from the forward to the backward pass, by operator. `forward` and `backward` are needed beside them
    only while that pass runs: outputs that no operator keeps, what is recomputed, gradients of activations.
    """

    saved: Mapping[str, int] = field(default_factory=dict)
    forward: int = 0
    backward: int = 0

    @property
    def bytes(self) -> int:
        """All that is kept from the forward to the backward pass."""
        return sum(self.saved.values())


def save_activations(
    pieces: Sequence[LayerOp], ops: Sequence[Op], plan: TrainingPlan, compiled: bool = False
) -> SavedActivations:
    """Return the activations of a part: `ops` are a rank's shares of its pieces.

    An operator keeps the inputs that its gradients need (arXiv:2205.05198, section 4). With sequence parallelism the
    input of a GEMM that is cut by columns is kept as the rank's part of the tokens, and gathered again. Selective
    recomputation drops the scores of unfused attention, that by operators all but the outputs of attention, of every
    second GEMM and of exchanges of tokens (`compiled` layers keep of these what the backward pass reads), full
    recomputation all but the input of the part, and that of named operators their outputs.
    """
    whole = {piece.name: _saved_size(piece, op, plan) for piece, op in zip(pieces, ops, strict=True)}
    if plan.loss_chunks > 1 and _is_end(pieces):
        return _in_chunks(pieces, ops, whole, plan.loss_chunks)
    widest = max((_outputs(op) for op in ops), default=0)
    gradients = max((_gradients(op) + _parallel_loss(op, plan) for op in ops), default=0)
    if plan.recompute == "none" or _is_end(pieces):
        return SavedActivations(whole, widest, gradients)
    if isinstance(plan.recompute, tuple):
        check_recomputed(pieces, plan.recompute)
        lean = saved_bytes(saved_by_operator(pieces, ops, plan), plan.recompute)
        return SavedActivations(lean, widest, max(sum(whole.values()) - sum(lean.values()), 0) + gradients)
    entry = ops[0].reads[0].bytes // (1 if isinstance(ops[0], Streaming) or not plan.sp else plan.tp)
    if plan.recompute == "full":
        return SavedActivations({"input": entry}, widest, sum(whole.values()) + gradients)
    if plan.recompute == "operators":
        lean = _listed_outputs(pieces, ops, plan.ep > 1, compiled) | {"input": entry}
        return SavedActivations(lean, widest, max(sum(whole.values()) - sum(lean.values()), 0) + gradients)
    lean = {piece.name: _lean(op, whole[piece.name]) for piece, op in zip(pieces, ops, strict=True)}
    again = sum(whole.values()) - sum(lean.values())
    return SavedActivations(lean, max(widest, again), again + gradients)


_LOSS = (Role.LOGITS, Role.LOSS)


def _in_chunks(pieces: Sequence[LayerOp], ops: Sequence[Op], whole: Mapping[str, int], chunks: int) -> SavedActivations:
    """Return what an end of the model needs where logits and loss of the tokens are computed in `chunks` chunks.

    Each chunk runs its backward pass at once, so that the logits of one chunk exist at a time; the gradient of the
    tokens that enter the head is whole.
    """

    def part(piece: LayerOp, size: int) -> int:
        return -(-size // chunks) if piece.role in _LOSS else size

    both = list(zip(pieces, ops, strict=True))
    saved = {piece.name: part(piece, whole[piece.name]) if isinstance(op, Streaming) else whole[piece.name]
             for piece, op in both}  # fmt: skip
    forward = max((part(piece, _outputs(op)) for piece, op in both), default=0)
    backward = max((part(piece, _outputs(op)) + _gradients(op) - _outputs(op) if isinstance(op, Gemm)
                    else part(piece, _gradients(op)) for piece, op in both), default=0)  # fmt: skip
    return SavedActivations(saved, forward, backward)


def saved_by_operator(pieces: Sequence[LayerOp], ops: Sequence[Op], plan: TrainingPlan) -> list[OperatorSaves]:
    """Return what each operator of a part leaves for the backward pass, and of whose outputs; InputError as
    `list_saves`.
    """

    def output(piece: LayerOp, op: Op) -> int:
        return _outputs(op) // (plan.tp if plan.sp and piece.cut == "rows" else 1)

    whole = [_saved_size(piece, op, plan) for piece, op in zip(pieces, ops, strict=True)]
    return list_saves(pieces, ops, whole, output)


def remaining(pieces: Sequence[LayerOp], ops: Sequence[Op], plan: TrainingPlan) -> list[Op]:
    """The operators of a part that are not recomputed in the backward pass."""
    if isinstance(plan.recompute, tuple):
        return [op for piece, op in zip(pieces, ops, strict=True) if piece.name not in plan.recompute]
    if plan.recompute == "full":
        return []
    if plan.recompute == "operators":
        second = [op for piece, op in zip(pieces, ops, strict=True) if _is_counted(piece, op)][::2]
        exchanged = [op for piece, op in zip(pieces, ops, strict=True) if piece.cut in _EXCHANGES and plan.ep > 1]
        return [*(op for op in ops if isinstance(op, Attention)), *second, *exchanged]
    if plan.recompute == "selective":
        return [op for op in ops if not isinstance(op, Attention) or op.fused]
    return list(ops)


_EXCHANGES = ("dispatch", "combine")


def _is_counted(piece: LayerOp, op: Op) -> bool:
    """Return whether torchtitan counts a GEMM of a layer: not that of a router, nor grouped ones."""
    return isinstance(op, Gemm) and piece.role is not Role.ROUTER


def _listed_outputs(pieces: Sequence[LayerOp], ops: Sequence[Op], exchanges: bool, compiled: bool) -> dict[str, int]:
    """Return the bytes that selective checkpointing by operators keeps, by operator.

    torchtitan/distributed/activation_checkpoint.py @b5bcd76: outputs of attention, of exchanges of tokens, and of every
    second torch.mm, of which queries, keys and values have one each, as have the two halves of a gated MLP; grouped
    GEMMs are not on PyTorch's list (torch/_functorch/partitioners.py, compute_intensive_ops). A GEMM whose output only
    joins the residual stream is kept by the dispatcher of eager PyTorch; the compiler's partition drops it.
    """
    kept: dict[str, int] = {}
    counted = 0
    last = max((place for place, one in enumerate(zip(pieces, ops, strict=True)) if _is_counted(*one)), default=-1)
    for place, (piece, op) in enumerate(zip(pieces, ops, strict=True)):
        if isinstance(op, Attention):
            kept[piece.name] = _outputs(op) + own_bytes(op, _kept_size(op))
        elif exchanges and piece.cut in _EXCHANGES:
            kept[piece.name] = _outputs(op)
        elif _is_counted(piece, op):
            parts = _products(pieces, ops, place)
            sizes = parts[counted % 2 :: 2]
            counted += len(parts)
            if sizes and not (compiled and place == last):
                kept[piece.name] = sum(sizes)
    return kept


def _products(pieces: Sequence[LayerOp], ops: Sequence[Op], place: int) -> list[int]:
    """Return the outputs [bytes] of the products that PyTorch's modules run one by one for the GEMM at `place`."""
    gemm, size = ops[place], _outputs(ops[place])
    if pieces[place].role is Role.QKV:
        attention = next((op for op in ops[place:] if isinstance(op, Attention)), None)
        if attention is not None:
            keys, values = (tensor.bytes for tensor in attention.reads[1:3])
            return [size - keys - values, keys, values]
    if pieces[place].role is Role.MLP_UP and isinstance(gemm, Gemm):
        down = next((op for op in ops[place + 1 :] if isinstance(op, Gemm)), None)
        if down is not None and down.k < gemm.n:  # a gate and what it multiplies
            return [size - size // 2, size // 2]
    return [size]


def _parallel_loss(op: Op, plan: TrainingPlan) -> int:
    """Return what PyTorch's eager loss over classes on `tp` ranks needs beside that of one rank [bytes].

    torch/distributed/tensor/parallel/loss.py: zeros but for targets, exponentials, their sum and its product with the
    loss's gradient are tensors of their own, one more than of the loss of one rank.
    """
    eager = isinstance(op, Streaming) and op.name == "eager_cross_entropy"
    return _bytes(op.saved) if eager and plan.tp > 1 else 0


def _is_end(pieces: Sequence[LayerOp]) -> bool:
    return bool(pieces) and pieces[0].module in ("embedding", "head")


def _saved_size(piece: LayerOp, op: Op, plan: TrainingPlan) -> int:
    if piece.role is Role.ROTARY and piece.module != PREDICTION:
        # The values are a view of the GEMM's output, whose storage therefore outlives the queries and keys in it.
        return _bytes(op.reads)
    sharded = plan.sp and piece.cut == "columns" and isinstance(op, Gemm)
    return -(-_kept_size(op) // plan.tp) if sharded else _kept_size(op)


@lru_cache(maxsize=1 << 14)
def _kept_size(op: Op) -> int:
    """Return the size of the tensors that an operator keeps for its backward pass, other than its outputs."""
    return _bytes(op.saved)


def _lean(op: Op, whole: int) -> int:
    """Return what selective recomputation leaves of an operator's activations: of unfused attention, its inputs."""
    return _bytes(op.reads) if isinstance(op, Attention) and not op.fused else whole


@lru_cache(maxsize=1 << 14)
def _gradients(op: Op) -> int:
    """Return the gradient of an operator's output, and of its inputs [bytes]."""
    return _outputs(op) + max((_outputs(inner) for inner in op.backward.inputs), default=0)


@lru_cache(maxsize=1 << 14)
def _outputs(op: Op) -> int:
    """Return size of an operator's outputs; what a streaming operator writes in another format it keeps or overwrites.

    PyTorch's gradient of a loss overwrites nothing: those of the chosen logarithms and of all are tensors of their own.
    """
    if isinstance(op, Streaming) and op.name == "eager_cross_entropy_backward":
        return _bytes(op.writes)
    return _bytes([one for one in op.writes if not isinstance(op, Streaming) or one.dtype == op.dtype])


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.bytes for tensor in tensors)


def shard_size(count: int, experts: int, plan: TrainingPlan) -> int:
    """Return the part of `count` parameters (`experts` in routed experts) that a rank of a shard group holds.

    Experts that no rank of a tensor-parallel group shares have more replicas than other weights where EP is below TP.
    """
    ranks, few = plan.shard or plan.dp * plan.cp, plan.expert_replicas
    return -(-(count - experts) // ranks) - (-experts // min(plan.shard or few, few))


def states(count: int, plan: TrainingPlan, framework: Framework, experts: int = 0, narrow: int = 0) -> dict[str, int]:
    """Return bytes of weights, gradients and optimizer states of a rank with `count` parameters before sharding.

    Bytes per parameter follow Megatron-LM's distributed optimizer and ZeRO (arXiv:1910.02054): stage 1 shards the
    optimizer states, 2 the gradients, 3 the weights over the replicas of a shard group. Where a kernel of its own adds
    up gradients in another format, those of the backward pass stay beside them (DeepSpeed's BF16_Optimizer). Of the
    `narrow` weights of GEMMs on operands of 8 or 4 bits the operands stay, too, where they are cast once a step; they
    are all that is held where the framework keeps such weights in the recipe's format.
    """
    held = [shard_size(count, experts, plan) if plan.zero >= stage else count for stage in (3, 2, 1)]
    gradients = DTYPE_BYTES[framework.gradients]
    if not framework.accumulates and framework.gradients != plan.dtype and not plan.shards_weights:
        gradients += DTYPE_BYTES[plan.dtype]
    sizes = DTYPE_BYTES[framework.weights or plan.dtype], gradients, framework.optimizer_bytes
    names = "weights", "gradients", "optimizer"
    if plan.shards_weights and framework.gathers_main:  # the main copy is all that shards hold of weights
        main = DTYPE_BYTES["fp32"]
        sizes = main, gradients, framework.optimizer_bytes - main
    found = {name: part * each for name, each, part in zip(names, sizes, held, strict=True)}
    if narrow and not framework.casts_each_pass:
        cast = shard_size(narrow, experts, plan) if plan.shards_weights else narrow
        instead = sizes[0] if framework.keeps_low and plan.recipe.weights else 0
        found["weights"] += round(cast * (plan.recipe.copies - instead))
    return found


def words(count: float, narrow: float, plan: TrainingPlan, framework: Framework) -> float:
    """Return the elements of the plan's `dtype` with the bytes of `count` gathered weights.

    `narrow` of them belong to GEMMs on a recipe's operands of 8 or 4 bits.
    """
    low = framework.keeps_low and plan.recipe.shared
    return count - narrow * (1 - width(low) / DTYPE_BYTES[plan.dtype]) if low else count


def casting_ranks(plan: Deployment, framework: Framework) -> int:
    """Ranks that share the cast of weights in each pass: those that gather them in the recipe's format, else one."""
    shared = framework.casts_each_pass and framework.keeps_low and plan.recipe.shared and plan.gathers_each_pass
    return (plan.shard or plan.dp * plan.cp) if shared else 1


def gathered_bytes(largest: int, count: int, plan: TrainingPlan, framework: Framework) -> int:
    """Return bytes of whole parts under ZeRO-3: two gathered at once, and the gradient of one before it is scattered.

    Stages of a pipeline keep the weights and the gradients of all their parts beside the buffers in which one part is
    gathered and reduced. With no more micro-batches than stages, the backward passes of a chunk end, and its gradients
    are scattered, before those of the chunk before it begin. Weights count 16 bits, an upper bound where a recipe
    gathers them in 8.
    """
    if not plan.shards_weights or (plan.shard or plan.dp * plan.cp) == 1:
        return 0
    weights, gradients = DTYPE_BYTES[plan.dtype], DTYPE_BYTES[framework.gradients]
    if plan.gathers_each_pass:
        return largest * (2 * weights + gradients)
    at_once = -(-count // plan.chunks) if plan.micro_batches <= plan.pp else count
    return count * weights + at_once * gradients + largest * (weights + gradients)
