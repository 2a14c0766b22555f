"""Progress of long work: a bar on a terminal, else a line every ten seconds; both estimate the time left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich import progress as rich

Progress = Callable[[int, int, str], None]
"""Called with the number of finished steps, their total, and the name of the next one."""
Watch = Callable[[int, int, Callable[[], int]], None]
"""Called with the events of a simulation, its simulated time [fs] and a function that returns its expected end [fs]."""
_SOON_S = 0.2
"""Least time between two changes of the line on a terminal [s]."""
QUIET_S = 10.0
"""Least time between two lines in a file or a pipe [s]; the last line is written at once."""


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """Yield a progress bar on stderr; without a terminal, lines at the start, at the end and every ten seconds."""
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        with _Lines(title) as lines:
            yield lines
        return
    columns = (title, rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeElapsedColumn(), "{task.description}")
    with rich.Progress(*columns, console=console, transient=True) as bar:
        yield _Bar(bar)


@contextmanager
def simulation_status() -> Iterator[Watch]:
    """Progress of a simulation: one line on stderr that is rewritten, or a line every ten seconds in a file or pipe."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Simulation(lambda text: click.echo(text, err=True), every_s=QUIET_S)
        return
    with console.status("simulating") as line:
        yield _Simulation(line.update, every_s=_SOON_S)


class _Simulation:
    """Reports the finished share and the time left of each run of a simulation."""

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
        """Simulated time over the end that closed forms expect; a run may exceed that end."""
        reached = f"{now_fs / 1e9:.0f} us"
        if not 0 < now_fs < end_fs:
            return f"{reached}, "
        left = (now - self._begin) * (end_fs / now_fs - 1)
        return f"{reached} of about {end_fs / 1e9:.0f} ({now_fs / end_fs:.0%}), about {_duration(left)} left, "


class _Left:
    """Estimates the time left of work in steps, by its finished share, or that of the steps where none is known."""

    def __init__(self) -> None:
        self._step, self._begin, self._already = (0, 0), 0.0, 0
        self._share: float | None = None

    def expect(self, share: float) -> None:
        """Take the finished share of the work that is not cached."""
        self._share = share

    def reach(self, done: int, total: int, now: float) -> None:
        """Take the number of finished steps; a new total, or fewer finished steps, begin another work."""
        if total != self._step[1] or done < self._step[0]:
            self._begin, self._already, self._share = now, done, None  # steps answered by the cache took no time
        self._step = done, total

    def text(self, now: float) -> str:
        """Return the time left as ", about 40 s left"; empty while nothing is finished, and at the end."""
        done, total = self._step
        fresh = done - self._already
        if not fresh or done >= total:
            return ""
        share = self._share or fresh / (total - self._already)
        return f", about {_duration((now - self._begin) * (1 - share) / share)} left"


class _Bar:
    """Progress on a terminal: a bar that is redrawn."""

    def __init__(self, bar: rich.Progress) -> None:
        self._bar, self._task, self._left = bar, bar.add_task("starting", total=None), _Left()
        self.expect = self._left.expect

    def __call__(self, done: int, total: int, what: str) -> None:
        now = time.monotonic()
        self._left.reach(done, total, now)
        self._bar.update(self._task, completed=done, total=total, description=f"{what}{self._left.text(now)}")


class _Lines:
    """Progress in files and pipes: few lines, since they cannot be rewritten, and none for work without steps."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._last: float | None = None
        self._step: tuple[int, int, str] = (0, 0, "")
        self._left = _Left()
        self.expect = self._left.expect
        self._lock, self._over = threading.Lock(), threading.Event()

    def __enter__(self) -> _Lines:
        threading.Thread(target=self._repeat, daemon=True).start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._over.set()

    def __call__(self, done: int, total: int, what: str) -> None:
        with self._lock:
            now = time.monotonic()
            self._left.reach(done, total, now)
            self._step = done, total, what
            due = self._last is None or now - self._last >= QUIET_S
            if total and (due or done == total):
                self._write(now)

    def _repeat(self) -> None:
        """Write the last step again every ten seconds while the next one runs."""
        while not self._over.wait(QUIET_S):
            with self._lock:
                now = time.monotonic()
                if self._step[1] and self._last is not None and now - self._last >= QUIET_S:
                    self._write(now)

    def _write(self, now: float) -> None:
        done, total, what = self._step
        self._last = now
        click.echo(f"{self._title}: {done} of {total}, {what}{self._left.text(now)}", err=True)


def _duration(seconds: float) -> str:
    """Return a duration in words, at least a second: "40 s", "12 min", "3.5 h"."""
    if seconds < 99.5:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
