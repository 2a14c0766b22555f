"""What a training step answers: its time, what every rank does in it, and what that means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.core.answer import Answer, to_plain
from weft.estimate.errors import Error, with_scans
from weft.estimate.step_errors import Compared, ratio_error, relative_change, step_error
from weft.graph import Graph
from weft.models.counts import hardware_flops, utilisation
from weft.models.parallel.memory import SavedActivations
from weft.models.parallel.plan import schedule_name

if TYPE_CHECKING:
    from weft.hardware import System
    from weft.models import Transformer
    from weft.models.parallel.framework import Framework
    from weft.models.parallel.plan import TrainingPlan
    from weft.step.pipeline import PipelineTimes
    from weft.step.result.memory import Memory
    from weft.step.run import RunOutcome, TrainingRun
    from weft.step.straggler import Delay

CONVENTION = "full"
"""What MFU and HFU count unless asked otherwise, as papers on Megatron-LM do: a key of `CONVENTIONS`."""
_EXPOSED = "exposed "


def exposed_part(axis: str) -> str:
    """Return the name of the part of a time in which the compute stream waits for the communication of an axis."""
    return _EXPOSED + axis


def exposed_axis(part: str) -> str:
    """Return the axis for whose communication the compute stream waits in a part of a time; "" for other parts."""
    return part.removeprefix(_EXPOSED) if part.startswith(_EXPOSED) else ""


Times = Mapping[str, tuple[float, float]]
"""Start and end of every node of a graph by its id [s]."""


LAUNCH_GAPS = "launch gaps"
"""The part of a pass in which the GPU waits for the host to launch its kernels."""
RESIDUAL = "calibration residual"
"""The part that measured steps take beyond what Weft models (`weft.kernels.library.software`)."""


@dataclass(frozen=True)
class Pass:
    """A pass over a part of a model takes `seconds`, which `parts` add up to.

    Parts are classes of operators ("gemm", "attention", "norm", ...), "recompute", and the communication that the
    compute stream waits for, by its axis: "exposed tp". `hidden` is the communication during computing, by its axis
    [s]. The host launches `launches` kernels for it. `graph` and `times` say what ran when, if the pass is of a single
    graph.
    """

    seconds: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)
    hidden: Mapping[str, float] = field(default_factory=dict)
    launches: float = 0
    graph: Graph | None = None
    times: Times = field(default_factory=dict)

    def __add__(self, other: Pass) -> Pass:
        return Pass(
            self.seconds + other.seconds,
            add_parts(self.parts, other.parts),
            add_parts(self.hidden, other.hidden),
            self.launches + other.launches,
        )

    def __mul__(self, count: float) -> Pass:
        parts, hidden = _times(self.parts, count), _times(self.hidden, count)
        return Pass(self.seconds * count, parts, hidden, self.launches * count)


def add_parts(*shares: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds by name, summed over several mappings."""
    total: dict[str, float] = {}
    for share in shares:
        for name, seconds in share.items():
            total[name] = total.get(name, 0.0) + seconds
    return total


def _times(shares: Mapping[str, float], count: float) -> dict[str, float]:
    return {name: share * count for name, share in shares.items()}


def sum_layers(each: Iterable[tuple[Pass, int]]) -> Pass:
    """Return the sum of passes, each times its count: of a stage, or of a server's iteration."""
    return sum((one * count for one, count in each), Pass())


@dataclass(frozen=True)
class PartTimes:
    """One rank's passes over a part of a model: forward, backward (of inputs; of weights if they are computed apart).

    `parameters` counts those that the rank holds, `experts` those of routed experts among them, `narrow` those of GEMMs
    on a recipe's operands of 8 or 4 bits; `recompute` is the pass over what is recomputed before `backward`, `kept`
    what one micro-batch needs in memory, `graphs` all of its operators.
    """

    name: str
    forward: Pass
    backward: Pass
    weight: Pass = Pass()
    recompute: Pass = Pass()
    parameters: int = 0
    kept: SavedActivations = field(default_factory=SavedActivations)
    experts: int = 0
    narrow: int = 0
    graphs: tuple[Graph, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Chunk:
    """The part of a model that a pipeline stage runs at once: its parts in order, and their passes together.

    The passes include what the rank waits for between its parts, such as weights that are gathered.
    """

    parts: tuple[PartTimes, ...]
    forward: Pass
    backward: Pass
    weight: Pass

    @property
    def parameters(self) -> int:
        """Parameters that one rank holds before they are sharded over replicas."""
        return sum(part.parameters for part in self.parts)

    @property
    def experts(self) -> int:
        """Parameters of routed experts among them."""
        return sum(part.experts for part in self.parts)

    @property
    def all(self) -> Pass:
        """All passes of one micro-batch."""
        return self.forward + self.backward + self.weight


class Window(NamedTuple):
    """How many times longer a kernel and a collective take while both run on a GPU under a sharing strategy.

    `source` says where the slowdowns come from: the request-level "engine", "waves" of tiles on the compute units that
    the collective leaves, or "none" for what neither can say, with the reason `why`.
    """

    kernel: str
    collective: str
    sharing: str
    gpu: str
    slowdowns: tuple[float, float]
    source: str = "engine"
    why: str = ""


@dataclass(frozen=True, repr=False)
class Step(Answer):
    """A training step of `model` on `system` under `plan`: `seconds`, and where they go.

    `chunks` are the parts of the model in the order of the data, `pipeline` says when the micro-batches pass through
    them, `tails` what each pipeline device does between its last micro-batch and the end of the step [s];
    `tails_hidden` is the communication of replicas beside its passes [s].
    `pipeline_waits` are the parts of the makespan in which the mean device computes nothing: "bubble", "imbalance" and
    "exposed pp" [s], `send` is how long activations take to the next stage [s]. `fidelity` says where durations come
    from, `windows` what kernels and collectives cost each other, `memory` what every device holds, `notes` what a
    reader must know. `defaulted` names which of framework, sequence and stage of ZeRO the question did not state,
    `elsewhere` has the times of today's other frameworks [s]. `run` is what a whole run takes and costs (`over`),
    `late` what a slow part of the machine costs.
    """

    kind = "step"

    model: Transformer
    system: System
    plan: TrainingPlan
    framework: Framework
    chunks: tuple[Chunk, ...]
    pipeline: PipelineTimes
    pipeline_waits: Mapping[str, float]
    tails: tuple[Mapping[str, float], ...]
    tails_hidden: tuple[float, ...]
    seconds: float
    send: float = 0.0
    fidelity: str = "estimate"
    memory: Memory | None = None
    needs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    windows: tuple[Window, ...] = ()
    defaulted: tuple[str, ...] = ()
    elsewhere: Mapping[str, float] = field(default_factory=dict)
    run: RunOutcome | None = None
    late: Delay | None = None
    convention = CONVENTION

    def to_dict(self) -> dict[str, Any]:
        """Return the step, its times [s], and what it needs as plain data."""
        return to_plain(
            model=self.model.name, system=self.system.label, plan=self.plan, framework=self.framework.name,
            fidelity=self.fidelity, step_time_s=self.seconds, interval_80_s=self.interval_s, evidence=self.error.why,
            tokens_per_s_per_gpu=self.tokens_per_s_per_gpu, mfu=self.mfu, hfu=self.hfu, model_flops=self.flops(),
            flops_convention=self.convention, peak_flops=self.peak_flops, peak_bytes=self.memory and self.memory.peak,
            fits=self.memory and self.memory.fits, waterfall=self.parts, exposed_s=self.exposed, hidden_s=self.hidden,
            bubble_share=self.bubble, needs=self.needs, notes=self.notes, windows=self.windows,
            defaulted=self.defaulted, elsewhere=self.elsewhere, run=self.run,
            straggler=self.late,
        )  # fmt: skip

    def over(self, run: TrainingRun) -> Step:
        """Return the step with what a whole run of it takes and costs (`run`); InputError for an unknown GPU's price.

        >>> import weft
        >>> one = weft.step("llama-3-8b", "64xh100", zero=3, batch=128, sequence=4096, fidelity="estimate")
        >>> round(one.over(weft.TrainingRun(tokens="1T", price="2.5 USD/GPU/h")).run.million_tokens, 2)
        0.09
        """
        from weft.step.run import outcome

        return replace(self, run=outcome(self, run))

    @property
    def devices(self) -> int:
        """Number of pipeline devices."""
        return len(self.tails)

    def work(self, device: int) -> Pass:
        """Return all passes of the micro-batches on a pipeline device."""
        counts = (self.pipeline.schedule.device == device).sum(axis=1).tolist()
        return sum((chunk.all * count for chunk, count in zip(self.chunks, counts, strict=True)), Pass())

    def rank_parts(self, device: int) -> dict[str, float]:
        """Return where the step goes on one pipeline device [s]; the parts add up to the step."""
        parts = add_parts(self.work(device).parts, self.tails[device])
        parts["bubble"] = self.seconds - sum(parts.values())
        return parts

    @cached_property
    def parts(self) -> dict[str, float]:
        """Where the step goes [s], as the mean over the pipeline devices; the parts add up to the step."""
        share = 1 / self.devices
        total = add_parts(
            *(_times(add_parts(self.work(at).parts, self.tails[at]), share) for at in range(self.devices))
        )
        total = add_parts(total, self.pipeline_waits)
        total["imbalance"] = total.get("imbalance", 0.0) + self.seconds - sum(total.values())
        return {name: part for name, part in total.items() if abs(part) > 1e-12}

    @property
    def tokens(self) -> int:
        """Tokens per step."""
        return self.plan.batch * self.plan.sequence

    @property
    def measures(self) -> Mapping[str, float]:
        """The measures besides time that judge a change of the step, with their units."""
        held = {} if self.memory is None else {"peak memory [GB]": self.memory.peak / 1e9}
        return {"tokens/s of each GPU": self.tokens_per_s_per_gpu, "MFU [%]": 100 * self.mfu, **held}

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Throughput of each GPU [tokens/s]."""
        return self.tokens / self.seconds / self.plan.gpus

    def flops(self, convention: str = CONVENTION, again: bool = False) -> float:
        """Floating-point operations of a step on all GPUs as a convention counts them (`weft.models.counts`).

        `again` adds those of recomputation, if the plan repeats any.
        """
        repeats = again and any(part.recompute.seconds for chunk in self.chunks for part in chunk.parts)
        source = self.plan.sequence if self.model.encoder_layers else 0
        how = self.plan.recompute if repeats else "none"
        return self.plan.batch * hardware_flops(self.model, self.plan.sequence, how, convention, source)

    @property
    def peak_flops(self) -> float:
        """Rate of the matrix units of all GPUs in the plan's `dtype` [FLOP/s]: MFU and HFU are relative to it.

        That is the bf16 peak under every recipe of 8 or 4 bits, so that their steps compare.
        """
        return self.system.gpu.matrix_rate(self.plan.dtype) * self.plan.gpus

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization: operations that the model needs, over what the GPUs could do in the time."""
        return utilisation(self.flops(), self.seconds, self.peak_flops)

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilization: as MFU, with the operations of recomputation."""
        return utilisation(self.flops(again=True), self.seconds, self.peak_flops)

    @property
    def without_kernel(self) -> float:
        """Time in which no kernel runs on the mean pipeline device [s]; waits for communication run one."""
        names = ("bubble", "imbalance", "wait", LAUNCH_GAPS, exposed_part("host"))
        return sum(self.parts.get(name, 0.0) for name in names)

    @property
    def exposed(self) -> dict[str, float]:
        """Communication that computing waits for, by its axis [s], mean over the pipeline devices."""
        return {axis: seconds for name, seconds in self.parts.items() if (axis := exposed_axis(name))}

    @property
    def hidden(self) -> dict[str, float]:
        """Communication during computing, by its axis [s], mean over the pipeline devices."""
        ends = ({"dp": seconds} for seconds in self.tails_hidden if seconds)
        total = add_parts(*(self.work(device).hidden for device in range(self.devices)), *ends)
        return {name: seconds / self.devices for name, seconds in total.items() if seconds > 1e-12}

    @property
    def bubble(self) -> float:
        """Share of the step in which the mean pipeline device has nothing to compute."""
        return (self.parts.get("bubble", 0.0) + self.parts.get("imbalance", 0.0)) / self.seconds

    @property
    def error(self) -> Error:
        """The 80 % interval of measured steps like this one, relative to the prediction, and what it rests on."""
        scans, hidden = (
            seconds / self.seconds for seconds in (self.parts.get("scan", 0.0), self.hidden.get("dp", 0.0))
        )
        on, gpus = self.framework.name, self.plan.gpus
        precision, *traits = plan_traits(self.plan, self.model, hidden)
        known = step_error(self.system.gpu, on, bool(self.model.experts), gpus, precision, traits)
        return with_scans(known, scans)

    @property
    def interval_s(self) -> tuple[float, float]:
        """Both ends of the 80 % interval of the step time [s]."""
        return self.error.around(self.seconds)

    @property
    def compared(self) -> Compared:
        """What decides how much the error of this step has in common with that of another."""
        return compared(self.model, self.system, self.plan, self.framework)

    def ratio_error(self, other: Step) -> Error:
        """Return the 80 % interval of the ratio of the times of this step and another, relative to the predicted."""
        return ratio_error(self.compared, other.compared, relative_change(self.parts, other.parts))


def plan_traits(plan: TrainingPlan, model: Transformer, hidden: float = 0.0) -> list[str]:
    """Return what measured steps either have or not: number format, then axes, schedule, sharding and offload.

    `hidden` is the share of the step with data-parallel communication during computing: most of it is lost in measured
    steps, so that a share far above theirs is a trait, too. Methods of overlap are none of it: a step with one is
    compared with the step without.
    """
    axes = {"TP": plan.tp, "CP": plan.cp, "PP": plan.pp, "EP": plan.ep if model.experts else 1}
    kinds = [name for name, degree in axes.items() if degree > 1]
    kinds += [f"the schedule {schedule_name(plan.schedule).kind}"] * (plan.pp > 1)
    kinds += [f"ZeRO {plan.zero}"] * bool(plan.zero) + ["hybrid sharding"] * (plan.shard is not None)
    kinds += [f"offloaded {plan.offload}"] * (plan.offload != "none")
    if hidden >= _MUCH_HIDDEN:
        tenth = int(hidden * 10)
        kinds.append(f"{tenth}0 to {tenth + 1}0 % of a step beside data-parallel communication")
    return [plan.precision or plan.dtype, *kinds]


_MUCH_HIDDEN = 0.2
"""Share of a step from which hidden data-parallel communication decides its time, and counts in tenths."""

_APART = ("dp", "dtype", "precision", "dispatcher", "expert_load", "overlap")
"""Fields of plans that steps are compared by apart from the others, or that follow from them."""


def compared(model: Transformer, system: System, plan: TrainingPlan, framework: Framework) -> Compared:
    """Return what decides how much the errors of two steps have in common."""
    gpu, node, mixture = system.gpu, system.node, bool(model.experts)
    return Compared(
        gpu=f"{gpu.name}, {node.name if node else ''}",
        framework=framework.name,
        model=model.name,
        gpus=plan.gpus,
        precision=plan.precision or plan.dtype,
        dispatcher=(plan.dispatcher or framework.dispatcher) if mixture and plan.ep > 1 else "",
        plan=tuple(getattr(plan, one.name) for one in fields(plan) if one.name not in _APART),
        mixture=mixture,
        vendor=gpu.vendor,
        machine=(gpu, node, system.library, system.fabric, dict(system.variants), dict(system.start)),
        load=str(plan.expert_load),
        overlap=str(plan.overlap),
    )
