"""The BERT study: operators of BERT-Large's pre-training on five GPUs, beside measured layers and steps.

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
from weft.core.options import RunOptions
from weft.core.report.table import Table
from weft.core.units import Dimension, format_bytes, parse
from weft.hardware import Gpu, System
from weft.lab.checks import Unfit
from weft.lab.machines import Machines
from weft.lab.steps import case_of
from weft.lab.tables import data_folder, read_folder
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
from weft.papers.bert.gemms import Product, products
from weft.papers.bert.layer import Layer, forward_and_backward, timed_layer
from weft.papers.headline import Conditions, Measured, Option, PaperStudy, declared

DECLARED = declared(__file__)
CASES = DECLARED.cases
MODEL = load_model(CASES["model"])
TRAINER, TRACED = framework("apex-bert"), framework("hugging-face")
"""How pre-training steps and the measured layers run their operators."""
FULL, MIXED = "fp32", "fp16"
GROUP_KEYS = {"fc": FC, "linear": LINEAR, "products": PRODUCTS, "softmax": SOFTMAX, "gelu": GELU, "norm": NORM}
"""The groups of a layer by the last word of their claims."""
BUCKET = 6_250_000
"""Parameters of a bucket of gradients: 25 MB of fp32, the default of PyTorch's DistributedDataParallel."""
FIRST, SECOND = (int(sequence) for sequence in CASES["phases"])
SEQUENCES = CASES["phases"][str(FIRST)]
"""Sequences of a micro-batch in phase 1."""
ONE_BY_ONE, FUSED, FLASH = "operators one by one", "fused with their neighbours", "and attention in one kernel"
AGAIN, UNFUSED = "layers computed again (checkpointing)", "LAMB operation by operation"


@dataclass(frozen=True)
class MeasuredRow:
    """A measured step beside Weft's: its name in the data, the GPUs, and both times [s]."""

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


@dataclass(frozen=True, repr=False)
class BertStudy(PaperStudy):
    """Results of the study.

    `layers` are measured layers' operators timed one by one, `passes` forward and backward of the whole model [s] by
    GPU; `phases` the steps of all GPUs, number formats and sequences. Of the chosen machine in both number formats:
    steps over sequences of a micro-batch (`sizes`), micro-batches of an update (`updates`), and replicas (`replicas`;
    `overlapped` with gradients summed beside the backward pass); `variants` are ways to run phase 1, `gemms` its GEMMs
    by number format. `rows` are measured steps.
    """

    DECLARED = DECLARED
    OPTIONS = (Option("--data", "data", "file", "PATH", "Measured steps to set beside Weft's: a CSV file or folder."),)

    layers: Mapping[str, Layer]
    passes: Mapping[str, float]
    phases: tuple[Broken, ...]
    sizes: tuple[Broken, ...]
    updates: tuple[Broken, ...]
    replicas: tuple[Broken, ...]
    overlapped: tuple[Broken, ...]
    variants: tuple[Broken, ...]
    gemms: Mapping[str, tuple[Product, ...]]
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
                timed.step(alone, dtype, FIRST, SEQUENCES, n) for dtype in formats for n in CASES["accumulation"]
            ),
            "replicas": tuple(timed.replicas(at.gpu, formats, TRAINER)),
            "overlapped": tuple(timed.replicas(at.gpu, formats, beside)),
            "variants": tuple(timed.variants(alone)),
            "gemms": {
                dtype: products(MODEL, at.gpu, _plan(dtype, FIRST, SEQUENCES), TRAINER, at.options) for dtype in formats
            },
            "rows": rows,
        }

    def measured_seconds(self, gpu: str, key: str) -> float:
        """The measured time of a "layer" or of a whole "step" [s]."""
        return float(parse(CASES["measured"][gpu][key], Dimension.SECONDS))

    @property
    def first(self) -> Mapping[str, Broken]:
        """Phase 1 on the chosen machine, by number format."""
        return {
            one.step.plan.dtype: one
            for one in self.phases
            if (one.step.system.gpu.name, one.step.plan.sequence) == (self.gpu, FIRST)
        }

    def figures(self) -> Iterator[Measured]:
        """Shares of measured layers, times of passes, and LAMB's rank and share."""
        for gpu, layer in self.layers.items():
            fixed = gpu != self.gpu
            for key, group in GROUP_KEYS.items():
                words = {"group": group, "gpu": gpu}
                yield Measured(f"bert.share.{gpu}.{key}", layer.share(group), words, like="bert.share", always=fixed)
            name = "bert.step.error" if gpu == "mi210" else f"bert.step.error.{gpu}"
            error = self.passes[gpu] / self.measured_seconds(gpu, "step") - 1
            yield Measured(name, error, {"gpu": gpu}, like="bert.step", always=fixed)
        yield Measured("bert.lamb.rank", self.first[FULL].rank)
        for name, dtype in (("fp32", FULL), ("mixed", MIXED)):
            yield Measured(f"bert.lamb.share.{name}", self.first[dtype].share(LAMB))
        yield Measured("bert.lamb.rise.tokens", _fall(self.sizes))
        yield Measured("bert.lamb.rise.accumulation", _fall(self.updates))
        yield Measured("bert.lamb.rise.precision", self.first[MIXED].share(LAMB) / self.first[FULL].share(LAMB))
        rate = max(CASES["near_memory"])
        yield Measured("bert.near_memory", self.first[MIXED].near_memory(rate), {"rate": rate})
        plain, fused = (self.variant(name, MIXED).seconds for name in (ONE_BY_ONE, FUSED))
        yield Measured("bert.fusion", plain / fused)
        if self.rows:
            mean = fmean(abs(row.error) for row in self.rows)
            yield Measured("bert.lamb.error", mean, {"rows": len(self.rows)}, always=True)

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
        """Every step, layer and GEMM as plain data, times in seconds."""
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
            yield from ((f"{gpu}: {group}", group, layer.share(group)) for group in GROUP_KEYS.values())

    @property
    def measured_shares(self) -> Iterator[tuple[Any, ...]]:
        """The measured share of each group in a layer."""
        for gpu in self.layers:
            for key, group in GROUP_KEYS.items():
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
        return [self.table("gemms", every, precision=PRECISIONS[dtype]) for dtype, every in self.gemms.items()]

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


STUDY = BertStudy
run = BertStudy.run


def measured_rows(place: str | Path) -> tuple[MeasuredRow, ...]:
    """Measured steps of BERT-Large with LAMB in phase 1; phase 2 runs on shorter sequences than its name says.

    Raises InputError for a file or folder without such steps, and for a row that cannot be predicted.
    """
    rows = [row for file in read_folder(data_folder(place), ["step"]) for row in file.rows.to_dict("records")]
    found = [row for row in rows if row["framework"].startswith(_APEX) and row["seq_len"] == FIRST]
    if not found:
        raise InputError(
            f"'{place}' has no steps of BERT-Large with LAMB on {FIRST} tokens (framework '{_APEX} ...'); leave out "
            "--data, or name a file that has"
        )
    return tuple(map(_measured, found))


_APEX = "PyTorch 21.11, apex"
"""What the rows of NVIDIA's BERT call their framework."""


def _measured(row: Mapping[str, Any]) -> MeasuredRow:
    name = str(row["id"])
    try:
        case = case_of(row, Machines())
    except Unfit as unfit:
        column, value, rule = unfit.args
        raise InputError(f"the measured step '{name}' cannot be predicted: {column} '{value}': {rule}") from None
    seconds, system = float(row["step_time_s"]), case.system
    return MeasuredRow(name, system.gpu.name, system.gpus, str(row["precision"]), seconds, case.step.seconds)


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
        """A step of `repeats` micro-batches of `count` sequences on every GPU of a system."""
        plan = _plan(dtype, sequence, count, repeats, dp=system.gpus, **more)
        return broken_down(MODEL, system, plan, how, self.options, way)

    def replicas(self, gpu: Gpu, formats: Sequence[str], how: Framework) -> Iterator[Broken]:
        """Steps of phase 1 on growing numbers of GPUs, each with a micro-batch of its own."""
        for dtype in formats:
            for count in CASES["replicas"]:
                yield self.step(hardware.system(gpu, gpus=count), dtype, FIRST, SEQUENCES, how=how)

    def layer(self, gpu: Gpu) -> Layer:
        """The measured layer, operators timed one by one."""
        call = float(parse(CASES["measured"][gpu.name]["call"], Dimension.SECONDS))
        return timed_layer(MODEL, gpu, _traced(), TRACED, call, self.options)

    def passes(self, gpu: Gpu) -> float:
        """Forward and backward pass of the measured model, which predicts every token [s]."""
        model = MODEL.model_copy(update={"predicted": 1.0, "vocabulary": 30522})
        return forward_and_backward(model, hardware.system(gpu, gpus=1), _traced(), TRACED, self.options)

    def variants(self, system: System) -> Iterator[Broken]:
        """Ways to run phase 1, in both number formats."""
        fused = replace(TRAINER, style=replace(TRAINER.style, fused=True, eager=False, loss="fused_cross_entropy"))
        flash = replace(fused, style=replace(fused.style, flash=True))
        unfused = replace(TRAINER, fused_optimizer=False)
        ways = {ONE_BY_ONE: TRAINER, FUSED: fused, FLASH: flash, UNFUSED: unfused}
        for dtype in (FULL, MIXED):
            for name, how in ways.items():
                yield self.step(system, dtype, FIRST, SEQUENCES, how=how, way=name)
            yield self.step(system, dtype, FIRST, SEQUENCES, way=AGAIN, recompute="full")


def _plan(dtype: str, sequence: int, count: int, repeats: int = 1, dp: int = 1, **more: Any) -> TrainingPlan:
    batch = count * repeats * dp
    return TrainingPlan(dp=dp, batch=batch, micro_batch=count, sequence=sequence, dtype=dtype, **more)


def _traced() -> TrainingPlan:
    """The plan of the measured layers: gradients are added to those of earlier micro-batches."""
    return _plan(FULL, SECOND, CASES["phases"][str(SECOND)], 2)


def _updates(step: Broken) -> int:
    """Micro-batches of an update."""
    return step.step.plan.micro_batches


def _fall(steps: Sequence[Broken]) -> float:
    """LAMB's share in the smallest over that in the largest case, in fp32."""
    first, *_, last = sorted((one for one in steps if one.step.plan.dtype == FULL), key=lambda one: one.tokens)
    return first.share(LAMB) / last.share(LAMB)
