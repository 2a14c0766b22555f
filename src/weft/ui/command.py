"""`weft ui`: serve the page on this computer."""

from __future__ import annotations

from importlib.util import find_spec

import click

from weft.cli.options import examples, option
from weft.core.errors import InputError


@click.command(epilog=examples("weft ui --port 8321"))
@option("--port", "Port on 127.0.0.1, which only this computer reaches.", click.IntRange(1, 65535), default=8321)
def ui(port: int) -> None:
    """Explore designs on a page in the browser: change a field, see step time, memory, latency or contention at once.

    The page shows the command of its state, and its address holds the state. It asks nothing of the network, and reads
    no file but those that are dropped on it. Ctrl-C ends it.
    """
    if missing := [name for name in ("starlette", "uvicorn") if find_spec(name) is None]:
        raise InputError(f'the page needs {" and ".join(missing)}; run: pip install "weft[ui]"')
    from weft.ui.server import serve

    serve(port)
