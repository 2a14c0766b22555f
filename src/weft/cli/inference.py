"""`weft prefill` and `weft decode`: one forward pass of a whole model."""

from __future__ import annotations

from typing import Any

import click

import weft
from weft.cli.options import (
    against_option,
    as_run_options,
    clock_option,
    examples,
    field_options,
    on_machine,
    option,
    set_option,
    together,
)
from weft.cli.output import shows
from weft.cli.values import COUNT, DTYPE, MODEL, SYSTEM_NAME, Count, Value
from weft.core.answer import Answer
from weft.core.options import RunOptions
from weft.core.units import LARGEST_COUNT
from weft.estimate.quantization import FORMATS
from weft.graph import EXCHANGES
from weft.graph.routing import loads_of
from weft.hardware import System
from weft.kernels.library.kits import LIBRARIES
from weft.models.parallel.deployment import overlap_of
from weft.step.serving_plan import ServingPlan

degree_options = field_options(ServingPlan, "tp", "ep", "pp", "two_batch_overlap")
format_options = field_options(
    ServingPlan,
    "dtype",
    "weights",
    "kv_dtype",
    dtype=DTYPE,
    weights=Value("NAME", str, lambda: FORMATS),
)
speculation_options = field_options(
    ServingPlan,
    "num_speculative_tokens",
    "acceptance_rate",
    "speculative_method",
)
kernel_options = field_options(
    ServingPlan,
    "library",
    "dispatcher",
    "expert_load",
    "overlap",
    "enforce_eager",
    library=Value("NAME", str, lambda: LIBRARIES),
    dispatcher=Value("LIBRARY", str, lambda: EXCHANGES),
    expert_load=Value("LOADS", loads_of),
    overlap=Value("AXIS=NAME", overlap_of),
)
_options = together(
    option("--system", "The machine, such as 8xh100 or 4xl40s, see 'weft hardware list'.", SYSTEM_NAME, required=True),
    degree_options,
    option("--batch", "Sequences of the batch.", COUNT, default=1),
)
_rest = together(
    format_options,
    kernel_options,
    set_option("every GPU, node or network"),
    against_option,
    clock_option(),
    shows(out="Write report.html with the pictures to this folder."),
)


@click.command(epilog=examples("weft prefill llama-3-8b --system 4xl40s --tp 4"))
@click.argument("model", type=MODEL)
@_options
@option("--sequence", "Tokens of each prompt.", COUNT, default=2048)
@option(
    "--cached",
    "Tokens before each prompt that are in the KV cache (prefix caching).",
    Count(0, LARGEST_COUNT),
    default=0,
)
@_rest
@as_run_options
@on_machine
def prefill(
    model: str, machine: System, options: RunOptions, batch: int, sequence: int, cached: int, **plan: Any
) -> Answer:
    """Time the prefill of MODEL: the time to first token (TTFT) without queueing, and where the time goes."""
    sizes = {"batch": batch, "sequence": sequence, "cached": cached}
    return weft.prefill(model, machine, ServingPlan(**plan), options=options, **sizes)


@click.command(epilog=examples("weft decode llama-3-70b --system 8xmi300x --tp 8 --dtype fp8"))
@click.argument("model", type=MODEL)
@_options
@option("--context", "Tokens in the KV cache of each sequence.", COUNT, default=2048)
@option(
    "--chunk",
    "Tokens of a chunk of another prompt in the same iteration (chunked prefill).",
    Count(0, LARGEST_COUNT),
    default=0,
)
@speculation_options
@_rest
@as_run_options
@on_machine
def decode(
    model: str, machine: System, options: RunOptions, batch: int, context: int, chunk: int, **plan: Any
) -> Answer:
    """Time a decode iteration of MODEL: inter-token latency (ITL), throughput at a batch, and the KV cache."""
    sizes = {"batch": batch, "context": context, "chunk": chunk}
    return weft.decode(model, machine, ServingPlan(**plan), options=options, **sizes)
