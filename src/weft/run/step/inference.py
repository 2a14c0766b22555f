"""A step of inference: the prompt of a batch of sequences, or the next token of each, beside a chunk of a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.errors import check_whole
from weft.estimate.quantization import quantized_format
from weft.hardware import System, system
from weft.hardware.resolve import Described
from weft.library.kits import VENDOR
from weft.models import Transformer, load_model
from weft.options import SUSTAINED, RunOptions
from weft.result.inference import Inference, Phase
from weft.run.step.drafts import NONE, OWN, Speculation, speculation
from weft.run.step.forward import Forward, Group


def prefill(
    model: Transformer | str | Path,
    on: Described,
    *,
    tp: int = 1,
    ep: int = 1,
    pp: int = 1,
    two_batch: bool = False,
    batch: int = 1,
    sequence: int = 2048,
    cached: int = 0,
    dtype: str | None = None,
    weights: str = "",
    kv_dtype: str = "bf16",
    library: str = VENDOR,
    overlap: Mapping[str, str] | str = "",
    enforce_eager: bool = False,
    options: RunOptions = SUSTAINED,
) -> Inference:
    """How long a batch of prompts of `sequence` tokens takes on `tp` GPUs of a system, up to their first tokens.

    Each follows `cached` tokens whose keys and values are known: a prefix, or earlier chunks. Without `dtype` (products
    of layers) and `weights` (a narrower format of their weights, `weft.estimate.quantization.FORMATS`, whose GEMMs save
    what a roofline says in which vector units convert them), these are those in which the model was released. Keys and
    values are kept in `kv_dtype`, bf16 or fp8; operators are those of a framework's `library`, or of the vendor's
    (`weft.library.kits.LIBRARIES`). With `ep` = `tp` each GPU holds whole experts; with `ep` above a `tp` of 1
    attention is data parallel, each GPU with a batch of its own, and tokens are exchanged with the experts of `ep`
    GPUs; then `two_batch` computes one half of a batch while the other's tokens are exchanged. `overlap` names a method
    for the all-reduces of "tp" or the exchanges of "ep", as in `weft.step`: {"tp": "t3-mca"} or "tp=t3-mca". With
    `enforce_eager` the host of the library's framework launches each kernel, without CUDA graphs. Raises
    UnknownNameError for unknown names, InputError for GPUs that replicas of `tp` do not fill, and for a method that has
    nothing to overlap.

    >>> prefill("llama-3-8b", "4xl40s", tp=4).replicas
    1
    """
    for name, value, least in (("batch", batch, 1), ("the number of tokens", sequence, 1), ("cached", cached, 0)):
        check_whole(name, value, least, 8)
    batch, sequence, cached = int(batch), int(sequence), int(cached)  # numpy's integers overflow
    runs = _forward(
        model,
        on,
        tp=tp,
        ep=ep,
        pp=pp,
        two_batch=two_batch,
        dtype=dtype,
        weights=weights,
        kv_dtype=kv_dtype,
        library=library,
        overlap=overlap,
        enforce_eager=enforce_eager,
        options=options,
    )
    return _answer(runs, "prefill", sequence, [Group(batch, sequence, cached)])


def decode(
    model: Transformer | str | Path,
    on: Described,
    *,
    tp: int = 1,
    ep: int = 1,
    pp: int = 1,
    two_batch: bool = False,
    batch: int = 1,
    context: int = 2048,
    chunk: int = 0,
    speculate: int | None = None,
    accept: float | None = None,
    draft: str | None = None,
    dtype: str | None = None,
    weights: str = "",
    kv_dtype: str = "bf16",
    library: str = VENDOR,
    overlap: Mapping[str, str] | str = "",
    enforce_eager: bool = False,
    options: RunOptions = SUSTAINED,
) -> Inference:
    """How long the next token of each of `batch` sequences takes, which attends to `context` tokens before it.

    The same step may read the first `chunk` tokens of another prompt (chunked prefill). `ep`, `two_batch`, `dtype`,
    `weights`, `kv_dtype`, `library` and `overlap` are those of `prefill`, and so is what is raised.

    With `speculate` tokens drafted for each sequence, the step verifies them beside the next one; each is accepted with
    probability `accept` if those before it are. `draft` writes them: "mtp", the model's own layer of multi-token
    prediction (the default), "eagle", a dense layer, "none", a lookup that takes no time, or a model by name. All of
    the drafter counts: its passes, its weights, and its keys and values.

    >>> decode("deepseek-v3", "8xh200", tp=8, batch=8, dtype="fp8", speculate=1, accept=0.85).tokens_per_step
    1.85
    """
    for name, value, least in (("batch", batch, 1), ("the number of tokens", context, 1), ("chunk", chunk, 0)):
        check_whole(name, value, least, 8)
    batch, context, chunk = int(batch), int(context), int(chunk)
    runs = _forward(
        model, on, tp=tp, ep=ep, pp=pp, two_batch=two_batch, dtype=dtype, weights=weights, kv_dtype=kv_dtype,
        library=library, overlap=overlap, speculation=speculation(speculate, accept, draft),
        enforce_eager=enforce_eager, options=options,
    )  # fmt: skip
    chunks = [Group(1, chunk)] if chunk else []
    return _answer(runs, "decode", context, [Group(batch, runs.queries, context - 1, writes=True), *chunks])


def _forward(model: Transformer | str | Path, on: Described, **how: Any) -> Forward:
    where, found = on if isinstance(on, System) else system(on), load_model(model)
    return Forward(found, where, **how)


def _answer(runs: Forward, phase: Phase, length: int, groups: list[Group]) -> Inference:
    """The pass over the first of the groups, of `length` tokens, beside the others."""
    first, others = groups[0], groups[1:]
    notes = [_LATENT] if runs.model.kv_rank and phase == "decode" and not runs.kit else []
    if runs.kit:
        notes.append(f"Operators are those of {runs.kit.title}'s libraries on such GPUs, where they were measured.")
    if runs.format:
        notes.append(f"Weights of layers are {quantized_format(runs.format).about}, converted on their way.")
    notes += [runs.served_format.note] * bool(runs.served_format.note)
    notes += [f"The step also reads the first {one.new:,} tokens of a prompt, which are in its time." for one in others]
    if length > runs.model.sequence_length:
        notes.append(
            f"{length:,} tokens are more than the {runs.model.sequence_length:,} that {runs.model.title} reads: "
            "times are those of a model like it that reads more."
        )
    if runs.plan.pp > 1:
        notes.append(_PIPELINED.format(runs.plan.pp))
    if runs.wide and runs.expert_load is None:
        notes.append(_WIDE.format(runs.ep))
    drafted = runs.speculation if phase == "decode" else NONE
    if drafted.tokens:
        notes.append(_drafted(drafted))
    notes += runs.notes
    held = [one.sequences * runs.cache(one.new + one.cached) for one in groups]
    cached = first.cached if phase == "prefill" else 0
    parts, plan = (runs.batch(groups) * (1 / drafted.expected)).parts, replace(runs.plan, sequence=length)
    return Inference(
        phase, runs.model, runs.system, plan, first.sequences, length, parts, runs.weights, held[0],
        tuple(notes), cached, others[0].new if others else 0, sum(held[1:]), drafted.expected, runs.needs,
        runs.served_format,
    )  # fmt: skip


def _drafted(what: Speculation) -> str:
    """What a step verifies, and which costs of drafting it holds."""
    by = {"none": "a lookup, which takes no time", "mtp": "the model's own further layer", "eagle": "a dense layer"}
    who = by[what.draft] if what.draft in OWN else what.draft
    return (
        f"A step verifies {what.tokens} tokens beside the next one, drafted by {who}; with {what.accept:.0%} of them "
        f"accepted, it writes {what.expected:.3g} tokens. All passes of the drafter are in its time."
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
