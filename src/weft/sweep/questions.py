"""What a sweep's file asks: a step, its memory, a simulation or a closed form, as checked values.

`KINDS` has a class for each value of the key `run`. A class names the keys of the file and computes the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, cast, get_type_hints

from pydantic import Field, create_model

from weft import hardware
from weft.catalog import Part, Whole
from weft.errors import InputError
from weft.estimate import Estimate, estimate
from weft.graph import Collective, Gemm, Graph, concurrent
from weft.hardware import System
from weft.models import SubLayer, Transformer, load_model
from weft.options import Clock, Fidelity, Memory, Mode, RunOptions
from weft.parallel import split, work_of
from weft.parallel.plan import Parallelism
from weft.result import Timeline
from weft.result.memory import Memory as NeededMemory
from weft.result.step import Step
from weft.run.single import Runner, baseline
from weft.run.step.named import memory, step
from weft.units import Dimension, parse

Changes = Mapping[str, str | int | float]
"""Values of the system by path, such as {"link.bandwidth": "300 GB/s"}."""
_UNSET: tuple[Any, ...] = (None, {})
_LEFT_OUT = ("wall_s",)
"""What differs from one run of the same question to the next."""


class Options(Part):
    """Options of a run, as `weft.RunOptions`."""

    clock: Clock = "sustained"
    request_bytes: int | None = None
    mode: Mode = "auto"
    event_budget: int | None = None
    arbiter: str | None = None
    memory: Memory = "banks"

    def made(self) -> RunOptions:
        """The options as an object."""
        return RunOptions(**dict(self))


class Question(Whole):
    """Base of the questions: a system by name or file, values of it that are `set`, and options."""

    run: ClassVar[str]
    system: str
    set: Changes = Field(default_factory=dict)
    options: Options = Options()

    def where(self) -> System:
        """The system with its values set."""
        return found_system(self.system, tuple(self.set.items()))

    def answer(self) -> Any:
        """Compute the answer; raises what the function of the kind raises."""
        raise NotImplementedError

    def figures(self) -> dict[str, Any]:
        """The figures of the answer by name, `seconds` first; those of nested tables by dotted names."""
        answer = self.answer()
        found = flat({"seconds": float(answer.seconds), **answer.to_dict()})
        return {name: value for name, value in found.items() if name not in _LEFT_OUT}


@lru_cache(256)
def found_system(name: str, values: tuple[tuple[str, str | int | float], ...] = ()) -> System:
    """The system of a name or a file with values replaced; the same object for equal arguments."""
    return hardware.system(name).replace(dict(values))


@lru_cache(64)
def found_model(name: str) -> Transformer:
    """The model of a name or a file; the same object for equal names."""
    return load_model(name)


def _optional(kind: Any) -> Any:
    return (kind | None, None)


_PLAN = create_model(
    "_PLAN", __base__=Question, **{name: _optional(kind) for name, kind in get_type_hints(Parallelism).items()}
)
"""A question with the fields of a plan."""


class Planned(_PLAN):
    """A model under a plan, whose fields are keys of the file."""

    model: str
    framework: str | None = None

    def stated(self) -> dict[str, Any]:
        """The fields of the plan that are given."""
        fields = {name: getattr(self, name) for name in Parallelism.__dataclass_fields__}
        return {name: value for name, value in fields.items() if value not in _UNSET}


class StepQuestion(Planned):
    """`weft.step`."""

    run: ClassVar[str] = "step"
    fidelity: Fidelity = "windows"

    def answer(self) -> Step:
        """The training step."""
        return step(
            found_model(self.model), self.where(), framework=self.framework, options=self.options.made(),
            fidelity=self.fidelity, **self.stated(),
        )  # fmt: skip


class MemoryQuestion(Planned):
    """`weft.memory`."""

    run: ClassVar[str] = "memory"

    def answer(self) -> NeededMemory:
        """The memory of a training step."""
        return memory(found_model(self.model), self.where(), framework=self.framework, **self.stated())

    def figures(self) -> dict[str, Any]:
        """Peaks [bytes] by name."""
        answer = self.answer()
        return flat({**answer.to_dict(), "plan": answer.plan.to_dict()})


class Worked(Question):
    """A sub-layer ("t-nlg/fc2", with `tp`), a GEMM ("M,N,K"), or a collective ("all_reduce:256MiB", with `ranks`)."""

    work: str | None = None
    gemm: str | tuple[int, int, int] | None = None
    collective: str | None = None
    ranks: int = 8
    tp: int | None = None
    dtype: str | None = None

    def _gemm(self) -> Gemm:
        m, n, k = _shape(self.gemm) if isinstance(self.gemm, str) else self.gemm or (0, 0, 0)
        return Gemm(m, n, k, self.dtype or "bf16")

    def _collective(self) -> Collective:
        name, _, size = (self.collective or "").partition(":")
        if not size:
            raise InputError(f"'{self.collective}' is no collective with its size; write it like all_reduce:256MiB")
        return Collective(name.strip(), int(parse(size, Dimension.BYTES)), self.ranks, self.dtype or "bf16")

    def _only(self, *together: tuple[str, ...]) -> tuple[str, ...]:
        """Which of work, gemm and collective are given; InputError if these do not go together."""
        given = tuple(name for name in ("work", "gemm", "collective") if getattr(self, name) is not None)
        if given not in together:
            known = "; ".join(" and ".join(names) for names in together)
            found = " and ".join(given) or "no work"
            raise InputError(f'run = "{self.run}" takes one of: {known}; the file and --vary give {found}')
        return given


class EstimateQuestion(Worked):
    """`weft.estimate`."""

    run: ClassVar[str] = "estimate"

    def answer(self) -> Estimate:
        """The closed form."""
        return estimate(self._work(), self.where(), self.options.made())

    def _work(self) -> Gemm | Collective | Graph | str:
        match self._only(("work",), ("gemm",), ("collective",)):
            case ("gemm",):
                return self._gemm()
            case ("collective",):
                return self._collective()
        return work_of(self.work or "", self.tp, self.dtype)


class SimulateQuestion(Worked):
    """`weft.simulate`: a sub-layer, a GEMM split over `tp` GPUs, or loops of a GEMM and a collective that co-run."""

    run: ClassVar[str] = "simulate"
    overlap: str | None = None
    loops: tuple[int, int] = (4, 4)

    def answer(self) -> Timeline:
        """The timeline."""
        graph = self._graph()
        where = Runner(graph, self.system).system.replace(dict(self.set))
        runner = Runner(graph, where, self.options.made())
        return runner.timeline(self.overlap or baseline(graph))

    def _graph(self) -> Graph:
        given = self._only(("work",), ("gemm",), ("gemm", "collective"))
        if given == ("work",):
            return cast(Graph, work_of(self.work or "", self.tp, self.dtype))
        if given == ("gemm",):
            gemm = self._gemm()
            return split(SubLayer.custom(gemm.m, gemm.n, gemm.k, gemm.dtype), self.tp or 8)
        return concurrent(self._gemm(), self._collective(), *self.loops)


def _shape(text: str) -> tuple[int, int, int]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise InputError(f"gemm is '{text}'; write M,N,K, like 8192,8192,8192")
    m, n, k = map(int, parts)
    return m, n, k


KINDS: Mapping[str, type[Question]] = {
    kind.run: kind for kind in (StepQuestion, MemoryQuestion, SimulateQuestion, EstimateQuestion)
}
"""The questions by the key `run` of a file."""


def flat(data: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Plain data with one level: nested tables by dotted names, lists as texts such as "4,4,3"; no lists of tables."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}.")
        elif not (isinstance(value, list) and value and isinstance(value[0], Mapping)):
            found[f"{before}{name}"] = listed(value)
    return found


def listed(value: Any) -> Any:
    """A list as a text such as "4,4,3", or several sentences as one; any other value unchanged."""
    if not isinstance(value, list | tuple):
        return value
    return (" " if any(" " in str(one) for one in value) else ",").join(map(str, value))
