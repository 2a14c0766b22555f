"""A step of inference: the prompt of a batch of sequences, or the next token of each, beside a chunk of a prompt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from weft.errors import check_whole
from weft.estimate.quantization import quantized_format
from weft.hardware import System, system
from weft.hardware.resolve import Described
from weft.library.kits import VENDOR
from weft.models import Transformer, load_model
from weft.options import SUSTAINED, RunOptions
from weft.result.inference import Inference, Phase
from weft.run.step.forward import Forward, Group


def prefill(
    model: Transformer | str | Path,
    on: Described,
    *,
    tp: int = 1,
    batch: int = 1,
    sequence: int = 2048,
    cached: int = 0,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    library: str = VENDOR,
    options: RunOptions = SUSTAINED,
) -> Inference:
    """How long a batch of prompts of `sequence` tokens takes on `tp` GPUs of a system, up to their first tokens.

    Each follows `cached` tokens whose keys and values are known: a prefix, or earlier chunks. Keys and values are kept
    in `kv_dtype`, bf16 or fp8; operators are those of a framework's `library`, or of the vendor's
    (`weft.library.kits.LIBRARIES`). Raises UnknownNameError for unknown names, InputError for GPUs that replicas of
    `tp` do not fill.

    >>> prefill("llama-3-8b", "4xl40s", tp=4).replicas
    1
    """
    for name, value, least in (("batch", batch, 1), ("the number of tokens", sequence, 1), ("cached", cached, 0)):
        check_whole(name, value, least, 8)
    batch, sequence, cached = int(batch), int(sequence), int(cached)  # numpy's integers overflow
    runs = _forward(model, on, tp, dtype, options, kv_dtype=kv_dtype, library=library)
    return _answer(runs, "prefill", sequence, [Group(batch, sequence, cached)])


def decode(
    model: Transformer | str | Path,
    on: Described,
    *,
    tp: int = 1,
    batch: int = 1,
    context: int = 2048,
    chunk: int = 0,
    dtype: str = "bf16",
    weights: str = "",
    kv_dtype: str = "bf16",
    library: str = VENDOR,
    options: RunOptions = SUSTAINED,
) -> Inference:
    """How long the next token of each of `batch` sequences takes, which attends to `context` tokens before it.

    The same step may read the first `chunk` tokens of another prompt (chunked prefill). `weights` of layers may have a
    narrower format than the products (`weft.estimate.quantization.FORMATS`): their GEMMs save what a roofline says in
    which vector units convert them. `kv_dtype` and `library` are those of `prefill`, and so is what is raised.
    """
    for name, value, least in (("batch", batch, 1), ("the number of tokens", context, 1), ("chunk", chunk, 0)):
        check_whole(name, value, least, 8)
    batch, context, chunk = int(batch), int(context), int(chunk)
    runs = _forward(model, on, tp, dtype, options, weights, kv_dtype, library)
    return _answer(runs, "decode", context, [Group(batch, 1, context - 1), *([Group(1, chunk)] if chunk else [])])


def _forward(
    model: Transformer | str | Path, on: Described, tp: int, dtype: str, options: RunOptions, weights: str = "",
    kv_dtype: str = "bf16", library: str = VENDOR,
) -> Forward:  # fmt: skip
    where, found = on if isinstance(on, System) else system(on), load_model(model)
    return Forward(
        found, where, tp=tp, dtype=dtype, weights=weights, kv_dtype=kv_dtype, library=library, options=options
    )  # fmt: skip


def _answer(runs: Forward, phase: Phase, length: int, groups: list[Group]) -> Inference:
    """The pass over the first of the groups, of `length` tokens, beside the others."""
    first, others = groups[0], groups[1:]
    notes = [_LATENT] if runs.model.kv_rank and phase == "decode" and not runs.kit else []
    if runs.kit:
        notes.append(f"Operators are those of {runs.kit.title}'s libraries on such GPUs, where they were measured.")
    if runs.format:
        notes.append(f"Weights of layers are {quantized_format(runs.format).about}, converted on their way.")
    notes += [f"The step also reads the first {one.new:,} tokens of a prompt, which are in its time." for one in others]
    held = [one.sequences * runs.cache(one.new + one.cached) for one in groups]
    cached = first.cached if phase == "prefill" else 0
    parts, plan = runs.batch(groups).parts, replace(runs.plan, sequence=length)
    return Inference(
        phase, runs.model, runs.system, plan, first.sequences, length, parts, runs.weights, held[0],
        tuple(notes), cached, others[0].new if others else 0, sum(held[1:]),
    )  # fmt: skip


_LATENT = (
    "Latent attention is timed on the compressed cache, its keys and values read apart: an upper bound of its traffic."
)
