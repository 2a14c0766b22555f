"""`weft prefill` and `weft decode`: a step of inference of a whole model."""

from __future__ import annotations

from typing import Any

import click

import weft
from weft.answer import Answer
from weft.cli.options import (
    against_option,
    as_run_options,
    clock_option,
    examples,
    on_machine,
    option,
    overlap_option,
    set_option,
    together,
)
from weft.cli.output import shows
from weft.cli.values import COUNT, DTYPE, MODEL_NAME, SYSTEM_NAME, Count, Value, later
from weft.hardware import System
from weft.options import RunOptions
from weft.run.step.drafts import OWN
from weft.units import LARGEST_COUNT

CACHES = ("bf16", "fp8")
experts_options = together(
    option(
        "--ep",
        "GPUs that hold whole experts: 1 (slices of all), as many as --tp, or with --tp 1 more, to which tokens are "
        "exchanged while attention is data parallel.",
        COUNT,
        default=1,
    ),
    option("--pp", "Stages of a pipeline, each with a part of the layers.", COUNT, default=1),
    option("--two-batch", "Compute half of a batch while the other's tokens are exchanged.", is_flag=True),
)
eager_option = option(
    "--enforce-eager", "The host launches each kernel, without CUDA graphs (of a framework's library).", is_flag=True
)
speculation_options = together(
    option("--speculate", "Tokens drafted for each sequence, which a step verifies.", Count(0, LARGEST_COUNT)),
    option("--accept", "Share of drafts that are accepted if those before them are.", click.FloatRange(0, 1)),
    option(
        "--draft",
        f"What drafts: {', '.join(OWN)} (a lookup), or a model by name.  [default: mtp]",
        metavar="NAME",
    ),
)
formats_options = together(
    option(
        "--dtype",
        "Data type of GEMMs and their weights: bf16, fp16, fp8, int8, mxfp4, nvfp4, or fp8-block with scales of "
        "blocks; weights alone where the GPU has no matrix rate for it.  [default: as the model was released]",
        DTYPE,
    ),
    option(
        "--weights",
        "Narrower weights of layers, converted on their way: int8, int4-g128, mxfp4, nvfp4.  [default: as --dtype]",
        Value("NAME", str, later("weft.estimate.quantization:FORMATS")),
    ),
    option("--kv-dtype", "Data type of keys and values in the cache.", click.Choice(CACHES), default="bf16"),
)
_options = together(
    option("--system", "The machine, such as 8xh100 or 4xl40s, see 'weft hardware list'.", SYSTEM_NAME, required=True),
    option("--tp", "GPUs that share every layer.", COUNT, default=1),
    experts_options,
    option("--batch", "Sequences that run together.", COUNT, default=1),
)
_rest = together(
    formats_options,
    option(
        "--library",
        "Operators as libraries run them: those of vllm, sglang, trtllm, or the vendor's.",
        Value("NAME", str, later("weft.library.kits:LIBRARIES")),
        default="vendor",
    ),
    overlap_option,
    eager_option,
    set_option("every GPU, node or network"),
    against_option,
    clock_option(),
    shows(out="Write report.html with the pictures to this folder."),
)


@click.command(epilog=examples("weft prefill llama-3-8b --system 4xl40s --tp 4"))
@click.argument("model", type=MODEL_NAME)
@_options
@option("--sequence", "Tokens of each prompt.", COUNT, default=2048)
@option(
    "--cached", "Tokens before each prompt whose keys and values are in the cache.", Count(0, LARGEST_COUNT), default=0
)
@_rest
@as_run_options
@on_machine
def prefill(model: str, machine: System, options: RunOptions, **sizes: Any) -> Answer:
    """Time the prompt of MODEL: how long until the first token, and where the time goes.

    Time in a server's queue is not part of it.
    """
    return weft.prefill(model, machine, options=options, **sizes)


@click.command(epilog=examples("weft decode llama-3-70b --system 8xmi300x --tp 8 --dtype fp8"))
@click.argument("model", type=MODEL_NAME)
@_options
@option("--context", "Tokens that the next one attends to.", COUNT, default=2048)
@option(
    "--chunk",
    "First tokens of another prompt that the same step reads (chunked prefill).",
    Count(0, LARGEST_COUNT),
    default=0,
)
@speculation_options
@_rest
@as_run_options
@on_machine
def decode(model: str, machine: System, options: RunOptions, **sizes: Any) -> Answer:
    """Time the next token of MODEL: latency, throughput at a batch, and the cache of keys and values."""
    return weft.decode(model, machine, options=options, **sizes)
