"""The `weft` command, also as `python -m weft`: Ctrl-C is handled before anything else is loaded."""

from weft.cli import interrupt


def main() -> None:
    """Run the command line of this process and exit."""
    interrupt.arm()
    try:
        from weft.cli.main import main as command

        command()
    except KeyboardInterrupt:
        interrupt.end()
    except SystemExit as left:
        if left.code == interrupt.EXIT_INTERRUPTED:
            interrupt.end()
        raise


if __name__ == "__main__":
    main()
