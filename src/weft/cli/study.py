"""`weft study`: a paper's study as one command, its published figures beside Weft's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli.lazy import LazyCommand, LazyGroup
from weft.cli.options import (
    clock_option,
    comma_list,
    examples,
    file_option,
    folder_option,
    given,
    gpu_options,
    jobs_option,
    machine,
    parse_split,
    request_option,
    run_options,
    store_option,
    together,
    whole_numbers,
)  # fmt: skip
from weft.cli.progress import progress_bar
from weft.files import write_json
from weft.studies import STUDIES
from weft.studies import study as find
from weft.view.table import Table, texts
from weft.view.terminal import print_parts, print_table

if TYPE_CHECKING:
    from weft.hardware import Gpu
    from weft.run.sweep import Store
    from weft.search.perturb import Sensitivity
    from weft.studies.headline import Option, PaperStudy

_TAKES: dict[str, dict[str, Any]] = {
    "names": {"callback": comma_list},
    "splits": {"callback": comma_list},
    "numbers": {"callback": whole_numbers},
    "gpus": {"type": click.IntRange(2)},
    "file": {"type": click.Path(path_type=Path)},
    "size": {},
}
"""What click makes of the value of an option, by what the option takes."""


@dataclass(frozen=True)
class StudyCommand(LazyCommand):
    """The command of the study `home`, made of what the study declares when it is first asked for."""

    def load(self) -> click.Command:
        """The command."""
        return command_of(self.home)


@click.group(
    cls=LazyGroup,
    lazy={
        **{name: StudyCommand(name, about) for name, about in STUDIES.items()},
        "sensitivity": LazyCommand("weft.cli.study:sensitivity", "What assumed values decide of the T3 figures."),
    },
    epilog=examples(
        "weft study t3 --models t-nlg --tp 8", "weft study c3 --json c3.json --out out/c3", "weft cache show"
    ),
)
def study() -> None:
    """Repeat a paper's study and stand beside its figures.

    Every study takes --json and --out for its figures and pages, --jobs for the processes that simulate, and
    --no-cache to simulate anew what has been simulated before. A study that was interrupted goes on where it stopped.
    """


def command_of(name: str) -> click.Command:
    """The command of a study: the options that all share, and those that it declares."""
    paper = find(name)
    declared = paper.DECLARED
    options = together(
        file_option("--json", "json_file", "Write the headline and every run as JSON."),
        folder_option(
            f"Write report.html with the pictures, and {name}.json, to this folder.", f"{name}.json", "sensitivity.json"
        ),
        *(_own_option(option) for option in paper.OPTIONS),
        *([_sensitivity_flag] if declared.moved else []),
        gpu_options(declared.gpu),
        clock_option(),
        request_option(declared.requests),
        jobs_option,
        store_option,
    )

    def command(
        gpu: str, assignments: tuple[str, ...], json_file: Path | None, folder: Path | None, sensitivity: bool = False,
        **options: Any,
    ) -> None:  # fmt: skip
        chosen = machine(gpu, assignments)
        options |= _own_values(paper, options, chosen)
        options = {**given(**options), "store": options["store"], "gpu": chosen}
        if sensitivity:
            with progress_bar(f"{declared.called} sensitivity") as progress:
                moved = paper.sensitivity(progress=progress, **options)
            show_sensitivity(declared.moved, moved, json_file, folder)
            return
        with progress_bar(f"{declared.called} study") as progress:
            done = paper.run(progress=progress, **options)
        print_study(done)
        write_study(done, json_file, folder)

    short, epilog = STUDIES[name], examples(*declared.examples)
    return click.command(name, help=declared.about, short_help=short, epilog=epilog)(options(run_options(command)))


def _own_option(option: Option) -> Any:
    return click.option(option.flag, option.name, metavar=option.metavar, help=option.help, **_TAKES[option.takes])


_sensitivity_flag = click.option(
    "--sensitivity",
    is_flag=True,
    help="Move assumed values to both ends of their ranges instead; --out then writes sensitivity.json.",
)


def _own_values(paper: type[PaperStudy], options: dict[str, Any], gpu: Gpu) -> dict[str, Any]:
    """The study's own options whose texts become numbers: sizes, and splits of the GPU's compute units."""
    from weft.units import Dimension, parse

    found: dict[str, Any] = {}
    for option in paper.OPTIONS:
        text = options[option.name]
        if text is not None and option.takes == "size":
            found[option.name] = round(parse(text, Dimension.BYTES))
        elif text is not None and option.takes == "splits":
            found[option.name] = [parse_split(split, gpu) for split in text]
    return found


@click.command(
    "sensitivity", epilog=examples("weft study sensitivity --values memory.latency,dma.engines --json moved.json")
)
@file_option("--json", "json_file", "Write every row as JSON.")
@click.option("--values", callback=comma_list, metavar="PATH,PATH", help="Only these assumed values.")
@jobs_option
@store_option
def sensitivity(json_file: Path | None, values: tuple[str, ...] | None, jobs: int, store: Store | None) -> None:
    """Move each assumed value of the T3 paper's machine to both ends of its plausible range.

    Shows what that does to the geomean speedups and to the DRAM traffic of four sub-layers.
    """
    from weft.studies import sensitivity as moved

    with progress_bar("sensitivity") as progress:
        done = moved.run(values, jobs, progress, store=store)
    show_sensitivity("What the figures become at either end of each range", done, json_file)


def print_study(done: PaperStudy) -> None:
    """Print a study's tables, its figures beside the published ones where those hold, and what must be known."""
    from weft.view.words import headline_table

    title = "Published figures beside Weft's" if done.comparable else done.elsewhere
    against = ", " * bool(done.DECLARED.against) + done.DECLARED.against
    headline = headline_table(done.headline(), f"{title}{against}")
    links = (f"link: {note}" for note in done.links if note)
    print_parts([*done.tables(), headline, *(f"note: {note}" for note in done.notes), *links])


def write_study(done: PaperStudy, json_file: Path | None, folder: Path | None) -> None:
    """Write the files that --json and --out ask for, and say where they are."""
    if json_file is not None:
        click.echo(f"figures: {write_json(json_file, done.to_dict())}")
    if folder is not None:
        click.echo(f"figures: {done.save(folder / f'{done.DECLARED.name}.json')}")
        with progress_bar(f"{done.DECLARED.called} page") as progress:
            watched = done.watch(progress)
        click.echo(f"report:  {done.page(folder, watched)}")


def show_sensitivity(title: str, moved: Sensitivity, json_file: Path | None, folder: Path | None = None) -> None:
    """Print what the figures become, and write it to where --json and --out say."""
    heads, rows = moved.table()
    print_table(Table(texts(heads), rows, title))
    for path in (json_file, folder and folder / "sensitivity.json"):
        if path is not None:
            click.echo(f"figures: {write_json(path, moved.to_dict())}")
