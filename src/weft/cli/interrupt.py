"""End the command within two seconds of Ctrl-C or SIGTERM, even while it loads, compiles or waits for processes.

Schedulers and `timeout` end a command by SIGTERM: it cleans up as after Ctrl-C. Python handles a signal only between
two bytecode instructions, and the one that compiles the engine takes many seconds. A watchdog thread therefore waits
for the signal and ends the process if the command has not ended by itself.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from typing import Any, NoReturn

SENTENCES = {
    signal.SIGINT: "interrupted; nothing was left half-written",
    signal.SIGTERM: "terminated; nothing was left half-written",
}
"""What is printed after each signal that ends the command."""
_GRACE_S = 1.0
"""Time for the command to end by itself after the signal [s]."""
_SHOW_CURSOR = "\x1b[?25h"
reported = threading.Event()
"""Set once the message has been printed."""
_received: list[int] = []
"""The signals that came."""


def sentence() -> str:
    """Return the message of the signal that ended the command; of Ctrl-C if none came."""
    return SENTENCES[_ended_by()]


def exit_status() -> int:
    """Return 128 + the signal that ended the command, as shells report it."""
    return 128 + _ended_by()


def _ended_by() -> signal.Signals:
    return signal.Signals(_received[0]) if _received else signal.SIGINT


def has_come() -> bool:
    """Tell whether a signal ended the command, or its message was printed."""
    return bool(_received) or reported.is_set()


def arm() -> None:
    """Handle Ctrl-C and SIGTERM for the rest of this process, but for one that is ignored (as in background jobs)."""
    heard = [number for number in SENTENCES if signal.getsignal(number) is not signal.SIG_IGN]
    if not heard:
        return
    wakes, rings = os.pipe()
    os.set_blocking(rings, False)
    signal.set_wakeup_fd(rings, warn_on_full_buffer=False)
    for number in heard:
        signal.signal(number, _raise_once)
    sys.unraisablehook = _report_unraisable
    threading.Thread(target=_end_after, args=(wakes,), daemon=True).start()


def disarm() -> None:
    """Restore immediate, silent termination by signals: the process is already ending."""
    for number in SENTENCES:
        if signal.getsignal(number) is _raise_once:
            signal.signal(number, signal.SIG_DFL)


def end() -> NoReturn:
    """Run the exit handlers and end the process with the exit status of an interrupt.

    Python alone would sometimes die by the signal instead, if the interrupt hit code under compilation.
    """
    try:
        _report_end()
        atexit._run_exitfuncs()
    finally:
        os._exit(exit_status())


def _raise_once(number: int, frame: Any) -> NoReturn:
    _received.append(number)
    for each in SENTENCES:
        signal.signal(each, signal.SIG_IGN)  # a second signal would interrupt the clean-up
    raise KeyboardInterrupt


def _report_unraisable(problem: Any) -> None:
    """Suppress Python's report of an interrupt that it could not raise, for instance in a destructor."""
    if not (issubclass(problem.exc_type, KeyboardInterrupt) or has_come()):
        sys.__unraisablehook__(problem)


def _end_after(wakes: int) -> None:
    while (number := os.read(wakes, 1)[0]) not in SENTENCES:
        pass
    time.sleep(_GRACE_S)
    _received.append(number)  # its handler may not have run
    try:
        _report_end()
    finally:
        os._exit(exit_status())


def _report_end() -> None:
    """Print the message once, and show the terminal's cursor again, which a progress bar may have hidden."""
    if not reported.is_set():
        reported.set()
        os.write(2, f"{_SHOW_CURSOR if os.isatty(2) else ''}weft: {sentence()}\n".encode())
