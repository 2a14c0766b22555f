"""How long work goes on: a bar on a terminal, a line every ten seconds elsewhere, with what is left to wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

Progress = Callable[[int, int, str], None]
"""Told how many steps are done, of how many, and which comes next."""
Watch = Callable[[int, int, Callable[[], int]], None]
"""Told the events of a simulation, the time that it has reached [fs] and what answers when it should end [fs]."""
SOON_S = 0.2
"""On a terminal the line changes so often [s]."""
QUIET_S = 10.0
"""Where lines stay, one is written so long after the last, and when all steps are done [s]."""


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """A progress bar on stderr, or lines at the beginning, at the end and every ten seconds where it is none."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        with _Lines(title) as lines:
            yield lines
        return
    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


@contextmanager
def simulation_status() -> Iterator[Watch]:
    """How far the simulation under way is: a line on stderr that changes, or one every ten seconds where it stays."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Simulation(lambda text: click.echo(text, err=True), every_s=QUIET_S)
        return
    with console.status("simulating") as line:
        yield _Simulation(line.update, every_s=SOON_S)


class _Simulation:
    """Says of the runs of a simulation, one after the other, what share is done and how long the rest takes."""

    def __init__(self, say: Callable[[str], None], every_s: float) -> None:
        self._say, self._every_s = say, every_s
        self._run, self._reached = 0, 0
        self._begin = self._last = time.monotonic()

    def __call__(self, events: int, now_fs: int, end_fs: Callable[[], int]) -> None:
        now = time.monotonic()
        if self._run == 0 or now_fs < self._reached:
            self._run, self._begin = self._run + 1, now
        self._reached = now_fs
        if now - self._last >= self._every_s:
            self._last = now
            self._say(
                f"simulating, run {self._run}: {self._share(now_fs, end_fs(), now)}{events / 1e6:.0f} million events"
            )

    def _share(self, now_fs: int, end_fs: int, now: float) -> str:
        """The share that is done, as far as closed forms can tell; a run may last longer than they expect."""
        reached = f"{now_fs / 1e9:.0f} us"
        if not 0 < now_fs < end_fs:
            return f"{reached}, "
        left = (now - self._begin) * (end_fs / now_fs - 1)
        return f"{reached} of about {end_fs / 1e9:.0f} ({now_fs / end_fs:.0%}), about {_duration(left)} left, "


class _Lines:
    """Progress for files and pipes, where every line stays: few lines, and none for no steps at all."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._last: float | None = None
        self._told: tuple[int, int, str] = (0, 0, "")
        self._begin, self._already = 0.0, 0
        self._lock, self._over = threading.Lock(), threading.Event()

    def __enter__(self) -> _Lines:
        threading.Thread(target=self._repeat, daemon=True).start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._over.set()

    def __call__(self, done: int, total: int, what: str) -> None:
        with self._lock:
            now = time.monotonic()
            if total != self._told[1] or done < self._told[0]:
                self._begin, self._already = now, done  # what was kept from before took no time
            self._told = done, total, what
            due = self._last is None or now - self._last >= QUIET_S
            if total and (due or done == total):
                self._write(now)

    def _repeat(self) -> None:
        """Write the last step again while the next one takes its time."""
        while not self._over.wait(QUIET_S):
            with self._lock:
                now = time.monotonic()
                if self._told[1] and self._last is not None and now - self._last >= QUIET_S:
                    self._write(now)

    def _write(self, now: float) -> None:
        done, total, what = self._told
        self._last = now
        fresh, left = done - self._already, ""
        if fresh and done < total:
            left = f", about {_duration((now - self._begin) / fresh * (total - done))} left"
        click.echo(f"{self._title}: {done} of {total}, {what}{left}", err=True)


def _duration(seconds: float) -> str:
    """A duration as people say it: "40 s", "12 min", "3.5 h"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
