"""The BERT study: operators of BERT-Large's pre-training on five GPUs, beside measured layers and steps.

Published: S. Pati et al., "Demystifying BERT: System Design Implications", IISWC 2022, arXiv:2104.08335. Its body's
figures are not public; layers and steps measured by others (sitar-lab/NeuSight) take their place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from weft import hardware
from weft.errors import InputError
from weft.hardware import Gpu, System
from weft.options import RunOptions
from weft.parallel.framework import Framework
from weft.parallel.plan import Parallelism
from weft.report import Part
from weft.report.table import Table
from weft.studies.bert import page
from weft.studies.bert.breakdown import GEMMS, LAMB, Broken, broken_down
from weft.studies.bert.cases import (
    AGAIN,
    BUCKET,
    CASES,
    DECLARED,
    FIRST,
    FLASH,
    FULL,
    FUSED,
    GROUP_KEYS,
    MIXED,
    MODEL,
    ONE_BY_ONE,
    SECOND,
    SEQUENCES,
    TRACED,
    TRAINER,
    UNFUSED,
    Variant,
    near_memory,
)
from weft.studies.bert.gemms import Product, products
from weft.studies.bert.layer import Layer, forward_and_backward, timed_layer
from weft.studies.headline import Conditions, Measured, Option, PaperStudy
from weft.units import Dimension, parse
from weft.validation.checks import Unfit
from weft.validation.machines import Machines
from weft.validation.steps import case_of
from weft.validation.tables import data_folder, read_folder


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
    GPU; `phases` the steps by GPU, number format and sequence. Of the chosen machine: steps by sequences of a
    micro-batch (`sizes`), by micro-batches of an update (`updates`), and by replicas (`replicas`; `overlapped` with
    gradients summed beside the backward pass), each by number format; `variants` are ways to run phase 1, `gemms` its
    GEMMs by number format. `rows` are measured steps.
    """

    DECLARED = DECLARED
    OPTIONS = (Option("--data", "data", "file", "PATH", "Measured steps to set beside Weft's: a CSV file or folder."),)

    layers: Mapping[str, Layer]
    passes: Mapping[str, float]
    phases: Mapping[tuple[str, str, int], Broken]
    sizes: Mapping[str, Mapping[int, Broken]]
    updates: Mapping[str, Mapping[int, Broken]]
    replicas: Mapping[str, Mapping[int, Broken]]
    overlapped: Mapping[str, Mapping[int, Broken]]
    variants: tuple[Variant, ...]
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
        on = _On(at.options)
        one = hardware.system(at.gpu, gpus=1)
        every = (FULL, MIXED)
        return {
            "layers": {name: on.layer(gpus[name]) for name in CASES["measured"]},
            "passes": {name: on.passes(gpus[name]) for name in CASES["measured"]},
            "phases": {
                (name, dtype, int(sequence)): on.step(hardware.system(gpu, gpus=1), dtype, int(sequence), count)
                for name, gpu in gpus.items()
                for dtype in every
                for sequence, count in CASES["phases"].items()
            },
            "sizes": {d: {n: on.step(one, d, FIRST, n) for n in CASES["batches"]} for d in every},
            "updates": {d: {n: on.step(one, d, FIRST, SEQUENCES, n) for n in CASES["accumulation"]} for d in every},
            "replicas": {d: on.replicas(at.gpu, d, TRAINER) for d in every},
            "overlapped": {d: on.replicas(at.gpu, d, replace(TRAINER, dp_overlap=True, bucket=BUCKET)) for d in every},
            "variants": tuple(on.variants(one)),
            "gemms": {d: products(MODEL, at.gpu, _plan(d, FIRST, SEQUENCES), TRAINER, at.options) for d in every},
            "rows": rows,
        }

    def measured_seconds(self, gpu: str, key: str) -> float:
        """The measured time of a "layer" or of a whole "step" [s]."""
        return float(parse(CASES["measured"][gpu][key], Dimension.SECONDS))

    @property
    def first(self) -> Mapping[str, Broken]:
        """Phase 1 on the chosen machine, by number format."""
        return {dtype: self.phases[self.gpu, dtype, FIRST] for dtype in (FULL, MIXED)}

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
        yield Measured("bert.lamb.rise.tokens", _fall(self.sizes[FULL]))
        yield Measured("bert.lamb.rise.accumulation", _fall(self.updates[FULL]))
        yield Measured("bert.lamb.rise.precision", self.first[MIXED].share(LAMB) / self.first[FULL].share(LAMB))
        rate = max(CASES["near_memory"])
        yield Measured("bert.near_memory", near_memory(self.first[MIXED], rate), {"rate": rate})
        plain, fused = (self.variant(name, MIXED).seconds for name in (ONE_BY_ONE, FUSED))
        yield Measured("bert.fusion", plain / fused)
        if self.rows:
            mean = fmean(abs(row.error) for row in self.rows)
            yield Measured("bert.lamb.error", mean, {"rows": len(self.rows)}, always=True)

    def variant(self, name: str, dtype: str) -> Broken:
        """The step of a way to run phase 1."""
        return next(one.broken for one in self.variants if (one.name, one.dtype) == (name, dtype))

    @property
    def findings(self) -> Sequence[str]:
        """What takes the time of phase 1, and how LAMB's share moves."""
        full, mixed = self.first[FULL], self.first[MIXED]
        place = {2: "comes second", 3: "comes third"}.get(full.rank, f"is number {full.rank}")
        updates = self.updates[MIXED]
        said = (
            f"On {self.where} GEMMs take {full.share(*GEMMS):.0%} of a pre-training step of BERT-Large in fp32 and "
            f"LAMB {place} with {full.share(LAMB):.1%}; in mixed precision LAMB takes {mixed.share(LAMB):.0%}, after "
            f"{max(updates)} micro-batches {updates[max(updates)].share(LAMB):.1%}"
        )
        return (said,)

    def tables(self) -> list[Table]:
        """Steps by groups of operators, and ways to run phase 1."""
        return [page.phase_table(self.phases), page.variant_table(self.variants)]

    @property
    def lead(self) -> str:
        """What was timed."""
        return (
            f"Steps of BERT-Large on {len({name for name, _, _ in self.phases})} GPUs in closed form, {FIRST} and "
            f"{SECOND} tokens a sequence; details are for {self.where}."
        )

    def sections(self, watched: Any = None) -> list[Part]:
        """The study's pictures and tables."""
        return page.sections(self)

    def own(self) -> dict[str, Any]:
        """Every step, layer and GEMM as plain data."""
        return page.plain_data(self)

    def published_share(self, gpu: str, group: str) -> float | None:
        """The measured share of a group in a layer."""
        key = next(key for key, name in GROUP_KEYS.items() if name == group)
        share = DECLARED.claims[f"bert.share.{gpu}.{key}"].published
        return share if isinstance(share, float) else None


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
    seconds, on = float(row["step_time_s"]), case.system
    return MeasuredRow(name, on.gpu.name, on.gpus, str(row["precision"]), seconds, case.step.seconds)


@dataclass(frozen=True)
class _On:
    """Times steps and layers under the options of a run."""

    options: RunOptions

    def step(
        self, system: System, dtype: str, sequence: int, count: int, repeats: int = 1, how: Framework = TRAINER,
        **more: Any,
    ) -> Broken:  # fmt: skip
        """A step of `repeats` micro-batches of `count` sequences on every GPU of a system."""
        plan = _plan(dtype, sequence, count, repeats, dp=system.gpus, **more)
        return broken_down(MODEL, system, plan, how, self.options)

    def replicas(self, gpu: Gpu, dtype: str, how: Framework) -> dict[int, Broken]:
        """Steps of phase 1 by the number of GPUs, each with a micro-batch of its own."""
        systems = {count: hardware.system(gpu, gpus=count) for count in CASES["replicas"]}
        return {count: self.step(on, dtype, FIRST, SEQUENCES, how=how) for count, on in systems.items()}

    def layer(self, gpu: Gpu) -> Layer:
        """The measured layer, operators timed one by one."""
        call = float(parse(CASES["measured"][gpu.name]["call"], Dimension.SECONDS))
        return timed_layer(MODEL, gpu, _traced(), TRACED, call, self.options)

    def passes(self, gpu: Gpu) -> float:
        """Forward and backward pass of the measured model, which predicts every token [s]."""
        model = MODEL.model_copy(update={"predicted": 1.0, "vocabulary": 30522})
        return forward_and_backward(model, hardware.system(gpu, gpus=1), _traced(), TRACED, self.options)

    def variants(self, system: System) -> Iterator[Variant]:
        """Ways to run phase 1, in both number formats."""
        fused = replace(TRAINER, style=replace(TRAINER.style, fused=True, eager=False, loss="fused_cross_entropy"))
        flash = replace(fused, style=replace(fused.style, flash=True))
        unfused = replace(TRAINER, fused_optimizer=False)
        ways = {ONE_BY_ONE: TRAINER, FUSED: fused, FLASH: flash, UNFUSED: unfused}
        for dtype in (FULL, MIXED):
            for name, how in ways.items():
                yield Variant(name, dtype, self.step(system, dtype, FIRST, SEQUENCES, how=how))
            yield Variant(AGAIN, dtype, self.step(system, dtype, FIRST, SEQUENCES, recompute="full"))


def _plan(dtype: str, sequence: int, count: int, repeats: int = 1, dp: int = 1, **more: Any) -> Parallelism:
    batch = count * repeats * dp
    return Parallelism(dp=dp, batch=batch, micro_batch=count, sequence=sequence, dtype=dtype, **more)


def _traced() -> Parallelism:
    """The plan of the measured layers: gradients are added to those of earlier micro-batches."""
    return _plan(FULL, SECOND, CASES["phases"][str(SECOND)], 2)


def _fall(steps: Mapping[int, Broken]) -> float:
    """LAMB's share in the smallest over that in the largest case."""
    return steps[min(steps)].share(LAMB) / steps[max(steps)].share(LAMB)
