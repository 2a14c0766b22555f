"""`python -m weft`: the command line, for a Python whose scripts are not on the PATH."""

from weft.cli.main import main

main()
