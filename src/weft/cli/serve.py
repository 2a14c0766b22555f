"""`weft serve`: a load of requests on the replicas of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

import weft
from weft.cli.inference import degree_options, format_options, kernel_options, speculation_options
from weft.cli.options import (
    WithScript,
    against_option,
    against_options,
    as_run_options,
    check_terms,
    clock_option,
    energy_option,
    examples,
    field_options,
    fields_in,
    on_machine,
    option,
    price_option,
    refuse_given,
    set_option,
    typed_options,
    valued,
    words_behind,
)
from weft.cli.output import shows
from weft.cli.progress import progress_bar
from weft.cli.values import MODEL, SYSTEM_NAME, Value, assignments
from weft.core.answer import Answer
from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.core.units import LARGEST_COUNT
from weft.hardware import System
from weft.kernels.library.kits import framework_names
from weft.serving.load import Load
from weft.serving.result import Limits, Serving
from weft.step.serving_plan import ServingPlan

_EXAMPLE = "weft serve llama-3-70b --system 8xh100 --tp 4 --framework vllm --rate 4 --input-len 2048 --output-len 256"
_CLIENTS = "weft serve llama-3-8b --system 1xh100 --concurrency 64 --sweep-concurrency --out out/serve"
_LAUNCHED = (
    'weft serve --launch "vllm serve openai/gpt-oss-120b --tensor-parallel-size 4" --system 4xh100 --concurrency 64'
)
_PLAN = "weft serve llama-3-70b --system 64xh100 --rate 50 --input-len 2048 --ttft 1s --tpot 40ms --plan"


def tokens(text: str) -> int | tuple[int, int]:
    """Parse a number of tokens, or the least and the most of those that are drawn: 2048, 100-4000."""
    parts = [part.strip() for part in text.split("-")]
    if len(parts) > 2 or not all(part.isdecimal() and 0 < int(part) <= LARGEST_COUNT for part in parts):
        raise click.BadParameter(f"'{text}' is no number of tokens; write 2048, or 100-4000 for evenly drawn ones")
    return int(parts[0]) if len(parts) == 1 else (int(parts[0]), int(parts[1]))


_TOKENS = Value("N|LOW-HIGH", tokens)


@click.command(cls=WithScript, epilog=examples(_EXAMPLE, _CLIENTS, _PLAN, _LAUNCHED))
@click.argument("model", type=MODEL, required=False)
@option("--system", "The machine, such as 8xh100 or 4xl40s, see 'weft hardware list'.", SYSTEM_NAME, required=True)
@field_options(
    Load,
    "rate",
    "concurrency",
    "trace",
    "requests",
    "input_len",
    "output_len",
    "arrivals",
    "burstiness",
    "shared_prefix",
    "seed",
    trace=Value("FILE"),
    input_len=_TOKENS,
    output_len=_TOKENS,
)
@degree_options
@field_options(
    ServingPlan,
    "replicas",
    "prefill_replicas",
    "prefill_tp",
    "prefill_ep",
    "prefill_max_num_batched_tokens",
    "router",
    "framework",
    "scheduler",
    "max_num_batched_tokens",
    "max_num_seqs",
    "block_size",
    "gpu_memory_utilization",
    "max_model_len",
    "cpu_overhead",
    framework=Value("NAME", str, framework_names),
    cpu_overhead=Value("TIME"),
)
@field_options(Limits, "ttft", "tpot", ttft=Value("TIME"), tpot=Value("TIME"))
@option(
    "--plan",
    "Find the fewest GPUs that meet the SLOs --ttft and --tpot, and the Pareto front of throughput and interactivity. "
    "--tp, --ep, --pp, --two-batch-overlap, --replicas, --prefill-replicas and --max-num-batched-tokens are searched "
    "where they are not given, and --num-speculative-tokens where --acceptance-rate is.",
    is_flag=True,
)
@field_options(Limits, "attainment")
@option(
    "--sweep-concurrency",
    "Also serve fewer clients than --concurrency: throughput per GPU against interactivity (tokens/s per user), and "
    "the most clients that meet --tpot.",
    name="sweep_concurrency",
    is_flag=True,
)
@option(
    "--measured",
    "What a benchmark of the server measured, like 'TPOT 31.4 ms', 'p99 TTFT 850 ms', '6.17 req/s', or '2008 output "
    "tokens/s': is it to be expected, and where to look? Repeatable.",
    multiple=True,
    metavar="FIGURE",
)
@option(
    "--straggler",
    "One slow part, and how much of its delay reaches TPOT: gpu:5% (a clock 5 % lower), node:network=0.5 (half the "
    "rate of a node's network), nic (one adapter at half its rate).",
    Value("PART"),
)
@price_option()
@energy_option()
@option(
    "--launch",
    "The server that is to be simulated: a command of vLLM, SGLang or TensorRT-LLM, or a file with one: a script, a "
    "compose file, YAML of Kubernetes, Dynamo or llm-d. MODEL can be left out where it names one. Arguments of a "
    "script follow behind --.",
    metavar="COMMAND|FILE",
)
@option(
    "--define",
    "State a variable of --launch, like TP=4, which it does not set, or sets otherwise; repeatable.",
    name="define",
    multiple=True,
    callback=assignments,
    metavar="NAME=VALUE",
)
@format_options
@speculation_options
@kernel_options
@set_option("every GPU, node or network")
@against_option
@clock_option()
@shows(csv="Write the requests and their times as CSV.", out="Write report.html with the pictures to this folder.")
@as_run_options
@on_machine
def serve(
    machine: System,
    options: RunOptions,
    plan: bool,
    sweep_concurrency: bool,
    measured: tuple[str, ...] = (),
    straggler: str | None = None,
    price: str | None = None,
    energy: str | None = None,
    model: str | None = None,
    launch: str | None = None,
    define: Mapping[str, str] | None = None,
    **asked: Any,
) -> Answer:
    """Simulate a server of MODEL under load: throughput, TTFT, TPOT, ITL, goodput, KV cache, and the bottleneck.

    Engine iterations follow the scheduler of a serving framework (continuous batching, chunked prefill, prefix caching,
    preemption) and are timed as by 'weft prefill' and 'weft decode'. --prefill-replicas disaggregates prefill from
    decode; --num-speculative-tokens turns on speculative decoding. With --plan, the answer is the fewest GPUs that meet
    --ttft and --tpot, the command that starts them, and what more GPUs would buy.
    """
    check_terms(price, energy, machine)
    if measured:
        _check_measured(plan, measured)
    if straggler is not None:
        from weft.step.straggler import Straggler

        Straggler.of(straggler)
    load, limits = Load(**fields_in(Load, asked)), Limits(**fields_in(Limits, asked))
    arguments = words_behind()
    if launch is None and (arguments or define):
        raise InputError("words behind -- and --define belong to a launch; name it, like --launch serve.sh")
    if launch is not None:
        refuse_given("with --launch, whose layout is served", "plan")
        started = weft.read_server(launch, arguments=arguments, define=define)
        changed = fields_in(ServingPlan, against_options(asked))
        stated = {name: value for name, value in typed_options(asked).items() if name not in changed}
        stated = fields_in(ServingPlan, stated)
        with progress_bar("serving") as progress:
            served = started.serve(
                machine, model, load=load, limits=limits, sweep_concurrency=sweep_concurrency, options=options,
                progress=progress, instead=changed, **stated,
            )  # fmt: skip
        return _completed(served, straggler, measured, price, energy)
    if model is None:
        raise InputError('name a model, like llama-3-8b, or the command that serves it: --launch "vllm serve ..."')
    if plan:
        if click.get_current_context().params.get("against"):
            raise InputError("--against compares loads on one layout, and --plan searches layouts; ask for two plans")
        refuse_given("with --plan, which has its front", "sweep_concurrency")
        refuse_given("with --plan; ask for the layout that it finds", "straggler")
        fix = fields_in(ServingPlan, typed_options(asked))
        with progress_bar("planning") as progress:
            plans = weft.plan_serving(model, machine, load, limits, fix, options=options, progress=progress)
        return valued(plans, price, energy)
    layout = ServingPlan(**fields_in(ServingPlan, asked))
    with progress_bar("serving") as progress:
        answer = weft.serve(
            model, machine, layout, load, limits, sweep_concurrency=sweep_concurrency, options=options,
            progress=progress,
        )  # fmt: skip
    return _completed(answer, straggler, measured, price, energy)


def _check_measured(plan: bool, measured: tuple[str, ...]) -> None:
    """Raise InputError for figures that cannot be read, or have no one server to be compared with."""
    from weft.serving.measured import MeasuredFigure

    if plan:
        refuse_given("with --plan, which searches servers", "measured")
    if click.get_current_context().params.get("against"):
        raise InputError("--measured is compared with one server, and --against simulates two; leave out one of them")
    for text in measured:
        MeasuredFigure.of(text)


def _completed(
    answer: Serving, straggler: str | None, measured: tuple[str, ...], price: str | None, energy: str | None
) -> Serving:
    answer = answer.delayed(straggler) if straggler else answer
    judged = answer.judged(*measured) if measured else answer
    return valued(judged, price, energy)
