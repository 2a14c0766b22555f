"""How long work goes on: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

Progress = Callable[[int, int, str], None]
"""Told how many steps are done, of how many, and which comes next."""
QUIET_S = 10.0
"""Where lines stay, one is written no sooner than this after the last, unless all steps are done [s]."""


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """A progress bar on stderr, or lines at the beginning, at the end and every ten seconds where it is none."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(title)
        return
    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


class _Lines:
    """Progress for files and pipes, where every line stays: few lines, and none for no steps at all."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._last: float | None = None

    def __call__(self, done: int, total: int, what: str) -> None:
        now = time.monotonic()
        due = self._last is None or now - self._last >= QUIET_S
        if total and (due or done == total):
            self._last = now
            click.echo(f"{self._title}: {done} of {total}, {what}", err=True)
