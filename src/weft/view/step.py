"""A training step: the verdict in words, the waterfall, exposed communication, stages, and what runs when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from weft.graph import Collective
from weft.models.counts import CONVENTIONS
from weft.result.errors import Error, contention_error, step_error
from weft.result.step import CONVENTION, PartTimes, Step
from weft.view import looks
from weft.view.figure import Figure, bars, stacked_bars
from weft.view.memory import fitting, holder_table, holders, memory_curve
from weft.view.page import Section, machine_section, write_page
from weft.view.pipeline import pipeline_diagram
from weft.view.plans import AXES, plan_table, plan_title, shown_devices
from weft.view.shares import COLORS, COMPUTE, label, loss, meaning, ordered, seconds
from weft.view.table import Table, number, text, times_faster
from weft.view.words import percent

UTILIZATION = (
    "MFU and HFU are relative to the data sheet's rate of the plan's number format and count FLOPs as "
    f"{CONVENTIONS[CONVENTION].source}: "
    f"{CONVENTIONS[CONVENTION].about}, the backward pass as twice the forward one; HFU adds recomputation."
)
"""The convention of the answer's utilization."""
_HARMLESS = 0.03
"""Share of the step below which the verdict does not name a loss."""


def verdict(answer: Step) -> list[str]:
    """The answer in sentences: time, throughput and utilization, what dominates, what is lost, and to what."""
    plan = answer.plan
    lead = (
        f"A step of {answer.model.title} on {plan.gpus:,} GPUs takes {seconds(answer.seconds)}: "
        f"{answer.tokens_per_s_per_gpu:,.0f} tokens/s per GPU, MFU {answer.mfu:.1%}"
        + (f", HFU {answer.hfu:.1%}" if answer.hfu > 1.001 * answer.mfu else "")
        + " with attention counted in full."
    )
    fits = [] if answer.memory is None else [fitting(answer.memory)]
    return [lead, _dominates(answer), *fits, *answer.needs, *answer.notes, f"How sure: {how_sure(answer).why}."]


def how_sure(answer: Step) -> Error:
    """The mean error of measured steps like this one."""
    return step_error(answer.system.gpu.name, answer.framework.name, bool(answer.model.experts))


def _dominates(answer: Step) -> str:
    """What takes most of the step, and the losses that are worth a look, the largest first."""
    shares = {name: part / answer.seconds for name, part in answer.parts.items()}
    computing = sum(shares.get(name, 0.0) for name in COMPUTE if name != "recompute")
    lost = {name: share for name, share in shares.items() if name not in COMPUTE or name == "recompute"}
    worst = [name for name in sorted(lost, key=lost.__getitem__, reverse=True) if lost[name] >= _HARMLESS]
    said = [f"{percent(lost[name])} {loss(name)}" for name in worst[:4]]
    rest = f"; lost are {', '.join(said)}" if said else "; nothing else takes 3 % of it"
    gemms = shares.get("gemm", 0.0) + shares.get("grouped_gemm", 0.0)
    return f"Computing takes {percent(computing)} of the step, {percent(gemms)} its GEMMs{rest}."


def waterfall_table(answer: Step) -> Table:
    """Where the step goes, as the mean over the pipeline devices; the shares add up to 100 %."""
    rows = [
        (label(name), answer.parts[name] * 1e3, answer.parts[name] / answer.seconds, meaning(name))
        for name in ordered(answer.parts)
    ]
    columns = [
        text("part"), number("time_ms", "time", "ms", ",.1f"), number("share", format_=".1%"),
        text("what", "what it is", prose=True),
    ]  # fmt: skip
    whole = ("the step", answer.seconds * 1e3, 1.0, "")
    return Table(columns, [*rows, whole], f"{title(answer)}: where the time goes")


def title(answer: Step) -> str:
    """The model, the machine and the plan on one line."""
    return plan_title(answer.model, answer.system, answer.plan)


def communication_table(answer: Step) -> Table:
    """Communication by the axis of the plan: how much there is, is hidden and exposed, and could hide."""
    hidden = answer.hidden
    computing = sum(answer.parts.get(name, 0.0) for name in COMPUTE)
    free = max(computing - sum(hidden.values()), 0.0)
    rows = []
    for axis in AXES:
        beside, bare = hidden.get(axis, 0.0), answer.exposed.get(axis, 0.0)
        if beside + bare > 1e-9:
            could = min(bare, free)
            gain = 1 / (1 - could / answer.seconds)
            rows.append((axis.upper(), (beside + bare) * 1e3, beside * 1e3, bare * 1e3, bare / answer.seconds, gain))
    columns = [
        text("axis"), number("time_ms", "busy", "ms", ",.1f"), number("hidden_ms", "hidden", "ms", ",.1f"),
        number("exposed_ms", "exposed", "ms", ",.1f"), number("share", "of the step", format_=".1%"),
        number("gain", "step if all of it were hidden", format_="{:.2f}× as fast"),
    ]  # fmt: skip
    heading = f"Communication; {seconds(free)} of computing have none beside them, and could hide it"
    return Table(columns, rows, heading)


def window_table(answer: Step) -> Table:
    """What kernels and collectives that run at once cost each other, and where that comes from."""
    rows = [
        (one.kernel, one.collective, one.sharing, *one.slowdowns, one.source + (f": {one.why}" if one.why else ""))
        for one in answer.windows
    ]
    slower = (times_faster(f"{what}_slowdown", f"{what} slower", "{:.2f}×") for what in ("kernel", "collective"))
    columns = [
        text("kernel"), text("collective", "beside"), text("sharing"), *slower, text("source", "from", prose=True)
    ]  # fmt: skip
    return Table(columns, rows, "How many times longer a kernel and a collective take while both run on a GPU")


def stage_table(answer: Step) -> Table:
    """What each pipeline device holds and does: layers, passes of a micro-batch, busy and idle time."""
    rows = []
    for device in range(answer.devices):
        held = [
            chunk for at, chunk in enumerate(answer.chunks) if (answer.pipeline.schedule.device[at] == device).any()
        ]
        parts = answer.rank_parts(device)
        idle = parts.pop("bubble")
        names = _held([part for chunk in held for part in chunk.parts])
        rows.append((
            device, names, sum(chunk.parameters for chunk in held) / 1e9,
            sum(chunk.forward.seconds for chunk in held) * 1e3,
            sum((chunk.backward + chunk.weight).seconds for chunk in held) * 1e3,
            sum(answer.tails[device].values()) * 1e3, idle / answer.seconds,
        ))  # fmt: skip
    columns = [
        number("device", "stage"), text("holds"), number("parameters_1e9", "parameters", "10^9", ".2f"),
        number("forward_ms", "forward", "ms", ",.1f"), number("backward_ms", "backward", "ms", ",.1f"),
        number("tail_ms", "end of step", "ms", ",.1f"), number("idle", "idle", format_=".1%"),
    ]  # fmt: skip
    return Table(columns, rows, "Pipeline devices: what one GPU of each holds, and does for each micro-batch")


def _held(parts: Sequence[PartTimes]) -> str:
    names = [part.name for part in parts]
    return ", ".join(f"{names.count(name)} {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names))


def step_parts(answer: Step) -> list[Table | str]:
    """What a terminal shows of a step."""
    parts: list[Table | str] = [*verdict(answer), waterfall_table(answer)]
    communication = communication_table(answer)
    if communication.rows:
        parts.append(communication)
    if answer.devices > 1 and answer.devices <= 16:
        parts.append(stage_table(answer))
    return [*parts, *window_errors(answer), UTILIZATION]


def window_errors(answer: Step) -> list[str]:
    """The class of error of the windows, by way to share or as waves of tiles; nothing without windows."""
    gpu, ways = answer.system.gpu, Counter(one.sharing for one in answer.windows if one.source == "engine")
    waves = sum(one.source == "waves" for one in answer.windows)
    said = [f"{waves} window{'s' * (waves != 1)} from whole waves of tiles: 1.4% from the engine's slowdown of GEMMs."]
    return (said if waves else []) + [
        f"{count} window{'s' * (count != 1)} under {way}, typical errors: {contention_error(gpu, way).why}"
        for way, count in ways.items()
        if gpu.vendor != "none"
    ]


def waterfall(answer: Step) -> Figure:
    """The step as one bar for the mean and one for each pipeline device, in parts that add up to 100 %."""
    lanes = {"mean": answer.parts}
    if answer.devices > 1:
        lanes |= {f"stage {device}": answer.rank_parts(device) for device in shown_devices(answer.devices)}
    rows = [
        (lane, label(name), parts[name] / answer.seconds, parts[name] * 1e3)
        for lane, parts in lanes.items()
        for name in ordered(parts)
        if parts[name] > 0
    ]
    columns = [
        text("lane", " "), text("part"), number("share", "share of the step", format_=".1%"),
        number("time_ms", "time", "ms", ",.1f"),
    ]  # fmt: skip
    table = Table(columns, rows)
    colors = {label(name): color for name, color in COLORS.items()}
    return stacked_bars(
        "Where does the step go?", table, lane="lane", part="part", value="share",
        looks={**looks.spread(table.distinct("part")), **colors}, percent=True,
    ).captioned(
        "Each bar adds up to the step. Exposed communication is what computing waits for; on a single stage, idle time "
        "is shown as bubble, whatever its cause."
    )  # fmt: skip


def layer_streams(answer: Step) -> Figure | None:
    """What the streams of one GPU run in the forward and backward pass of a layer; None without a layer."""
    part = next(
        (part for chunk in answer.chunks for part in chunk.parts if part.name not in ("embedding", "head")), None
    )
    if part is None:
        return None
    rows = []
    begin = 0.0
    for name, each in (("forward", part.forward), ("again", part.recompute), ("backward", part.backward)):
        for node in each.graph or ():
            start, stop = (begin + moment for moment in each.times[node.id])
            kind = "communication" if isinstance(node.op, Collective) else node.op.kind
            rows.append((
                node.stream, name, kind, start * 1e6, stop * 1e6, (stop - start) * 1e6, node.name, str(node.op)
            ))  # fmt: skip
        begin += each.seconds
    columns = [
        text("stream"), text("pass"), text("kind", "kernel"), number("start_us", "start", "µs", ",.1f"),
        number("end_us", "end", "µs", ",.1f"), number("takes_us", "takes", "µs", ",.1f"), text("name"), text("op"),
    ]  # fmt: skip
    table = Table(columns, rows)
    kinds = {"gemm": looks.BLUE, "grouped_gemm": "#004C77", "attention": looks.SKY, "streaming": looks.GREEN}
    colors = {**looks.spread(table.distinct("kind")), **kinds, "communication": looks.RED}
    return bars(
        f"What runs in a {part.name} layer, and when?", table, lane="stream", start="start_us", end="end_us",
        kind="kind", looks=colors, axis="time [µs]", zoom=True, name="streams",
    ).captioned(
        "One GPU's streams in the forward and then the backward pass of one micro-batch. Where a stream of "
        "communication is busy and the stream compute is not, communication is exposed."
    )  # fmt: skip


def step_page(answer: Step, folder: str | Path) -> Path:
    """Write `report.html` on a step to a folder and return its path; OutputError if that fails."""
    lead, *rest = verdict(answer)
    layer = layer_streams(answer)
    communication = communication_table(answer)
    return write_page(
        folder,
        title(answer),
        lead,
        [
            rest,
            waterfall(answer),
            waterfall_table(answer),
            Section("Communication", [communication, *_windows(answer)] if communication.rows else []),
            Section("A layer", [layer] if layer else []),
            Section("The pipeline", [*_diagram(answer), stage_table(answer)] if answer.devices > 1 else []),
            _memory_section(answer),
            Section("The plan", [plan_table(answer.plan, answer.framework.name, len(answer.chunks)), UTILIZATION]),
            machine_section(answer.system.gpu),
        ],
        "step",
    )  # fmt: skip


def _windows(answer: Step) -> list[Table | str]:
    return [window_table(answer), *window_errors(answer)] if answer.windows else []


_MOST_DRAWN = 2400
"""Tasks of a pipeline above which the page leaves out the diagram."""


def _diagram(answer: Step) -> list[Figure]:
    return [pipeline_diagram(answer.pipeline)] if answer.pipeline.schedule.tasks <= _MOST_DRAWN else []


def _memory_section(answer: Step) -> Section:
    if answer.memory is None:
        return Section("Memory", [])
    curve = memory_curve(answer)
    return Section(
        "Memory",
        [fitting(answer.memory), holders(answer.memory), *([curve] if curve else []), holder_table(answer.memory)],
    )
