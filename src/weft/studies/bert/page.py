"""The BERT study's pictures, tables and plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.report import Part, Section
from weft.report.table import Table, number, text, times_faster
from weft.studies.bert import cases
from weft.studies.bert.breakdown import (
    AGAIN,
    ENDS,
    EXPOSED,
    FC,
    GELU,
    GEMMS,
    GROUPS,
    LAMB,
    LINEAR,
    NORM,
    PRODUCTS,
    SOFTMAX,
    Broken,
)
from weft.units import format_bytes
from weft.view import looks
from weft.view.figure import Figure, Lines, bars, curves, scatter, stacked_bars

if TYPE_CHECKING:
    from weft.studies.bert.cases import Variant
    from weft.studies.bert.study import BertStudy

COLORS = {
    FC: looks.BLUE, LINEAR: "#3D8FC4", PRODUCTS: looks.SKY, SOFTMAX: looks.GREEN, GELU: "#66C2A5", NORM: "#B3DE69",
    ENDS: looks.GREY, LAMB: looks.YELLOW, AGAIN: looks.PINK, EXPOSED: looks.ORANGE,
}  # fmt: skip
"""Colours of the groups of operators."""
WORDS = {"fp32": "fp32", "fp16": "mixed"}
"""Number formats as tables call them."""
Phases = Mapping[tuple[str, str, int], Broken]


def sections(study: BertStudy) -> list[Part]:
    """Breakdown, measured layers, LAMB, GEMMs, fusion, data parallelism, and what memory-side arithmetic would buy."""
    return [
        Section("Where a step goes", [steps(study), phase_table(study.phases)]),
        Section("A layer, measured and timed by Weft", [_layers(study), _layer_table(study)]),
        Section("LAMB's share falls with tokens and rises with precision", [_tokens(study), _updates(study)]),
        Section("GEMMs are not alike", [_gemms(study), *(_gemm_table(study, dtype) for dtype in study.gemms)]),
        Section("Fusion and checkpointing", [_variants(study), variant_table(study.variants)]),
        Section("Data parallelism", [_replicas(study), _replica_table(study)]),
        Section("Optimizer and reductions near memory", [_near_memory(study), *_near_words(study)]),
        *([Section("Measured steps", [_row_table(study)])] if study.rows else []),
    ]


def phase_table(phases: Phases) -> Table:
    """Steps of both phases: time, shares of groups, and LAMB's rank."""
    rows = [
        (gpu, WORDS[dtype], sequence, one.step.plan.micro_batch, one.seconds * 1e3, one.share(*GEMMS),
         one.share(SOFTMAX), one.share(GELU, NORM), one.share(LAMB), one.rank)
        for (gpu, dtype, sequence), one in phases.items()
    ]  # fmt: skip
    columns = [
        text("gpu", "GPU"), text("precision"), number("sequence"), number("sequences"),
        number("step_ms", "step", "ms", ",.1f"), number("gemms", "GEMMs", format_=".1%"),
        number("softmax", "softmax and dropout", format_=".1%"),
        number("norm", "GeLU, LayerNorm, sums", format_=".1%"),
        number("lamb", "LAMB", format_=".1%"), number("rank", "LAMB's rank"),
    ]  # fmt: skip
    return Table(columns, rows, "A step of one micro-batch and an update, operators one by one")


def steps(study: BertStudy) -> Figure:
    """Every step of both phases as a bar of shares."""
    rows = [
        (f"{sequence}, {WORDS[dtype]}, {gpu}", name, one.groups[name] / one.seconds, f"{one.seconds * 1e3:.0f} ms")
        for (gpu, dtype, sequence), one in study.phases.items()
        for name in one.groups
    ]
    columns = [text("step"), text("group"), number("share", format_=".1%"), text("time")]
    table = Table(columns, rows)
    figure = stacked_bars(
        "Where a step goes", table, lane="step", part="group", value="share", looks=_looks(table.distinct("group")),
        label="time", share=True,
    )  # fmt: skip
    return figure.captioned(
        "Steps of 4096 tokens: tokens of a sequence, precision, GPU. Faster matrix units leave more of the step to "
        "operators that memory bounds, LAMB first; longer sequences to the softmax. It includes scale, "
        "mask and dropout of the scores, LayerNorm the dropout and sum before it, the head the loss."
    )


def _looks(names: Sequence[str]) -> looks.Looks:
    return {name: COLORS[name] for name in GROUPS if name in names}


def _layers(study: BertStudy) -> Figure:
    rows, marks = [], []
    for gpu, layer in study.layers.items():
        for group, lane in ((group, f"{gpu}: {group}") for group in cases.GROUP_KEYS.values()):
            rows.append((lane, group, layer.share(group)))
            marks.append((lane, study.published_share(gpu, group), "measured"))
    columns = [text("lane", "layer"), text("group"), number("share", "share of the layer", format_=".1%")]
    published = Table([text("lane"), number("share", "measured", format_=".1%"), text("what")], marks)
    figure = bars(
        "Shares of a layer", Table(columns, rows), lane="lane", end="share", kind="group",
        looks=_looks([*cases.GROUP_KEYS.values()]), percent=True, marks=Lines(published, "share", "what", "lane"),
    )  # fmt: skip
    return figure.captioned(
        "Bars: Weft; circles: measured (sitar-lab/NeuSight). fp32, 512 tokens, 8 sequences, forward and backward, "
        "every operator of PyTorch timed from its launch on an idle GPU to its end."
    )


def _layer_table(study: BertStudy) -> Table:
    rows = [
        (gpu, study.measured_seconds(gpu, "layer") * 1e3, layer.seconds * 1e3,
         study.measured_seconds(gpu, "step") * 1e3, study.passes[gpu] * 1e3,
         study.passes[gpu] / study.measured_seconds(gpu, "step") - 1)
        for gpu, layer in study.layers.items()
    ]  # fmt: skip
    columns = [
        text("gpu", "GPU"), number("layer_measured_ms", "layer, measured", "ms", ".2f"),
        number("layer_ms", "layer, Weft", "ms", ".2f"), number("model_measured_ms", "model, measured", "ms", ".1f"),
        number("model_ms", "model, Weft", "ms", ".1f"), number("error", format_="+.1%"),
    ]  # fmt: skip
    return Table(columns, rows, "A layer, operators one by one, and the whole model, kernels back to back")


def _tokens(study: BertStudy) -> Figure:
    steps = ((dtype, count * cases.FIRST, one) for dtype, by in study.sizes.items() for count, one in by.items())
    caption = "An update after each micro-batch: LAMB's time is constant, all else grows with the tokens."
    return _falling(steps, "LAMB against the tokens of a micro-batch").captioned(caption)


def _updates(study: BertStudy) -> Figure:
    each = cases.FIRST * cases.SEQUENCES
    steps = ((dtype, count * each, one) for dtype, by in study.updates.items() for count, one in by.items())
    title = f"LAMB against accumulation, {cases.SEQUENCES} sequences a micro-batch"
    return _falling(steps, title).captioned("The same, with the micro-batch fixed and an update after several.")


def _falling(steps: Iterator[tuple[str, int, Broken]], title: str) -> Figure:
    rows = [(WORDS[dtype], tokens, one.share(LAMB), one.seconds * 1e3) for dtype, tokens, one in steps]
    columns = [
        text("precision"), number("tokens", "tokens of an update"), number("share", "LAMB's share", format_=".1%"),
        number("step_ms", "step", "ms", ",.1f"),
    ]  # fmt: skip
    return curves(
        title, Table(columns, rows), x="tokens", y="share", series="precision", log_x=True, percent=True,
        labels="format(datum.value, ',')",
    )  # fmt: skip


def _gemms(study: BertStudy) -> Figure:
    rows = [
        (WORDS[dtype], one.name, one.phase, one.intensity, one.efficiency, one.bound)
        for dtype, every in study.gemms.items()
        for one in every
    ]
    columns = [
        text("precision"), text("gemm", "GEMM"), text("phase", "pass"),
        number("intensity", "arithmetic intensity", "FLOP/B", ".3g"),
        number("efficiency", "share of the peak rate", format_=".0%"), text("bound"),
    ]  # fmt: skip
    table = Table(columns, rows)
    figure = scatter(
        "GEMMs by intensity and rate", table, x="intensity", y="efficiency", facet="precision", color="bound",
        looks=looks.spread(table.distinct("bound")), log_x=True, percent=True,
    )  # fmt: skip
    return figure.captioned(
        "Each dot a GEMM of a layer or the head, forward or a gradient. Those of attention do a tenth of the work per "
        "byte and wait for memory or cache; gradients of small weights fill the GPU badly."
    )


def _gemm_table(study: BertStudy, dtype: str) -> Table:
    rows = [
        (one.name, one.phase, one.op.m, one.op.n, one.op.k, one.op.batch, one.intensity, one.bound,
         one.seconds * 1e6, one.rate / 1e12, one.efficiency)
        for one in study.gemms[dtype]
    ]  # fmt: skip
    columns = [
        text("gemm", "GEMM"), text("phase", "pass"), number("m", "M"), number("n", "N"), number("k", "K"),
        number("batch"), number("intensity", "intensity", "FLOP/B", ".0f"), text("bound"),
        number("time_us", "time", "µs", ",.0f"), number("tflops", "TFLOP/s", format_=".1f"),
        number("efficiency", "of peak", format_=".0%"),
    ]  # fmt: skip
    return Table(columns, rows, f"GEMMs of phase 1 on {study.where}, {WORDS[dtype]}")


def variant_table(variants: Sequence[Variant]) -> Table:
    """Ways to run phase 1: time, speedup over operators one by one, and LAMB's share."""
    base = {one.dtype: one.broken.seconds for one in variants if one.name == cases.ONE_BY_ONE}
    rows = [
        (one.name, WORDS[one.dtype], one.broken.seconds * 1e3, base[one.dtype] / one.broken.seconds,
         one.broken.share(LAMB), one.broken.share(*GEMMS))
        for one in variants
    ]  # fmt: skip
    columns = [
        text("how"), text("precision"), number("step_ms", "step", "ms", ",.1f"), times_faster("speedup"),
        number("lamb", "LAMB", format_=".1%"), number("gemms", "GEMMs", format_=".1%"),
    ]  # fmt: skip
    return Table(columns, rows, "Ways to run a step of phase 1 (sequence 128, 32 sequences, one update)")


def _variants(study: BertStudy) -> Figure:
    rows = [
        (f"{WORDS[one.dtype]}, {one.name}", group, seconds * 1e3, f"{one.broken.seconds * 1e3:.0f} ms")
        for one in study.variants
        for group, seconds in one.broken.groups.items()
    ]
    table = Table([text("how"), text("group"), number("time_ms", "time", "ms", ".1f"), text("whole")], rows)
    figure = stacked_bars(
        "Ways to run phase 1", table, lane="how", part="group", value="time_ms",
        looks=_looks(table.distinct("group")), label="whole",
    )  # fmt: skip
    return figure.captioned(
        "Fused: softmax with scale and mask, bias with GeLU, bias with dropout and sum, Q, K and V as one GEMM. Fusing "
        "removes trips to memory, so it gains more where matrix units are faster; checkpointing repeats every forward "
        "pass. The last two ways change the first alone."
    )


def _replicas(study: BertStudy) -> Figure:
    rows = [
        (f"{share}, {WORDS[dtype]}", count, one.share(share))
        for dtype, by in study.replicas.items()
        for count, one in by.items()
        for share in (LAMB, EXPOSED)
    ]
    table = Table([text("what"), number("gpus", "GPUs"), number("share", "share of the step", format_=".1%")], rows)
    figure = curves(
        f"Replicas of {study.gpu}, 32 sequences each", table, x="gpus", y="share", series="what", log_x=True,
        percent=True,
    )  # fmt: skip
    return figure.captioned(
        "Gradients are summed after the backward pass, as in the trainer; an update after each micro-batch is the "
        "worst case, and accumulation divides both shares alike. Beside the backward pass they travel in buckets of "
        "25 MB, whose latency costs more than they hide where rings are long."
    )


def _replica_table(study: BertStudy) -> Table:
    rows = [
        (count, WORDS[dtype], one.seconds * 1e3, one.share(EXPOSED), one.share(LAMB), by[1].seconds / one.seconds,
         by[1].seconds / study.overlapped[dtype][count].seconds)
        for dtype, by in study.replicas.items()
        for count, one in by.items()
    ]  # fmt: skip
    columns = [
        number("gpus", "GPUs"), text("precision"), number("step_ms", "step", "ms", ",.1f"),
        number("exposed", "all-reduce of gradients", format_=".1%"), number("lamb", "LAMB", format_=".1%"),
        number("efficiency", "weak-scaling efficiency", format_=".1%"),
        number("overlapped", "with sums beside the backward pass, nothing shared", format_=".1%"),
    ]  # fmt: skip
    return Table(columns, rows, f"Data parallelism on {study.where}: 32 sequences of 128 tokens each, then an update")


def _near_memory(study: BertStudy) -> Table:
    rows = [
        (WORDS[dtype], count * cases.FIRST, one.share(LAMB),
         *(cases.near_memory(one, rate) for rate in cases.CASES["near_memory"]))
        for dtype, by in study.sizes.items()
        for count, one in by.items()
    ]  # fmt: skip
    columns = [
        text("precision"), number("tokens", "tokens of an update"), number("lamb", "LAMB", format_=".1%"),
        *(times_faster(f"rate{rate}", f"step, arithmetic at {rate}x bandwidth")
          for rate in cases.CASES["near_memory"]),
    ]  # fmt: skip
    return Table(columns, rows, "What an optimizer beside the memory banks would buy")


def _near_words(study: BertStudy) -> list[Part]:
    ranks = max(study.replicas[cases.MIXED])
    one = study.replicas[cases.MIXED][ranks]
    saved = cases.reduced_traffic(one, ranks)
    memory = study.machine.memory
    free = saved / memory.bandwidth / memory.copy_efficiency
    optimizer = (
        "LAMB computes a few operations per byte of state, so its time falls with the rate at which arithmetic near "
        "memory reads; norms of weights and updates still end each phase."
    )
    reductions = (
        f"A reduce-scatter of fp32 gradients over {ranks} GPUs by updates near memory moves {format_bytes(saved)} less "
        f"through each GPU's memory: {free * 1e3:.1f} ms of its bandwidth in a step of {one.seconds * 1e3:.0f} ms. "
        "They pay where other operators run beside it; alone, its links bound it."
    )
    return [optimizer, reductions]


def _row_table(study: BertStudy) -> Table:
    rows = [(one.id, one.gpu, one.gpus, one.precision, one.measured, one.weft, one.error) for one in study.rows]
    columns = [
        text("id"), text("gpu", "GPU"), number("gpus", "GPUs"), text("precision"),
        number("measured_s", "measured", "s", ",.3f"), number("weft_s", "Weft", "s", ",.3f"),
        number("error", format_="+.1%"),
    ]  # fmt: skip
    return Table(columns, rows, "Steps of phase 1 with LAMB and accumulation (NVIDIA DeepLearningExamples)")


def plain_data(study: BertStudy) -> dict[str, Any]:
    """Every step, layer and GEMM of the study as plain data, times in seconds."""
    return {
        "layers": {gpu: dict(layer.groups) for gpu, layer in study.layers.items()},
        "passes_s": dict(study.passes),
        "phases": [
            {"gpu": gpu, "dtype": dtype, "sequence": sequence, **_record(one)}
            for (gpu, dtype, sequence), one in study.phases.items()
        ],
        **{
            name: [{"dtype": dtype, "count": count, **_record(one)} for dtype, by in steps.items()
                   for count, one in by.items()]
            for name, steps in (
                ("sizes", study.sizes), ("updates", study.updates), ("replicas", study.replicas),
                ("overlapped", study.overlapped),
            )
        },
        "variants": [{"how": one.name, "dtype": one.dtype, **_record(one.broken)} for one in study.variants],
        "gemms": {dtype: _gemm_table(study, dtype).records() for dtype in study.gemms},
        "measured": [{**vars(one), "error": one.error} for one in study.rows],
    }  # fmt: skip


def _record(one: Broken) -> dict[str, Any]:
    return {"step_s": one.seconds, "groups_s": dict(one.groups), "lamb_rank": one.rank}
