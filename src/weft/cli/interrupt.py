"""End the command within two seconds of Ctrl-C, even while it loads, compiles or waits for processes.

Python handles a signal only between two bytecode instructions, and the one that compiles the engine takes many seconds.
A watchdog thread therefore waits for the signal and ends the process if the command has not ended by itself.
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
"""Time for the command to end by itself after Ctrl-C [s]."""
_SHOW_CURSOR = "\x1b[?25h"
reported = threading.Event()
"""Set once the message has been printed."""


def arm() -> None:
    """Install the Ctrl-C handler for the rest of this process, unless SIGINT is ignored (as in background jobs)."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return
    wakes, rings = os.pipe()
    os.set_blocking(rings, False)
    signal.set_wakeup_fd(rings, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, _raise_once)
    sys.unraisablehook = _report_unraisable
    threading.Thread(target=_end_after, args=(wakes,), daemon=True).start()


def disarm() -> None:
    """Restore immediate, silent termination by Ctrl-C: the process is already ending."""
    if signal.getsignal(signal.SIGINT) is _raise_once:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def end() -> NoReturn:
    """Run the exit handlers and end the process with the exit status of an interrupt.

    Python alone would sometimes die by the signal instead, if the interrupt hit code under compilation.
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
    """Suppress Python's report of an interrupt that it could not raise, for instance in a destructor."""
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
    """Print the message once, and show the terminal's cursor again, which a progress bar may have hidden."""
    if not reported.is_set():
        reported.set()
        os.write(2, f"{_SHOW_CURSOR if os.isatty(2) else ''}weft: {SENTENCE}\n".encode())
