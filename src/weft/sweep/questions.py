"""What a sweep asks: a step, its memory, a simulation or a closed form, as checked values.

`KINDS` has a class for each value of the key `run`. A class names the keys of a file and computes the answer; objects
(a graph, a system, a pass, options) serve wherever a file has a name or a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, ClassVar, cast, get_type_hints

import numpy as np
from pydantic import BeforeValidator, Field, create_model, field_validator

from weft import hardware
from weft.core.catalog import Whole, unknown_key
from weft.core.errors import ConfigError, InputError, check_type, check_whole
from weft.core.fields import describe_fields, from_options
from weft.core.files import finite
from weft.core.options import SUSTAINED, Arbiter, Fidelity, RunOptions
from weft.core.store import Record
from weft.core.units import parse_collective, parse_shape
from weft.estimate import Estimate, estimate
from weft.graph import Collective, Gemm, Graph, Op, concurrent
from weft.graph.routing import loads_of
from weft.hardware import Described, Gpu, Node, System
from weft.models import SubLayer, Transformer, load_model
from weft.models.parallel import split, work_of
from weft.models.parallel.deployment import overlap_of
from weft.models.parallel.plan import TrainingPlan
from weft.overlaps import OverlapMethod, find_simulated
from weft.overlaps.arbiters import find_policy
from weft.serving.load import Load
from weft.serving.result import Limits, Serving
from weft.serving.serve import serve
from weft.simulate.kept import method_identity, policy_identity, retitle, work_weight
from weft.simulate.result import Timeline
from weft.simulate.result.stored import as_record, from_record, plain, summary
from weft.simulate.single import Runner, baseline
from weft.step.queries import memory, step
from weft.step.result.memory import Memory as NeededMemory
from weft.step.result.step import Step
from weft.step.serving_plan import ServingPlan

Changes = Mapping[str, str | int | float]
"""Values of the system by path, such as {"link.bandwidth": "300 GB/s"}."""
OVERLOADED = "the offered load is above capacity"
"""Why a served load has no time."""
_UNSET: tuple[Any, ...] = (None, {})
_LEFT_OUT = ("wall_s", "cpu_s")
"""What differs from one run of the same question to the next."""


def _options(raw: Any) -> Any:
    """The options of a run from a table; ConfigError for an unknown key, which names the nearest."""
    if raw is None:
        return raw
    if not isinstance(raw, Mapping):
        check_type("the options", raw, RunOptions, "give weft.RunOptions(...), or a table of its values")
        return raw
    for key in raw:
        if key not in RunOptions.__dataclass_fields__:
            error = unknown_key(key, tuple(RunOptions.__dataclass_fields__))
            raise ConfigError(error.message, "options", key)
    return RunOptions(**raw)


class SweepQuestion(Whole):
    """Base of the questions: a system (by name, file or as an object), values of it that are `set`, and options."""

    run: ClassVar[str]
    system: Any
    set: Changes = Field(default_factory=dict)
    options: Annotated[Any, BeforeValidator(_options)] = None

    def machine(self) -> System:
        """Return the system with its values set."""
        return found_system(self.system, tuple(self.set.items()))

    def check(self) -> None:
        """Raise UnknownNameError for an unknown name, ConfigError for a value that the system cannot take."""
        known = found_system(self.system).rules
        found_system(self.system, tuple((path, value) for path, value in self.set.items() if path in known))
        for name in models_in(dict(self)):
            found_model(name)

    def answer(self) -> Any:
        """Compute the answer; raises what the function of the kind raises."""
        raise NotImplementedError

    def figures(self, answer: Any) -> dict[str, Any]:
        """Return the figures of an answer by name, `seconds` first; those of nested tables by dotted names."""
        found = flat({"seconds": float(answer.seconds), **answer.to_dict()})
        return {name: finite(value) for name, value in found.items() if name not in _LEFT_OUT}

    def record(self) -> Record:
        """Compute the answer, and return what is kept of it: its figures under "found"."""
        return {"found": self.figures(self.answer())}

    def read(self, record: Mapping[str, Any]) -> Any:
        """Return the answer whose record is kept; recomputed where the record holds figures alone."""
        return self.answer()


def found_system(system: Described, values: tuple[tuple[str, str | int | float], ...] = ()) -> System:
    """The system of a name, a file or an object with values replaced; the same object for equal names and values."""
    if isinstance(system, str):
        return _named_system(system, values)
    return hardware.system(system).replace(dict(values))


@lru_cache(256)
def _named_system(name: str, values: tuple[tuple[str, str | int | float], ...]) -> System:
    return hardware.system(name).replace(dict(values))


@lru_cache(64)
def found_model(name: str) -> Transformer:
    """Return the model of a name or a file; the same object for equal names."""
    return load_model(name)


def models_in(data: Mapping[str, Any]) -> list[str]:
    """Return the models that a question names: its model, or that of its sub-layer."""
    work = data.get("work")
    of_work = [work.rpartition("/")[0]] if isinstance(work, str) and "/" in work else []
    return [name for name in (data.get("model"), *of_work) if isinstance(name, str)]


def _optional(kind: Any) -> Any:
    return (kind | None, None)


def _keys(*owners: Any) -> dict[str, Any]:
    """Return the fields of dataclasses as keys of a file, of any type: the dataclass checks them."""
    return {name: _optional(Any) for owner in owners for name in describe_fields(owner)}


_PLAN = create_model(
    "_PLAN",
    __base__=SweepQuestion,
    **{name: _optional(kind) for name, kind in get_type_hints(TrainingPlan).items()},
)
"""A question with the fields of a plan."""


class PlanQuestion(_PLAN):
    """A model under a plan, whose fields are keys of the file."""

    model: str
    framework: str | None = None

    @field_validator("overlap", mode="before", check_fields=False)
    @classmethod
    def _methods(cls, value: Any) -> Any:
        """Methods by axis, also from a text such as "tp=flux,dp=dma"."""
        return overlap_of(value) if isinstance(value, str) else value

    @field_validator("expert_load", mode="before", check_fields=False)
    @classmethod
    def _loads(cls, value: Any) -> Any:
        """Loads of experts, also from a text such as "even" or "power:0.6"."""
        return loads_of(value) if isinstance(value, str) else value

    def stated_values(self) -> dict[str, Any]:
        """The fields of the plan that are given."""
        fields = {name: getattr(self, name) for name in TrainingPlan.__dataclass_fields__}
        return {name: value for name, value in fields.items() if value not in _UNSET}


class StepQuestion(PlanQuestion):
    """`weft.step`."""

    run: ClassVar[str] = "step"
    fidelity: Fidelity = "windows"

    def answer(self) -> Step:
        """Return the training step."""
        return step(
            found_model(self.model),
            self.machine(),
            framework=self.framework,
            options=self.options or RunOptions(),
            fidelity=self.fidelity,
            compare=False,
            **self.stated_values(),
        )


class MemoryQuestion(PlanQuestion):
    """`weft.memory`."""

    run: ClassVar[str] = "memory"

    def answer(self) -> NeededMemory:
        """Return the memory of a training step."""
        return memory(found_model(self.model), self.machine(), framework=self.framework, **self.stated_values())

    def figures(self, answer: NeededMemory) -> dict[str, Any]:
        """Peaks [bytes] by name."""
        return flat({**answer.to_dict(), "plan": answer.plan.to_dict()})


_SERVED = create_model("_SERVED", __base__=SweepQuestion, **_keys(ServingPlan, Load, Limits))
"""A question with the fields of a serving plan, a load and limits."""


class ServeQuestion(_SERVED):
    """`weft.serve`: `seconds` is the mean time of a request; a load above capacity has none, and says so."""

    run: ClassVar[str] = "serve"
    model: str
    sweep_concurrency: bool = False

    def record(self) -> Record:
        """Compute the answer, and return its figures, and that it is above capacity if it is."""
        answer = self.answer()
        above = {"why": OVERLOADED} if answer.overloaded else {}
        return {"found": self.figures(answer), **above}

    def answer(self) -> Serving:
        """Return the served load."""
        given = dict(self)
        return serve(
            found_model(self.model),
            self.machine(),
            from_options(ServingPlan, given),
            from_options(Load, given),
            from_options(Limits, given),
            sweep_concurrency=self.sweep_concurrency,
            options=self.options or SUSTAINED,
        )


class WorkQuestion(SweepQuestion):
    """Work: a sub-layer ("t-nlg/fc2", with `tp`) or an object, a GEMM ("M,N,K"), or a collective with its `ranks`."""

    work: Any = None
    gemm: str | tuple[int, int, int] | None = None
    collective: str | None = None
    ranks: int = 8
    tp: Any = None
    dtype: str | None = None

    def check(self) -> None:
        """Also raise InputError for work that is neither text nor object."""
        if self.work is not None and not isinstance(self.work, str):
            check_type("the work", self.work, (Graph, Op), "name it, like 't-nlg/fc2', or give a graph")
        elif self.work is not None and "/" not in self.work:
            self.named_work()  # says how work is named
        if self.tp is not None:
            check_whole("tp", self.tp, 1, 8)
        super().check()

    def named_work(self) -> Graph | Op:
        """Return the work itself: that of a name is built."""
        return cast("Graph | Op", work_of(self.work, self.tp, self.dtype))

    def gemm_op(self) -> Gemm:
        """Return the GEMM of `gemm`."""
        m, n, k = parse_shape(self.gemm) if isinstance(self.gemm, str) else self.gemm or (0, 0, 0)
        return Gemm(m, n, k, self.dtype or "bf16")

    def collective_op(self) -> Collective:
        """Return the collective of `collective`."""
        return Collective(*parse_collective(self.collective or ""), self.ranks, self.dtype or "bf16")

    def only(self, *together: tuple[str, ...]) -> tuple[str, ...]:
        """Return which of work, gemm and collective are given; InputError if these do not go together."""
        given = tuple(name for name in ("work", "gemm", "collective") if getattr(self, name) is not None)
        if given not in together:
            known = "; ".join(" and ".join(names) for names in together)
            found = " and ".join(given) or "no work"
            raise InputError(f'run = "{self.run}" takes one of: {known}; the file and --vary give {found}')
        return given


class EstimateQuestion(WorkQuestion):
    """`weft.estimate`."""

    run: ClassVar[str] = "estimate"

    def answer(self) -> Estimate:
        """Return the closed form; InputError for work whose dimensions are arrays."""
        found = estimate(self._work(), self.machine(), self.options)
        if np.ndim(found.seconds):
            raise InputError("a work of a sweep has arrays for dimensions; give a list of works with one number each")
        return found

    def _work(self) -> Graph | Op:
        match self.only(("work",), ("gemm",), ("collective",)):
            case ("gemm",):
                return self.gemm_op()
            case ("collective",):
                return self.collective_op()
        return self.named_work()


class SimulateQuestion(WorkQuestion):
    """`weft.simulate`: a sub-layer, a GEMM split over `tp` GPUs, or loops of a GEMM and a collective that co-run."""

    run: ClassVar[str] = "simulate"
    overlap: Any = None
    loops: tuple[int, int] = (1, 1)

    def check(self) -> None:
        """Also raise UnknownNameError for an unknown overlap."""
        super().check()
        if self.overlap is not None:
            find_simulated(self.overlap)

    def answer(self) -> Timeline:
        """Return the timeline."""
        runner = self._runner()
        return runner.timeline(self.overlap or baseline(runner.graph))

    def record(self) -> Record:
        """Also the timeline without its spans and series."""
        made = self.answer()
        return {"found": self.figures(made), "timeline": as_record(retitle(None, "", {}, summary(made)))}

    def read(self, record: Mapping[str, Any]) -> Timeline:
        """Return the kept timeline, on the system and under the title of its work."""
        runner = self._runner()
        return retitle(runner.system, runner.graph.title, runner.graph.labels, from_record(record["timeline"]))

    def weight(self) -> float:
        """Rough relative duration of the run."""
        return work_weight(self._graph())

    def _runner(self) -> Runner:
        graph = self._graph()
        place = self.system if isinstance(self.system, str) else hardware.system(self.system)
        return _runner(graph, place, tuple(self.set.items()), self.options)

    def _graph(self) -> Graph:
        given = self.only(("work",), ("gemm",), ("gemm", "collective"))
        if given == ("work",):
            return cast("Graph", self.named_work())
        gemm = self.gemm_op()
        if given == ("gemm",):
            return split(SubLayer.custom(gemm.m, gemm.n, gemm.k, gemm.dtype), self.tp or 8)
        return concurrent(gemm, self.collective_op(), *self.loops)


@lru_cache(4)
def _runner(
    graph: Graph, system: str | System, changed: tuple[tuple[str, Any], ...], options: RunOptions | None
) -> Runner:
    """A graph on a changed system; the same object for its next overlap, which reuses the runs made for an ideal."""
    return Runner(graph, Runner(graph, system).system.replace(dict(changed)), options)


KINDS: Mapping[str, type[SweepQuestion]] = {
    kind.run: kind for kind in (StepQuestion, MemoryQuestion, ServeQuestion, SimulateQuestion, EstimateQuestion)
}
"""The questions by the key `run` of a file."""


def question_of(data: Mapping[str, Any]) -> SweepQuestion:
    """Return the checked question of plain data; ConfigError for values that it does not take."""
    values = {name: value for name, value in data.items() if name != "run"}
    return KINDS[data["run"]](**values)


def content(value: Any) -> Any:
    """Return the inputs that determine a run, as plain data for the key of its record."""
    if isinstance(value, System | Gpu | Node):
        return hardware.system(value).inputs()
    if isinstance(value, Graph):
        return plain(replace(value, title="", labels={}))
    if isinstance(value, OverlapMethod):
        return {"pass": method_identity(value), "arbiter": _policy(value.arbiter)}
    if isinstance(value, RunOptions):
        return {"options": plain(value), "arbiter": _policy(value.arbiter)}
    if isinstance(value, Mapping):
        return {name: content(inner) for name, inner in value.items()}
    return plain(value) if isinstance(value, Op) else value


def _policy(arbiter: Arbiter | str | None) -> list[str] | None:
    return None if arbiter is None else policy_identity(find_policy(arbiter))


def value_name(value: Any) -> Any:
    """Return a value of a question for people: numbers and texts unchanged, objects by their names."""
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, list | tuple):
        return [value_name(inner) for inner in value]
    if isinstance(value, Mapping):
        return {name: value_name(inner) for name, inner in value.items()}
    if isinstance(value, RunOptions):
        return {name: value_name(given) for name, given in vars(value).items() if given != getattr(RunOptions, name)}
    return getattr(value, "name", None) or str(value)


def flat(data: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Plain data with one level: nested tables by dotted names, lists as texts such as "4,4,3"; no lists of tables."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}.")
        elif not (isinstance(value, list) and value and isinstance(value[0], Mapping)):
            found[f"{before}{name}"] = list_text(value)
    return found


def list_text(value: Any) -> Any:
    """Return a list as a text such as "4,4,3", or several sentences as one; any other value unchanged."""
    if not isinstance(value, list | tuple):
        return value
    return (" " if any(" " in str(one) for one in value) else ",").join(map(str, value))
