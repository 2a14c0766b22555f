"""The BERT study: operators of BERT-Large's pre-training on five GPUs against measured layers and steps.

Published: S. Pati et al., "Demystifying BERT: System Design Implications", IISWC 2022, arXiv:2104.08335. Its body's
figures are not public; layers and steps measured by others (sitar-lab/NeuSight) take their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from weft import hardware
from weft.core.errors import InputError
from weft.core.extensions import find_measured
from weft.core.files import data_folder
from weft.core.options import RunOptions
from weft.core.report import Part, Section, drop_empty
from weft.core.report.table import Table, number, text
from weft.core.units import Dimension, format_bytes, parse
from weft.hardware import Gpu, System
from weft.models import load_model
from weft.models.parallel.framework import Framework, framework
from weft.models.parallel.plan import TrainingPlan
from weft.papers.bert.breakdown import (
    EXPOSED,
    FC,
    GELU,
    LAMB,
    LINEAR,
    NORM,
    PRECISIONS,
    PRODUCTS,
    SOFTMAX,
    Broken,
    broken_down,
)
from weft.papers.bert.gemms import BertGemm, products
from weft.papers.bert.layer import LayerSeconds, forward_and_backward, timed_layer
from weft.papers.headline import Conditions, PaperStudy, StudyFigure, StudyOption, read_declaration
from weft.view import looks
from weft.view.figure import Axis, Color, Figure, Label, Lines, bars, curves, scatter, stacked_bars

DECLARED = read_declaration(__file__)
CASES = DECLARED.cases
MODEL = load_model(CASES["model"])
TRAINER, TRACED = framework("apex-bert"), framework("hugging-face")
"""How pre-training steps and the measured layers run their operators."""
FULL, MIXED = "fp32", "fp16"
_GROUP_KEYS = {"fc": FC, "linear": LINEAR, "products": PRODUCTS, "softmax": SOFTMAX, "gelu": GELU, "norm": NORM}
"""The groups of a layer by the last word of their claims."""
BUCKET = 6_250_000
"""Parameters of a bucket of gradients: 25 MB of fp32, the default of PyTorch's DistributedDataParallel."""
FIRST, SECOND = (int(sequence) for sequence in CASES["phases"])
_SEQUENCES = CASES["phases"][str(FIRST)]
"""Sequences of a micro-batch in phase 1."""
ONE_BY_ONE, FUSED, FLASH = "operators one by one", "fused with their neighbours", "and attention in one kernel"
AGAIN, UNFUSED = "layers computed again (checkpointing)", "LAMB operation by operation"


@dataclass(frozen=True)
class MeasuredRow:
    """A measured step against Weft's: its name in the data, the GPUs, and both times [s]."""

    id: str
    gpu: str
    gpus: int
    precision: str
    measured: float
    weft: float

    @property
    def error(self) -> float:
        """Weft's time over the measured one, minus one."""
        return self.weft / self.measured - 1


LOOKS: looks.Looks = {
    "FC1 and FC2": looks.BLUE,
    "Q, K, V, projection": "#3D8FC4",
    "attention's products": looks.SKY,
    "softmax and dropout": looks.GREEN,
    "GeLU": "#66C2A5",
    "LayerNorm and sums": "#B3DE69",
    "embedding and head": looks.GREY,
    "LAMB": looks.YELLOW,
    "computed again": looks.PINK,
    "exposed all-reduce": looks.ORANGE,
}
"""Colours of the parts of a step's time."""


@dataclass(frozen=True, repr=False)
class BertStudy(PaperStudy):
    """Results of the study.

    `layers` are measured layers' operators timed one by one, `passes` forward and backward of the whole model [s] by
    GPU; `phases` the steps of all GPUs, number formats and sequences. Of the chosen machine in both number formats:
    steps over sequences of a micro-batch (`sizes`), micro-batches of an update (`updates`), and replicas (`replicas`;
    `overlapped` with gradients summed during the backward pass); `variants` are ways to run phase 1, `gemms` its GEMMs
    by number format. `rows` are measured steps.
    """

    DECLARED = DECLARED
    OPTIONS = (
        StudyOption("--data", "data", "file", "PATH", "Measured steps to set beside Weft's: a CSV file or folder."),
    )

    layers: Mapping[str, LayerSeconds]
    passes: Mapping[str, float]
    phases: tuple[Broken, ...]
    sizes: tuple[Broken, ...]
    updates: tuple[Broken, ...]
    replicas: tuple[Broken, ...]
    overlapped: tuple[Broken, ...]
    variants: tuple[Broken, ...]
    gemms: Mapping[str, tuple[BertGemm, ...]]
    rows: tuple[MeasuredRow, ...] = ()

    @classmethod
    def simulated(cls, at: Conditions, data: Path | None = None) -> dict[str, Any]:
        """Time the layers and steps in closed form; measured steps of `data`, a CSV file or folder, stand beside them.

        Raises InputError for `data` without steps.
        """
        gpus = {name: at.gpu if name == at.gpu.name else hardware.gpu(name) for name in CASES["machines"]}
        gpus[at.gpu.name] = at.gpu
        rows = measured_rows(data) if data is not None else ()
        timed = _Timing(at.options)
        alone = hardware.system(at.gpu, gpus=1)
        formats = (FULL, MIXED)
        beside = replace(TRAINER, dp_overlap=True, bucket=BUCKET)
        return {
            "layers": {name: timed.layer(gpus[name]) for name in CASES["measured"]},
            "passes": {name: timed.passes(gpus[name]) for name in CASES["measured"]},
            "phases": tuple(
                timed.step(hardware.system(gpu, gpus=1), dtype, int(sequence), count)
                for gpu in gpus.values()
                for dtype in formats
                for sequence, count in CASES["phases"].items()
            ),
            "sizes": tuple(timed.step(alone, dtype, FIRST, n) for dtype in formats for n in CASES["batches"]),
            "updates": tuple(
                timed.step(alone, dtype, FIRST, _SEQUENCES, n) for dtype in formats for n in CASES["accumulation"]
            ),
            "replicas": tuple(timed.replicas(at.gpu, formats, TRAINER)),
            "overlapped": tuple(timed.replicas(at.gpu, formats, beside)),
            "variants": tuple(timed.variants(alone)),
            "gemms": {
                dtype: products(MODEL, at.gpu, _plan(dtype, FIRST, _SEQUENCES), TRAINER, at.options)
                for dtype in formats
            },
            "rows": rows,
        }

    def measured_seconds(self, gpu: str, key: str) -> float:
        """Return the measured time of a "layer" or of a whole "step" [s]."""
        return float(parse(CASES["measured"][gpu][key], Dimension.SECONDS))

    @property
    def first(self) -> Mapping[str, Broken]:
        """Phase 1 on the chosen machine, by number format."""
        return {
            one.step.plan.dtype: one
            for one in self.phases
            if (one.step.system.gpu.name, one.step.plan.sequence) == (self.gpu, FIRST)
        }

    def figures(self) -> Iterator[StudyFigure]:
        """Yield the shares of measured layers, times of passes, and LAMB's rank and share."""
        for gpu, layer in self.layers.items():
            fixed = gpu != self.gpu
            for key, group in _GROUP_KEYS.items():
                words = {"group": group, "gpu": gpu}
                yield StudyFigure(f"bert.share.{gpu}.{key}", layer.share(group), words, like="bert.share", always=fixed)
            name = "bert.step.error" if gpu == "mi210" else f"bert.step.error.{gpu}"
            error = self.passes[gpu] / self.measured_seconds(gpu, "step") - 1
            yield StudyFigure(name, error, {"gpu": gpu}, like="bert.step", always=fixed)
        yield StudyFigure("bert.lamb.rank", self.first[FULL].rank)
        for name, dtype in (("fp32", FULL), ("mixed", MIXED)):
            yield StudyFigure(f"bert.lamb.share.{name}", self.first[dtype].share(LAMB))
        yield StudyFigure("bert.lamb.rise.tokens", _fall(self.sizes))
        yield StudyFigure("bert.lamb.rise.accumulation", _fall(self.updates))
        yield StudyFigure("bert.lamb.rise.precision", self.first[MIXED].share(LAMB) / self.first[FULL].share(LAMB))
        rate = max(CASES["near_memory"])
        yield StudyFigure("bert.near_memory", self.first[MIXED].near_memory(rate), {"rate": rate})
        plain, fused = (self.variant(name, MIXED).seconds for name in (ONE_BY_ONE, FUSED))
        yield StudyFigure("bert.fusion", plain / fused)
        if self.rows:
            mean = fmean(abs(row.error) for row in self.rows)
            yield StudyFigure("bert.lamb.error", mean, {"rows": len(self.rows)}, always=True)

    def variant(self, name: str, dtype: str) -> Broken:
        """The step of a way to run phase 1."""
        return next(one for one in self.variants if (one.way, one.step.plan.dtype) == (name, dtype))

    @property
    def findings(self) -> Sequence[str]:
        """What takes the time of phase 1, and how LAMB's share moves."""
        full, mixed = self.first[FULL], self.first[MIXED]
        place = {2: "comes second", 3: "comes third"}.get(full.rank, f"is number {full.rank}")
        most = max((one for one in self.updates if one.step.plan.dtype == MIXED), key=_updates)
        said = (
            f"On {self.where} GEMMs take {full.gemms:.0%} of a pre-training step of BERT-Large in fp32 and "
            f"LAMB {place} with {full.share(LAMB):.1%}; in mixed precision LAMB takes {mixed.share(LAMB):.0%}, after "
            f"{_updates(most)} micro-batches {most.share(LAMB):.1%}"
        )
        return (said,)

    @property
    def lead(self) -> str:
        """What was timed."""
        return (
            f"Steps of BERT-Large on {len({one.step.system.gpu.name for one in self.phases})} GPUs in closed form, "
            f"{FIRST} and {SECOND} tokens a sequence; details are for {self.where}."
        )

    def own(self) -> dict[str, Any]:
        """Return every step, layer and GEMM as plain data, times in seconds."""
        counted: Mapping[str, tuple[Sequence[Broken], Callable[[TrainingPlan], int]]] = {
            "sizes": (self.sizes, lambda plan: plan.micro_batch),
            "updates": (self.updates, lambda plan: plan.micro_batches),
            "replicas": (self.replicas, lambda plan: plan.dp),
            "overlapped": (self.overlapped, lambda plan: plan.dp),
        }
        return {
            "layers": {gpu: dict(layer.groups) for gpu, layer in self.layers.items()},
            "passes_s": dict(self.passes),
            "phases": [
                {
                    "gpu": one.step.system.gpu.name,
                    "dtype": one.step.plan.dtype,
                    "sequence": one.step.plan.sequence,
                    **one.record(),
                }
                for one in self.phases
            ],
            **{
                name: [{"dtype": one.step.plan.dtype, "count": count(one.step.plan), **one.record()} for one in steps]
                for name, (steps, count) in counted.items()
            },
            "variants": [{"how": one.way, "dtype": one.step.plan.dtype, **one.record()} for one in self.variants],
            "gemms": {dtype: table.records() for dtype, table in zip(self.gemms, self.gemm_tables, strict=True)},
            "measured": [{**vars(one), "error": one.error} for one in self.rows],
        }

    @property
    def phase_bars(self) -> Iterator[tuple[Any, ...]]:
        """Every step of both phases as a bar of shares: step, group, share, and the step's time."""
        for one in self.phases:
            lane = f"{one.step.plan.sequence}, {one.precision}, {one.step.system.gpu.name}"
            for name, seconds in one.groups.items():
                yield lane, name, seconds / one.seconds, f"{one.seconds * 1e3:.0f} ms"

    @property
    def layer_shares(self) -> Iterator[tuple[Any, ...]]:
        """Groups of the measured layers: layer and group, group, and share."""
        for gpu, layer in self.layers.items():
            yield from ((f"{gpu}: {group}", group, layer.share(group)) for group in _GROUP_KEYS.values())

    @property
    def measured_shares(self) -> Iterator[tuple[Any, ...]]:
        """The measured share of each group in a layer."""
        for gpu in self.layers:
            for key, group in _GROUP_KEYS.items():
                yield f"{gpu}: {group}", DECLARED.claims[f"bert.share.{gpu}.{key}"].published, "measured"

    @property
    def layer_times(self) -> Iterator[tuple[Any, ...]]:
        """Measured and predicted times of a layer and of the whole model [ms], and the latter's error."""
        for gpu, layer in self.layers.items():
            each, whole = (self.measured_seconds(gpu, key) for key in ("layer", "step"))
            passes = self.passes[gpu]
            yield gpu, each * 1e3, layer.seconds * 1e3, whole * 1e3, passes * 1e3, passes / whole - 1

    @property
    def every_gemm(self) -> Iterator[tuple[Any, ...]]:
        """GEMMs in both number formats: by intensity and rate."""
        for dtype, every in self.gemms.items():
            for one in every:
                yield PRECISIONS[dtype], one.name, one.phase, one.intensity, one.efficiency, one.bound

    @property
    def gemm_tables(self) -> list[Table]:
        """The GEMMs of phase 1, a table for each number format."""
        return [self._gemms_table(PRECISIONS[dtype], products) for dtype, products in self.gemms.items()]

    @property
    def variant_rows(self) -> Iterator[tuple[Any, ...]]:
        """Ways to run phase 1: time, speedup over operators one by one, and shares of LAMB and GEMMs."""
        for one in self.variants:
            faster = self.variant(ONE_BY_ONE, one.step.plan.dtype).seconds / one.seconds
            yield one.way, one.precision, one.seconds * 1e3, faster, one.share(LAMB), one.gemms

    @property
    def variant_bars(self) -> Iterator[tuple[Any, ...]]:
        """Ways to run phase 1 as stacks of groups [ms]."""
        for one in self.variants:
            for group, seconds in one.groups.items():
                yield f"{one.precision}, {one.way}", group, seconds * 1e3, f"{one.seconds * 1e3:.0f} ms"

    @property
    def replica_shares(self) -> Iterator[tuple[Any, ...]]:
        """Shares of LAMB and of the exposed all-reduce over replicas."""
        for one in self.replicas:
            yield from ((f"{name}, {one.precision}", one.step.plan.dp, one.share(name)) for name in (LAMB, EXPOSED))

    @property
    def replica_rows(self) -> Iterator[tuple[Any, ...]]:
        """Steps of replicas: time, shares, and weak-scaling efficiency, with gradients summed after and beside."""
        alone = {one.precision: one.seconds for one in self.replicas if one.step.plan.dp == 1}
        for one, beside in zip(self.replicas, self.overlapped, strict=True):
            first = alone[one.precision]
            shares = one.share(EXPOSED), one.share(LAMB)
            ends = first / one.seconds, first / beside.seconds
            yield one.step.plan.dp, one.precision, one.seconds * 1e3, *shares, *ends

    @property
    def rates(self) -> Sequence[int]:
        """Rates of arithmetic near memory over the host's bandwidth."""
        rates: Sequence[int] = CASES["near_memory"]
        return rates

    @property
    def reductions(self) -> str:
        """What updates near memory would save the reduce-scatter of gradients, in words."""
        most = max((one for one in self.replicas if one.step.plan.dtype == MIXED), key=lambda one: one.step.plan.dp)
        ranks, memory = most.step.plan.dp, self.machine.memory
        saved = most.reduced_traffic(ranks)
        free = saved / memory.bandwidth / memory.copy_efficiency
        return (
            f"A reduce-scatter of fp32 gradients over {ranks} GPUs by updates near memory moves {format_bytes(saved)} "
            f"less through each GPU's memory: {free * 1e3:.1f} ms of its bandwidth in a step of "
            f"{most.seconds * 1e3:.0f} ms. They pay where other operators run beside it; alone, its links bound it."
        )

    def tables(self) -> list[Table]:
        """Return the tables of the terminal."""
        return drop_empty(self._phases_table(), self._variants_table())

    def sections(self, watched: Any = None) -> list[Part]:
        """Return the sections of the page."""
        return [
            Section("Where a step goes", drop_empty(self._steps_figure(), self._phases_table())),
            Section("A layer, measured and timed by Weft", drop_empty(self._layers_figure(), self._layers_table())),
            Section(
                "LAMB's share falls with tokens and rises with precision",
                drop_empty(
                    self._tokens_figure(),
                    self._updates_figure(),
                ),
            ),
            Section("GEMMs are not alike", drop_empty(self._gemms_figure(), *self.gemm_tables)),
            Section("Fusion and checkpointing", drop_empty(self._variants_figure(), self._variants_table())),
            Section("Data parallelism", drop_empty(self._replicas_figure(), self._replicas_table())),
            Section(
                "Optimizer and reductions near memory",
                drop_empty(
                    self._near_memory_table(),
                    "LAMB computes a few operations per byte of state, so its time falls with the rate at which "
                    "arithmetic near memory reads; norms of weights and updates still end each phase.",
                    self.reductions,
                ),
            ),
            Section("Measured steps", drop_empty(self._rows_table())),
        ]

    def _phases_table(self) -> Table:
        columns = [
            text("gpu", "GPU"), text("precision"), number("sequence"), number("sequences"),
            number("step_ms", "step", "ms", ",.1f"), number("gemms", "GEMMs", format_=".1%"),
            number("softmax", "softmax and dropout", format_=".1%"),
            number("norm", "GeLU, LayerNorm, sums", format_=".1%"), number("lamb", "LAMB", format_=".1%"),
            number("rank", "LAMB's rank"),
        ]  # fmt: skip
        rows = [
            (one.step.system.gpu.name, one.precision, one.step.plan.sequence, one.step.plan.micro_batch,
             one.seconds * 1e3, one.gemms, one.share("softmax and dropout"), one.share("GeLU", "LayerNorm and sums"),
             one.share("LAMB"), one.rank)
            for one in self.phases
        ]  # fmt: skip
        return Table(columns, rows, "A step of one micro-batch and an update, operators one by one")

    def _layers_table(self) -> Table:
        columns = [
            text("gpu", "GPU"), number("layer_measured_ms", "layer, measured", "ms", ".2f"),
            number("layer_ms", "layer, Weft", "ms", ".2f"), number("model_measured_ms", "model, measured", "ms", ".1f"),
            number("model_ms", "model, Weft", "ms", ".1f"), number("error", format_="+.1%"),
        ]  # fmt: skip
        rows = list(self.layer_times)
        return Table(columns, rows, "A layer, operators one by one, and the whole model, kernels back to back")

    def _gemms_table(self, precision: str, products: Sequence[BertGemm]) -> Table:
        columns = [
            text("gemm", "GEMM"), text("phase", "pass"), number("m", "M"), number("n", "N"), number("k", "K"),
            number("batch"), number("intensity", unit="FLOP/B", format_=".0f"), text("bound"),
            number("time_us", "time", "µs", ",.0f"), number("tflops", "TFLOP/s", format_=".1f"),
            number("efficiency", "of peak", format_=".0%"),
        ]  # fmt: skip
        rows = [
            (one.name, one.phase, one.op.m, one.op.n, one.op.k, one.op.batch, one.intensity, one.bound,
             one.seconds * 1e6, one.rate / 1e12, one.efficiency)
            for one in products
        ]  # fmt: skip
        return Table(columns, rows, f"GEMMs of phase 1 on {self.where}, {precision}")

    def _variants_table(self) -> Table:
        columns = [
            text("how"), text("precision"), number("step_ms", "step", "ms", ",.1f"), number("speedup", format_=".3f"),
            number("lamb", "LAMB", format_=".1%"), number("gemms", "GEMMs", format_=".1%"),
        ]  # fmt: skip
        rows = list(self.variant_rows)
        return Table(columns, rows, "Ways to run a step of phase 1 (sequence 128, 32 sequences, one update)")

    def _replicas_table(self) -> Table:
        columns = [
            number("gpus", "GPUs"), text("precision"), number("step_ms", "step", "ms", ",.1f"),
            number("exposed", "all-reduce of gradients", format_=".1%"), number("lamb", "LAMB", format_=".1%"),
            number("efficiency", "weak-scaling efficiency", format_=".1%"),
            number("overlapped", "with sums beside the backward pass, nothing shared", format_=".1%"),
        ]  # fmt: skip
        rows = list(self.replica_rows)
        title = f"Data parallelism on {self.where}: 32 sequences of 128 tokens each, then an update"
        return Table(columns, rows, title)

    def _near_memory_table(self) -> Table:
        columns = [
            text("precision"), number("tokens", "tokens of an update"), number("lamb", "LAMB", format_=".1%"),
            *(number(f"rate{name}", f"step, arithmetic at {name}x bandwidth", format_=".3f") for name in self.rates),
        ]  # fmt: skip
        rows = [
            (one.precision, one.tokens, one.share("LAMB"), *(one.near_memory(name) for name in self.rates))
            for one in self.sizes
        ]
        return Table(columns, rows, "What an optimizer beside the memory banks would buy")

    def _rows_table(self) -> Table:
        columns = [
            text("id"), text("gpu", "GPU"), number("gpus", "GPUs"), text("precision"),
            number("measured_s", "measured", "s", ",.3f"), number("weft_s", "Weft", "s", ",.3f"),
            number("error", format_="+.1%"),
        ]  # fmt: skip
        rows = [(one.id, one.gpu, one.gpus, one.precision, one.measured, one.weft, one.error) for one in self.rows]
        return Table(columns, rows, "Steps of phase 1 with LAMB and accumulation (NVIDIA DeepLearningExamples)")

    def _steps_figure(self) -> Figure:
        columns = [text("step"), text("group"), number("share", format_=".1%"), text("time")]
        table = Table(columns, list(self.phase_bars))
        return stacked_bars(
            "Where a step goes", table, lane="step", value="share", color=Color("group", LOOKS), share=True,
            over=[Label("time")],
        ).with_caption(
            "Steps of 4096 tokens: tokens of a sequence, precision, GPU. Faster matrix units leave more of the "
            "step to operators that memory bounds, LAMB first; longer sequences to the softmax. It includes "
            "scale, mask and dropout of the scores, LayerNorm the dropout and sum before it, the head the loss."
        )  # fmt: skip

    def _layers_figure(self) -> Figure:
        columns = [text("lane", "layer"), text("group"), number("share", "share of the layer", format_=".1%")]
        table = Table(columns, list(self.layer_shares))
        marked = [text("lane"), number("share", "measured", format_=".1%"), text("what")]
        marks = Table(marked, list(self.measured_shares))
        return bars(
            "Shares of a layer", table, lane="lane", end=Axis("share", percent=True), color=Color("group", LOOKS),
            over=[Lines(marks, "share", "what", "lane") if marks.rows else None],
        ).with_caption(
            "Bars: Weft; circles: measured (sitar-lab/NeuSight). fp32, 512 tokens, 8 sequences, forward and "
            "backward, every operator of PyTorch timed from its launch on an idle GPU to its end."
        )  # fmt: skip

    def _tokens_figure(self) -> Figure:
        columns = [
            text("precision"), number("tokens", "tokens of an update"), number("share", "LAMB's share", format_=".1%"),
            number("step_ms", "step", "ms", ",.1f"),
        ]  # fmt: skip
        rows = [(one.precision, one.tokens, one.share("LAMB"), one.seconds * 1e3) for one in self.sizes]
        table = Table(columns, rows)
        return curves(
            "LAMB against the tokens of a micro-batch", table,
            x=Axis("tokens", log=True, labels="format(datum.value, ',')"), y=Axis("share", percent=True),
            color=Color("precision"),
        ).with_caption(
            "An update after each micro-batch: LAMB's time is constant, all else grows with the tokens."
        )  # fmt: skip

    def _updates_figure(self) -> Figure:
        columns = [
            text("precision"), number("tokens", "tokens of an update"), number("share", "LAMB's share", format_=".1%"),
            number("step_ms", "step", "ms", ",.1f"),
        ]  # fmt: skip
        rows = [(one.precision, one.tokens, one.share("LAMB"), one.seconds * 1e3) for one in self.updates]
        table = Table(columns, rows)
        return curves(
            "LAMB against accumulation, 32 sequences a micro-batch", table,
            x=Axis("tokens", log=True, labels="format(datum.value, ',')"), y=Axis("share", percent=True),
            color=Color("precision"),
        ).with_caption("The same, with the micro-batch fixed and an update after several.")  # fmt: skip

    def _gemms_figure(self) -> Figure:
        columns = [
            text("precision"), text("gemm", "GEMM"), text("phase", "pass"),
            number("intensity", "arithmetic intensity", "FLOP/B", ".3g"),
            number("efficiency", "share of the peak rate", format_=".0%"), text("bound"),
        ]  # fmt: skip
        table = Table(columns, list(self.every_gemm))
        return scatter(
            "GEMMs by intensity and rate", table, x=Axis("intensity", log=True, short=True),
            y=Axis("efficiency", percent=True), color=Color("bound", looks.spread(table.distinct("bound"))),
            facet="precision",
        ).with_caption(
            "Each dot a GEMM of a layer or the head, forward or a gradient. Those of attention do a tenth of the "
            "work per byte and wait for memory or cache; gradients of small weights fill the GPU badly."
        )  # fmt: skip

    def _variants_figure(self) -> Figure:
        columns = [text("how"), text("group"), number("time_ms", "time", "ms", ".1f"), text("whole")]
        table = Table(columns, list(self.variant_bars))
        return stacked_bars(
            "Ways to run phase 1", table, lane="how", value="time_ms", color=Color("group", LOOKS),
            over=[Label("whole")],
        ).with_caption(
            "Fused: softmax with scale and mask, bias with GeLU, bias with dropout and sum, Q, K and V as one "
            "GEMM. Fusing removes trips to memory, so it gains more where matrix units are faster; checkpointing "
            "repeats every forward pass. The last two ways change the first alone."
        )  # fmt: skip

    def _replicas_figure(self) -> Figure:
        columns = [text("what"), number("gpus", "GPUs"), number("share", "share of the step", format_=".1%")]
        table = Table(columns, list(self.replica_shares))
        return curves(
            f"Replicas of {self.gpu}, 32 sequences each", table, x=Axis("gpus", log=True),
            y=Axis("share", percent=True), color=Color("what"),
        ).with_caption(
            "Gradients are summed after the backward pass, as in the trainer; an update after each micro-batch "
            "is the worst case, and accumulation divides both shares alike. Beside the backward pass they travel "
            "in buckets of 25 MB, whose latency costs more than they hide where rings are long."
        )  # fmt: skip


STUDY = BertStudy
run = BertStudy.run


def measured_rows(place: str | Path) -> tuple[MeasuredRow, ...]:
    """Measured steps of BERT-Large with LAMB in phase 1; phase 2 runs on shorter sequences than its name says.

    Raises InputError for a file or folder without such steps, and for a row that cannot be predicted.
    """
    measured_steps = find_measured("measured_steps", place)
    assert measured_steps is not None
    found = measured_steps(data_folder(place), _APEX, FIRST)
    if not found:
        raise InputError(
            f"'{place}' has no steps of BERT-Large with LAMB on {FIRST} tokens (framework '{_APEX} ...'); leave out "
            "--data, or name a file that has"
        )
    return tuple(MeasuredRow(*row) for row in found)


_APEX = "PyTorch 21.11, apex"
"""What the rows of NVIDIA's BERT call their framework."""


@dataclass(frozen=True)
class _Timing:
    """Times steps and layers under the options of a run."""

    options: RunOptions

    def step(
        self,
        system: System,
        dtype: str,
        sequence: int,
        count: int,
        repeats: int = 1,
        how: Framework = TRAINER,
        way: str = "",
        **more: Any,
    ) -> Broken:
        """Return a step of `repeats` micro-batches of `count` sequences on every GPU of a system."""
        plan = _plan(dtype, sequence, count, repeats, dp=system.gpus, **more)
        return broken_down(MODEL, system, plan, how, self.options, way)

    def replicas(self, gpu: Gpu, formats: Sequence[str], how: Framework) -> Iterator[Broken]:
        """Steps of phase 1 on growing numbers of GPUs, each with a micro-batch of its own."""
        for dtype in formats:
            for count in CASES["replicas"]:
                yield self.step(hardware.system(gpu, gpus=count), dtype, FIRST, _SEQUENCES, how=how)

    def layer(self, gpu: Gpu) -> LayerSeconds:
        """Return the measured layer, operators timed one by one."""
        call = float(parse(CASES["measured"][gpu.name]["call"], Dimension.SECONDS))
        return timed_layer(MODEL, gpu, _trace_plan(), TRACED, call, self.options)

    def passes(self, gpu: Gpu) -> float:
        """Forward and backward pass of the measured model, which predicts every token [s]."""
        model = MODEL.model_copy(update={"predicted": 1.0, "vocabulary": 30522})
        return forward_and_backward(model, hardware.system(gpu, gpus=1), _trace_plan(), TRACED, self.options)

    def variants(self, system: System) -> Iterator[Broken]:
        """Ways to run phase 1, in both number formats."""
        fused = replace(TRAINER, style=replace(TRAINER.style, fused=True, eager=False, loss="fused_cross_entropy"))
        flash = replace(fused, style=replace(fused.style, flash=True))
        unfused = replace(TRAINER, fused_optimizer=False)
        ways = {ONE_BY_ONE: TRAINER, FUSED: fused, FLASH: flash, UNFUSED: unfused}
        for dtype in (FULL, MIXED):
            for name, how in ways.items():
                yield self.step(system, dtype, FIRST, _SEQUENCES, how=how, way=name)
            yield self.step(system, dtype, FIRST, _SEQUENCES, way=AGAIN, recompute="full")


def _plan(dtype: str, sequence: int, count: int, repeats: int = 1, dp: int = 1, **more: Any) -> TrainingPlan:
    batch = count * repeats * dp
    return TrainingPlan(dp=dp, batch=batch, micro_batch=count, sequence=sequence, dtype=dtype, **more)


def _trace_plan() -> TrainingPlan:
    """Return the plan of the measured layers: gradients are added to those of earlier micro-batches."""
    return _plan(FULL, SECOND, CASES["phases"][str(SECOND)], 2)


def _updates(step: Broken) -> int:
    """Micro-batches of an update."""
    return step.step.plan.micro_batches


def _fall(steps: Sequence[Broken]) -> float:
    """LAMB's share in the smallest over that in the largest case, in fp32."""
    first, *_, last = sorted((one for one in steps if one.step.plan.dtype == FULL), key=lambda one: one.tokens)
    return first.share(LAMB) / last.share(LAMB)
