"""The `weft` command, also as `python -m weft`: Ctrl-C is handled before anything else is loaded."""

from weft.cli.interrupt import arm


def main() -> None:
    """Run the command line of this process and exit."""
    arm()
    from weft.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
