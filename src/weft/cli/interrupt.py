"""Ctrl-C ends the command within a second or two, whatever it is doing: loading, compiling, waiting for processes.

Python handles a signal only between two of its own instructions, and one that compiles the engine takes many seconds.
So a thread waits for the signal, too, and ends the process if the command has not ended by itself.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from typing import Any, NoReturn

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
SENTENCE = "interrupted; nothing was left half-written"
GRACE_S = 1.0
"""How long the command may take to end by itself [s]."""
_SHOW_CURSOR = "\x1b[?25h"
reported = threading.Event()
"""Set once the sentence has been written."""


def arm() -> None:
    """Handle Ctrl-C for the rest of this process, unless it was started to ignore it, as background jobs are."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return
    wakes, rings = os.pipe()
    os.set_blocking(rings, False)
    signal.set_wakeup_fd(rings, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, _raise_once)
    sys.unraisablehook = _report_unraisable
    threading.Thread(target=_end_after, args=(wakes,), daemon=True).start()


def disarm() -> None:
    """Let Ctrl-C end the process at once and silently from here on: it is ending anyway."""
    if signal.getsignal(signal.SIGINT) is _raise_once:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def end() -> NoReturn:
    """End this process with the status of an interrupt, after its exit handlers.

    Left to Python, it may end by the signal instead of with a status, where the interrupt hit code under compilation.
    """
    try:
        _report_end()
        atexit._run_exitfuncs()
    finally:
        os._exit(EXIT_INTERRUPTED)


def _raise_once(number: int, frame: Any) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would interrupt the clean-up
    raise KeyboardInterrupt


def _report_unraisable(problem: Any) -> None:
    """Report nothing of an interrupt that Python had to drop, in a destructor for instance: the thread handles it."""
    if not issubclass(problem.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(problem)


def _end_after(wakes: int) -> None:
    while signal.SIGINT not in os.read(wakes, 1):
        pass
    time.sleep(GRACE_S)
    try:
        _report_end()
    finally:
        os._exit(EXIT_INTERRUPTED)


def _report_end() -> None:
    """Write the sentence once, and show the cursor of a terminal, which a progress bar may have hidden."""
    if not reported.is_set():
        reported.set()
        os.write(2, f"{_SHOW_CURSOR if os.isatty(2) else ''}weft: {SENTENCE}\n".encode())
