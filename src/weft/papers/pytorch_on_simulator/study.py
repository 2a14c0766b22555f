"""The study of PyTorch on a simulator: captured programs in the engine, measured kernels, channels that camp.

Published: J. Lew, D. Shah, S. Pati, S. Cattell, M. Zhang, A. Sandhupatla, C. Ng, N. Goli, M. D. Sinclair, T. G. Rogers,
T. M. Aamodt, "Analyzing Machine Learning Workloads Using a Detailed GPU Simulator", ISPASS 2019, arXiv:1811.08933.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft import hardware
from weft.core.errors import InputError, check_name
from weft.core.extensions import find_measured
from weft.core.files import data_folder
from weft.core.options import RunOptions
from weft.core.report import Part, Section, drop_empty
from weft.core.report.table import Table, number, text
from weft.estimate import Estimate, estimate
from weft.graph import Gemv, Graph, Node
from weft.hardware import Gpu
from weft.papers.headline import Conditions, PaperStudy, StudyFigure, StudyOption, read_declaration
from weft.papers.pytorch_on_simulator.kernels import KernelTraffic, OperatorErrors, measure_traffic, time_operators
from weft.simulate.result import Timeline
from weft.simulate.single import simulate
from weft.torch.traces import read_graph
from weft.view.heat import heat_table, load_over_time
from weft.view.program import operator_table, program_figures, program_sentences

DECLARED = read_declaration(__file__)
_BOUND = 0.5
"""Share of the memory's rate from which on a measured kernel counts as bound by it."""


@dataclass(frozen=True)
class SimulatedProgram:
    """A program in the engine on a GPU, and its closed form at the same clock."""

    name: str
    run: Timeline
    closed: Estimate

    @property
    def apart(self) -> float:
        """Relative difference of the closed form from the engine."""
        return float(self.closed.seconds) / self.run.seconds - 1


@dataclass(frozen=True, repr=False)
class PyTorchOnSimulatorStudy(PaperStudy):
    """Results of the study: programs, kernels that were measured, and the strided GEMV with and without hashing."""

    DECLARED = DECLARED
    OPTIONS = (
        StudyOption("--programs", "programs", "names", "lenet,resnet50", "lenet, resnet50, layer.  [default: all]"),
        StudyOption("--data", "data", "file", "DIR", "Kernels measured on V100.  [default: as 'weft validate']"),
    )

    programs: tuple[SimulatedProgram, ...]
    newer: SimulatedProgram | None
    camped: Mapping[str, Timeline]
    timed: tuple[OperatorErrors, ...]
    sectors: tuple[KernelTraffic, ...]

    @classmethod
    def simulated(
        cls, at: Conditions, programs: Iterable[str] | None = None, data: str | Path | None = None
    ) -> dict[str, Any]:
        """Run the programs, LeNet also on a newer GPU, and the kernels that a folder of measurements holds.

        Raises UnknownNameError for an unknown program, InputError for a folder that is named and cannot be used.
        """
        known, cases = DECLARED.cases["programs"], DECLARED.cases
        for name in chosen if (chosen := list(programs or known)) else ():
            check_name("program of the study", name, known)
        options = replace(at.options, heatmap="channel")
        newer = hardware.gpu(cases["newer"])
        folder = _folder(data)
        return {
            "programs": tuple(_ran(name, at.gpu, options) for name in chosen),
            "newer": None if at.gpu.name == newer.name else _ran("lenet", newer, options),
            "camped": {
                word: _camped_gemv(at.gpu, at.options, hashing=word == "hashed") for word in ("hashed", "plain")
            },
            "timed": () if folder is None else time_operators(folder, cases["elements"], cases["products"]),
            "sectors": () if folder is None else measure_traffic(folder, hardware.gpu(DECLARED.gpu)),
        }

    def figures(self) -> Iterator[StudyFigure]:
        """Yield the times of programs, errors on measured kernels, and camping."""
        for one in self.programs:
            unit = 1e6 if one.name == "lenet" else 1e3
            yield StudyFigure(f"{one.name}.time", one.run.seconds * unit)
            yield StudyFigure(f"{one.name}.closed", float(one.closed.seconds) * unit)
        if self.timed:
            rows = sum(one.rows for one in self.timed)
            means = {"time": [one.engine for one in self.timed], "closed": [one.closed for one in self.timed]}
            for key, errors in means.items():
                mean = sum(error * one.rows for error, one in zip(errors, self.timed, strict=True)) / rows
                yield StudyFigure(f"kernels.{key}.error", mean, {"rows": rows}, always=True)
        if bound := [one for one in self.sectors if one.used >= _BOUND]:
            worst = max(bound, key=lambda one: abs(one.error))
            words = {"kernels": len(bound), "worst": worst.kernel}
            yield StudyFigure("kernels.sectors.error", abs(worst.error), words, always=True)
        for word, run in self.camped.items():
            assert run.heat is not None
            yield StudyFigure(f"camping.{word}", run.heat.camping)

    @property
    def remarks(self) -> tuple[str, ...]:
        """That there are no measured kernels."""
        return () if self.timed else ("measured kernels were left out: give their folder with --data",)

    @property
    def lead(self) -> str:
        """What was simulated, and where."""
        requests = sum(one.run.requests for one in self.programs)
        names = ", ".join(str(one.run.graph) for one in self.programs)
        return f"{names} on {self.gpu}: {requests:,} requests, one by one."

    def own(self) -> dict[str, Any]:
        """Programs, kernels and camping as plain data."""
        return {
            "programs": [
                {
                    "name": one.name,
                    "gpu": one.run.gpu.name,
                    "seconds": one.run.seconds,
                    "closed_form_seconds": float(one.closed.seconds),
                    "camping": one.run.heat and one.run.heat.camping,
                    "dram_bytes": one.run.total_bytes,
                    "requests": one.run.requests,
                }
                for one in self.ran
            ],
            "kernels": [vars(one) for one in self.timed],
            "sectors": [{**vars(one), "error": one.error} for one in self.sectors],
            "camping": {word: run.to_dict().get("heat") for word, run in self.camped.items()},
        }

    def tables(self) -> list[Table]:
        """Programs, kernels against measured ones, sectors, and camping."""
        camped = [(replace(run, overlap=f"GEMV, {word}"), run.heat) for word, run in self.camped.items() if run.heat]
        return drop_empty(self._programs_table(), heat_table(camped), self._timed_table(), self._moved_table())

    @property
    def ran(self) -> tuple[SimulatedProgram, ...]:
        """The programs, LeNet also on a newer GPU."""
        return (*self.programs, *([self.newer] if self.newer else []))

    def sections(self, watched: Any = None) -> list[Part]:
        """Return every program over time, channels that camp, and kernels against measured ones."""
        parts: list[Part] = [
            Section(
                f"{one.run.graph} on {one.run.gpu.name}",
                [
                    *program_sentences(one.run, one.closed),
                    *program_figures(one.run),
                    *([load_over_time(one.run, one.run.heat)] if one.run.heat else []),
                    operator_table(one.run, one.closed),
                ],
            )
            for one in self.ran
        ]
        camped = [
            load_over_time(replace(run, overlap="strided GEMV"), run.heat) for run in self.camped.values() if run.heat
        ]
        parts.append(Section("Channels that camp", camped))
        parts.append(Section("Figures", self.tables()))
        return parts

    def _programs_table(self) -> Table:
        columns = [
            text("program"), text("gpu", "GPU"), number("operators"), number("time_ms", "engine", "ms", ",.3f"),
            number("closed_ms", "closed form", "ms", ",.3f"), number("apart", "by it", format_="+.0%"),
            number("traffic_mb", "DRAM traffic", "MB", ",.1f"), number("camping", "camping index", format_=".3f"),
            number("cpu_s", "to simulate", "s", ".1f"),
        ]  # fmt: skip
        rows = [
            (str(one.run.graph), one.run.gpu.name, len(one.run.graph), one.run.seconds * 1e3,
             one.closed.seconds * 1e3, one.apart, one.run.total_bytes / 1e6, one.run.heat and one.run.heat.camping,
             one.run.cpu_s)
            for one in self.ran
        ]  # fmt: skip
        return Table(columns, rows, "Programs, operator by operator in the engine")

    def _timed_table(self) -> Table:
        columns = [
            text("op", "operator"), number("rows"), number("engine", "engine, mean error", format_=".1%"),
            number("bias", "its bias", format_="+.1%"), number("closed", "closed form, mean error", format_=".1%"),
        ]  # fmt: skip
        rows = [(one.op, one.rows, one.engine, one.bias, one.closed) for one in self.timed]
        return Table(columns, rows, "Kernels of PyTorch on V100, as the host times them")

    def _moved_table(self) -> Table:
        columns = [
            text("kernel"), number("measured_read", "read, measured", format_=",.0f"), number("read", format_=",.0f"),
            number("measured_written", "written, measured", format_=",.0f"), number("written", format_=",.0f"),
            number("error", "error of both", format_="+.1%"), number("used", "of the memory's rate", format_=".0%"),
        ]  # fmt: skip
        rows = [
            (one.kernel, one.measured_read, one.read, one.measured_written, one.written, one.error, one.used)
            for one in self.sectors
        ]
        return Table(columns, rows, "DRAM sectors of 32 B that streaming kernels move on V100")


def _ran(name: str, gpu: Gpu, options: RunOptions) -> SimulatedProgram:
    """Return a program in the engine, and its closed form at the same clock."""
    graph = program(name)
    run = simulate(graph, gpu, options=options)
    return SimulatedProgram(name, run, estimate(graph, gpu, RunOptions(clock=options.clock)))


def program(name: str) -> Graph:
    """Return a captured program of the study: "lenet", "resnet50" or "layer"."""
    return read_graph(Path(__file__).parent / "programs" / f"{name}.graph.jsonl.gz")


def _camped_gemv(gpu: Gpu, options: RunOptions, *, hashing: bool) -> Timeline:
    """Return a GEMV whose rows lie a round of stripes over the channels apart."""
    memory = gpu.memory
    op = Gemv(8192, 1024, stride=max(1024, memory.channels * memory.interleave // 2))
    graph = Graph((Node(op, "gemv"),), title=str(op))
    return simulate(graph, gpu, options=replace(options, heatmap="channel", hashing=hashing))


def _folder(given: str | Path | None) -> Path | None:
    """Return the folder of measurements, or None without one.

    Raises InputError for one that is named and does not exist, or that no extension reads.
    """
    find_measured("measured_kernels", given)
    try:
        return data_folder(given)
    except InputError:
        if given is not None:
            raise
        return None


STUDY = PyTorchOnSimulatorStudy
run = PyTorchOnSimulatorStudy.run
