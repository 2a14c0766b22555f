"""`weft study`: repeat a paper's study and set its published figures against Weft's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from weft.cli.lazy import LazyCommand, LazyGroup
from weft.cli.options import (
    drop_none,
    examples,
    many_options,
    option,
    run_options,
    together,
)
from weft.cli.output import Outputs, file_option, folder_option, json_of, json_or_tables, pass_outputs
from weft.cli.progress import progress_bar
from weft.cli.values import NAMES, NUMBERS, SIZE, SPLITS
from weft.core.errors import InputError
from weft.core.report.table import Table, texts
from weft.core.store import Store
from weft.hardware import Gpu
from weft.overlaps.lower.masks import apart_of
from weft.papers import STUDIES
from weft.papers import sensitivity as moved
from weft.papers import study as find
from weft.papers.headline import PaperStudy
from weft.papers.page import StudyReport
from weft.plan.tune.perturb import Sensitivity
from weft.view.sensitivity import SensitivityReport

_TAKES: dict[str, Any] = {
    "names": NAMES,
    "splits": SPLITS,
    "numbers": NUMBERS,
    "gpus": click.IntRange(2),
    "file": click.Path(path_type=Path),
    "size": SIZE,
}
"""The click type of an option, by the type that the study declares."""


@dataclass(frozen=True)
class StudyCommand(LazyCommand):
    """The command of the study `home`, built on first use from what the study declares."""

    def load(self) -> click.Command:
        """Return the command."""
        return command_of(self.home)


@click.group(
    cls=LazyGroup,
    lazy={
        "list": LazyCommand("weft.papers.command:list_studies", "The studies: paper, question and usual time."),
        **{name: StudyCommand(name, about) for name, about in STUDIES.items()},
        "sensitivity": LazyCommand("weft.papers.command:sensitivity", "What assumed values decide of the T3 figures."),
    },
    epilog=examples(
        "weft study t3 --models t-nlg --tp 8", "weft study c3 --json c3.json --out out/c3", "weft cache show"
    ),
)
def study() -> None:
    """Repeat a paper's study and compare its published figures with Weft's.

    Every study takes --json and --out for figures and pages, --jobs for the number of processes, and --no-cache to
    ignore cached runs. An interrupted study resumes where it stopped.
    """


@click.command("list", epilog=examples("weft study list"))
@json_or_tables
def list_studies() -> tuple[Any, list[Table | str]]:
    """List the studies: the paper of each, the question that it answers, and its usual time."""
    rows, missing = [], []
    for name in STUDIES:
        try:
            declared = find(name).DECLARED
        except InputError as error:  # an extension that the study needs is not installed
            missing.append(str(error))
        else:
            rows.append((name, f"{declared.called} ({declared.paper})", declared.asks, declared.takes))
    table = Table(
        texts(("name", "paper", "what it answers", "usual time")),
        rows,
        "Studies, and their usual time on two cores; a second run takes seconds, from the cache",
    )
    more = "weft study sensitivity: which assumed values decide the figures of t3 (an hour; minutes with --values)"
    return [dict(zip(("name", "paper", "answers", "usual_time"), row, strict=True)) for row in rows], [
        table,
        *missing,
        more,
    ]


def command_of(name: str) -> click.Command:
    """Build the command of a study: the options that all studies share, and those that it declares."""
    paper = find(name)
    declared = paper.DECLARED
    moves = "Move assumed values to both ends of their ranges instead; --out then writes sensitivity.json."
    options = together(
        file_option("--json", "Write the headline and every run as JSON."),
        folder_option(
            f"Write report.html with the pictures, and {name}.json, to this folder.", f"{name}.json", "sensitivity.json"
        ),
        *(option(own.flag, own.help, _TAKES[own.takes], name=own.name, metavar=own.metavar) for own in paper.OPTIONS),
        *([option("--sensitivity", moves, is_flag=True)] if declared.moved else []),
        run_options(declared.gpu, requests=declared.requests),
        many_options,
        pass_outputs,
    )

    def command(
        outputs: Outputs, gpu: Gpu, changes: Mapping[str, str], store: Store | None, sensitivity: bool = False,
        **options: Any,
    ) -> None:  # fmt: skip
        machine = gpu.replace(changes)
        if options.get("splits") is not None:
            options["splits"] = _units_apart(options["splits"], machine)
        options = {**drop_none(**options), "store": store, "gpu": machine}
        with progress_bar(f"{declared.called} {'sensitivity' if sensitivity else 'study'}") as progress:
            done: Any = (paper.sensitivity if sensitivity else paper.run)(progress=progress, **options)
        if sensitivity:
            show_sensitivity(declared.moved, done, outputs)
        else:
            show_study(done, outputs)

    short, epilog = STUDIES[name], examples(*declared.examples)
    return click.command(name, help=declared.about, short_help=short, epilog=epilog)(options(command))


def _units_apart(splits: tuple[tuple[int, int], ...], gpu: Gpu) -> list[int]:
    return [apart_of(*split, gpu) for split in splits]


@click.command(
    "sensitivity", epilog=examples("weft study sensitivity --values memory.latency,dma.engines --json moved.json")
)
@file_option("--json", "Write every row as JSON.")
@option("--values", "Only these assumed values.", NAMES, metavar="PATH,PATH")
@many_options
@pass_outputs
def sensitivity(outputs: Outputs, values: tuple[str, ...] | None, jobs: int, store: Store | None) -> None:
    """Move each assumed value of the T3 paper's machine to both ends of its plausible range.

    Shows what that does to the geomean speedups and to the DRAM traffic of four sub-layers. All values take up to an
    hour on two cores, a few of --values minutes.
    """
    with progress_bar("sensitivity") as progress:
        done = moved.run(values, jobs, progress, store=store)
    show_sensitivity("What the figures become at either end of each range", done, outputs)


def show_study(done: PaperStudy, outputs: Outputs) -> None:
    """Print a study's tables, its figures against comparable published ones, and its notes; write its files."""
    declared = done.DECLARED

    def page(folder: Path) -> Path:
        with progress_bar(f"{declared.called} page") as progress:
            watched = done.watch(progress)
        return done.page(folder, watched)

    outputs.show(StudyReport(done), files={f"{declared.name}.json": json_of(done)}, page=page)


def show_sensitivity(title: str, moved: Sensitivity, outputs: Outputs) -> None:
    """Print the figures at both ends of every range, and write them to --json and --out."""
    outputs.show(SensitivityReport(moved, title), files={"sensitivity.json": json_of(moved)})
