"""`weft predict`: closed-form times of GEMMs, collectives, operators and layers, with bound and parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

import weft
from weft.cli import cases
from weft.cli.options import (
    as_run_options,
    clock_option,
    drop_none,
    dtype_option,
    examples,
    option,
    refuse_given,
    set_option,
    together,
)
from weft.cli.output import Outputs, file_option, folder_option, pass_outputs
from weft.cli.values import (
    COUNT,
    GPU,
    GPUS,
    MODEL_NAME,
    NAMES,
    RANKS,
    SHAPE,
    SYSTEM_NAMES,
    Value,
    names,
)
from weft.core.errors import InputError
from weft.core.files import write_json
from weft.core.options import RunOptions
from weft.core.report.table import Table, texts
from weft.core.units import Dimension, format_time, parse
from weft.estimate import BenchmarkProtocol, Estimate
from weft.graph import OPERATORS, Driver
from weft.graph.routing import loads_of
from weft.graph.streaming import STREAMING
from weft.hardware import Gpu, System
from weft.kernels.compute_units import units_left
from weft.kernels.library.profiles import load_library
from weft.kernels.library.served import EXPERT_FORMATS, libraries
from weft.view import predictions
from weft.view.predictions import Predicted
from weft.view.terminal import print_table

_LAYER = "weft predict layer --model gpt-3 --tp 4 --batch 8 --sequence 2048 --system hgx-a100-4"


@click.group(epilog=examples("weft predict gemm 8192,8192,8192 --gpu h100-sxm,mi300x"))
def predict() -> None:
    """Predict times in closed form: vectorised, with the bound that was hit and where the time goes."""


_file_options = together(
    file_option("--json", "Write the predictions as JSON."), file_option("--csv", "Write the predictions as CSV.")
)
_gpus_options = together(
    option("--gpu", "GPUs side by side, see 'weft hardware list'.", GPUS, name="gpus", default="h100-sxm"),
    set_option("every GPU"),
    clock_option(),
    _file_options,
)
_systems_options = together(
    option("--system", "Systems side by side, see 'weft hardware list'.", SYSTEM_NAMES, name="systems", required=True),
    set_option("every system"),
)


@predict.command(
    "gemm",
    short_help="Predict a GEMM, or a file of them.",
    epilog=examples(
        "weft predict gemm 8192,8192,8192 --gpu h100-sxm,mi300x",
        "weft predict gemm 8192,8192,8192 --gpu mi300x --compute-units 240",
        "weft predict gemm --shapes shapes.csv --csv times.csv",
    ),
)
@click.argument("shape", required=False, type=SHAPE)
@dtype_option("A and B")
@option("--batch", "GEMMs in one launch.", COUNT, default=1)
@option(
    "--library", "A library of inference: trtllm, sglang, vllm-deepgemm, ...  [default: the vendor's]", metavar="NAME"
)
@option("--weights", "Its weights' format where that is narrower than the products': int8, int4.", metavar="NAME")
@option(
    "--compute-units",
    "Compute units that a mask of the stream leaves the GEMM, equally many of each die.  [default: all]",
    COUNT,
)
@option(
    "--shapes",
    "A CSV file with the columns m, n and k (also batch and dtype) instead of M,N,K.",
    click.Path(path_type=Path, exists=True, dir_okay=False),
    name="shapes_file",
    metavar="FILE",
)
@_gpus_options
@as_run_options
@pass_outputs
def gemm(
    outputs: Outputs,
    shape: tuple[int, int, int] | None,
    dtype: str,
    batch: int,
    library: str | None,
    weights: str | None,
    compute_units: int | None,
    shapes_file: Path | None,
    gpus: tuple[Gpu, ...],
    changes: Mapping[str, str],
    options: RunOptions,
) -> None:
    """Predict C[M,N] = A[M,K] B[K,N] on one or several GPUs, for one shape or a file of them."""
    if shapes_file is not None and shape is None:
        stated = partial(refuse_given, "with a file of which every row states it")
        shapes = cases.read_shapes(shapes_file, batch, dtype, stated)
    elif shapes_file is None and shape is not None:
        shapes = cases.as_columns([(*shape, batch, dtype)])
    else:
        raise InputError("give either a shape, like 8192,8192,8192, or --shapes FILE")
    harness = BenchmarkProtocol(**drop_none(served=library, weights=weights))
    changed = [gpu.replace(changes) for gpu in gpus]
    done = [_gemms(gpu, shapes, options, replace(harness, mask=units_left(gpu, compute_units))) for gpu in changed]
    outputs.show(predictions.GemmReport(predictions.Predictions(done)))


def _gemms(gpu: Gpu, shapes: cases.Shapes, options: RunOptions, harness: BenchmarkProtocol) -> Predicted:
    """Return the GEMMs on a GPU, with the rate that they reach [TFLOP/s]."""
    dtypes = shapes["dtype"]
    seconds, bound = np.empty(dtypes.size), np.empty(dtypes.size, dtype="<U7")
    parts: dict[str, Any] = {}
    for dtype in dict.fromkeys(dtypes.tolist()):
        chosen = dtypes == dtype
        m, n, k, batch = (shapes[name][chosen] for name in ("m", "n", "k", "batch"))
        found = weft.estimate(weft.Gemm(m, n, k, dtype, batch), gpu, options, harness)
        seconds[chosen], bound[chosen] = found.seconds, found.bound
        for name, part in found.parts.items():
            parts.setdefault(name, np.zeros(dtypes.size))[chosen] = part
    flops = 2.0 * shapes["m"] * shapes["n"] * shapes["k"] * shapes["batch"]
    columns = {"gpu": gpu.name, **shapes, "clock": options.clock}
    if harness.mask is not None:
        columns["compute_units"] = len(harness.mask)
    if harness.served:
        columns |= {"library": harness.served, "weights": harness.weights}
    return Predicted(gpu.name, columns, Estimate(seconds, bound, parts), {"tflops": flops / seconds / 1e12})


@predict.command(
    "collective",
    short_help="Predict a collective of one size or many.",
    epilog=examples(
        "weft predict collective all_reduce:256MiB --ranks 8 --system dgx-h100",
        "weft predict collective reduce_scatter:1MiB..1GiB --ranks 8 --system dgx-a100 --out out/rs",
    ),
)
@click.argument("what", type=Value("NAME:SIZES", cases.collective_sizes))
@option("--ranks", "GPUs that take part.", RANKS, required=True)
@_systems_options
@option(
    "--algorithm",
    "One algorithm instead of the library's choice, perhaps with its protocol: ring, nvls, ring-ll128.",
    metavar="NAME",
)
@option("--nodes", "Nodes that hold them.  [default: as few as hold them]", COUNT)
@option(
    "--library",
    "A server's own all-reduce in one node, vllm-custom or sglang-custom, or a profile of the vendor's library, "
    "as 'weft calibrate --system' writes it.  [default: by the system]",
    name="profile",
    metavar="NAME|FILE",
)
@option("--channels", "Channels of a ring, each one workgroup.  [default: the library's own number]", COUNT)
@option(
    "--compute-units",
    "Compute units that a ring may use; channels beyond what they hold at once wait.  [default: all]",
    COUNT,
)
@option("--eager", "Called by the host of a server each time, not in a graph.", is_flag=True)
@option("--dma", "By copy engines instead of compute units (without reduction).", is_flag=True)
@option(
    "--host-copies",
    "Copies between the host and each GPU that run meanwhile, in one direction, like '12 GB/s'.",
    metavar="RATE",
)
@_file_options
@folder_option("Write report.html with a plot of time and bandwidth to this folder.")
@pass_outputs
def collective(
    outputs: Outputs,
    what: tuple[str, Any],
    ranks: int,
    systems: tuple[str, ...],
    changes: Mapping[str, str],
    algorithm: str | None,
    nodes: int | None,
    profile: str | None,
    channels: int | None,
    compute_units: int | None,
    eager: bool,
    dma: bool,
    host_copies: str | None,
) -> None:
    """Predict a collective for one size or many: all_reduce:256MiB, all_gather:1MiB,8MiB, all_reduce:1MiB..1GiB.

    A size is the whole buffer, as nccl-tests counts it; a range takes its first size, every doubling of it, and
    its last.
    """
    if dma:
        refuse_given("with --dma: the library is not asked", "algorithm", "profile", "channels", "compute_units")
    custom = profile if profile in libraries("all_reduce") else None
    if custom:
        refuse_given("with a server's own all-reduce", "algorithm", "channels", "compute_units", "dma")
    found = None if profile is None or custom else load_library(profile)
    how: Any = drop_none(algorithm=algorithm, driver=Driver.DMA if dma else None, profile=found, channels=channels)
    how |= drop_none(compute_units=compute_units, library=custom, host="eager" if eager else None)
    harness = BenchmarkProtocol(**how)
    done, beside = [], []
    for name in systems:
        system = weft.system(name).replace(changes)
        system = system if nodes is None else system.with_gpus(ranks, nodes)
        alone = _collectives(*what, ranks, system, name, harness)
        if host_copies is not None:
            from weft.hardware.host_copies import beside_host_copies

            rate = parse(host_copies, Dimension.BYTES_PER_SECOND)
            copying = beside_host_copies(system, rate, ranks, int(alone.columns["nodes"]))
            shared = _collectives(*what, ranks, copying.system, name, harness)
            beside.append(_copies_say(alone, shared, host_copies, copying.why))
            alone = shared
        done.append(alone)
    asked = {
        "copies by DMA engines": dma,
        f"{custom}'s own kernels": custom,
        f"the algorithm that was asked for, {algorithm}": algorithm,
    }
    stated = next((words for words, given in asked.items() if given), None)
    outputs.show(predictions.CollectiveReport(predictions.Predictions(done), stated, beside))


def _copies_say(alone: Predicted, shared: Predicted, rate: str, why: str) -> str:
    """Return what host copies cost the largest buffer."""
    before, after = (float(np.atleast_1d(one.prediction.seconds)[-1]) for one in (alone, shared))
    return (
        f"Beside host copies of {rate} on each GPU of {alone.machine} it takes {format_time(after, 4)} instead of "
        f"{format_time(before, 4)}, {after / before:.2f} times as long: {why}."
    )


def _collectives(
    name: str, sizes: Any, ranks: int, system: System, label: str, harness: BenchmarkProtocol
) -> Predicted:
    """Times of a collective on a system, who moves its data (CUs or DMA), and its nccl-tests bandwidth [GB/s]."""
    from weft.estimate.target import target
    from weft.kernels.library.collectives import canonical, volume

    proper = canonical(name)
    prediction = weft.estimate(weft.Collective(proper, sizes, ranks), system, harness=harness)
    rate = sizes / prediction.seconds / 1e9
    rates = {"algbw_gbs": rate, "busbw_gbs": rate * volume(proper, ranks)}
    nodes = target(system).nodes(ranks)
    columns = {"system": label, "collective": proper, "ranks": ranks, "nodes": nodes, "bytes": sizes.astype("int64")}
    if harness.library:
        columns |= {"library": harness.library, "called": harness.host or "graph"}
    return Predicted(label, {**columns, "by": prediction.by}, prediction, rates)


@predict.command(
    "exchange",
    short_help="Predict a dispatch or combine of a mixture of experts.",
    epilog=examples("weft predict exchange dispatch:4096x7168,top8/256 --ep 64 --system 64xh100 --library deepep"),
)
@click.argument("what", type=Value("NAME:TOKENSxHIDDEN,topK/EXPERTS", cases.parse_exchange))
@option("--ep", "GPUs that share the experts.", RANKS, required=True)
@_systems_options
@option(
    "--library",
    "Libraries side by side: deepep, deepep-ll, hybridep, uccl, nccl, nvlink-two-sided, ...",
    Value("A,B", names),
    name="libraries",
    default="deepep",
)
@option("--dtype", "What a dispatch sends: bf16, fp8, nvfp4.  [default: as the library does]", metavar="NAME")
@option("--compute-units", "Compute units that the library takes.  [default: its own number]", COUNT)
@_file_options
@pass_outputs
def exchange(
    outputs: Outputs,
    what: Mapping[str, Any],
    ep: int,
    systems: tuple[str, ...],
    changes: Mapping[str, str],
    libraries: Sequence[str],
    dtype: str | None,
    compute_units: int | None,
) -> None:
    """Predict one dispatch or combine between the ranks that share a layer's experts, as libraries carry it out.

    4096x7168,top8/256: each rank has 4096 tokens of 7168 elements, and each token goes to 8 of 256 experts. Operations
    are dispatch, combine, combine_low_precision and prepare; routing is even. With ",reach4/8" a token's experts are of
    4 out of 8 groups (group-limited routing).
    """
    from weft.estimate.exchange import Exchange, traffic
    from weft.estimate.exchange import exchange as timed
    from weft.kernels.library.dispatchers import dispatcher

    asked = Exchange(**what, ranks=ep, dtype=dtype)
    sizes = {name: size for name, size in what.items() if name != "reach"}
    if asked.reach:
        sizes["reach"] = "{}/{}".format(*asked.reach) if isinstance(asked.reach, tuple) else str(asked.reach)
    done = []
    for where in systems:
        system = weft.system(where).replace(changes)
        for name in libraries:
            of = dispatcher(name)
            columns = {"system": where, "library": of.name, **sizes, "ep": ep}
            columns |= traffic(asked, system, name, compute_units=compute_units)
            done.append(Predicted(where, columns, timed(asked, system, name, compute_units=compute_units)))
    outputs.show(predictions.ExchangeReport(predictions.Predictions(done)))


@predict.command(
    "experts",
    short_help="Predict the experts of one layer on one GPU, and what uneven loads cost.",
    epilog=examples(
        "weft predict experts 4096x7168x2048,top8/256 --ep 64 --gpu h100-sxm --dtype fp8 --expert-load power:0.6",
        "weft predict experts 64x2048x768,top8/128 --gpu h100-sxm,b200 --library trtllm,vllm-triton",
    ),
)
@click.argument("what", type=Value("TOKENSxHIDDENxFFN,topK/EXPERTS", cases.layer_of_experts))
@option("--ep", "GPUs that share the experts.", COUNT, default=1)
@option(
    "--expert-load",
    "Tokens by expert: even, power:0.6 (the expert at place p has p to the power -0.6; those of "
    "ai-dynamo/aiconfigurator, of densities 1.01 to 1.2, are about 0.5 to 0.6) or a number for each, like 3,2,2,1.",
    Value("LOADS", loads_of),
    default="even",
)
@option("--dtype", f"Format: {', '.join(EXPERT_FORMATS)}.", metavar="NAME", default="bf16")
@option(
    "--library",
    f"Libraries side by side: {', '.join(libraries('experts'))}; grouped stands for those of training.",
    Value("A,B", names),
    name="library_names",
    default="grouped",
)
@_gpus_options
@as_run_options
@pass_outputs
def experts(
    outputs: Outputs,
    what: Mapping[str, int],
    ep: int,
    expert_load: float | tuple[float, ...],
    dtype: str,
    library_names: Sequence[str],
    gpus: tuple[Gpu, ...],
    changes: Mapping[str, str],
    options: RunOptions,
) -> None:
    """Predict the experts of one layer on the GPU that has the most rows: grouped GEMMs and the kernels around them.

    4096x7168x2048,top8/256: each of the GPUs has 4096 tokens of 7168 elements, each of which goes to 8 of 256 experts
    of inner width 2048. Exchanges of tokens between GPUs are not included, see 'weft predict exchange'.
    """
    from weft.estimate.experts import Experts
    from weft.estimate.experts import experts as timed

    sizes = dict(what)
    hidden, ffn = sizes.pop("hidden"), sizes.pop("ffn")
    asked = Experts(cases.parse_routing(sizes, ep, expert_load), hidden, ffn, dtype)
    done = []
    for gpu in (one.replace(changes) for one in gpus):
        for name in library_names:
            found, even = (timed(one, gpu, name, options=options) for one in (asked, asked.even))
            stated = {key: one for key, one in what.items() if one}
            columns = {"gpu": gpu.name, "library": name, **stated, "ep": ep, "dtype": dtype}
            columns |= {"rows": int(asked.busiest.sum()), "imbalance": asked.imbalance}
            columns |= {"even_us": 1e6 * float(even.seconds)}
            columns |= {f"{step}_us": 1e6 * float(one.seconds) for step, one in found.operators.items()}
            rate = np.asarray(float(asked.layer(asked.busiest).flops) / float(found.seconds) / 1e12)
            done.append(Predicted(gpu.name, columns, found, {"tflops": rate}))
    outputs.show(predictions.ExpertsReport(predictions.Predictions(done)))


@predict.command(
    "op",
    short_help="Predict a memory-bound operator or attention.",
    epilog=examples(
        "weft predict op softmax --shape rows=16384,columns=4096 --gpu a100-sxm-80gb",
        "weft predict op attention_fused --shape batch=64,heads=32,query=1,keys=8192,head=128,kv_heads=8,causal=1 "
        "--library trtllm,vllm-fa3",
    ),
)
@click.argument("name", metavar="NAME")
@option(
    "--shape",
    "Its dimensions, see 'weft predict ops'.",
    Value("A=1,B=2", lambda text: cases.dimensions(NAMES.read(text))),
)
@dtype_option("its tensors")
@option("--kv-dtype", "Data type of the KV cache of attention.  [default: as its other tensors]", metavar="NAME")
@option(
    "--library",
    "Kernels of libraries of inference side by side: trtllm, vllm-fa3, sglang-fa3, ...  [default: a tuned kernel]",
    Value("A,B", names),
    name="libraries",
)
@_gpus_options
@as_run_options
@pass_outputs
def operator(
    outputs: Outputs,
    name: str,
    shape: dict[str, int] | None,
    dtype: str,
    kv_dtype: str | None,
    libraries: Sequence[str] | None,
    gpus: tuple[Gpu, ...],
    changes: Mapping[str, str],
    options: RunOptions,
) -> None:
    """Predict a memory-bound operator or attention; 'weft predict ops' lists them."""
    of = [{"library": one} for one in libraries or ()] or [{}]
    kinds = [{**one, **({"kv_dtype": kv_dtype} if kv_dtype else {})} for one in of]
    done = [
        _operator(name, gpu.replace(changes), dtype, {**(shape or {}), **kind}, options)
        for gpu in gpus
        for kind in kinds
    ]
    outputs.show(predictions.OperatorReport(predictions.Predictions(done)))


def _operator(name: str, gpu: Gpu, dtype: str, sizes: Mapping[str, Any], options: RunOptions) -> Predicted:
    """Times of an operator on a GPU, its least DRAM traffic over its time [GB/s], and FLOP/s if matrix units run it."""
    served = sizes["library"] if name in STREAMING and "library" in sizes else ""
    harness = BenchmarkProtocol(served=served)
    op = weft.operator(name, dtype, **{key: size for key, size in sizes.items() if not (served and key == "library")})
    found = weft.estimate(op, gpu, options, harness)
    seconds = np.ravel(found.seconds)
    rates = {"gbs": op.least_bytes / seconds / 1e9}
    if op.matrix_dtype is not None:
        rates["tflops"] = op.flops / seconds / 1e12
    columns = {"gpu": gpu.name, "operator": name, "dtype": dtype, **sizes, "clock": options.clock}
    return Predicted(gpu.name, columns, found, rates)


@predict.command("ops", short_help="List the operators and their dimensions.", epilog=examples("weft predict ops"))
def operators() -> None:
    """List the operators and their dimensions, in brackets those that have a default."""
    rows = [[entry.name, entry.usage, entry.about] for entry in OPERATORS.values()]
    print_table(Table(texts(("name", "dimensions", "what it is")), rows, "Operators"))


@predict.command("layer", short_help="Predict a Transformer layer, operator by operator.", epilog=examples(_LAYER))
@option("--model", "A model, see 'weft models list'.", MODEL_NAME, required=True)
@_systems_options
@option("--gpu", "Another GPU in the place of the systems' own, such as a calibrated one.", GPU)
@option("--tp", "GPUs that share it.", COUNT, default=1)
@option("--batch", "Sequences.", COUNT, default=1)
@option("--sequence", "Tokens of each sequence (decode: tokens of context that attention reads).", COUNT, default=2048)
@option(
    "--phase", "Whole sequences, or one more token of each.", click.Choice(["prefill", "decode"]), default="prefill"
)
@option("--attention", "As separate operators, or as one.", click.Choice(["batched", "fused"]), default="fused")
@option(
    "--timed",
    "Kernels follow each other on the device, or the host waits for each.",
    click.Choice(["device", "host"]),
    default="device",
)
@dtype_option("its tensors")
@clock_option(("boost",), "; boost: held throughout, where power allows it")
@_file_options
@as_run_options
@pass_outputs
def layer(
    outputs: Outputs,
    /,
    model: str,
    systems: tuple[str, ...],
    gpu: Gpu | None,
    changes: Mapping[str, str],
    timed: Any,
    options: RunOptions,
    **sizes: Any,
) -> None:
    """Predict one layer's forward pass, operator by operator, on each GPU of a tensor-parallel group."""
    work = weft.layer(model, **sizes)
    leads: list[str] = []
    parts: list[Table | str] = []
    layers = []
    for name in systems:
        where = _system(name, gpu, changes)
        title = f"{work.title} on {where.name}, {options.clock} clock"
        found = weft.estimate(work, where, options, BenchmarkProtocol(timed=timed))
        leads.append(predictions.layer_sentence(where.name, found))
        parts += predictions.layer_parts(title, work, found, where.gpu)
        layers.append(predictions.layer_record(name, title, work, found))
    rows = [{"system": one["system"], **row} for one in layers for row in one["operators"]]
    record = layers[0] if len(layers) == 1 else {"layers": layers}
    outputs.show([*leads, *parts], lambda file: write_json(file, record), rows=rows)


def _system(name: str, gpu: Gpu | None, changes: Mapping[str, str]) -> System:
    """The system of that name with changed values; `gpu` replaces its GPU, and the changes then apply to that GPU."""
    found = weft.system(name)
    return found.replace(changes) if gpu is None else found.with_gpu(gpu.replace(changes))
