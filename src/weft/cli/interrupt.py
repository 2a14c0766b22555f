"""Ctrl-C ends the command within a second or two, whatever it is doing: loading, compiling, waiting for processes.

Python hears of an interrupt only between two of its own instructions, and the compiler of the engine takes many seconds
for one of them. So a thread waits for the signal, too, and ends the process if the command has not done so by itself.
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
told = threading.Event()
"""Set once the sentence has been written."""


def arm() -> None:
    """Handle Ctrl-C for the rest of this process, unless it was started to ignore it, as background jobs are."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return
    wakes, rings = os.pipe()
    os.set_blocking(rings, False)
    signal.set_wakeup_fd(rings, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, _raise_once)
    sys.unraisablehook = _report
    threading.Thread(target=_end_after, args=(wakes,), daemon=True).start()


def disarm() -> None:
    """Let Ctrl-C end the process at once and without a word from here on: it is ending anyway."""
    if signal.getsignal(signal.SIGINT) is _raise_once:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def end() -> NoReturn:
    """End this process as interrupted, with what it cleans up at its end.

    Python itself may end by the signal instead of with a status, where the interrupt met code that it was making.
    """
    try:
        _tell()
        atexit._run_exitfuncs()
    finally:
        os._exit(EXIT_INTERRUPTED)


def _raise_once(number: int, frame: Any) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would meet the cleaning up after the first one
    raise KeyboardInterrupt


def _report(problem: Any) -> None:
    """Say nothing of an interrupt that Python had to drop, in a destructor for instance: the thread sees to it."""
    if not issubclass(problem.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(problem)


def _end_after(wakes: int) -> None:
    while signal.SIGINT not in os.read(wakes, 1):
        pass
    time.sleep(GRACE_S)
    try:
        _tell()
    finally:
        os._exit(EXIT_INTERRUPTED)


def _tell() -> None:
    """Say once that this is the end; a terminal gets back the cursor that a progress bar may have hidden."""
    if not told.is_set():
        told.set()
        os.write(2, f"{_SHOW_CURSOR if os.isatty(2) else ''}weft: {SENTENCE}\n".encode())
