"""`weft serve`: a load of requests on the replicas of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click

import weft
from weft.answer import Answer
from weft.cli.inference import eager_option, experts_options, formats_options, speculation_options
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
    typed,
)
from weft.cli.output import shows
from weft.cli.progress import progress_bar
from weft.cli.values import COUNT, MODEL_NAME, SYSTEM_NAME, Count, Value, later
from weft.errors import InputError
from weft.hardware import System
from weft.options import RunOptions
from weft.serving.load import Arrivals
from weft.units import LARGEST_COUNT

_EXAMPLE = "weft serve llama-3-70b --system 8xh100 --tp 4 --framework vllm --rate 4 --input 2048 --output 256"
_CLIENTS = "weft serve llama-3-8b --system 1xh100 --concurrency 64 --curve --out out/serve"


def tokens(text: str) -> int | tuple[int, int]:
    """Parse a number of tokens, or the least and the most of those that are drawn: 2048, 100-4000."""
    parts = [part.strip() for part in text.split("-")]
    if len(parts) > 2 or not all(part.isdecimal() and 0 < int(part) <= LARGEST_COUNT for part in parts):
        raise click.BadParameter(f"'{text}' is no number of tokens; write 2048, or 100-4000 for evenly drawn ones")
    return int(parts[0]) if len(parts) == 1 else (int(parts[0]), int(parts[1]))


_TOKENS = Value("N|LOW-HIGH", tokens)
_load = together(
    option("--rate", "Requests per second that arrive.", click.FloatRange(1e-6, 1e6)),
    option("--concurrency", "Clients that each wait for an answer before they ask again.", COUNT),
    option(
        "--trace",
        "Arrivals and lengths of a file: CSV or JSON lines, as Azure and Mooncake publish them or with arrival_s, "
        "input_tokens and output_tokens; FILE#NAME takes one of several. --rate scales its gaps.",
        metavar="FILE",
    ),
    option(
        "--requests", "How many requests.  [default: 1000 or ten lifetimes, 13 for each client, the whole trace]", COUNT
    ),
    option("--input", "Tokens of a prompt.  [default: 1024]", _TOKENS),
    option("--output", "Tokens of an answer.  [default: 128]", _TOKENS),
    option("--arrivals", "How requests arrive at a rate.  [default: poisson]", click.Choice(get_args(Arrivals))),
    option("--burstiness", "Variance of gamma gaps by that of Poisson's.  [default: 1]", click.FloatRange(1e-3, 1e3)),
    option("--prefix", "First tokens of every prompt that are the same.", Count(0, LARGEST_COUNT), default=0),
    option("--seed", "Seed of arrivals and lengths.  [default: 0]", Count(0, LARGEST_COUNT)),
)
_server = together(
    option("--tp", "GPUs that share every layer.", COUNT, default=1),
    experts_options,
    option("--replicas", "Copies of the model.  [default: as many as the system holds]", COUNT),
    option("--readers", "Replicas that only read prompts, and send their keys.", Count(0, LARGEST_COUNT), default=0),
    option(
        "--router", "Which replica gets a request.", Value("NAME", str, later("weft.serving.cluster:ROUTERS")),
        default="least-loaded",
    ),
    option(
        "--framework", "Whose defaults hold: vllm, sglang, trtllm, or a version that differs, such as vllm@0.10.",
        Value("NAME", str, later("weft.library.serving_frameworks:framework_names")), default="vllm",
    ),
    option(
        "--policy", "The scheduler.  [default: the framework's]",
        Value("NAME", str, later("weft.serving.policies:POLICIES")),
    ),
    option("--step-tokens", "Most tokens of a step.  [default: the framework's]", COUNT),
    option("--sequences", "Most requests that run at once.  [default: the framework's]", COUNT),
    option("--block", "Tokens of a block of keys and values.  [default: the framework's]", COUNT),
    option("--memory-share", "Share of a GPU's memory to use.  [default: the framework's]", click.FloatRange(0.01, 1)),
    option("--max-length", "Longest prompt and answer together.  [default: the model's context]", COUNT),
    option("--host", "What the host adds to a step, like 1ms.  [default: the framework's, assumed]", metavar="TIME"),
)  # fmt: skip


_PLAN = "weft serve llama-3-70b --system 64xh100 --rate 50 --input 2048 --output 256 --ttft 1s --tpot 40ms --plan"


@click.command(epilog=examples(_EXAMPLE, _CLIENTS, _PLAN))
@click.argument("model", type=MODEL_NAME)
@option("--system", "The machine, such as 8xh100 or 4xl40s, see 'weft hardware list'.", SYSTEM_NAME, required=True)
@_load
@_server
@option("--ttft", "A good answer's first token comes within this, like 2s.", metavar="TIME")
@option("--tpot", "Each further token of a good answer comes within this, like 50ms.", metavar="TIME")
@option(
    "--plan",
    "Find the fewest GPUs that meet --ttft and --tpot: --tp, --ep, --pp, --two-batch, --replicas, --readers and "
    "--step-tokens are searched where they are not given, and --speculate where --accept is.",
    is_flag=True,
)
@option("--attainment", "Share of the answers that must be good in a plan.  [default: 0.9]", click.FloatRange(0.01, 1))
@option("--curve", "Also serve fewer clients: throughput against interactivity.", is_flag=True)
@formats_options
@speculation_options
@option(
    "--library",
    "Operators as libraries run them, as in 'weft decode'.  [default: those of --framework]",
    Value("NAME", str, later("weft.library.kits:LIBRARIES")),
)
@overlap_option
@eager_option
@set_option("every GPU, node or network")
@against_option
@clock_option()
@shows(csv="Write the requests and their times as CSV.", out="Write report.html with the pictures to this folder.")
@as_run_options
@on_machine
def serve(
    model: str, machine: System, options: RunOptions, plan: bool, trace: str | None = None, **asked: Any
) -> Answer:  # fmt: skip
    """Serve a load of requests to MODEL: throughput, latencies, queue and memory, and what bounds them.

    Steps are formed by the rules of a serving framework's scheduler, and timed as by 'weft prefill' and 'weft decode'.
    With --plan, the answer is the fewest GPUs that meet --ttft and --tpot, how to start them, and what more would buy.
    """
    file = trace and Path(trace)
    if plan:
        if click.get_current_context().params.get("against"):
            raise InputError("--against compares loads on one layout, and --plan searches layouts; ask for two plans")
        with progress_bar("planning") as progress:
            return weft.plan_serving(model, machine, options=options, trace=file, progress=progress, **typed(asked))
    if "attainment" in asked:
        raise InputError("--attainment is the share of good answers of a plan; give --plan, too, or leave it out")
    with progress_bar("serving") as progress:
        return weft.serve(model, machine, options=options, trace=file, progress=progress, **asked)
