"""The `weft` command, also as `python -m weft`: Ctrl-C and SIGTERM are handled before anything else is loaded."""

import gc
import signal

_GARBAGE_AFTER = 100_000
"""Objects made between two searches for garbage: nearly all that imports make stay, and would be searched in vain."""


def main() -> None:
    """Run the command line of this process and exit."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `arm` there is nothing to clean up, and nothing to say
    from weft.cli import interrupt

    try:
        interrupt.arm()
        gc.set_threshold(_GARBAGE_AFTER)
        from weft.cli.main import main as command

        command()
    except KeyboardInterrupt:
        interrupt.end()
    except BaseException:
        if interrupt.has_come():
            interrupt.end()  # Python and libraries turn an interrupt into other errors in some places
        raise
    finally:
        gc.freeze()  # the end of the process frees what is left; a search for garbage in it takes a tenth of a second


if __name__ == "__main__":
    main()
