"""The JIT-Q study: capacity saved by encoding weights inside memory, and the throughput that it costs.

Published: M. Ibrahim, S. Aga, A. Li, S. Pati, M. Islam, "Just-in-time Quantization with Processing-In-Memory for
Efficient ML Training", MLSys 2024, arXiv:2311.05034.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft import hardware
from weft.core.errors import check_name
from weft.core.report import Part, Section, drop_empty
from weft.core.report.table import Table, number, text
from weft.estimate import pim as closed
from weft.hardware import Gpu
from weft.hardware.pim import Pim, pim
from weft.kernels.formats import FORMATS
from weft.models import load_model
from weft.papers.headline import MODELS, Conditions, PaperStudy, StudyFigure, StudyOption, read_declaration
from weft.papers.jit_q.layers import LayerCase, cases, met
from weft.simulate.pim import ChannelRun
from weft.sweep.tasks import Progress
from weft.view.figure import Axis, Color, Figure, Level, curves
from weft.view.pim import banks_over_time

DECLARED = read_declaration(__file__)
LAYERS = 96
"""Layers of GPT-3, for the buffer of two."""


@dataclass(frozen=True)
class ParameterState:
    """What is kept for each parameter: bytes of weights, moments and gradients, and the copies by format."""

    about: str
    bytes: float
    copies: tuple[str, ...]

    @property
    def copied_bytes(self) -> float:
        """Bytes of the copies for each parameter."""
        return sum(FORMATS[name].bits / 8 for name in self.copies)

    @property
    def saved(self) -> float:
        """Share of all that is saved where copies are made just in time."""
        return self.copied_bytes / (self.bytes + self.copied_bytes)

    def buffered_share(self, layers: int = LAYERS) -> float:
        """Return the same where a buffer of two layers' copies remains."""
        return self.saved * (1 - 2 / layers)


STATES = tuple(ParameterState(**state) for state in DECLARED.cases["states"])
"""What may be kept; the first is the bar's."""


@dataclass(frozen=True, repr=False)
class JitQStudy(PaperStudy):
    """Results of the study: a case for each GPU, model, number of tokens and instruction set."""

    DECLARED = DECLARED
    OPTIONS = (
        MODELS,
        StudyOption("--tokens", "tokens", "numbers", "1024,4096", "Tokens of a GPU and step.  [default: 1024 to 8192]"),
    )

    cases: tuple[LayerCase, ...]
    judged: int

    @classmethod
    def simulated(
        cls, at: Conditions, models: Iterable[str] | None = None, tokens: Iterable[int] | None = None
    ) -> dict[str, Any]:
        """Let GEMMs and commands of every model and number of tokens meet on the GPU; on the declared one also MI300X.

        Raises UnknownNameError for a model that the study lacks.
        """
        known = DECLARED.cases["models"]
        for name in chosen if (chosen := list(models or known)) else ():
            check_name("model of the JIT-Q study", name, known)
        many = tuple(tokens or DECLARED.cases["tokens"])
        found: list[LayerCase] = []
        for gpu in (at.gpu, *([hardware.gpu("mi300x")] if at.gpu.name == DECLARED.gpu else [])):
            for name in chosen:
                found += cases(load_model(name), gpu, units_of(gpu), many, at.options)
        judged = DECLARED.cases["judged"]
        return {"cases": tuple(found), "judged": judged if judged in many else max(many)}

    def _judged_cases(self) -> list[LayerCase]:
        """The cases by which the loss is judged: on the study's GPU, at those tokens, with fused instructions."""
        return [
            one for one in self.cases if (one.gpu, one.tokens, one.instructions) == (self.gpu, self.judged, "fused")
        ]

    def figures(self) -> Iterator[StudyFigure]:
        """Capacity, losses, their share of the bound, and what streaming gains."""
        yield StudyFigure("jit_q.capacity_saved", STATES[0].saved, always=True)
        yield StudyFigure("jit_q.capacity_saved.buffered", STATES[0].buffered_share())
        judged = self._judged_cases()
        words = {"tokens": self.judged, "c": judged[0].c}
        yield StudyFigure("jit_q.throughput_lost", max(one.lost for one in judged), words)
        yield StudyFigure("jit_q.throughput_lost.eager", max(one.lost_eagerly for one in judged), words)
        worst = max(self.cases, key=lambda one: one.lost_eagerly)
        about = {"tokens": worst.tokens, "c": worst.c}
        yield StudyFigure("jit_q.throughput_lost.worst", worst.lost_eagerly, about)
        yield StudyFigure("jit_q.of_bound", max(one.gemm_loss / one.bound for one in self.cases), always=True)
        yield StudyFigure("jit_q.of_bound.eager", max(one.gemm_eager / one.bound for one in self.cases))
        yield StudyFigure("jit_q.host", max(one.host for one in judged), words)
        for name in ("hbm2", "lpddr5x"):
            yield StudyFigure(f"jit_q.streaming_gain.{name}", closed.streaming_gain(pim(name)), always=True)
        for name in ("hbm2", "hbm2-shared"):
            yield StudyFigure(f"jit_q.peak_gain.{name.replace('-', '_')}", pim(name).peak_gain, always=True)

    def own(self) -> dict[str, Any]:
        """Capacity and every case as plain data."""
        return {
            "capacity": [
                {"kept": one.about, "bytes": one.bytes + one.copied_bytes, "saved": one.saved} for one in STATES
            ],
            "judged_tokens": self.judged,
            "cases": [one.record() for one in self.cases],
        }

    @property
    def states(self) -> Sequence[ParameterState]:
        """What is kept of each parameter."""
        return STATES

    @property
    def lead(self) -> str:
        """What was simulated, and on which machine."""
        names = " and ".join(dict.fromkeys(one.gpu for one in self.cases))
        models = ", ".join(dict.fromkeys(one.model for one in self.cases))
        return f"{models} on {names}: GEMMs of a layer beside the encoding of the next one's weights."

    def watch(self, progress: Progress | None = None) -> Mapping[str, ChannelRun]:
        """Return the first judged case on its channel again, commands spread and without a pause."""
        one = self._judged_cases()[-1]
        again = {"spread over the layer": False, "without a pause": True}
        return {
            name: met(one.passes[0], one.weights, self.machine, one.pim, "fused", eager)[1]
            for name, eager in again.items()
        }

    @property
    def lines(self) -> Iterator[tuple[Any, ...]]:
        """Throughput lost on the study's GPU with fused instructions, by model and way, over tokens."""
        for one in self.cases:
            if (one.gpu, one.instructions) == (self.gpu, "fused"):
                for way, lost in (("spread", one.lost), ("no pause", one.lost_eagerly), ("GPU encodes", one.host)):
                    yield f"{one.model}, {way}", one.tokens, lost

    def banks(self, watched: Mapping[str, ChannelRun]) -> Figure:
        """Commands and requests on the banks of a channel over time."""
        return banks_over_time(watched, self.machine.memory.latency)

    def tables(self) -> list[Table]:
        """Return the tables of the terminal."""
        return drop_empty(self._capacity_table(), self._losses_table())

    def sections(self, watched: Any = None) -> list[Part]:
        """Return the sections of the page."""
        return [
            Section("What it costs", drop_empty(self._losses_figure())),
            Section("Commands and requests on one channel", [] if watched is None else [self.banks(watched)]),
            Section("Every case", drop_empty(self._capacity_table(), self._losses_table())),
        ]

    def _capacity_table(self) -> Table:
        columns = [
            text("kept", "kept for each parameter, copies"), number("bytes", "kept", "B", "g"),
            number("copies", "copies", "B", "g"), number("saved", format_=".1%"),
            number("buffered", "with a buffer, 96 layers", format_=".1%"),
        ]  # fmt: skip
        rows = [(one.about, one.bytes, one.copied_bytes, one.saved, one.buffered_share()) for one in self.states]
        return Table(columns, rows, "What stored copies of the weights take of the memory")

    def _losses_table(self) -> Table:
        columns = [
            text("gpu", "GPU"), text("model"), number("tokens"), number("c", format_=".2f"),
            number("used", "memory used", format_=".0%"), number("lost", "lost, spread", format_=".2%"),
            number("eager", "lost, no pause", format_=".2%"), number("gemms", "GEMMs, no pause", format_=".2%"),
            number("bound", "bound of GEMMs", format_=".2%"), number("host", "lost, GPU encodes", format_=".2%"),
        ]  # fmt: skip
        rows = [
            (
                one.gpu,
                one.model,
                one.tokens,
                one.c,
                one.used_share,
                one.lost,
                one.lost_eagerly,
                one.gemm_eager,
                one.bound,
                one.host,
            )
            for one in self.cases
        ]
        return Table(columns, rows, "Throughput lost by encoding each layer's weights in MX9, twice a step")

    def _losses_figure(self) -> Figure:
        columns = [
            text("way"),
            number("tokens", "tokens of a GPU and step"),
            number("lost", "throughput lost", format_=".2%"),
        ]
        table = Table(columns, list(self.lines))
        return curves(
            f"What does encoding cost on {self.gpu}?", table,
            x=Axis("tokens", log=True, ticks=sorted(table.distinct("tokens"))), y=Axis("lost", percent=True),
            color=Color("way"), over=[Level(0.024)],
        ).with_caption(
            "The line at 2.4 % is the most that was published; fused instructions, MX9, two encodings a step."
        )  # fmt: skip


def units_of(gpu: Gpu) -> Pim:
    """Return the processing units at a GPU's memory."""
    known: Mapping[str, Sequence[str]] = DECLARED.cases["units"]
    name = next((kind for kind, gpus in known.items() if gpu.name in gpus), "hbm2")
    return pim(name).on(gpu)


STUDY = JitQStudy
run = JitQStudy.run
