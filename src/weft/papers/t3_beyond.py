"""T3 beyond its paper: faster compute, other routes for tiles, all-gathers before GEMMs, K in parts, late GPUs.

What the paper (S. Pati et al., "T3", ASPLOS 2024, arXiv:2401.16677) discusses and does not simulate, on its machine.
Nothing is published to stand beside most of these figures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Any, Literal, NamedTuple

from weft import hardware
from weft.core.options import RunOptions
from weft.core.report import Part, Section, drop_empty
from weft.core.report.table import Table, number, text
from weft.graph import Graph, Routing, experts
from weft.hardware import FABRICS, Gpu, Stragglers, System
from weft.models import SubLayer, load_model
from weft.models.parallel import dependent, share_of, split, sublayer
from weft.models.sublayer import sublayer as whole
from weft.overlaps import SEQUENTIAL
from weft.papers.composed import PHASES, Phase
from weft.papers.headline import Conditions, PaperStudy, StudyFigure, read_declaration
from weft.papers.sensitivity import COUPLED
from weft.papers.t3 import HYPOTHETICAL, MAIN_CASES
from weft.plan.tune.perturb import AS_CHOSEN, Row, Values, moves
from weft.simulate.result import Comparison, Timeline
from weft.step.queries import step
from weft.step.result.step import LAUNCH_GAPS
from weft.sweep.simulations import ComparedGraph, Simulation
from weft.sweep.tasks import results
from weft.view import looks
from weft.view.figure import Axis, Color, Figure, Lane, Level, bars, curves

DECLARED = read_declaration(__file__)
CASES = DECLARED.cases
MODEL: str = CASES["model"]
"""The model whose sub-layers show everything but faster compute."""
LAYERS: Sequence[str] = CASES["layers"]
TODAY, TWICE_UNITS, TWICE_RATE = "today", "twice the compute units", "twice the matrix rate"
MCA, DIRECT, DMA, SUMMED, PARTS = "t3-mca", "t3-direct", "t3-direct-dma", "t3-nvls", "t3-split-k"
FLUX, LINES, LOADS = "flux", "t3-all-gather", "remote-loads"
CHUNKS, BOTH = "userbuffers", f"{MCA}+{LINES}"
"""Chunks in software, and T3 for reduce-scatters and all-gathers, in whole steps."""
EXCHANGE, PER_RANK = "t3-all-to-all", "deepep"
LEVELS, IN_SWITCH = "t3-two-level", "in-network"
_MERGE_COUNTS = ("most_entries", "evicted", "expired", "refused")
ADDING, MERGING = "adding switch", "merging switch"
"""The fabrics of a switch that adds stores: with room for every sum, and with a table and a window."""
WHERE = {"ring": "around a ring", "switch": "behind a switch", "full": "on a full mesh"}
SHOWN_FABRIC, SHOWN_SHARE = "switch", 0.05
"""The fabric and the slow GPU's share that sentences and the headline speak of."""
OVERLAPS: Mapping[str, Sequence[str]] = CASES["overlaps"]
"""What each question compares, the baseline first."""


class SettingPoint(NamedTuple):
    """A sub-layer at one `setting` of what a question changes; `at` is the setting as a number."""

    layer: str
    tp: int
    setting: str
    at: float
    run: Comparison

    @property
    def title(self) -> str:
        """The sub-layer and its degree."""
        return f"{self.layer}, TP {self.tp}"

    @property
    def place(self) -> str:
        """The sub-layer, its degree and the setting."""
        return f"{self.title}, {self.setting}"

    @property
    def sequential_us(self) -> float:
        """Time of the sequential run [us]."""
        return self.run.baseline.seconds * 1e6

    def speedup(self, overlap: str) -> float | None:
        """Return how many times faster than the sequential run; None for an overlap that does not apply here."""
        return self.run.speedup(overlap) if overlap in self.run.timelines else None


@dataclass(frozen=True)
class ModelSteps:
    """A training step of a whole model, a task of a sweep: by `weft.step`, under each of the `overlaps`.

    `where` says on which nodes; the plan is given as the keywords of `weft.step`, in closed form but for the methods
    that the engine times.
    """

    model: str
    where: str
    system: str
    plan: tuple[tuple[str, Any], ...]
    overlaps: tuple[str, ...]

    @property
    def title(self) -> str:
        """Model and nodes."""
        return f"{load_model(self.model).title} on {self.where}"

    @property
    def weight(self) -> float:
        """Rough relative duration: floating-point operations of pairs of GEMM and collective, in billions."""
        return float(len(self.overlaps)) * load_model(self.model).hidden

    def inputs(self) -> Mapping[str, Any]:
        """Return the inputs that determine the record."""
        model, on = load_model(self.model), hardware.system(self.system)
        return {"model": model.model_dump(), "system": on.inputs(), "plan": self.plan, "overlaps": self.overlaps}

    def run(self) -> Mapping[str, Any]:
        """Times of the step and of its forward pass through all stages, waits for the host, and exposed communication
        [s], by overlap.
        """
        found = {}
        for overlap in self.overlaps:
            made = step(self.model, self.system, fidelity="estimate", overlap=overlap, **dict(self.plan))
            prompt = sum(chunk.forward.seconds for chunk in made.chunks)
            host = made.parts.get(LAUNCH_GAPS, 0.0)
            found[overlap] = {"training": made.seconds, "prompt": prompt, "host": host, **made.exposed}
        return found


class WholeStep(NamedTuple):
    """A whole step, and its times [s] by overlap, the baseline first."""

    asked: ModelSteps
    found: Mapping[str, Mapping[str, float]]

    def speedup(self, phase: Phase, overlap: str) -> float:
        """Return how many times faster than with the collectives of tensor parallelism in sequence."""
        return next(iter(self.found.values()))[phase] / self.found[overlap][phase]


class PlannedPoint(NamedTuple):
    """A point before it is simulated."""

    layer: str
    tp: int
    setting: str
    at: float
    graph: Graph
    system: System
    overlaps: Sequence[str]


@dataclass(frozen=True, repr=False)
class T3Beyond(PaperStudy):
    """Results of the study: points by question, and the figures with assumed values at the ends of their ranges."""

    DECLARED = DECLARED

    twice: tuple[SettingPoint, ...]
    routes: tuple[SettingPoint, ...]
    merges: tuple[SettingPoint, ...]
    loads: tuple[SettingPoint, ...]
    libraries: tuple[SettingPoint, ...]
    nodes: tuple[SettingPoint, ...]
    gathers: tuple[SettingPoint, ...]
    parts: tuple[SettingPoint, ...]
    experts: tuple[SettingPoint, ...]
    late: tuple[SettingPoint, ...]
    steps: tuple[WholeStep, ...]
    ranges: tuple[Row, ...]
    expert_ranges: tuple[Row, ...]

    @classmethod
    def simulated(cls, at: Conditions) -> dict[str, Any]:
        """Simulate every question, and a few sub-layers again with assumed values at the ends of their ranges."""
        questions = {
            "twice": list(_twice(at.gpu)),
            "routes": list(_routes(at.gpu)),
            "merges": list(_merges(at.gpu)),
            "loads": list(_loads(at.gpu)),
            "libraries": list(_libraries(at.gpu)),
            "nodes": list(_nodes(at.gpu)),
            "gathers": list(_gathers(at.gpu)),
            "parts": list(_parts(at.gpu)),
            "experts": list(_experts(at.gpu)),
            "late": list(_late(at.gpu)),
        }
        moved = {
            "ranges": MovedValues(at, at.gpu, CASES["moved"], _PROBED),
            "expert_ranges": MovedValues(at, _beside_libraries(at.gpu), CASES["experts"]["moved"], EXPERTS),
        }
        compared = {
            name: [(one, _compare_point(one, at.options, name)) for one in asked] for name, asked in questions.items()
        }
        runs = (task for points in compared.values() for _, each in points for task in each.tasks.values())
        made = at.jobs.run([*runs, *(task for each in moved.values() for task in each.tasks)])
        return {
            **{
                name: tuple(SettingPoint(*one[:4], each.of(made)) for one, each in points)
                for name, points in compared.items()
            },
            "steps": tuple(_steps(at)),
            **{name: tuple(each.rows(made)) for name, each in moved.items()},
        }

    @property
    def hypothetical(self) -> str:
        """T3's own hardware."""
        return HYPOTHETICAL

    @property
    def findings(self) -> Sequence[str]:
        """What an architect can quote of each question, with the range over assumed values."""
        return [
            self._faster(),
            self._straight(),
            self._sum_sentence(),
            self._merge_sentence(),
            self._level_sentence(),
            self._gather_sentence(),
            self._exchange_sentence(),
            self._cut(),
            self._slow(),
            self._whole(),
        ]

    def _faster(self) -> str:
        said, worth = [], []
        for words, setting in (("At twice the matrix rate", TWICE_RATE), (TWICE_UNITS, TWICE_UNITS), (TODAY, TODAY)):
            means = [self.mean(self.twice, name, setting) for name in OVERLAPS["twice"][1:]]
            pairs = zip(OVERLAPS["twice"][1:], means, strict=True)
            said.append(f"{words}: {', '.join(f'{name} {mean:.2f}x' for name, mean in pairs)}")
            worth.append(f"{100 * (means[1] - means[0]):+.1f}")
        return (
            f"{'; '.join(said)} (geomeans over sequential). Compute-first arbitration is then worth {worth[0]} and "
            f"{worth[1]} points of speedup instead of {worth[2]}; for FC-2 at TP 8 twice the rate makes T3-MCA's gain "
            f"{self.span('twice')} times what it is"
        )

    def _straight(self) -> str:
        said = ", ".join(
            f"{point.layer} {point.run.speedup(DMA):.2f}x, around the ring {point.run.speedup(MCA):.2f}x, by stores of "
            f"the GEMM {point.run.speedup(DIRECT):.2f}x"
            for point in self.routes
            if point.setting == SHOWN_FABRIC and point.tp == min(CASES["degrees"])
        )
        return (
            f"Tiles that DMA engines send straight to their owners behind a switch: {said}. For OP straight is "
            f"{self.span('straight')} times as fast as around the ring"
        )

    def _sum_sentence(self) -> str:
        beside = "; ".join(
            f"{point.layer} {point.run.speedup(SUMMED):.2f}x with T3's stores summed in the switch, "
            f"{point.run.speedup(MCA):.2f}x with T3-MCA around the ring, {point.run.speedup(IN_SWITCH):.2f}x with the "
            "all-reduce in the switch alone"
            for point in self.libraries
        )
        whole, *limited = (point for point in self.merges if not point.at)
        times = [point.run[SUMMED].seconds / whole.run[SUMMED].seconds for point in limited]
        bytes_ = [point.run[SUMMED].total_bytes / whole.run[SUMMED].total_bytes for point in limited]
        late = max(point.run[SUMMED].seconds for point in self.merges) / whole.run[SUMMED].seconds
        return (
            f"On {self.libraries[0].setting}, whose switch adds: {beside}. A switch that merges in {self.rooms}, "
            f"takes {min(times):.2f} to {max(times):.2f} times as long as one with room for "
            f"every sum, and its GPUs move {min(bytes_):.2f} to {max(bytes_):.2f} times the DRAM traffic; with one of "
            f"four GPUs {SHOWN_SHARE:.0%} slower it takes at most {late:.2f} times as long"
        )

    def _merge_sentence(self) -> str:
        equal, late = (_ends(self.of_loads("sent", share).values(), ".2f") for share in (0.0, SHOWN_SHARE))
        took, apart = _ends(self.of_loads("took", 0.0).values(), ".3f"), self.loads[0].run
        return (
            f"Merging the loads of {self.loads[0].tp} GPUs in {self.rooms}, cuts what leaves owners to {equal} ({late} "
            f"with one GPU {SHOWN_SHARE:.0%} slower), yet takes {took} times as long ({self.span('merged')} over "
            "assumed values of the machine), because every GPU still receives all rows but its own and its tiles wait "
            f"for their way: loads are {apart.speedup(LOADS):.2f}x as fast as sequential, lines that DMA engines send "
            f"{apart.speedup(LINES):.2f}x"
        )

    def of_loads(self, figure: Literal["sent", "took"], slower: float) -> dict[str, float]:
        """Return the bytes sent, or times, by table that merges loads, over those without one; a GPU may be slower."""
        runs = {point.setting: point.run[LOADS] for point in self.loads if point.at == slower}
        apart, *merged = (run.counters["link_bytes"] if figure == "sent" else run.seconds for run in runs.values())
        return {table: value / apart for table, value in zip(list(runs)[1:], merged, strict=True)}

    @property
    def rooms(self) -> str:
        """The ranges of the switch's tables, in words."""
        entries, windows = zip(*CASES["merges"]["sizes"], strict=True)
        return (
            f"a table of {min(entries)} to {max(entries):,} requests, each held for {min(windows) * 1e6:g} to "
            f"{max(windows) * 1e6:g} µs"
        )

    def _level_sentence(self) -> str:
        said = "; ".join(
            f"{point.layer} over {point.setting} of 8 {point.run.speedup(LEVELS):.2f}x, T3-MCA on one ring "
            f"{point.run.speedup(MCA):.2f}x"
            for point in self.nodes
        )
        return (
            "T3 on two levels, a ring in each node and DMA engines between nodes, over one ring in sequence: "
            f"{said}; for OP {self.span('levels')} over assumed values"
        )

    def _gather_sentence(self) -> str:
        fabrics = CASES["gathers"]["fabrics"]
        tp = max(CASES["degrees"])
        gains = {
            fabric: [point for point in self.gathers if point.setting == fabric and point.tp == tp]
            for fabric in fabrics
        }
        said = "; ".join(
            f"{WHERE[fabric]} "
            + ", ".join(
                f"{point.layer} {point.run.speedup(LINES):.2f}x (flux {point.run.speedup(FLUX):.2f}x)"
                for point in points
            )
            for fabric, points in gains.items()
        )
        return (
            f"Tiles of a GEMM that begin as lines of their all-gather arrive (t3-all-gather) at TP {tp}: {said}. For "
            f"FC-1 at TP 8 on a full mesh lines are {self.span('lines')} times as fast as whole chunks"
        )

    def _exchange_sentence(self) -> str:
        said = "; ".join(
            f"{point.layer}, {point.setting}, {point.run.speedup(EXCHANGE):.2f}x, with exchanges as DeepEP's "
            f"{point.run.speedup(PER_RANK):.2f}x"
            for point in self.experts
        )
        return (
            "Experts whose tiles start as tokens arrive and whose results update these (t3-all-to-all) on "
            f"{self.beside}: {said}. With {CASES['experts']['probed']:,} tokens a GPU of {CASES['experts']['shown']} "
            f"t3-all-to-all is {self.span('sequence')} times as fast as sequential, {self.span('per rank')} times as "
            "fast as deepep"
        )

    @property
    def beside(self) -> str:
        """The GPUs of the layers of experts, in words."""
        (system,) = {point.run.baseline.system.name for point in self.experts}
        return system

    def _cut(self) -> str:
        gains = {point.place: point.run["t3"].seconds / point.run[PARTS].seconds for point in self.parts}
        most = max(gains, key=lambda place: gains[place])
        return (
            f"K in parts makes T3 {gains[most]:.2f} times as fast for {most} ({self.span('parts')}), and nothing "
            f"faster where the output has a tile for every compute unit: {min(gains.values()):.2f} times at worst"
        )

    def _slow(self) -> str:
        said = "; ".join(
            f"{point.title}: {', '.join(f'{name} {self.lost(point, name):.1%}' for name in point.run.timelines)}"
            for point in self.late
            if point.at == SHOWN_SHARE
        )
        return (
            f"One of eight GPUs at a clock {SHOWN_SHARE:.0%} lower makes them longer by: {said}. Of four with a "
            f"quarter of the tokens, T3-MCA takes {self.span('late')} times as long"
        )

    def _whole(self) -> str:
        by_model: dict[str, list[WholeStep]] = {}
        for one in self.steps:
            by_model.setdefault(load_model(one.asked.model).title, []).append(one)
        said = [
            f"{model} {_gains(steps, BOTH)}, with T3-MCA alone {_gains(steps, MCA)}, in chunks by software ({CHUNKS}) "
            f"{_gains(steps, CHUNKS)}"
            for model, steps in by_model.items()
        ]
        return (
            "Training steps and prompts on nodes of 8 and of 72 GPUs with T3 for reduce-scatters and all-gathers "
            f"({BOTH}): {'; '.join(said)}"
        )

    def mean(self, points: Iterable[SettingPoint], overlap: str, setting: str) -> float:
        """Return the geometric mean of an overlap's speedups at a setting."""
        return geometric_mean(point.run.speedup(overlap) for point in points if point.setting == setting)

    def lost(self, point: SettingPoint, overlap: str) -> float:
        """Return how much longer a point with a slow GPU takes than with equal ones, as a share."""
        equal = next(one for one in self.late if one.title == point.title and one.at == 0)
        return point.run[overlap].seconds / equal.run[overlap].seconds - 1

    def span(self, figure: str) -> str:
        """Return the range of a figure over assumed values, in words: "0.98 to 1.07"."""
        return _ends([row.figures[figure] for row in (self.ranges if figure in _PROBED else self.expert_ranges)], ".2f")

    def figures(self) -> Iterator[StudyFigure]:
        """Yield the means, and the figures of the sub-layers that show each question."""
        for id_, setting in (("today", TODAY), ("twice_units", TWICE_UNITS), ("twice_rate", TWICE_RATE)):
            for name in OVERLAPS["twice"][1:]:
                value = self.mean(self.twice, name, setting)
                yield StudyFigure(
                    f"beyond.{id_}.{name}.geomean", value, {"name": name, "setting": setting}, like="beyond.twice"
                )
        for point in self.routes:
            shown = {SHOWN_FABRIC: (MCA, DIRECT, DMA), ADDING: (SUMMED,)}
            for name in shown.get(point.setting, ()):
                id_ = f"beyond.routes.{point.layer}.tp{point.tp}.{name}"
                words = {"name": name, "place": point.place}
                yield StudyFigure(id_, point.run.speedup(name), words, like="beyond.routes")
        room = _room(**CASES["table"])
        for id_, ratios in (
            ("sent", self.of_loads("sent", 0.0)),
            ("sent.late", self.of_loads("sent", SHOWN_SHARE)),
            ("took", self.of_loads("took", 0.0)),
        ):
            yield StudyFigure(f"beyond.loads.{id_}", ratios[room], {"room": room})
        for point in self.gathers:
            for name in (FLUX, LINES):
                id_ = f"beyond.gathers.{point.layer}.tp{point.tp}.{point.setting}.{name}"
                words = {"name": name, "place": point.place}
                yield StudyFigure(id_, point.run.speedup(name), words, like="beyond.gathers")
        yield from self._further()

    def _further(self) -> Iterator[StudyFigure]:
        """Yield the figures of experts, of K in parts, of slow GPUs and of whole steps."""
        for point in self.experts:
            for name in (PER_RANK, EXCHANGE):
                id_ = f"beyond.experts.{point.layer}.{point.at:g}.{name}"
                words = {"name": name, "place": f"{point.layer}, {point.setting}"}
                yield StudyFigure(id_, point.run.speedup(name), words, like="beyond.experts")
        for point in self.parts:
            if point.at == min(CASES["parts"]["tokens"]):
                gain = point.run["t3"].seconds / point.run[PARTS].seconds
                yield StudyFigure(f"beyond.parts.{point.layer}", gain, {"place": point.place}, like="beyond.parts")
        for point in self.late:
            for name in point.run.timelines if point.at == SHOWN_SHARE else ():
                words = {"name": name, "place": point.place}
                yield StudyFigure(
                    f"beyond.late.{point.layer}.{name}", self.lost(point, name), words, like="beyond.late"
                )

        for one in self.steps:
            for name in (CHUNKS, MCA, BOTH):
                for phase in PHASES:
                    words = {"name": name, "place": one.asked.title, "phase": phase}
                    id_ = f"beyond.steps.{phase}.{one.asked.model}.{one.asked.system}.{name}"
                    yield StudyFigure(id_, one.speedup(phase, f"tp={name}"), words, like="beyond.steps")

    def own(self) -> dict[str, Any]:
        """Return every point as plain data, and the figures with moved values."""
        rows = {name: [_record(point) for point in getattr(self, name)] for name in OVERLAPS}
        moved = {"ranges": self.ranges, "expert_ranges": self.expert_ranges}
        ranges = {
            name: [{"value": row.what, "setting": row.setting, **row.figures} for row in found]
            for name, found in moved.items()
        }
        steps = [{"step": one.asked.title, "system": one.asked.system, "seconds": one.found} for one in self.steps]
        return {**rows, "steps": steps, **ranges}

    @property
    def merge_rows(self) -> Iterator[tuple[Any, ...]]:
        """What a switch with a table makes of T3's stores and of loads from peers: time, bytes, and how full it was."""
        for name, words, points in (
            (SUMMED, "stores after it", self.merges),
            (LOADS, "loads before it", self.loads),
        ):
            for point in points:
                run, late = point.run[name], f"one {point.at:.0%} slower" if point.at else "equal"
                counts = (run.counters.get(f"merge_{count}", 0) for count in _MERGE_COUNTS)
                sent = run.counters["link_bytes"] / 1e6
                yield words, point.setting, late, run.seconds * 1e6, run.total_bytes / 1e6, sent, *counts

    @property
    def losses(self) -> Iterator[tuple[Any, ...]]:
        """What every overlap loses to a slow GPU."""
        for point in self.late:
            if point.at:
                yield point.title, point.at, *(self.lost(point, name) for name in OVERLAPS["late"])

    @property
    def exchange_rows(self) -> Iterator[tuple[Any, ...]]:
        """What every way to run a layer of experts takes, sends and moves: times, bytes of links and of DRAM."""
        for point in self.experts:
            for name, run in point.run.timelines.items():
                sent = run.counters["link_bytes"] / len({span.gpu for span in run.spans})
                took = (run.durations[part] * 1e6 for part in ("dispatch", "combine"))
                most = {each.kernel: each.workgroups for each in sorted(run.spans, key=lambda span: span.workgroups)}
                yield (
                    point.layer, point.setting, name, run.seconds * 1e6, *took, point.run.speedup(name),
                    sent / 1e6, run.total_bytes / 1e6, most["dispatch"],
                )  # fmt: skip

    @property
    def whole(self) -> Iterator[tuple[Any, ...]]:
        """Every whole step under every overlap: times, speedups, and what stays exposed."""
        for one in self.steps:
            for overlap, found in one.found.items():
                times = ((found[phase], one.speedup(phase, overlap)) for phase in PHASES)
                exposed = found.get("tp", 0.0), found.get("ep", 0.0), found["host"]
                yield one.asked.title, overlap, *next(times), *next(times), *exposed

    @property
    def by_tokens(self) -> Iterator[tuple[Any, ...]]:
        """What cutting K makes of T3, by tokens."""
        for point in self.parts:
            yield point.title, point.at, point.run["t3"].seconds / point.run[PARTS].seconds

    @property
    def lead(self) -> str:
        """What was simulated, and on which machine."""
        return f"Sub-layers on {self.where}: machines, routes, tokens and GPUs that the paper does not simulate."

    def tables(self) -> list[Table]:
        """Return the tables of the terminal."""
        return drop_empty(
            self._twice_table(), self._routes_table(), self._merged_table(), self._libraries_table(),
            self._nodes_table(), self._gathers_table(), self._experts_table(), self._parts_table(), self._late_table(),
            self._steps_table(),
        )  # fmt: skip

    def sections(self, watched: Any = None) -> list[Part]:
        """Return the sections of the page."""
        around = (self._routes_table(), self._merged_table(), self._libraries_table(), self._nodes_table())
        moved = _moved_table("Figures with assumed values at either end of their ranges", self.ranges, _PROBED)
        moved_experts = _moved_table(f"The same of a layer of experts on {self.beside}", self.expert_ranges, EXPERTS)
        return [
            Section("Twice the compute", drop_empty(self._twice_figure(), self._twice_table())),
            Section("Around the ring, or straight to the owner?", drop_empty(self._routes_figure(), *around)),
            Section("An all-gather before a GEMM", drop_empty(self._gathers_figure(), self._gathers_table())),
            Section("Experts and their exchanges", drop_empty(self._experts_figure(), self._experts_table())),
            Section("K in one piece, or in parts?", drop_empty(self._parts_figure(), self._parts_table())),
            Section("One slow GPU", drop_empty(*self._slow_figures(), self._late_table())),
            Section("In whole steps", drop_empty(*self._step_figures(), self._steps_table())),
            Section("How far assumed values move this", drop_empty(moved, moved_experts), folded=True),
        ]

    def _twice_table(self) -> Table:
        return _speedup_table("Faster GPUs: speedups over sequential", self.twice, OVERLAPS["twice"])

    def _routes_table(self) -> Table:
        title = f"Around the ring or straight to the owner: speedups over sequential of {MODEL}"
        return _speedup_table(title, self.routes, OVERLAPS["routes"], "fabric")

    def _libraries_table(self) -> Table:
        title = f"Beside a switch that adds: speedups over sequential of {MODEL}"
        return _speedup_table(title, self.libraries, OVERLAPS["libraries"], "system")

    def _nodes_table(self) -> Table:
        nodes = "Over several nodes of 8, an adapter of 50 GB/s for each GPU"
        return _speedup_table(f"{nodes}: speedups over sequential of {MODEL}", self.nodes, OVERLAPS["nodes"], "nodes")

    def _gathers_table(self) -> Table:
        title = f"A GEMM behind an all-gather: speedups over sequential of {MODEL}"
        return _speedup_table(title, self.gathers, OVERLAPS["gathers"], "fabric")

    def _parts_table(self) -> Table:
        title = f"K in one piece or in parts, TP {CASES['parts']['tp']}: speedups over sequential"
        return _speedup_table(title, self.parts, OVERLAPS["parts"], "tokens").without(["tp"])

    def _twice_figure(self) -> Figure:
        rows = [
            (setting, name, self.mean(self.twice, name, setting))
            for setting in dict.fromkeys(point.setting for point in self.twice)
            for name in OVERLAPS["twice"][1:]
        ]
        return _speedup_bars(
            "Faster GPUs: how much faster than sequential, geomeans of 16 sub-layers?", rows, lane="setting"
        )

    def _routes_figure(self) -> Figure:
        title = "Around the ring or straight to the owner: how much faster than sequential?"
        return _speedup_bars(title, _speedups(self.routes, OVERLAPS["routes"])).with_caption(
            "On a ring only t3-mca and flux apply: elsewhere tiles would pass other GPUs. t3-nvls needs a switch that "
            "adds stores: all of them (adding), or within a window and a table (merging)."
        )

    def _gathers_figure(self) -> Figure:
        title = "A GEMM behind an all-gather, by chunks or by tile lines: how much faster than sequential?"
        return _speedup_bars(title, _speedups(self.gathers, OVERLAPS["gathers"])).with_caption(
            "Below 1: on a ring flux sends every chunk through other GPUs. There t3-all-gather passes lines on as they "
            "arrive."
        )

    def _experts_figure(self) -> Figure:
        rows = [
            (f"{point.layer}, {point.setting}", name, point.run.speedup(name))
            for point in self.experts
            for name in OVERLAPS["experts"][1:]
        ]
        title = f"A layer of experts on {self.beside}: how much faster than sequential?"
        return _speedup_bars(title, rows).with_caption(
            "Times of dispatch and combine overlap the GEMMs under t3-all-to-all; a GPU that waits for a slower one "
            "counts, too."
        )

    def _slow_figures(self) -> list[Figure]:
        """Return what a slow GPU costs, a figure for each sub-layer."""
        columns = [
            text("overlap"), number("share", "its clock lower by", format_=".0%"),
            number("lost", "longer than with equal GPUs", format_=".2%"),
        ]  # fmt: skip
        figures = []
        for title in dict.fromkeys(point.title for point in self.late):
            points = [point for point in self.late if point.title == title]
            rows = [(name, point.at, self.lost(point, name)) for point in points for name in OVERLAPS["late"]]
            table = Table(columns, rows)
            figures.append(
                curves(
                    f"{title}: what one slow GPU costs", table, x="share", y=Axis("lost", percent=True),
                    color=Color("overlap", looks.overlap_looks(table.distinct("overlap"))),
                )
            )  # fmt: skip
        return figures

    def _step_figures(self) -> list[Figure]:
        """Speedups of whole steps, a figure for each phase."""
        return [
            _speedup_bars(
                f"{title}: how much faster than with collectives in sequence?",
                [
                    (one.asked.title, overlap.removeprefix("tp="), one.speedup(phase, overlap))
                    for one in self.steps
                    for overlap in list(one.found)[1:]
                ],
                lane="step",
                colors=_STEP_LOOKS,
            )
            for phase, title in zip(PHASES, ("Training steps", "Prompts"), strict=True)
        ]

    def _merged_table(self) -> Table:
        columns = [
            text("requests", "GEMM and"), text("room", "switch has room for"), text("gpus", "GPUs"),
            number("time", unit="µs", format_=",.1f"), number("dram", "DRAM traffic of all", "MB", ",.1f"),
            number("sent", "sent by all", "MB", ",.1f"), number("most", "most requests held", format_=",.0f"),
            number("evicted", "left for others", format_=",.0f"),
            number("expired", "left when the window was over", format_=",.0f"),
            number("refused", "found it full of loads", format_=",.0f"),
        ]  # fmt: skip
        rows = list(self.merge_rows)
        return Table(
            columns,
            rows,
            "A switch that merges requests in a table: GEMMs of "
            f"{DECLARED.cases['merges']['tokens']:,} tokens "
            f"({DECLARED.cases['merges']['layer']} with stores, "
            f"{DECLARED.cases['merges']['gathers']} with loads), TP "
            f"{DECLARED.cases['merges']['tp']}",
        )

    def _experts_table(self) -> Table:
        columns = [
            text("layer"), text("loads"), text("overlap"), number("time", unit="µs", format_=",.0f"),
            number("dispatch", unit="µs", format_=",.0f"), number("combine", unit="µs", format_=",.0f"),
            number("speedup", format_=".3f"), number("sent", "sent by each GPU", "MB", ",.0f"),
            number("dram", "DRAM traffic of each", "MB", ",.0f"), text("held", "channels of dispatch"),
        ]  # fmt: skip
        rows = list(self.exchange_rows)
        return Table(columns, rows, f"A layer of experts on {self.beside}, {DECLARED.cases['experts']['ep']} GPUs")

    def _late_table(self) -> Table:
        columns = [
            text("layer"), number("share", "its clock lower by", format_=".0%"), number("sequential", format_="+.1%"),
            *(number(name, format_="+.1%") for name in OVERLAPS["late"][1:]),
        ]  # fmt: skip
        rows = list(self.losses)
        return Table(columns, rows, "One slow GPU: how much longer than with equal ones")

    def _steps_table(self) -> Table:
        columns = [
            text("step", "model and nodes"), text("overlap"), number("training", "step", "s", ".2f"),
            number("gain", "speedup", format_=".3f"), number("prompt", unit="s", format_=".3f"),
            number("prompt_gain", "speedup of the prompt", format_=".3f"), number("tp", "exposed TP", "s", ".2f"),
            number("ep", "exposed EP", "s", ".2f"), number("host", "waits for the host", "s", ".2f"),
        ]  # fmt: skip
        rows = list(self.whole)
        return Table(
            columns,
            rows,
            "Whole steps, and the forward pass that a prompt takes: sub-layers from the "
            "engine, the rest in closed form",
        )

    def _parts_figure(self) -> Figure:
        columns = [
            text("layer", "sub-layer"),
            number("tokens"),
            number("gain", "T3 with K in parts over T3", "×", ".3f"),
        ]
        table = Table(columns, list(self.by_tokens))
        return curves(
            "What cutting K is worth to T3, by tokens", table,
            x=Axis("tokens", log=True, ticks=sorted(table.distinct("tokens"))), y=Axis("gain", zero=False),
            color=Color("layer"), over=[Level(1.0)],
        )  # fmt: skip


STUDY = T3Beyond
run = T3Beyond.run


OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "late": {"mode": "explicit"},
    "merges": {"mode": "explicit"},
    "loads": {"mode": "explicit"},
    "libraries": {"request_bytes": None},
    "nodes": {"mode": "mirrored", "request_bytes": 4096},
    "experts": {"request_bytes": None},
}
"""What of the options a question replaces: GPUs that differ run each, a node stands for all, and gigabytes of tokens or
eight GPUs of a node take larger requests."""


def _compare_point(one: PlannedPoint, options: RunOptions, question: str) -> ComparedGraph:
    """Return a point's simulations, with the options that its question replaces."""
    return ComparedGraph(one.graph, one.system, one.overlaps, replace(options, **OPTIONS.get(question, {})))


def _gains(steps: Sequence[WholeStep], method: str) -> str:
    """Return the ranges of a method's speedups of training steps and of prompts, in words."""
    found = [[one.speedup(phase, f"tp={method}") for one in steps] for phase in PHASES]
    return " and ".join(f"{min(each):.2f} to {max(each):.2f}x" for each in found)


def _steps(at: Conditions) -> Iterator[WholeStep]:
    """Whole steps on nodes of 8 and of 72 GPUs, whatever the study's GPU: those of its file."""
    about = CASES["steps"]
    asked = []
    for one in about["plans"]:
        routed = about["experts"] if load_model(one["model"]).experts else []
        plan = {name: tuple(value) if isinstance(value, list) else value for name, value in one["plan"].items()}
        overlaps = (*about["overlaps"], *routed)
        asked.append(ModelSteps(one["model"], one["where"], one["system"], tuple(plan.items()), overlaps))
    jobs = at.jobs
    found = results(asked, dict, jobs.count, jobs.progress, jobs.store)
    return (WholeStep(one, found[one]) for one in asked)


def faster(gpu: Gpu) -> Mapping[str, Gpu]:
    """Return the GPU today, with twice the compute units, and with twice the matrix rate."""
    rates = {path: 2 * gpu.value(path) for path in gpu.rules() if path.startswith("rates.") and gpu.value(path)}
    return {
        TODAY: gpu,
        TWICE_UNITS: gpu.replace({"compute.compute_units": str(2 * gpu.compute.compute_units)}),
        TWICE_RATE: gpu.replace({path: str(rate) for path, rate in rates.items()}),
    }


def _twice(gpu: Gpu) -> Iterator[PlannedPoint]:
    for at, (setting, machine) in enumerate(faster(gpu).items()):
        for graph in MAIN_CASES:
            labels = graph.labels
            on = hardware.system(machine, gpus=graph.ranks)
            layer = f"{labels['model']} {labels['sublayer']}"
            yield PlannedPoint(layer, graph.ranks, setting, at, graph, on, OVERLAPS["twice"])


def _routes(gpu: Gpu) -> Iterator[PlannedPoint]:
    for layer in LAYERS:
        for tp in CASES["degrees"]:
            for at, fabric in enumerate(CASES["fabrics"]):
                kept = {"ring": (SEQUENTIAL, MCA, FLUX), ADDING: OVERLAPS["routes"], MERGING: (SEQUENTIAL, SUMMED)}
                others = [name for name in OVERLAPS["routes"] if name != SUMMED]
                alone = [name for name in OVERLAPS["routes"] if name in kept.get(fabric, others)]
                yield PlannedPoint(layer, tp, fabric, at, sublayer(MODEL, layer, tp), join_gpus(gpu, fabric, tp), alone)


def _merges(gpu: Gpu) -> Iterator[PlannedPoint]:
    """A few tokens on four GPUs that each run, equal or one of them slower, behind switches with room for less."""
    about = CASES["merges"]
    graph = _short(about["layer"], about["tokens"], about["tp"])
    for asked in _tables(gpu, about["layer"], graph, "every sum"):
        yield asked._replace(overlaps=OVERLAPS["merges"])


def _loads(gpu: Gpu) -> Iterator[PlannedPoint]:
    """Yield the same tables, where the tiles of a forward GEMM load the rows of as few tokens from their owners.

    Beside the first one stand the ways that copy the rows.
    """
    about = CASES["merges"]
    graph = _forward(about["gathers"], about["tp"], about["tokens"])
    for place, asked in enumerate(_tables(gpu, about["gathers"], graph, "no load")):
        yield asked._replace(overlaps=(LOADS,) if place else OVERLAPS["loads"])


def _tables(gpu: Gpu, layer: str, graph: Graph, without: str) -> Iterator[PlannedPoint]:
    """Yield a graph behind switches of several tables and, in the words `without`, of none."""
    about = CASES["merges"]
    for entries, window in ((0, 0.0), *about["sizes"]):
        table = {"merge_entries": entries, "merge_window": window} if window else {}
        link, words = gpu.link, _room(entries, window) if window else without
        fabric = FABRICS["switch"](about["tp"], link.bandwidth, link.latency, reduces=True, **table)
        equal = System(gpu=gpu, gpus=about["tp"], fabric=fabric)
        for share in (0.0, SHOWN_SHARE):
            on = Stragglers("one", share).systems(equal)[0] if share else equal
            yield PlannedPoint(layer, about["tp"], words, share, graph, on, ())


def _ends(values: Collection[float], format_: str) -> str:
    """Return the least and the greatest of some values, in words."""
    return " to ".join(dict.fromkeys(f"{end:{format_}}" for end in (min(values), max(values))))


def _room(merge_entries: int, merge_window: float) -> str:
    """Return a table of the switch, in words."""
    return f"{merge_entries:,} requests, {merge_window * 1e6:g} µs"


def _libraries(gpu: Gpu) -> Iterator[PlannedPoint]:
    on = hardware.system(_beside_libraries(gpu), gpus=8)
    for layer in LAYERS:
        yield PlannedPoint(layer, 8, on.name, 8, sublayer(MODEL, layer, 8), on, OVERLAPS["libraries"])


def _nodes(gpu: Gpu) -> Iterator[PlannedPoint]:
    for layer in LAYERS:
        for count in CASES["nodes"]:
            tp, on = 8 * count, join_gpus(gpu, "nodes", 8 * count)
            yield PlannedPoint(layer, tp, f"{count} nodes", count, sublayer(MODEL, layer, tp), on, OVERLAPS["nodes"])


def _gathers(gpu: Gpu) -> Iterator[PlannedPoint]:
    for layer in CASES["gathers"]["layers"]:
        for tp in CASES["degrees"]:
            for at, fabric in enumerate(CASES["gathers"]["fabrics"]):
                graph, on = _forward(layer, tp), join_gpus(gpu, fabric, tp)
                yield PlannedPoint(layer, tp, fabric, at, graph, on, OVERLAPS["gathers"])


def _forward(layer: str, tp: int, tokens: int | None = None) -> Graph:
    """The forward GEMM of a sub-layer whose backward one ends with an all-reduce, behind the all-gather of its rows.

    The pass may have fewer `tokens` than a step.
    """
    backward = whole(load_model(MODEL), layer).gemm
    forward = replace(backward, m=tokens or backward.m, n=backward.k, k=backward.n)
    return dependent("ag_gemm", share_of("ag_gemm", forward, tp), tp)


def join_gpus(gpu: Gpu, fabric: str, gpus: int) -> System:
    """GPUs joined by a fabric on which each sends as much as by its link: a full mesh shares it among the peers."""
    link = gpu.link
    each = link.bandwidth / (gpus - 1) if fabric == "full" else link.bandwidth
    if fabric in (ADDING, MERGING):
        table = CASES["table"] if fabric == MERGING else {}
        made = FABRICS["switch"](gpus, each, link.latency, reduces=True, **table)
    else:
        made = FABRICS[fabric](gpus, each, link.latency)
    return System(gpu=gpu, gpus=gpus, fabric=made)


def _beside_libraries(gpu: Gpu) -> Gpu:
    """Return the GPU itself, or one on which libraries exchange tokens in place of the paper's."""
    return hardware.gpu(CASES["experts"]["gpu"]) if gpu.vendor == "none" else gpu


def _experts(gpu: Gpu) -> Iterator[PlannedPoint]:
    about = CASES["experts"]
    on = hardware.system(_beside_libraries(gpu), gpus=about["ep"])
    for layer in about["layers"]:
        for exponent in about["exponents"]:
            words = f"loads by a power law of {exponent}" if exponent else "even loads"
            graph = _layer_of(about["layers"][layer], about["ep"], exponent)
            yield PlannedPoint(layer, about["ep"], words, exponent, graph, on, OVERLAPS["experts"])


def _layer_of(layer: Mapping[str, int], ep: int, exponent: float, tokens: int | None = None) -> Graph:
    """Return a layer of experts, with other `tokens` than its own if given."""
    sizes = (tokens or layer["tokens"], layer["top_k"], layer["experts"], ep)
    return experts(Routing.by_power_law(*sizes, exponent, layer["reach"]), layer["hidden"], layer["ffn"])


def _parts(gpu: Gpu) -> Iterator[PlannedPoint]:
    tp = CASES["parts"]["tp"]
    on = hardware.system(gpu, gpus=tp)
    for layer in LAYERS:
        for tokens in CASES["parts"]["tokens"]:
            yield PlannedPoint(
                layer, tp, f"{tokens:,} tokens", tokens, _short(layer, tokens, tp), on, OVERLAPS["parts"]
            )


def _short(layer: str, tokens: int, tp: int) -> Graph:
    """A sub-layer of the model for fewer tokens than a step has."""
    gemm = whole(load_model(MODEL), layer).gemm
    return split(SubLayer.custom(tokens, gemm.n, gemm.k, gemm.dtype, name=layer), tp)


def _late(gpu: Gpu) -> Iterator[PlannedPoint]:
    tp = CASES["late"]["tp"]
    equal = hardware.system(gpu, gpus=tp)
    for layer in LAYERS:
        for share in (0.0, *CASES["late"]["shares"]):
            on = Stragglers("one", share).systems(equal)[0] if share else equal
            words = f"one GPU {share:.0%} slower" if share else "equal GPUs"
            yield PlannedPoint(layer, tp, words, share, sublayer(MODEL, layer, tp), on, OVERLAPS["late"])


class Probe(NamedTuple):
    """A figure of a few runs: `runs` by name, and what of their seconds it is."""

    runs: Callable[[Gpu, RunOptions], Mapping[str, Simulation]]
    of: Callable[[Mapping[str, float]], float]


_STEP_LOOKS: looks.Looks = {
    "userbuffers": looks.GREY, "t3-mca": looks.ORANGE, "t3-mca+t3-all-gather": looks.GREEN,
    "t3-direct-dma+t3-all-gather": looks.BLUE, "t3-nvls+t3-all-gather": looks.SKY,
    "t3-mca+t3-all-gather,ep=t3-all-to-all": looks.RED,
}  # fmt: skip
"""Colours of the overlaps of whole steps."""


def _speedup_table(title: str, points: Sequence[SettingPoint], overlaps: Sequence[str], setting: str = "") -> Table:
    """Return the times of the sequential run, and speedups over it."""
    columns = [
        text("layer"), text("tp", "TP"), text("setting", setting), number("sequential_us", "sequential", "µs", ",.0f"),
        *(number(name, format_=".3f") for name in overlaps[1:]),
    ]  # fmt: skip
    rows = [
        (point.layer, point.tp, point.setting, point.sequential_us, *map(point.speedup, overlaps[1:]))
        for point in points
    ]
    return Table(columns, rows, title)


def _speedups(points: Sequence[SettingPoint], overlaps: Sequence[str]) -> list[tuple[str, str, float]]:
    """Return the speedup of every overlap that applies at every point."""
    found = ((point.place, name, point.speedup(name)) for point in points for name in overlaps[1:])
    return [(place, name, speedup) for place, name, speedup in found if speedup is not None]


def _speedup_bars(
    title: str, rows: Sequence[tuple[str, str, float]], lane: str = "place", colors: looks.Looks | None = None
) -> Figure:
    table = Table([text(lane), text("overlap"), number("speedup", "speedup over sequential", "×", ".3f")], rows)
    colored = colors or looks.overlap_looks(table.distinct("overlap"))
    return bars(title, table, lane=Lane(lane, "overlap"), end="speedup", color=Color("overlap", colored), start=1.0)


def _moved_table(title: str, ranges: Sequence[Row], probed: Collection[str]) -> Table:
    """Return the figures with each assumed value at the ends of its range."""
    columns = [text("what", "value"), text("setting", "at"), *(number(name, format_=".3f") for name in probed)]
    return Table(columns, [(row.what, row.setting, *(row.figures[name] for name in probed)) for row in ranges], title)


def _probe_twice(gpu: Gpu, options: RunOptions) -> Mapping[str, Simulation]:
    machines, graph = faster(gpu), sublayer(MODEL, "fc2", 8)
    return {
        f"{setting} {name}": Simulation(graph, hardware.system(machines[setting], gpus=8), name, options)
        for setting in (TODAY, TWICE_RATE)
        for name in (SEQUENTIAL, MCA)
    }


def _probe_straight(gpu: Gpu, options: RunOptions) -> Mapping[str, Simulation]:
    graph, on = sublayer(MODEL, "op", 8), join_gpus(gpu, "switch", 8)
    return {name: Simulation(graph, on, name, options) for name in (MCA, DMA)}


def _probe_levels(gpu: Gpu, options: RunOptions) -> Mapping[str, Simulation]:
    tp = 8 * CASES["nodes"][0]
    graph, on, options = sublayer(MODEL, "op", tp), join_gpus(gpu, "nodes", tp), replace(options, **OPTIONS["nodes"])
    return {name: Simulation(graph, on, name, options) for name in (SEQUENTIAL, LEVELS)}


def _probe_merged(gpu: Gpu, options: RunOptions) -> Mapping[str, Simulation]:
    about = CASES["merges"]
    graph, options = _forward(about["gathers"], about["tp"], about["tokens"]), replace(options, **OPTIONS["loads"])
    systems = {"apart": join_gpus(gpu, ADDING, about["tp"]), "merged": join_gpus(gpu, MERGING, about["tp"])}
    return {name: Simulation(graph, on, LOADS, options) for name, on in systems.items()}


def _probe_lines(gpu: Gpu, options: RunOptions) -> Mapping[str, Simulation]:
    graph, on = _forward("fc1", 8), join_gpus(gpu, "full", 8)
    return {name: Simulation(graph, on, name, options) for name in (FLUX, LINES)}


def _probe_parts(gpu: Gpu, options: RunOptions) -> Mapping[str, Simulation]:
    tp, tokens = CASES["parts"]["tp"], CASES["parts"]["tokens"][0]
    graph, on = _short("fc2", tokens, tp), hardware.system(gpu, gpus=tp)
    return {name: Simulation(graph, on, name, options) for name in ("t3", PARTS)}


def _probe_late(gpu: Gpu, options: RunOptions) -> Mapping[str, Simulation]:
    equal, options = hardware.system(gpu, gpus=4), replace(options, mode="explicit")
    systems = {"equal": equal, "late": Stragglers("one", SHOWN_SHARE).systems(equal)[0]}
    return {who: Simulation(_short("fc2", 2048, 4), on, MCA, options) for who, on in systems.items()}


def _probe_experts(gpu: Gpu, options: RunOptions) -> Mapping[str, Simulation]:
    about = CASES["experts"]
    graph = _layer_of(about["layers"][about["shown"]], about["ep"], 0.0, about["probed"])
    on, options = hardware.system(gpu, gpus=about["ep"]), replace(options, **OPTIONS["experts"])
    return {name: Simulation(graph, on, name, options) for name in OVERLAPS["experts"]}


def _gain(s: Mapping[str, float]) -> float:
    twice, today = (s[f"{setting} {SEQUENTIAL}"] / s[f"{setting} {MCA}"] for setting in (TWICE_RATE, TODAY))
    return twice / today


_PROBED: Mapping[str, Probe] = {
    "twice": Probe(_probe_twice, _gain),
    "straight": Probe(_probe_straight, lambda s: s[MCA] / s[DMA]),
    "levels": Probe(_probe_levels, lambda s: s[SEQUENTIAL] / s[LEVELS]),
    "merged": Probe(_probe_merged, lambda s: s["merged"] / s["apart"]),
    "lines": Probe(_probe_lines, lambda s: s[FLUX] / s[LINES]),
    "parts": Probe(_probe_parts, lambda s: s["t3"] / s[PARTS]),
    "late": Probe(_probe_late, lambda s: s["late"] / s["equal"]),
}
"""Figures whose range over assumed values is computed, each of one sub-layer."""


EXPERTS: Mapping[str, Probe] = {
    "sequence": Probe(_probe_experts, lambda s: s[SEQUENTIAL] / s[EXCHANGE]),
    "per rank": Probe(_probe_experts, lambda s: s[PER_RANK] / s[EXCHANGE]),
}
"""The same of a layer of experts, on the GPU of its libraries."""


class MovedValues:
    """The probed figures with a GPU's deciding assumed values at either end of their ranges."""

    def __init__(self, at: Conditions, gpu: Gpu, paths: Sequence[str], probed: Mapping[str, Probe]) -> None:
        values = [Values((path,), follow=COUPLED.get(path, {})) for path in paths]
        self.probed, self.moves = probed, [AS_CHOSEN, *moves(hardware.system(gpu, gpus=8), values)]
        self.runs = [
            {name: probe.runs(gpu.replace(dict(move.values)), at.options) for name, probe in probed.items()}
            for move in self.moves
        ]

    @property
    def tasks(self) -> Iterator[Simulation]:
        """The simulations that the figures take."""
        return (task for each in self.runs for runs in each.values() for task in runs.values())

    def rows(self, made: Mapping[Simulation, Timeline]) -> Iterator[Row]:
        """Yield the figures of every move, the chosen values first."""
        for move, each in zip(self.moves, self.runs, strict=True):
            seconds = {name: {which: made[task].seconds for which, task in runs.items()} for name, runs in each.items()}
            yield Row(move.what, move.setting, {name: one.of(seconds[name]) for name, one in self.probed.items()})


def _record(point: SettingPoint) -> dict[str, Any]:
    return {
        "layer": point.layer,
        "tp": point.tp,
        "setting": point.setting,
        "seconds": {name: run.seconds for name, run in point.run.timelines.items()},
    }
