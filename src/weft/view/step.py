"""Steps of training, of inference and of captured graphs: sentences, the waterfall, and what runs when."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.core.report import Part, Report, Section, SystemReport
from weft.core.report.table import Table, milliseconds, number, text, times_faster
from weft.core.units import format_bytes
from weft.estimate.errors import contention_error
from weft.graph import Collective, TokenExchange
from weft.models.counts import CONVENTIONS
from weft.models.parallel.plan import overlap_text
from weft.step.result.step import CONVENTION, LAUNCH_GAPS, RESIDUAL, Chunk, PartTimes, Step, exposed_axis
from weft.view import looks
from weft.view.figure import Axis, Color, Figure, timeline_bars
from weft.view.memory import fitting, holder_table, holders, memory_curve
from weft.view.plans import AXES, framework_sentence, plan_table, plan_title, shown_devices
from weft.view.shares import COLORS, COMPUTE, label, loss, meaning, order_parts, seconds, waterfall
from weft.view.words import percent

if TYPE_CHECKING:
    from weft.hardware import Gpu
    from weft.models.parallel.deployment import Deployment
    from weft.step.result.graph_step import GraphStep
    from weft.step.result.inference import Inference

UTILIZATION = (
    "MFU and HFU are relative to the data sheet's rate of --dtype, bf16 under every recipe, and count FLOPs as "
    f"{CONVENTIONS[CONVENTION].source}: "
    f"{CONVENTIONS[CONVENTION].about}, the backward pass as twice the forward one; HFU adds recomputation."
)
"""The convention of the answer's utilization."""
_HARMLESS = 0.03
"""Share of the step below which the verdict does not name a loss."""


_NO_ROOM = 0.005
"""Share of the step up to which computing without communication beside it is too short to hide any."""
_MUCH_FASTER = 1.2
"""Times as fast as another framework must be for an answer of a wide range to name it."""
_MOST_DRAWN = 2400
"""Tasks of a pipeline above which the page leaves out the diagram."""


class StepReport(SystemReport[Step]):
    """A training step: what it takes, the waterfall, exposed communication, stages, memory, and what runs when."""

    explained = "step"

    def title(self) -> str:
        """Return the model, the machine and the plan on one line."""
        return plan_title(self.answer.model, self.answer.system, self.answer.plan)

    def sentences(self) -> list[str]:
        """Return the time, throughput and utilization, what dominates, what is lost, and to what; whether it fits."""
        answer, plan, (low, high) = self.answer, self.answer.plan, self.answer.interval_s
        what = f"{answer.model.title} on {plan.gpus:,} GPUs"
        misfit = answer.memory is not None and not answer.memory.fits
        took = "A step would take" if misfit else f"{what}: step time"
        lead = (
            f"{took} {seconds(answer.seconds)} "
            f"(80 % interval {seconds(low)} to {seconds(high)}), "
            f"{answer.tokens_per_s_per_gpu:,.0f} tokens/s per GPU, MFU {answer.mfu:.1%}"
            + (f", HFU {answer.hfu:.1%}" if answer.hfu > 1.001 * answer.mfu else "")
            + f" of the {plan.dtype} peak{_more(answer)}, with attention counted in full."
        )
        framework = framework_sentence(answer.framework, plan, answer.defaulted) + _elsewhere(answer)
        fits = [] if answer.memory is None else [fitting(answer.memory, what if misfit else "")]
        before, after = (fits, []) if misfit else ([], fits)
        return [
            *before,
            lead,
            framework,
            _dominates(answer),
            *_bound(answer),
            *_exchanges(answer),
            *_run_sentences(answer),
            *after,
            *answer.needs,
        ]

    def notes(self) -> list[str]:
        """Return what was chosen or assumed, the errors of windows, and how sure this is."""
        answer = self.answer
        return [*answer.notes, *window_errors(answer), f"Expected error: {answer.error.why}."]

    def details(self) -> list[Table | str]:
        """Return the convention of utilization, and what kernels and collectives cost each other."""
        answer = self.answer
        return [UTILIZATION, *([window_table(answer)] if answer.windows else [])]

    def tables(self) -> list[Table]:
        """Return the waterfall, communication by axis, and what each pipeline device does."""
        answer = self.answer
        heading = f"{self.title()}: where the time goes"
        found = [waterfall_table(answer.parts, answer.seconds, heading), communication_table(answer)]
        return [*(one for one in found if one.rows), *([stage_table(answer)] if answer.devices > 1 else [])]

    def on_terminal(self) -> list[Table]:
        """Return all of them, stages only if there are few."""
        return self.tables()[: None if self.answer.devices <= 16 else -1]

    def figure(self) -> Figure:
        """Return the step as one bar for the mean and one for each pipeline device, in parts that add up to 100 %."""
        answer = self.answer
        lanes = {"mean": answer.parts}
        if answer.devices > 1:
            lanes |= {f"stage {device}": answer.rank_parts(device) for device in shown_devices(answer.devices)}
        return waterfall("Where does the step go?", lanes, answer.seconds).with_caption(
            "Each bar adds up to the step. Exposed communication is what computing waits for; on a single stage, "
            "idle time is shown as bubble, whatever its cause."
        )

    def sections(self) -> list[Part]:
        """Return the waterfall, communication, a layer, the pipeline, the memory, the plan, and the windows folded."""
        answer = self.answer
        shares, *tables = self.tables()
        layer, memory = layer_streams(answer), answer.memory
        stages = tables[-1:] if answer.devices > 1 else []
        from weft.view.pipeline import pipeline_diagram  # only a page draws it

        diagram = [pipeline_diagram(answer.pipeline)] if answer.pipeline.schedule.tasks <= _MOST_DRAWN else []
        curve = memory_curve(answer)
        plan = plan_table(answer.plan, answer.framework.name, len(answer.chunks))
        held: list[Part] = [fitting(memory), holders(memory), holder_table(memory)] if memory else []
        if curve:
            held.insert(2, curve)
        windows = [window_table(answer)] if answer.windows else []
        return [
            *self.figures(),
            shares,
            Section("Communication", tables[: len(tables) - len(stages)]),
            Section("A layer", [layer] if layer else []),
            Section("The pipeline", [*diagram, *stages] if stages else []),
            Section("Memory", held),
            *_power(answer),
            Section("The plan", [plan]),
            Section(f"Kernels concurrent with collectives ({len(answer.windows)})", windows, folded=True),
        ]


class GraphStepReport(Report["GraphStep"]):
    """A graph of operators, such as a captured step, on a rank: its time by phase and class of operator."""

    def title(self) -> str:
        """Return the graph and the GPU."""
        return f"{self.answer.graph} on {self.answer.gpu.title}"

    def sentences(self) -> list[str]:
        """Return the time, the rate, and the memory."""
        answer = self.answer
        held = f"{format_bytes(answer.peak_bytes, 4)} of the {format_bytes(answer.gpu.memory.capacity)}"
        fits = "its tensors take" if answer.fits else "it does not fit: its tensors take"
        ranks = answer.graph.ranks
        where = f"each of {ranks} x {answer.gpu.title}" if ranks > 1 else answer.gpu.title
        lead = (
            f"{answer.graph} takes {answer.seconds * 1e3:,.2f} ms on {where}, {answer.launches:,} operators at "
            f"{answer.flops / (answer.seconds or 1.0) / 1e12:,.1f} TFLOP/s; {fits} {held} of the GPU at their peak."
        )
        beside, exposed = answer.exposed + answer.hidden, answer.exposed * 1e3
        waits = (
            f"Streams concurrent with compute run for {beside * 1e3:,.2f} ms, and {exposed:,.2f} ms of it is exposed."
        )
        by_bytes = f"{percent(answer.by_bytes)} of the time is in operators that are timed by their bytes alone."
        return [lead, *([waits] if beside else []), by_bytes]

    def notes(self) -> list[str]:
        """Return what a reader must know."""
        return [f"note: {note}" for note in self.answer.notes]

    def table(self) -> Table:
        """Return a row for each phase and class of operator."""
        return share_table(self.answer)

    def figure(self) -> Figure:
        """Return a bar for each phase that stacks the time of its classes of operators."""
        lanes: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for one in self.answer.shares:
            lanes[one.phase or "all"][one.kind] = one.seconds
        return waterfall("Where does the time go?", lanes, self.answer.seconds).with_caption(
            "Time of the operators of each phase; of other streams, what computing waits for them."
        )

    def gpu(self) -> Gpu:
        """Return the GPU on which the graph was timed."""
        return self.answer.gpu


def _more(answer: Step) -> str:
    """Return how much higher the peak of a recipe's GEMMs is than the one that utilization is relative to, if it is."""
    gpu, operands = answer.system.gpu, answer.plan.recipe.operands
    if not operands:
        return ""
    return f" (GEMMs on {operands} have {gpu.matrix_rate(operands) / gpu.matrix_rate(answer.plan.dtype):.3g} times it)"


class InferenceReport(SystemReport["Inference"]):
    """A prompt, or the decode tokens, of a batch of sequences: latency, throughput, the waterfall, and the memory."""

    explained = "inference"

    def title(self) -> str:
        """Return the model, the phase and the machine on one line."""
        answer = self.answer
        what = "context" if answer.phase == "decode" else "prompt"
        return (
            f"{answer.phase.capitalize()} of {answer.model.title} on {answer.system.name}, {ranks(answer.plan)}, batch "
            f"{answer.batch}, {answer.tokens:,} tokens of {what}, {answer.format.words}"
        )

    def sentences(self) -> list[str]:
        """Latency and throughput, what takes longest, and whether it fits."""
        answer = self.answer
        where = f"{answer.plan.tp} GPU" + "s" * (answer.plan.tp > 1)
        model = f"{answer.model.title} ({answer.format.words}) on {where}"
        batch = f"batch {answer.batch} x {answer.tokens:,} tokens"
        if answer.cached:
            batch += f" after {answer.cached:,} cached tokens each"
        server = "80 % interval of a server {} to {}".format(*map(seconds, answer.interval_s))
        lead = f"{model}: prefill {seconds(answer.seconds)} (TTFT without queueing; {server}), {batch}"
        if answer.phase == "decode":
            drafts = ""
            if answer.step_s > answer.seconds:
                drafts = f" ({answer.tokens_per_step:.3g} tokens per iteration of {seconds(answer.step_s)})"
            lead = f"{model}: ITL {seconds(answer.seconds)}{drafts} ({server}), {batch} of context"
        rate = f"; {answer.tokens_per_s:,.0f} tokens/s"
        if answer.replicas > 1:
            rate += f", {answer.replicas * answer.tokens_per_s:,.0f} on the {answer.replicas} replicas of the system"
        worst = sorted(answer.parts.items(), key=lambda part: -part[1])[:3]
        most = ", ".join(f"{percent(time / answer.seconds)} {_spent(name)}" for name, time in worst)
        return [f"{lead}{rate}.", f"Time: {most}.", _fitting(answer), *answer.needs]

    def notes(self) -> list[str]:
        """Return what a reader must know, and last how sure this is."""
        return [*self.answer.notes, f"expected error: {self.answer.error.why}"]

    def tables(self) -> list[Table]:
        """Return the waterfall, and what each GPU holds."""
        shares = waterfall_table(self.answer.parts, self.answer.seconds, self.title(), "all")
        return [shares, memory_table(self.answer)]

    def on_terminal(self) -> list[Table]:
        """Return the waterfall; a sentence says what fits."""
        return self.tables()[:1]

    def figure(self) -> Figure:
        """Return where the time goes, as one bar."""
        return waterfall(
            "Where does the time go?", {self.answer.phase: self.answer.parts}, self.answer.seconds
        ).with_caption("One GPU; exposed communication is what computing waits for.")


def _run_sentences(answer: Step) -> list[str]:
    """Return what a slow part costs, and what a whole run takes, where they were asked for."""
    if answer.late is None and answer.run is None:
        return []
    from weft.view.training_run import run_sentences, straggler_sentences

    return [*straggler_sentences(answer.late), *run_sentences(answer.run)]


def _power(answer: Step) -> list[Section]:
    """Return what draws the power of a GPU, where it was asked for."""
    if answer.run is None or answer.run.energy is None:
        return []
    from weft.view.energy import power_section

    return power_section(answer.run.energy)


def ranks(plan: Deployment) -> str:
    """Return the ranks of a replica and its overlap methods in words."""
    return plan.ranks + (f", {overlap_text(plan.overlap)}" if plan.overlap else "")


def _elsewhere(answer: Step) -> str:
    """The fastest of the other frameworks, in a sentence, where it is much faster or below the answer's range."""
    if not answer.elsewhere:
        return ""
    best = min(answer.elsewhere, key=answer.elsewhere.__getitem__)
    took = answer.elsewhere[best]
    if took >= answer.interval_s[0] and took > answer.seconds / _MUCH_FASTER:
        return ""
    return f" As {best} runs it, a step takes {seconds(took)}, {answer.seconds / took:.2f} times as fast."


def _dominates(answer: Step) -> str:
    """Return what takes most of the step, and the losses that are worth a look, the largest first."""
    shares = {name: part / answer.seconds for name, part in answer.parts.items()}
    computing = sum(shares.get(name, 0.0) for name in COMPUTE if name != "recompute")
    lost = {name: share for name, share in shares.items() if name not in COMPUTE or name == "recompute"}
    worst = [name for name in sorted(lost, key=lost.__getitem__, reverse=True) if lost[name] >= _HARMLESS]
    said = [f"{percent(lost[name])} {loss(name)}" for name in worst[:4]]
    rest = f"Losses: {', '.join(said)}" if said else "No loss takes 3 % of it"
    gemms = shares.get("gemm", 0.0) + shares.get("grouped_gemm", 0.0)
    return f"Compute is {percent(computing)} of the step (GEMMs {percent(gemms)}). {rest}."


def _free(answer: Step) -> float:
    """Compute time without concurrent communication, which could hide some [s]."""
    computing = sum(answer.parts.get(name, 0.0) for name in (*COMPUTE, RESIDUAL))
    return max(computing - sum(answer.hidden.values()), 0.0)


def _bound(answer: Step) -> list[str]:
    """Return a sentence if computing has no room left to hide exposed communication, and on what fills it."""
    hidden, exposed = answer.hidden, answer.exposed
    if not hidden or _free(answer) >= _NO_ROOM * answer.seconds:
        return []
    most = max(hidden, key=hidden.__getitem__)
    others = [
        AXES.get(axis, axis) for axis, bare in exposed.items() if axis != most and bare >= _HARMLESS * answer.seconds
    ]
    busy = f"{seconds(hidden[most] + exposed.get(most, 0.0))} of {seconds(answer.seconds)}"
    if not others:
        return []
    return [
        (
            f"Bound by {AXES.get(most, most)} communication ({busy}): hiding {' and '.join(others)} communication as "
            "well "
            "gains nothing."
        )
    ]


def _exchanges(answer: Step) -> list[str]:
    """Return how long a dispatch and a combine of tokens take, how many each GPU does, and how long it waits for the
    host.
    """
    counts = answer.pipeline.schedule.device.shape[1] / answer.devices
    spent, many, shown = Counter[str](), Counter[str](), dict[str, TokenExchange]()
    for part in (part for chunk in answer.chunks for part in chunk.parts):
        for one in (part.forward, part.recompute, part.backward, part.weight):
            for node in one.graph or ():
                if isinstance(node.op, TokenExchange):
                    begin, end = one.times[node.name]
                    spent[node.op.operation] += counts * (end - begin)
                    many[node.op.operation] += counts
                    shown.setdefault(node.op.operation, node.op)
    if not many:
        return []
    each = [f"{name} {seconds(spent[name] / many[name])}" for name in sorted(many, reverse=True)]
    times = many["dispatch"] if len(set(many.values())) == 1 else many.total()
    number = f"{times:,.0f} {'of each' if times < many.total() else 'in all'}"
    hidden = answer.hidden.get("ep", 0.0)
    share = hidden / (hidden + answer.exposed.get("ep", 0.0))
    said = [
        (
            f"MoE {', '.join(each)} ({shown['dispatch']}); {number} per GPU and step take {seconds(spent.total())}, "
            f"{percent(share)} of it hidden behind compute."
        )
    ]
    waits = answer.parts.get(LAUNCH_GAPS, 0.0)
    if waits > _HARMLESS * answer.seconds:
        said.append(
            f"GPUs wait {seconds(waits)} for kernel launches of MoE layers; CUDA graphs (--cuda-graph-impl "
            "full_iteration) or larger micro-batches remove these gaps."
        )
    return said


def _spent(name: str) -> str:
    """Return a part of the time in words."""
    axis = exposed_axis(name)
    return f"exposed {AXES.get(axis, axis)} communication" if axis else label(name)


def _fitting(answer: Inference) -> str:
    """Return whether weights and cache fit, in a sentence."""
    cache = answer.cache + answer.chunk_cache
    held, room = (answer.weights + cache) / 1e9, answer.capacity / 1e9
    sizes = f"{answer.weights / 1e9:.1f} GB of weights and {cache / 1e9:.2f} GB of KV cache"
    if answer.fits:
        most = f"at most {answer.most_sequences:,} such sequences fit"
        return f"Each GPU holds {sizes}, {held:.1f} of {room:.0f} GB; {most}."
    return f"Does not fit: {sizes} are {held - room:.1f} GB above the {room:.0f} GB of a GPU; give a larger --tp."


def waterfall_table(parts: Mapping[str, float], whole: float, title: str, name: str = "the step") -> Table:
    """Return where the `whole` time goes [s]; the shares of the parts add up to 100 %."""
    rows = [(label(part), parts[part] * 1e3, parts[part] / whole, meaning(part)) for part in order_parts(parts)]
    columns = [
        text("part"),
        milliseconds("time_ms", "time", whole * 1e3),
        number("share", format_=".1%"),
        text("what", "what it is", prose=True),
    ]
    return Table(columns, [*rows, (name, whole * 1e3, 1.0, "")], title)


def communication_table(answer: Step) -> Table:
    """Communication by the axis of the plan: how much there is, is hidden and exposed, and could hide."""
    hidden = answer.hidden
    free = _free(answer)
    rows = []
    for axis in AXES:
        beside, bare = hidden.get(axis, 0.0), answer.exposed.get(axis, 0.0)
        if beside + bare > 1e-9:
            could = min(bare, free)
            gain = 1 / (1 - could / answer.seconds)
            rows.append((axis.upper(), (beside + bare) * 1e3, beside * 1e3, bare * 1e3, bare / answer.seconds, gain))
    longest = max((row[1] for row in rows), default=0.0)
    columns = [
        text("axis"), milliseconds("time_ms", "busy", longest), milliseconds("hidden_ms", "hidden", longest),
        milliseconds("exposed_ms", "exposed", longest), number("share", "of the step", format_=".1%"),
        number("gain", "step if all of it were hidden", format_="{:.2f}× as fast"),
    ]  # fmt: skip
    heading = f"Communication; {seconds(free)} of compute overlap with none, and could hide it"
    return Table(columns, rows, heading)


def window_table(answer: Step) -> Table:
    """Return what kernels and collectives that run at once cost each other, and where that comes from."""
    rows = [
        (one.kernel, one.collective, one.sharing, *one.slowdowns, one.source + (f": {one.why}" if one.why else ""))
        for one in answer.windows
    ]
    slower = (times_faster(f"{what}_slowdown", f"{what} slower", "{:.2f}×") for what in ("kernel", "collective"))
    columns = [
        text("kernel"),
        text("collective"),
        text("sharing", "co-run strategy"),
        *slower,
        text("source", "from", prose=True),
    ]
    return Table(columns, rows, "Slowdown of a kernel and a collective that run concurrently on a GPU")


def stage_table(answer: Step) -> Table:
    """Return what each pipeline device holds and does: layers, passes of a micro-batch, busy and idle time."""
    rows = []
    for device in range(answer.devices):
        held = [
            chunk for at, chunk in enumerate(answer.chunks) if (answer.pipeline.schedule.device[at] == device).any()
        ]
        parts = answer.rank_parts(device)
        idle = parts.pop("bubble")
        names = _part_names([part for chunk in held for part in chunk.parts])
        rows.append((
            device, names, sum(chunk.parameters for chunk in held) / 1e9,
            sum(chunk.forward.seconds for chunk in held) * 1e3,
            sum((chunk.backward + chunk.weight).seconds for chunk in held) * 1e3,
            sum(answer.tails[device].values()) * 1e3, idle / answer.seconds,
        ))  # fmt: skip
    longest = max(max(row[3:6]) for row in rows)
    columns = [
        number("device", "stage"), text("holds"), number("parameters_1e9", "parameters", "10^9", ".2f"),
        milliseconds("forward_ms", "forward", longest), milliseconds("backward_ms", "backward", longest),
        milliseconds("tail_ms", "end of step", longest), number("idle", "idle", format_=".1%"),
    ]  # fmt: skip
    return Table(columns, rows, "Pipeline devices: what one GPU of each holds, and does for each micro-batch")


def _part_names(parts: Sequence[PartTimes]) -> str:
    names = [part.name for part in parts]
    return ", ".join(f"{names.count(name)} {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names))


def window_errors(answer: Step) -> list[str]:
    """Return the class of error of the windows, by way to share or as waves of tiles; nothing without windows."""
    gpu, ways = answer.system.gpu, Counter(one.sharing for one in answer.windows if one.source == "engine")
    waves = sum(one.source == "waves" for one in answer.windows)
    said = [f"{waves} window{'s' * (waves != 1)} from whole waves of tiles: 1.4% from the engine's slowdown of GEMMs."]
    return (said if waves else []) + [
        f"{count} window{'s' * (count != 1)} under {way}, typical errors: {contention_error(gpu, way).why}"
        for way, count in ways.items()
        if gpu.vendor != "none"
    ]


def share_table(answer: GraphStep) -> Table:
    """Return a row for each phase and class of operator: how many, time, work and data."""
    rows = [
        (
            one.phase,
            label(one.kind),
            one.operators,
            one.seconds * 1e3,
            one.seconds / answer.seconds,
            one.flops / 1e12,
            one.bytes / 1e9,
            one.hidden * 1e3,
        )
        for one in answer.shares
    ]  # fmt: skip
    columns = [
        text("phase"), text("kind"), number("operators", format_=","), number("time_ms", "time", "ms", ",.3f"),
        number("share", "of the step", format_=".1%"), number("tflop", "work", "TFLOP", ",.3f"),
        number("gigabytes", "data", "GB", ",.2f"),
        number("hidden_ms", "hidden", "ms", ",.3f"),
    ]  # fmt: skip
    return Table(columns, rows, f"{answer.graph} on {answer.gpu.title}")


def memory_table(answer: Inference) -> Table:
    """Return what each GPU holds."""
    rows = [
        ("weights", answer.weights / 1e9),
        ("KV cache", (answer.cache + answer.chunk_cache) / 1e9),
        ("memory of the GPU", answer.capacity / 1e9),
    ]
    return Table([text("what", "each GPU"), number("size_gb", "size", "GB", ",.2f")], rows, "Memory")


def layer_streams(answer: Step) -> Figure | None:
    """Return what the streams of one GPU run in the passes of a layer; None without a layer.

    The layer is one in the middle of the first stage that has some, so that what is gathered and scattered beside it
    belongs to its neighbours as in most layers.
    """
    found = ((chunk, [at for at, one in enumerate(chunk.parts) if _is_layer(one)]) for chunk in answer.chunks)
    chunk, layers = next(((chunk, layers) for chunk, layers in found if layers), (None, []))
    if chunk is None:
        return None
    place = layers[len(layers) // 2]
    columns = [
        text("stream"),
        text("pass"),
        text("kind", "kernel"),
        number("start_ms", "start", "ms", ",.3f"),
        number("end_ms", "end", "ms", ",.3f"),
        number("takes_ms", "takes", "ms", ",.3f"),
        text("name"),
        text("op"),
    ]
    table = Table(columns, list(_layer_rows(chunk, place)))
    known = {label(name): color for name, color in {**COLORS, **_KERNELS}.items()}
    shown = table.distinct("kind")
    colors = {**looks.spread(shown), **{name: color for name, color in known.items() if name in shown}}
    return timeline_bars(
        f"What runs in a {chunk.parts[place].name} layer, and when?", table, lane="stream", start="start_ms",
        end=Axis("end_ms", title="time [ms]", domain=True), color=Color("kind", colors), name="streams",
    ).with_caption(
        "One GPU's streams in the forward and then the backward pass of one micro-batch. Where a stream of "
        "communication is busy and the stream compute is not, communication is exposed."
    )  # fmt: skip


_KERNELS = {"streaming": looks.GREEN, "all-reduce": looks.RED, "all-gather": looks.ORANGE, "reduce-scatter": looks.RED}
"""Colours of the kernels of a layer that are no class of the waterfall."""


def _is_layer(part: PartTimes) -> bool:
    return part.name not in ("embedding", "head")


def _layer_rows(chunk: Chunk, place: int) -> Iterator[tuple[Any, ...]]:
    """Yield the kernels of one part of a stage, and the collectives of replicas beside it, forward and then backward.

    Where weights are gathered, the waits before the passes over the part belong to it.
    """
    part, begin = chunk.parts[place], 0.0
    forward = {"forward": part.forward}
    backward = {"again": part.recompute, "backward": part.backward, "weights": part.weight}
    for whole, passes, before in ((chunk.forward, forward, place - 1), (chunk.backward, backward, place + 1)):
        alone = sum(one.seconds for one in passes.values())
        start, stop = whole.times.get(f"pass {place}", (0.0, alone))
        first = whole.times.get(f"pass {before}", (start, start))[1]
        slower, now = (stop - start) / alone if alone else 1.0, start
        for name, one in passes.items():
            for node in one.graph or ():
                kind = node.op.name.replace("_", "-") if isinstance(node.op, Collective) else label(node.op.kind)
                starts, ends = (begin + now - first + moment * slower for moment in one.times[node.id])
                yield _layer_row(node.stream, name, kind, starts, ends, node.name, str(node.op))
            now += one.seconds * slower
        for task, (at, until) in whole.times.items():
            if (words := _REPLICAS.get(task.split()[0])) and min(until, stop) > max(at, first):
                starts, ends = (begin - first + moment for moment in (max(at, first), min(until, stop)))
                yield _layer_row("dp", next(iter(passes)), words.split()[0], starts, ends, task, words)
        begin += stop - first


def _layer_row(stream: str, name: str, kind: str, start: float, end: float, node: str, op: str) -> tuple[Any, ...]:
    return stream, name, kind, start * 1e3, end * 1e3, (end - start) * 1e3, node, op


_REPLICAS = {"gather": "all-gather of a part's weights", "scatter": "reduce-scatter of a part's gradients"}
"""Collectives of replicas during passes, by the first word of their names in `Pass.times`."""
