"""Computation against communication: how communication's share of training grows with models and hardware.

Published: S. Pati et al., "Computation vs. Communication Scaling for Future Transformers on Future Hardware" (also
"Tale of Two Cs"), IISWC 2023, arXiv:2302.02825. Its scenarios are not listed in its abstract; those here are declared
in comp_vs_comm.toml.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from weft.core.errors import InputError
from weft.core.extensions import find_measured
from weft.core.files import data_folder
from weft.core.options import SUSTAINED
from weft.core.report import Part, Section, drop_empty
from weft.core.report.table import Table, number, text
from weft.estimate import estimate
from weft.graph import DTYPE_BYTES, Collective
from weft.hardware import System
from weft.kernels.library.software import Residual
from weft.models import Transformer, load_model
from weft.models.parallel.framework import Framework, framework
from weft.models.parallel.plan import TrainingPlan
from weft.models.scaling import all_reduce_rate, edge, share
from weft.papers.headline import Conditions, PaperStudy, StudyFigure, StudyOption, read_declaration
from weft.plan.scale import AS_PLANNED, faster
from weft.step.clock import train
from weft.step.queries import step
from weft.step.result.step import Pass, exposed_part
from weft.view import looks
from weft.view.figure import Axis, Color, Figure, Lane, curves, heat_map, scatter, timeline_bars
from weft.view.words import percent

DECLARED = read_declaration(__file__)
SEQUENTIAL = "sequential"
FRAMEWORK = "megatron-2022"
"""The framework of the scenarios: that of the paper's time, without FlashAttention."""
LAYERS = 2
"""Layers of a scenario's step; all are alike and one is shown."""
_T3_DEGREE = 32
"""Largest degree at which T3 runs in the engine: larger ones are no degree of a model that was trained."""


class ScaledLayer(NamedTuple):
    """A layer of a model on a machine with `compute` times today's rate of computing.

    `own` marks the degree and the sequence length that the model is trained with.
    """

    model: str
    year: int
    hidden: int
    sequence: int
    layers: int
    tp: int
    batch: int
    compute: float
    own: bool

    @property
    def label(self) -> str:
        """The model and its degree."""
        return f"{self.model}, TP {self.tp}"

    @property
    def machine(self) -> str:
        """The machine's rate of computing over today's, in words."""
        return f"compute {self.compute:g}x"


@dataclass(frozen=True)
class LayerShares:
    """Times of a layer in a scenario, forward and backward: `seconds`, of them `exposed` communication [s].

    `closed` is the share of communication in closed form, by the rates of the data sheet; `backward` the computing of
    the backward pass, `gradients` the all-reduce among replicas that it could hide [s].
    """

    scenario: ScaledLayer
    seconds: float
    exposed: float
    closed: float
    backward: float
    gradients: float

    @property
    def share(self) -> float:
        """Share of the layer in which computing waits for communication of tensor parallelism."""
        return self.exposed / self.seconds

    @property
    def with_gradients(self) -> float:
        """The share with what the backward pass cannot hide of the gradients' all-reduce."""
        bare = max(self.gradients - self.backward, 0.0)
        return (self.exposed + bare) / (self.seconds + bare)

    def record(self) -> dict[str, Any]:
        """Return the layer as plain data."""
        return {
            **self.scenario._asdict(),
            "seconds": self.seconds,
            "share": self.share,
            "closed_form_share": self.closed,
            "share_with_gradients": self.with_gradients,
            "gradients_over_backward": self.gradients / self.backward,
        }


class BandVariant(NamedTuple):
    """The least and the largest share of the band's scenarios if something is different."""

    what: str
    low: float
    high: float


class Reached(NamedTuple):
    """The MFU of a training step under a framework, and its step time [s]."""

    what: str
    mfu: float
    seconds: float


@dataclass(frozen=True, repr=False)
class CompVsCommStudy(PaperStudy):
    """Layers of all scenarios, their layers under methods of overlap, projections, and the sensitivity of the band."""

    DECLARED = DECLARED
    OPTIONS = (
        StudyOption(
            "--data",
            "data",
            "file",
            "DIR",
            "Measurements to project and to judge by.  [default: as 'weft validate'; without any, none]",
        ),
    )

    layers: tuple[LayerShares, ...]
    changed: Mapping[str, tuple[LayerShares, ...]]
    variants: tuple[BandVariant, ...]
    projections: Mapping[str, tuple[Any, ...]]
    megascale: tuple[Reached, ...]
    left_out: tuple[str, ...]

    @classmethod
    def simulated(cls, at: Conditions, data: str | Path | None = None) -> dict[str, Any]:
        """Time every scenario, project the measured rows of `data` (None: where `weft validate` looks).

        Raises InputError for a folder that is named and cannot be used.
        """
        layers, left_out = _time_layers(scenarios(), at)
        base = [one.scenario for one in layers if one.scenario.own]
        return {
            "layers": layers,
            "left_out": left_out,
            "changed": {method: _change_layers(base, method, at) for method in DECLARED.cases["overlaps"]},
            "variants": tuple(_variants(base, at)),
            "projections": _projections(data),
            "megascale": tuple(_megascale()),
        }

    def band(self) -> list[LayerShares]:
        """Return the scenarios of the published band: 2 to 4 times the compute, models at their own degrees."""
        return _band(self.layers)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is not measured, and what was left out."""
        unmeasured = (
            ()
            if self.projections
            else ("no measurements were found, so that nothing is projected and judged; --data DIR names some",)
        )
        return (*unmeasured, *self.left_out)

    def figures(self) -> Iterator[StudyFigure]:
        """Yield the band, errors of the projections, the profiling saved, and what overlap is worth to MegaScale."""
        band = self.band()
        shares = [one.share for one in band]
        words = {"count": len(band)}
        yield StudyFigure("comm_share.low", min(shares), words)
        yield StudyFigure("comm_share.high", max(shares), words)
        today = [one.share for one in self.layers if one.scenario.own and one.scenario.compute == 1]
        yield StudyFigure("comm_share.today", max(today))
        most = max(DECLARED.cases["compute"])
        late = [one for one in self.layers if one.scenario.own and one.scenario.compute == most]
        over = max(one.gradients / one.backward for one in late)
        yield StudyFigure("comm_share.overlapped", over, {"times": most})
        for kind, found in self.projections.items():
            yield _projected_figure(f"{kind}_projection.error", found)
        if self.projections:
            yield StudyFigure("profiling.saved", self.saved_share, {"count": len(self._today)}, always=True)
        first, *_, last = self.megascale
        yield StudyFigure("megascale.overlap", last.mfu - first.mfu, always=True)

    @property
    def _today(self) -> list[LayerShares]:
        return [one for one in self.layers if one.scenario.compute == 1]

    @property
    def saved_share(self) -> float:
        """GPU time of one layer of every scenario on today's machine, over that of the baseline's rows.

        The rows are those of the slowest machine for each operator.
        """
        every = sum(one.seconds * one.scenario.tp for one in self._today)
        profiled = [found for kind, found in self.projections.items() if kind != _PARTIAL]
        rows = (max(float(one.baseline.measured.sum()) for one in found) for found in profiled)
        return every / sum(rows)

    def own(self) -> dict[str, Any]:
        """Return every scenario, method, variant and projection as plain data."""
        return {
            "scenarios": [one.record() for one in self.layers],
            "methods": {name: [one.record() for one in found] for name, found in self.changed.items()},
            "sensitivity": [one._asdict() for one in self.variants],
            "projections": [
                {
                    "operator": kind,
                    "machine": one.unseen.machine,
                    "baseline_rows": len(one.baseline),
                    "rows": len(one.unseen),
                    "mean": one.errors.mean_abs_err,
                    "p90": one.errors.p90_abs_err,
                    "scaled": one.scaling.mean_abs_err,
                }
                for kind, found in self.projections.items()
                for one in found
            ],
            "megascale": [one._asdict() for one in self.megascale],
        }

    @property
    def findings(self) -> list[str]:
        """The finding in one sentence, and what changes it."""
        band = [one.share for one in self.band()]
        today = [one.share for one in self.layers if one.scenario.own and one.scenario.compute == 1]
        lead = (
            f"Communication takes {percent(min(today))} to {percent(max(today))} of a training layer on today's "
            f"machine, and {percent(min(band))} to {percent(max(band))} if computing becomes 2 to 4 times faster and "
            "links do not"
        )
        left = self._remaining_shares()
        times = max(most for most, _, _ in left.values())
        said = [f"{percent(low)} to {percent(high)} with {_WORDS[name]}" for name, (_, low, high) in left.items()]
        return [lead, f"With {times:g} times the compute, still exposed are {', '.join(said)}"]

    def _remaining_shares(self) -> dict[str, tuple[float, float, float]]:
        """By method: the largest compute that was run, and the least and largest share there."""
        found = {}
        for name, layers in self.changed.items():
            most = max(one.scenario.compute for one in layers)
            shares = [one.share for one in layers if one.scenario.compute == most]
            found[name] = (most, min(shares), max(shares))
        return found

    @property
    def today(self) -> list[LayerShares]:
        """The layers of models at their own degrees on every machine."""
        return [one for one in self.layers if one.scenario.own]

    @property
    def models(self) -> list[tuple[Any, ...]]:
        """Each model at its own degree: its sizes, and shares as computing grows faster than links."""
        by_label: dict[tuple[str, int], list[LayerShares]] = {}
        for one in self.today:
            by_label.setdefault((one.scenario.label, one.scenario.batch), []).append(one)
        rows = []
        for (label, batch), found in by_label.items():
            first, last = found[0].scenario, found[-1]
            sizes = first.year, first.hidden, first.sequence, batch
            shares = (one.share for one in found)
            rows.append((label, *sizes, *shares, last.closed, last.gradients / last.backward))
        return rows

    @property
    def projection_rows(self) -> list[tuple[Any, ...]]:
        """Rows and errors of the operators that were projected from one baseline."""
        return [
            (
                _KINDS[kind],
                one.unseen.machine,
                len(one.baseline),
                len(one.unseen),
                one.errors.mean_abs_err,
                one.errors.p90_abs_err,
                one.scaling.mean_abs_err,
            )
            for kind, found in self.projections.items()
            for one in found
        ]

    @property
    def overlap_rows(self) -> list[tuple[Any, ...]]:
        """MegaScale's steps: time, MFU, and the points of it that each overlap adds."""
        first = self.megascale[0].mfu
        return [(one.what, one.seconds, one.mfu, 100 * (one.mfu - first)) for one in self.megascale]

    @property
    def compute(self) -> Sequence[int]:
        """Rates of computing of the scenarios' machines over today's."""
        factors: Sequence[int] = DECLARED.cases["compute"]
        return factors

    @property
    def lead(self) -> str:
        """What was run."""
        return (
            f"{len(self.layers)} scenarios: layers of {len(DECLARED.cases['models'])} models from 2019 to 2030, with "
            f"{', '.join(map(str, DECLARED.cases['compute']))} times the compute of {self.where} and its links."
        )

    @property
    def single(self) -> list[LayerShares]:
        """The layers of one sequence per micro-batch."""
        least = min(one.scenario.batch for one in self.layers)
        return [one for one in self.layers if one.scenario.batch == least]

    @property
    def largest(self) -> list[LayerShares]:
        """Each model at the largest of its own degrees, of one sequence."""
        every = [one for one in self.single if one.scenario.own]
        degree = {model: max(tps) for model, *_, tps in DECLARED.cases["models"]}
        return [one for one in every if one.scenario.tp == degree[one.scenario.model]]

    @property
    def cells(self) -> Iterator[tuple[Any, ...]]:
        """The share over degrees and machines of each model, at its own length and of one sequence."""
        length = {one.scenario.model: one.scenario.sequence for one in self.today}
        for one in sorted(self.single, key=lambda one: one.scenario.hidden):
            case = one.scenario
            if case.sequence == length[case.model]:
                name = f"{case.model} ({case.hidden:,} hidden)"
                yield name, case.compute, case.tp, one.share, "yes" if case.own else "no"

    @property
    def unseen(self) -> Iterator[tuple[Any, ...]]:
        """Projected and measured time [us] of every row that a baseline has not seen, and their ratio."""
        for kind, found in self.projections.items():
            for one in found:
                for projected, measured in zip(one.seconds.tolist(), one.unseen.measured.tolist(), strict=True):
                    name = f"{kind}: {one.unseen.machine}"
                    yield name, projected * 1e6, measured * 1e6, projected / measured

    @property
    def exposed_rows(self) -> Iterator[tuple[Any, ...]]:
        """The share under each method on the fastest machine, of one sequence."""
        every = {SEQUENTIAL: self.today, **self.changed}
        most = max(one.scenario.compute for one in self.changed.get("t3-mca", self.today))
        least = min(one.scenario.batch for one in self.today)
        for method, found in every.items():
            for one in found:
                if one.scenario.batch == least and one.scenario.compute == most:
                    yield one.scenario.label, _WORDS[method], one.scenario.machine, 0.0, one.share

    def tables(self) -> list[Table]:
        """Return the tables of the terminal."""
        return drop_empty(self._models_table(), self._projected_table())

    def sections(self, watched: Any = None) -> list[Part]:
        """Return the sections of the page."""
        return [
            Section("How the share grows with machines", drop_empty(self._curves_figure())),
            Section("Where it is large", drop_empty(self._map_figure())),
            Section("What the model alone says", drop_empty(self._closed_figure())),
            Section("Projected from one baseline", drop_empty(self._projection_figure(), self._projected_table())),
            Section("What overlap, T3 and in-network reduction change", drop_empty(self._change_figure())),
            Section("What the band depends on", drop_empty(self._variants_table())),
            Section("MegaScale's overlap", drop_empty(self._megascale_table())),
            Section("Every model at its own degree", drop_empty(self._models_table())),
        ]

    def _models_table(self) -> Table:
        columns = [
            text("model"), number("year", format_="d"), number("hidden"), number("sequence"), number("batch"),
            *(number(f"share_{name}", f"{name}x compute", format_=".0%") for name in self.compute),
            number("closed", f"closed form, {self.compute[2]}x", format_=".0%"),
            number("gradients", f"gradients over backward, {self.compute[2]}x", format_=".0%"),
        ]  # fmt: skip
        rows = self.models
        return Table(columns, rows, f"Share of a layer in which computing waits for all-reduces, on {self.where}")

    def _projected_table(self) -> Table:
        columns = [
            text("operator"), text("machine"), number("baseline", "rows of the baseline"),
            number("rows", "rows not seen"), number("mean", "mean error", format_=".1%"), number("p90", format_=".1%"),
            number("scaled", "scaling by work", format_=".1%"),
        ]  # fmt: skip
        rows = list(self.projection_rows)
        return Table(columns, rows, "Operators projected from one baseline, on measured rows that it has not seen")

    def _variants_table(self) -> Table:
        columns = [
            text("what", "what is different"), number("low", "least share", format_=".0%"),
            number("high", "largest share", format_=".0%"),
        ]  # fmt: skip
        rows = [(one.what, one.low, one.high) for one in self.variants]
        return Table(columns, rows, "The band, 2 to 4 times the compute, if something is different")

    def _megascale_table(self) -> Table:
        columns = [
            text("what", "overlapped"), number("seconds", "step", "s", ".2f"), number("mfu", "MFU", format_=".1%"),
            number("points", "more", "points", "+.1f"),
        ]  # fmt: skip
        rows = list(self.overlap_rows)
        return Table(columns, rows, "A step of 175B on 256 A100 (published: +2.2, +2.5 and +1.5 points, 6.2 in all)")

    def _curves_figure(self) -> Figure:
        columns = [
            text("label", "model"), number("compute", "compute over today's, links as today", format_="g"),
            number("share", "share of communication", format_=".0%"),
        ]  # fmt: skip
        table = Table(columns, [(one.scenario.label, one.scenario.compute, one.share) for one in self.largest])
        return curves(
            "Share of a layer in which computing waits for communication", table,
            x=Axis("compute", log=True, ticks=sorted(table.distinct("compute"))), y=Axis("share", percent=True),
            color=Color("label"),
        ).with_caption("One sequence per micro-batch, forward and backward pass, nothing hidden.")  # fmt: skip

    def _map_figure(self) -> Figure:
        columns = [
            text("model"), number("compute", "rate of computing, times today's"), number("tp", "GPUs per layer"),
            number("share", "share of communication", format_=".0%"), text("own", "its own degree"),
        ]  # fmt: skip
        table = Table(columns, list(self.cells))
        return heat_map(
            "Share of communication by model, degree and machine", table, x="compute", y="tp", value="share",
            facet="model",
        )  # fmt: skip

    def _closed_figure(self) -> Figure:
        columns = [
            text("machine"), text("label", "model"), number("batch"), number("closed", "closed form", format_=".0%"),
            number("share", "operator by operator", format_=".0%"),
        ]  # fmt: skip
        rows = [
            (one.scenario.machine, one.scenario.label, one.scenario.batch, one.closed, one.share) for one in self.today
        ]
        table = Table(columns, rows)
        return scatter(
            "Share of communication: the model alone, by the data sheet's rates, and operator by operator", table,
            x="closed", y=Axis("share", percent=True), facet="machine",
        ).with_caption(
            "The closed form, 1 / (1 + edge x link rate / peak FLOP/s), knows neither achieved rates nor "
            "operators that move data; it orders scenarios roughly, and overstates the share."
        )  # fmt: skip

    def _projection_figure(self) -> Figure:
        columns = [
            text("subject"), number("projected", "projected", "µs", ".4g"), number("measured", "measured", "µs", ".4g"),
            number("ratio", "projected / measured", format_=".3f"),
        ]  # fmt: skip
        table = Table(columns, list(self.unseen))
        return scatter(
            "Operators projected from one baseline, on rows that it has not seen", table,
            x=Axis("measured", log=True, short=True), y=Axis("projected", log=True), facet="subject", bands=[0.3, 0.1],
        ).with_caption("Bands: 10 % and 30 % off.")  # fmt: skip

    def _change_figure(self) -> Figure:
        columns = [
            text("label", "model"), text("method"), text("machine"), number("start", " "),
            number("share", "share of communication", format_=".0%"),
        ]  # fmt: skip
        table = Table(columns, list(self.exposed_rows))
        return timeline_bars(
            "What is left exposed on the fastest machine", table, lane=Lane("label", "method"), start="start",
            end=Axis("share", percent=True), color=Color("method", looks.spread(table.distinct("method"))),
        )  # fmt: skip


_WORDS = {
    SEQUENTIAL: "nothing hidden",
    AS_PLANNED: "the framework's overlap",
    "in-network": "in-network reduction with it",
    "t3-mca": "T3-MCA with it (TP up to 32)",
}
_PARTIAL = "partial_gemm"
"""GEMMs of machines on which less than a profile of BERT-Large was measured."""
_KINDS = {"gemm": "GEMM, fp32", _PARTIAL: "GEMM, fp32, few rows", "norm": "LayerNorm, fp32", "all_reduce": "all-reduce"}
STUDY = CompVsCommStudy
run = CompVsCommStudy.run


def scenarios() -> list[ScaledLayer]:
    """Return the declared scenarios: models, degrees, lengths and batches on every machine."""
    cases, found = DECLARED.cases, []
    for name, year, hidden, sequence, layers, degrees in cases["models"]:
        further = {round(tp * times) for tp in degrees for times in cases["others"]} - {*degrees}
        every = [*degrees, *sorted(tp for tp in further if tp > 1)]
        for tp, times, batch, compute in product(every, cases["sequences"], cases["batches"], cases["compute"]):
            own = tp in degrees and times == 1
            if (own or times == 1 or tp in degrees) and (hidden // cases["head"]) % tp == 0:
                found.append(ScaledLayer(name, year, hidden, sequence * times, layers, tp, batch, compute, own))
    return found


def _band(layers: Iterable[LayerShares]) -> list[LayerShares]:
    return [one for one in layers if one.scenario.own and one.scenario.compute >= _FASTER]


_FASTER = 2
"""Rate of computing from which a scenario is of the published band."""


def _model(of: ScaledLayer) -> Transformer:
    sizes = {"hidden": of.hidden, "heads": of.hidden // DECLARED.cases["head"], "sequence_length": of.sequence}
    return load_model("gpt-3").model_copy(update={**sizes, "layers": LAYERS, "name": of.model, "title": of.model})


def _layer(
    of: ScaledLayer, on: System, method: str = SEQUENTIAL, dtype: str = "", memory: float | None = None
) -> LayerShares:
    """Time a scenario on a machine of today, made faster; InputError if its memory cannot hold an operator's data.

    As the source projects profiled operators, a layer is the sum of its kernels, without the calibration residual.
    """
    used: Framework = framework(FRAMEWORK)
    dtype = dtype or DECLARED.cases["dtype"]
    machine = faster(on.with_gpus(of.tp), of.compute, memory=memory)
    overlap = {} if method == AS_PLANNED else {"tp": method}
    plan = TrainingPlan(
        tp=of.tp, batch=of.batch, micro_batch=of.batch, sequence=of.sequence, dtype=dtype, overlap=overlap
    )
    answer = train(_model(of), machine, plan, used, SUSTAINED, "estimate", calibration=Residual())
    part = next(one for one in answer.chunks[0].parts if one.name == "dense")
    both = part.forward + part.backward
    replicas = DECLARED.cases["replicas"]
    reduced = Collective("all_reduce", part.parameters * DTYPE_BYTES[dtype], replicas, dtype)
    gradients = float(estimate(reduced, machine.with_gpus(replicas)).seconds)
    closed, backward = _closed_form(of, machine, dtype), part.backward.seconds - _exposed_share(part.backward)
    return LayerShares(of, both.seconds, _exposed_share(both), closed, backward, gradients)


def _exposed_share(of: Pass) -> float:
    return float(of.parts.get(exposed_part("tp"), 0.0))


def _closed_form(of: ScaledLayer, machine: System, dtype: str) -> float:
    flops = edge(of.hidden, of.sequence, of.tp, DTYPE_BYTES[dtype])
    return share(flops, machine.gpu.matrix_rate(dtype), all_reduce_rate(machine.gpu.link.bandwidth, of.tp))


def _time_layers(found: Sequence[ScaledLayer], at: Conditions) -> tuple[tuple[LayerShares, ...], tuple[str, ...]]:
    """Return the layers of scenarios, and a sentence on those that the machine cannot hold."""
    layers, large = [], 0
    on = System(gpu=at.gpu, gpus=1)
    for place, one in enumerate(found):
        if at.jobs.progress is not None:
            at.jobs.progress(place, len(found), one.label)
        try:
            layers.append(_layer(one, on))
        except InputError:
            if one.own:
                raise
            large += 1
    rule = f"{large} scenarios are left out: scores of attention are larger than the memory of {at.gpu.name}"
    return tuple(layers), (rule,) * bool(large)


def _change_layers(base: Sequence[ScaledLayer], method: str, at: Conditions) -> tuple[LayerShares, ...]:
    """Return the layers of scenarios under a method; T3 for one sequence, today and on the fastest machine."""
    ends = {min(DECLARED.cases["compute"]), max(DECLARED.cases["compute"])}
    some = base
    if method == "t3-mca":
        some = [one for one in base if one.tp <= _T3_DEGREE and one.batch == 1 and one.compute in ends]
    return tuple(_layer(one, System(gpu=at.gpu, gpus=1), method) for one in some)


def _variants(base: Sequence[ScaledLayer], at: Conditions) -> Iterator[BandVariant]:
    """Yield the band as declared, and when one thing is different."""
    gpu, on = at.gpu, System(gpu=at.gpu, gpus=1)
    band = [one for one in base if one.compute >= _FASTER]
    yield _variant("as declared", band, on)
    for word, times in (("faster", 1.1), ("slower", 1 / 1.1)):
        yield _variant(f"computing 10 % {word}", [one._replace(compute=one.compute * times) for one in band], on)
        values = {"link.kernel_efficiency": min(gpu.link.kernel_efficiency * times, 1.0)}
        yield _variant(f"links 10 % {word}", band, System(gpu=gpu.replace(values), gpus=1))
    yield _variant("memory no faster than today", band, on, memory=1)
    yield _variant("half as many GPUs per layer", [one._replace(tp=one.tp // 2) for one in band], on)
    longer = [one._replace(sequence=2 * one.sequence) for one in band if one.hidden < _LONGEST]
    yield _variant("twice the sequence (without 2027 and 2030)", longer, on)
    if gpu.supports("fp32"):
        yield _variant("fp32 instead of fp16", band, on, dtype="fp32")


_LONGEST = 2**16
"""Hidden size from which twice the sequence has scores that no memory holds."""


def _variant(what: str, band: Sequence[ScaledLayer], on: System, **given: Any) -> BandVariant:
    shares = [_layer(one, on, **given).share for one in band]
    return BandVariant(what, min(shares), max(shares))


def _projections(data: str | Path | None) -> dict[str, tuple[Any, ...]]:
    """The lab's projections of GEMMs, LayerNorm and all-reduces from one baseline each; empty without measurements."""
    try:
        place = data_folder(data)
    except InputError:
        if data is not None:
            raise
        return {}
    project = find_measured("projections", data)
    return project(place) if project else {}


def _projected_figure(id_: str, found: Sequence[Any]) -> StudyFigure:
    errors_of = find_measured("projection_errors")
    assert errors_of is not None
    errors, scaled = errors_of(found)
    words = {"rows": errors.rows, "p90": errors.p90_abs_err, "scaled": scaled.mean_abs_err}
    return StudyFigure(id_, errors.mean_abs_err, words, always=True)


def _megascale() -> Iterator[Reached]:
    """The step of MegaScale's ablation without overlap, and as each kind of communication is overlapped in turn."""
    case = dict(DECLARED.cases["megascale"])
    model, system = case.pop("model"), case.pop("system")
    base, done = framework("megascale-baseline"), framework("megascale")
    tensor = replace(base, tp=done.tp)
    kinds = {
        "as Megatron-LM": base,
        "and tensor parallelism": tensor,
        "and pipeline": replace(tensor, sends=done.sends),
        "and data parallelism": replace(done, optimizer=base.optimizer),
    }
    for what, used in kinds.items():
        answer = step(model, system, framework=used, fidelity="estimate", **case)
        yield Reached(what, answer.mfu, answer.seconds)
