"""What the planner answers of training: the best plans, the Pareto front, and what was left out for which reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weft import hardware
from weft.core.answer import to_plain
from weft.core.errors import InputError
from weft.core.options import SUSTAINED, Fidelity, RunOptions
from weft.core.price import Price
from weft.core.units import format_time
from weft.estimate.errors import Error
from weft.estimate.step_errors import ratio_error
from weft.hardware import System
from weft.models import Transformer, load_model
from weft.models.counts import hardware_flops, utilisation
from weft.models.parallel.framework import Framework, framework
from weft.models.parallel.layers import stage_layers
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.plan_text import changes, words
from weft.plan.answer import PlanAnswer, PlannedDeployment
from weft.plan.launch import LAUNCHERS, lacking, launch
from weft.step.clock import meetings, train
from weft.step.corun import CoRunWindow
from weft.step.memory import memory
from weft.step.result.memory import Memory
from weft.step.result.step import CONVENTION, RESIDUAL, Step, add_parts, compared, exposed_part

if TYPE_CHECKING:
    from weft.core.energy import EnergyTerms
    from weft.estimate.power import Energy

_WORDS = {
    exposed_part("tp"): "tensor-parallel communication",
    exposed_part("cp"): "context-parallel communication",
    exposed_part("ep"): "the exchange of tokens among experts",
    exposed_part("pp"): "sends between stages",
    exposed_part("dp"): "communication among replicas",
    "gemm": "GEMMs",
    "grouped_gemm": "the experts' GEMMs",
    "scan": "scans of linear layers",
    "imbalance": "stages that differ",
    "bubble": "the pipeline's bubble",
    "recompute": "recomputation",
    "contention": "kernels concurrent with communication",
    "casts": "casts to operands of 8 or 4 bits",
    "norm": "norms",
    "element-wise": "element-wise kernels",
    "optimizer": "the optimizer",
}
_COMPUTING = ("gemm", "grouped_gemm", "attention", "scan")
"""Parts of a step that the model needs; all others are what a plan costs."""
_LEAST_GB = 0.1
"""Difference of memory below which two plans are said to need the same [GB]."""
_NEAR_FULL = 0.9
"""Share of a GPU's memory from which a plan is called near its limit."""


ALIKE = 0.02
"""Share of a step below which a plan counts as fast as the fastest [assumed, 0.005 to 0.05: far below the known errors
of steps, which similar plans mostly share]."""
_ROOM = 0.025
"""Share of a GPU's memory below which two plans leave as much of it free [assumed, 0.01 to 0.05]."""
_FOLLOW = ("dp", "order")
"""Fields of a plan that its command leaves out, as they follow from the others."""
_STATED = ("batch", "sequence", "zero")
"""Fields of a plan that its command states even where they are as usual: their defaults depend on others."""


@dataclass(frozen=True)
class Setting:
    """What a plan was timed on."""

    model: Transformer
    system: System
    framework: Framework
    options: RunOptions


@dataclass(frozen=True)
class Planned(PlannedDeployment[TrainingPlan]):
    """A plan with its step time [s] and the peak of memory of its fullest GPU [bytes].

    `estimated_s` is the step time in closed forms, `fidelity` says where `step_time_s` comes from. `tied` says that the
    80 % interval of the ratio of its step time and the best plan's holds 1, `place` is the rank by closed forms alone.
    """

    plan: TrainingPlan
    step_time_s: float
    peak_bytes: float
    setting: Setting = field(repr=False)
    fidelity: Fidelity = "estimate"
    estimated_s: float = 0.0
    tied: bool = False
    place: int = 0

    @property
    def words(self) -> str:
        """What the plan chooses, as one phrase."""
        return words(self.plan)

    def launch(self, launcher: str) -> str:
        """Return the command line or configuration file of the plan, as `weft.plan.launch.launch` writes it."""
        return launch(launcher, self.setting.model, self.setting.system, self.plan, self.setting.framework)

    @property
    def feasible(self) -> bool:
        """Whether every GPU holds what the plan needs."""
        return self.peak_bytes <= self.capacity

    @property
    def capacity(self) -> int:
        """Memory of a GPU [bytes]."""
        return int(self.setting.system.gpu.memory.capacity)

    @property
    def interval_s(self) -> tuple[float, float]:
        """Both ends of the 80 % interval of the step time [s]."""
        return self.error.around(self.step_time_s)

    @property
    def error(self) -> Error:
        """The 80 % interval of measured steps like this plan's, relative to the prediction, and what it rests on."""
        return self.step().error

    def ratio_error(self, other: Planned) -> Error:
        """Return the 80 % interval of the ratio of the step times of two plans, relative to the predicted."""
        mine, theirs = (
            compared(one.setting.model, one.setting.system, one.plan, one.setting.framework) for one in (self, other)
        )
        return ratio_error(mine, theirs)

    def is_tied(self, best: Planned) -> bool:
        """Return whether Weft cannot resolve which of two plans is faster."""
        low, high = self.ratio_error(best).around(self.step_time_s / best.step_time_s)
        return low <= 1 <= high

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Throughput of each GPU [tokens/s]."""
        return self.plan.batch * self.plan.sequence / self.step_time_s / self.gpus

    @property
    def gpu_seconds(self) -> float:
        """What a step costs [GPU-seconds]."""
        return self.step_time_s * self.gpus

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization, as of `weft.Step`."""
        model, plan = self.setting.model, self.plan
        source = plan.sequence if model.encoder_layers else 0
        flops = plan.batch * hardware_flops(model, plan.sequence, "none", CONVENTION, source)
        return utilisation(flops, self.step_time_s, self.setting.system.gpu.matrix_rate(plan.dtype) * plan.gpus)

    def is_like(self, other: Planned) -> bool:
        """Return whether another one is the same plan under the same framework, however it was timed."""
        return (
            (self.estimated_s, self.peak_bytes) == (other.estimated_s, other.peak_bytes)
            and self.setting.framework == other.setting.framework
            and self.plan == other.plan
        )

    def step(self) -> Step:
        """Return the whole answer on the plan's step: its waterfall, its stages, its memory."""
        return self._step

    @cached_property
    def _step(self) -> Step:
        on = self.setting
        answer = train(on.model, on.system, self.plan, on.framework, on.options, self.fidelity)
        return replace(answer, memory=self.memory())

    @property
    def command(self) -> str:
        """Return the `weft step` command that times this plan; empty if model or system differ from the catalogue's."""
        on, plan = self.setting, self.plan
        system = f"{on.system.gpus}x{on.system.gpu.name}"
        try:
            known = load_model(on.model.name) == on.model and hardware.system(system) == on.system
        except InputError:
            known = False
        if not known or on.options != SUSTAINED:
            return ""
        usual = vars(TrainingPlan()) | {"sp": plan.tp > 1}
        laid_out = {"layers": stage_layers(on.model, plan.pp, plan.chunks) or ()}
        flags = [
            _flag(name, value)
            for name, value in vars(plan).items()
            if name in _STATED or (name not in _FOLLOW and value not in (usual[name], laid_out.get(name, usual[name])))
        ]
        fidelity = ["--fidelity estimate"] if self.fidelity == "estimate" else []
        named = [f"--system {system}", *flags, f"--framework {on.framework.name}", *fidelity]
        return " ".join(["weft step", on.model.name, *named])

    @cached_property
    def meetings(self) -> tuple[CoRunWindow, ...]:
        """The kernels and collectives that meet in the step, each a window that the engine simulates."""
        on = self.setting
        return meetings(on.model, on.system, self.plan, on.framework, on.options)

    def elsewhere(self, launcher: str) -> Planned | str:
        """Return the same plan as a launcher's framework runs it, in closed forms, or why the launcher cannot run it.

        Raises UnknownNameError for an unknown launcher.
        """
        on = self.setting
        if missing := lacking(launcher, on.model, self.plan):
            return missing
        other = framework(LAUNCHERS[launcher].framework)
        found = replace(on, framework=other)
        try:
            seconds = train(on.model, on.system, self.plan, other, on.options, "estimate").seconds
            peak = memory(on.model, on.system, self.plan, other).peak
        except InputError as error:
            return str(error)
        return Planned(self.plan, seconds, peak, found, estimated_s=seconds)

    def memory(self) -> Memory:
        """Return what every GPU holds under the plan."""
        return memory(self.setting.model, self.setting.system, self.plan, self.setting.framework)

    @cached_property
    def why(self) -> str:
        """The plan's bottleneck in a sentence: where step time goes, the largest loss, and memory use."""
        parts = self.step().parts
        total = sum(parts.values())
        useful = sum(parts.get(name, 0.0) for name in _COMPUTING) / total
        needed = (*_COMPUTING, RESIDUAL)
        name, lost = max(((n, s) for n, s in parts.items() if n not in needed), key=lambda one: one[1])
        residual = parts.get(RESIDUAL, 0.0) / total
        full = self.peak_bytes / self.capacity
        rest = "near its limit" if _NEAR_FULL < full <= 1 else "beyond it" if full > 1 else "not the limit"
        beyond = f", the calibration residual {residual:.0%}" * (residual > 0)
        return (
            f"GEMMs and attention take {useful:.0%} of the step{beyond}; "
            f"most of the rest is {_WORDS.get(name, name)} ({lost / total:.0%}); memory is {full:.0%} full, {rest}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data: every degree, times [s], bytes, and why."""
        return to_plain(
            **self.plan.to_dict(), micro_batches=self.plan.micro_batches, framework=self.setting.framework.name,
            step_time_s=self.step_time_s, interval_80_s=self.interval_s, tied=self.tied, fidelity=self.fidelity,
            estimated_s=self.estimated_s, estimated_rank=self.place, tokens_per_s_per_gpu=self.tokens_per_s_per_gpu,
            mfu=self.mfu, peak_bytes=self.peak_bytes, capacity_bytes=self.capacity, feasible=self.feasible,
        )  # fmt: skip


@dataclass(frozen=True, repr=False)
class Plans(PlanAnswer[Planned]):
    """The best plans of a model on a system, best first, and what else was found on the way.

    `front` is the Pareto front of step time, peak memory and number of GPUs. `refined`
    counts the plans that were timed again with the engine's windows, `moved` those of them whose rank changed.
    `evidence` names the measured steps behind the intervals. `timed` are the plans that fit and
    were timed, best first; bounds exclude others, which `time_all` times. `launcher` is what all of them can be
    started with, if the search was limited to one. `between` are the fields for which several values were stated to
    choose from.
    """

    kind = "plans"

    objective: str
    plans: tuple[Planned, ...]
    timed: tuple[Planned, ...] = field(default=(), repr=False)
    refined: int = 0
    moved: int = 0
    evidence: str = ""
    launcher: str = ""
    notes: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    time_all: Callable[[], Sequence[Planned]] | None = field(default=None, repr=False, compare=False)
    price: Price | None = None
    terms: EnergyTerms | None = None

    def powered(self, terms: str) -> Plans:
        """Return the plans with the power and energy of the best one, of "gpus" alone or with more terms
        (`EnergyTerms.of`); InputError for other terms, and where the power of the GPU is not known.
        """
        from weft.core.energy import EnergyTerms

        self.system.gpu.check_power()
        return replace(self, terms=EnergyTerms.of(terms))

    @cached_property
    def energy(self) -> Energy | None:
        """Power and energy under the best plan; None where they were not asked for."""
        if self.terms is None:
            return None
        from weft.step.energy import energy

        return energy(self.best.step(), self.terms)

    def priced(self, price: str) -> Plans:
        """Return the plans with what a GPU costs, like "3.5 USD/GPU/h" (`Price.of`); InputError for another text."""
        return replace(self, price=Price.of(price, self.system.gpu.name))

    def million_tokens(self, planned: Planned) -> float:
        """Price of a million tokens under a plan; InputError without a price."""
        if self.price is None:
            raise InputError("no price was stated; give one, like '3.5 USD/GPU/h'")
        plan = planned.plan
        return self.price.of_tokens(plan.gpus, plan.batch * plan.sequence / planned.step_time_s)

    @cached_property
    def fitting(self) -> tuple[Planned, ...]:
        """All plans that fit, best first. Those that bounds excluded are timed when they are asked for."""
        if self.time_all is None:
            return self.timed
        first, rest = self.timed[: max(self.refined, 1)], list(self.time_all())
        for one in first:
            rest.remove(next(other for other in rest if one.is_like(other)))
        return (*first, *rest)

    @property
    def best(self) -> Planned:
        """The best plan."""
        return self.plans[0]

    @property
    def launch_files(self) -> Mapping[str, str]:
        """The launch file of the best plan by its name, if the search was limited to a launcher."""
        return {LAUNCHERS[self.launcher].file: self.best.launch(self.launcher)} if self.launcher else {}

    @cached_property
    def elsewhere(self) -> Mapping[str, Planned | str]:
        """The best plan under each other launcher, or why it cannot run there; empty without a launcher."""
        return {each: self.best.elsewhere(each) for each in LAUNCHERS if self.launcher and each != self.launcher}

    @cached_property
    def runner_up(self) -> str:
        """Why the second plan is not the best, in a sentence: which parts of the step grew; empty for a single plan."""
        if len(self.plans) < 2:
            return ""
        best, second = self.plans[:2]
        why = f"; of plans within {ALIKE:.0%} of the fastest, the one that leaves most memory free comes first"
        why *= second.step_time_s < best.step_time_s and self.objective != "memory"
        said = ", ".join(_changes(best, second)) or "the same plan"
        return f"The runner-up has {said}: {_differences(best, second)}{why}"

    def to_dict(self) -> dict[str, Any]:
        """Return plans, counts and reasons as plain data."""
        return to_plain(
            model=self.model.name, system=self.system.label, objective=self.objective,
            plans=[{**one.to_dict(), "why": one.why} for one in self.plans], command=self.best.command,
            runner_up=self.runner_up, searched=self.searched, rejected=self.rejected,
            **self._launch_data() if self.launcher else {}, front=self.front,
            refined=self.refined, rank_changed=self.moved, evidence=self.evidence, notes=self.notes,
            wall_s=self.wall_s, energy=self.energy, currency=self.price and self.price.currency,
            cost_of_million_tokens=[self.million_tokens(one) for one in self.plans] if self.price else None,
        )  # fmt: skip

    def _launch_data(self) -> dict[str, Any]:
        others = {
            name: one if isinstance(one, str) else {"estimated_s": one.estimated_s, "peak_bytes": one.peak_bytes}
            for name, one in self.elsewhere.items()
        }
        return {"launcher": self.launcher, "launch": self.best.launch(self.launcher), "elsewhere": others}


def _changes(best: Planned, other: Planned) -> list[str]:
    """In what another plan differs from the best one, its framework and GPUs included."""
    mine, theirs = best.setting.framework.name, other.setting.framework.name
    gpus = [f"{other.gpus} GPUs instead of {best.gpus}"] if other.gpus != best.gpus else []
    return [*gpus, *changes(other.plan, best.plan), *([f"{theirs} instead of {mine}"] if mine != theirs else [])]


def _flag(name: str, value: object) -> str:
    """Return a field of a plan as an option of `weft step`.

    >>> _flag("layers", (16, 13)), _flag("sp", False), _flag("overlap", {"tp": "flux"})
    ('--layers 16,13', '--no-sp', '--overlap tp=flux')
    """
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    if isinstance(value, Mapping):
        value = ",".join(f"{axis}={method}" for axis, method in value.items())
    return f"--{flag} {','.join(map(str, value)) if isinstance(value, tuple) else value}"


def roomiest_first(ranked: Sequence[Planned]) -> list[Planned]:
    """Return the same plans, but first the one that leaves most memory free of those that are as fast as the fastest.

    As fast is what takes at most `ALIKE` longer, timed in the same way on as many GPUs. Of those that leave as much
    free, the fastest is chosen, so that no plan is both faster and smaller than the first.
    """
    fastest = ranked[0]

    def effort(one: Planned) -> tuple[int, float, float]:
        return _free(one), one.step_time_s, one.peak_bytes

    chosen = min((one for one in ranked if as_fast(one, fastest)), key=effort)
    return [chosen, *(one for one in ranked if one is not chosen)]


def _free(one: Planned) -> int:
    """Return how full the memory is, in steps of `_ROOM`, within which plans leave as much free."""
    return int(one.peak_bytes / one.capacity / _ROOM)


def as_fast(one: Planned, fastest: Planned) -> bool:
    """Return whether a plan takes at most `ALIKE` longer than the fastest, timed in the same way on as many GPUs."""
    return (
        fastest.step_time_s <= one.step_time_s <= (1 + ALIKE) * fastest.step_time_s
        and one.fidelity == fastest.fidelity
        and one.gpus == fastest.gpus
    )


def signed_seconds(seconds: float) -> str:
    """Return a difference of times with its sign, in the unit that suits it.

    >>> signed_seconds(-0.0126)
    '-12.6 ms'
    """
    return f"{'-' if seconds < 0 else '+'}{format_time(abs(seconds), 3)}"


def _differences(best: Planned, second: Planned) -> str:
    """Return how much longer or shorter the second plan's step is, and by which parts."""
    mine, theirs = best.step().parts, second.step().parts
    grown = add_parts(theirs, {name: -seconds for name, seconds in mine.items()})
    longer = second.step_time_s - best.step_time_s
    ranked = sorted(grown.items(), key=lambda one: -abs(one[1]))[:3]
    parts = (
        f"{_WORDS.get(name, name)} {signed_seconds(seconds)}"
        for name, seconds in ranked
        if abs(seconds) > 0.02 * abs(longer)
    )
    held = (second.peak_bytes - best.peak_bytes) / 1e9
    memory = f" and it needs {abs(held):.1f} GB {'more' if held > 0 else 'less'}" if abs(held) >= _LEAST_GB else ""
    word = "longer" if longer > 0 else "less"
    share = abs(longer) / best.step_time_s
    return f"its step takes {format_time(abs(longer), 3)} ({share:.1%}) {word}{memory}: {', '.join(parts)}"
