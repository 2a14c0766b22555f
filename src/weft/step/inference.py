"""A step of inference: the prompt of a batch of sequences, or the next token of each, beside a chunk of a prompt."""

from __future__ import annotations

from pathlib import Path

from weft.core.errors import check_type, check_whole
from weft.core.options import SUSTAINED, RunOptions
from weft.estimate.quantization import quantized_format
from weft.hardware import System, system
from weft.hardware.resolve import Described
from weft.models import Transformer, load_model
from weft.step.drafts import NONE, OWN, Speculation
from weft.step.forward import Forward, Group
from weft.step.result.inference import Inference, Phase
from weft.step.serving_plan import ServingPlan


def prefill(
    model: Transformer | str | Path,
    on: Described,
    plan: ServingPlan = ServingPlan(),
    *,
    batch: int = 1,
    sequence: int = 2048,
    cached: int = 0,
    options: RunOptions = SUSTAINED,
) -> Inference:
    """Time a batch of prompts of `sequence` tokens on a replica of a `plan`, up to their first tokens.

    Each prompt follows `cached` tokens whose KV cache is there: a prefix, or earlier chunks. Operators are the vendor's
    unless the plan names a library or a framework. Raises UnknownNameError for unknown names, InputError for GPUs that
    replicas do not fill, for a rule of a server in the plan, and for a method of overlap that has nothing to overlap.

    >>> prefill("llama-3-8b", "4xl40s", ServingPlan(tp=4)).replicas
    1
    """
    for name, value, least in (("batch", batch, 1), ("the number of tokens", sequence, 1), ("cached", cached, 0)):
        check_whole(name, value, least, 8)
    batch, sequence, cached = int(batch), int(sequence), int(cached)  # numpy's integers overflow
    runs = _forward(model, on, plan, options, "weft.prefill")
    return _answer(runs, "prefill", sequence, [Group(batch, sequence, cached)])


def decode(
    model: Transformer | str | Path,
    on: Described,
    plan: ServingPlan = ServingPlan(),
    *,
    batch: int = 1,
    context: int = 2048,
    chunk: int = 0,
    options: RunOptions = SUSTAINED,
) -> Inference:
    """Time the next token of each of `batch` sequences on a replica of a `plan`; each query attends to `context`
    tokens.

    The same step may read the first `chunk` tokens of another prompt (chunked prefill). With speculative decoding, the
    step verifies the drafts beside the next tokens, and all of the drafter counts: its passes, its weights, and its KV
    cache. Operators and errors are as of `prefill`.

    >>> plan = ServingPlan(tp=8, dtype="fp8", num_speculative_tokens=1, acceptance_rate=0.85)
    >>> decode("deepseek-v3", "8xh200", plan, batch=8).tokens_per_step
    1.85
    """
    for name, value, least in (("batch", batch, 1), ("the number of tokens", context, 1), ("chunk", chunk, 0)):
        check_whole(name, value, least, 8)
    batch, context, chunk = int(batch), int(context), int(chunk)
    runs = _forward(model, on, plan, options, "weft.decode")
    chunks = [Group(1, chunk)] if chunk else []
    return _answer(runs, "decode", context, [Group(batch, runs.queries, context - 1, writes=True), *chunks])


def _forward(
    model: Transformer | str | Path, on: Described, plan: ServingPlan, options: RunOptions, function: str
) -> Forward:
    check_type("the plan", plan, ServingPlan, "give weft.ServingPlan(...)")
    plan.refuse_server(function)
    where, found = on if isinstance(on, System) else system(on), load_model(model)
    return Forward(found, where, plan, options)


def _answer(runs: Forward, phase: Phase, length: int, groups: list[Group]) -> Inference:
    """Return the pass over the first of the groups, of `length` tokens, beside the others."""
    first, others = groups[0], groups[1:]
    notes = [_LATENT] if runs.model.kv_rank and phase == "decode" and not runs.kit else []
    if runs.kit:
        notes.append(f"Operators are those of {runs.kit.title}'s libraries on such GPUs, where they were measured.")
    if runs.format:
        notes.append(f"Weights of layers are {quantized_format(runs.format).about}, converted on their way.")
    notes += [runs.served_format.note] * bool(runs.served_format.note)
    notes += [f"The step also reads the first {one.new:,} tokens of a prompt, which are in its time." for one in others]
    if length > runs.model.context_limit:
        notes.append(
            f"{length:,} tokens are more than the {runs.model.context_limit:,} that {runs.model.title} reads: "
            "times are those of a model like it that reads more."
        )
    if runs.plan.pp > 1:
        notes.append(_PIPELINED.format(runs.plan.pp))
    if runs.plan.wide and runs.plan.expert_load is None:
        notes.append(_WIDE.format(runs.plan.ep))
    drafted = runs.speculation if phase == "decode" else NONE
    if drafted.tokens:
        notes.append(_draft_words(drafted))
    notes += runs.notes
    held = [one.sequences * runs.cache(one.new + one.cached) for one in groups]
    cached = first.cached if phase == "prefill" else 0
    parts = (runs.batch(groups) * (1 / drafted.expected_tokens)).parts
    return Inference(
        phase=phase,
        model=runs.model,
        system=runs.system,
        plan=runs.plan,
        batch=first.sequences,
        tokens=length,
        parts=parts,
        weights=runs.weights,
        cache=held[0],
        state=runs.states,
        notes=tuple(notes),
        cached=cached,
        chunk=others[0].new if others else 0,
        chunk_cache=sum(held[1:]),
        tokens_per_step=drafted.expected_tokens,
        needs=runs.needs,
        format=runs.served_format,
    )


def _draft_words(what: Speculation) -> str:
    """Return what a step verifies, and which costs of drafting it holds."""
    by = {"none": "a lookup, which takes no time", "mtp": "the model's own further layer", "eagle": "a dense layer"}
    who = by[what.draft] if what.draft in OWN else what.draft
    return (
        f"A step verifies {what.tokens} tokens beside the next one, drafted by {who}; with {what.accept:.0%} of them "
        f"accepted, it writes {what.expected_tokens:.3g} tokens. All passes of the drafter are in its time."
    )


_PIPELINED = (
    "Pipelines of {0} stages hold {0} such batches at once, one in each stage: a batch has the throughput and memory "
    "of as many GPUs as TP has. Stages have equal parts of the layers; the last has the logits, for which others wait."
)
_WIDE = (
    "Each of {} GPUs has a batch of its own, and a share of the experts: all batches are taken to be alike, and tokens "
    "to choose experts evenly."
)
_LATENT = (
    "Latent attention is timed on the compressed cache, its keys and values read apart: an upper bound of its traffic."
)
