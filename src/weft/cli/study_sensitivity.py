"""`weft study sensitivity`: what assumed values of the T3 paper's machine decide."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft.cli.options import comma_list, examples, file_option, jobs_option, store_option
from weft.cli.progress import progress_bar
from weft.cli.studies import show_sensitivity

if TYPE_CHECKING:
    from weft.sweep import Store


@click.command(
    "sensitivity",
    epilog=examples("weft study sensitivity --values memory.latency,dma.engines --json moved.json"),
)
@file_option("--json", "json_file", "Write every row as JSON.")
@click.option("--values", callback=comma_list, metavar="PATH,PATH", help="Only these assumed values.")
@jobs_option
@store_option
def sensitivity(
    json_file: Path | None, values: tuple[str, ...] | None, jobs: int, store: Store | None
) -> None:
    """Move each assumed value of the T3 paper's machine to both ends of its plausible range.

    Shows what that does to the geomean speedups and to the DRAM traffic of four sub-layers.
    """
    from weft.studies import sensitivity as moved

    with progress_bar("sensitivity") as progress:
        done = moved.run(values, jobs, progress, store=store)
    show_sensitivity("What the figures become at either end of each range", done, json_file)
