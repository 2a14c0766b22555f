"""`weft schedule`: find a pipeline schedule for given times and memory, and check a written one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

import weft
from weft.cli.lazy import LazyCommand, LazyGroup
from weft.cli.options import F, drop_none, examples, option, together
from weft.cli.output import Outputs, file_option, folder_option, json_of, pass_outputs
from weft.cli.values import COUNT
from weft.plan.schedules import TimedSchedule

_TIMES = "--forward 18.5ms --backward 18.1ms --weight 9.3ms --send 0.6ms"
_EXAMPLE = f"weft schedule --stages 8 --micro-batches 32 {_TIMES} --memory 16"
_BYTES = (
    "weft schedule find --stages 4 --micro-batches 8 --forward 2ms,3ms,3ms,2ms --backward 3ms --weight 2ms "
    '--activations 1.5GB --kept 0.6GB --memory "12 GB" --out out/schedule'
)
_CHECK = "weft schedule check my.json --forward 2ms --backward 2ms --weight 1ms --memory 4"


class _FindByDefault(LazyGroup):
    """A group that takes its first option for one of the command `find`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the group's arguments, return the rest."""
        begins = bool(args) and args[0].startswith("-") and args[0] not in ctx.help_option_names
        return super().parse_args(ctx, ["find", *args] if begins else args)


@click.group(
    cls=_FindByDefault,
    lazy={
        "find": LazyCommand("weft.cli.schedule:find", "Find an order for times and memory; without a command, this."),
        "check": LazyCommand("weft.cli.schedule:check", "Check, time and compare a schedule in a JSON file."),
    },
    epilog=examples(_EXAMPLE, _CHECK),
)
def schedule() -> None:
    """Find a pipeline schedule for the times and the memory of stages, or check one that you wrote."""


def _time_options(default: str | None) -> Callable[[F], F]:
    """Return times and memory of the stages."""
    more: dict[str, Any] = {"required": True} if default is None else {"default": default}
    listed = ", for all stages or one for each, as 2ms,3ms"

    def time(flag: str, text: str, **more: Any) -> Any:
        return option(flag, text, metavar="TIME[,TIME]", **more)

    return together(
        time("--forward", f"Forward of one micro-batch{listed}.", **more),
        time("--backward", "Gradient of the inputs of one micro-batch.", **more),
        time("--weight", "Gradient of the weights of one micro-batch.", **more),
        time("--send", "Latency until a tensor is at the next stage; it does not occupy the GPU.", default="0 s"),
        option(
            "--memory",
            "Activations that a stage may hold: micro-batches or, with --activations, a size.  [default: the number of "
            "stages]",
            metavar="N|SIZE",
        ),
        option("--activations", "Size of a micro-batch's activations on a stage.", metavar="SIZE[,SIZE]"),
        option(
            "--kept", "What of them is held from B until W: a share or, with --activations, a size.",
            name="kept_for_weight", default="1", metavar="SHARE|SIZE",
        ),
        option(
            "--objective", "What is made short: the longest span of a stage, or the makespan.",
            click.Choice(("span", "makespan")), default="span",
        ),
        file_option("--json", "Write the answer as JSON."),
        file_option("--csv", "Write the table as CSV."),
        folder_option(
            "Write report.html with the picture, order.json for 'weft step --schedule', and schedule.json.",
            "order.json", "schedule.json",
        ),
    )  # fmt: skip


@click.command(epilog=examples(_EXAMPLE, _BYTES))
@option("--stages", "Pipeline stages, one a device.", COUNT, required=True)
@option("--micro-batches", "Micro-batches of a step.", COUNT, required=True)
@_time_options(None)
@pass_outputs
def find(outputs: Outputs, /, **stated: Any) -> None:
    """Find the order of forwards (F), gradients of inputs (B) and of weights (W) that idles least within a memory.

    Says how far the order can be from the best one, and compares it with named schedules.
    """
    _show(outputs, weft.find_schedule(**drop_none(**stated)))


@click.command(epilog=examples(_CHECK))
@click.argument("file", type=click.Path(path_type=Path))
@_time_options("1 ms")
@pass_outputs
def check(outputs: Outputs, /, file: Path, **stated: Any) -> None:
    """Check the schedule in FILE: each task once, in order, and no stages that wait for each other; then time it.

    FILE lists the tasks of each device: {"name": "mine", "devices": ["F0 F1 B0 W0 B1 W1", "F0 B0 F1 B1 W0 W1"]}.
    """
    _show(outputs, weft.check_schedule(file, **drop_none(**stated)))


def _show(outputs: Outputs, answer: TimedSchedule) -> None:
    outputs.show(answer, files={"order.json": answer.write_schedule, "schedule.json": json_of(answer)})
