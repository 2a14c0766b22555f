"""The server of the page: on 127.0.0.1 only, for pages of its own only, without anything from the network."""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Any

import click
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft.core.errors import InputError, WeftError
from weft.core.files import parse_json, to_json
from weft.ui.pool import Pool
from weft.ui.state import FILE, PIN, TABS, arguments, fields_of, parse_state, show_command

HOST = "127.0.0.1"
_LARGEST_DROP = 400_000
_HEADERS = {
    # Vega compiles the expressions of figures: 'unsafe-eval'. A page holds no script, so none that a text brings runs.
    "content-security-policy": (
        "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
_ASSETS = {
    "vega.js": ("weft.view", "vega.js", "text/javascript"),
    "parts.js": ("weft.view", "templates/parts.js", "text/javascript"),
    "page.css": ("weft.view", "templates/page.css", "text/css"),
    "ui.js": ("weft.ui", "templates/ui.js", "text/javascript"),
    "ui.css": ("weft.ui", "templates/ui.css", "text/css"),
}


class _Guard:
    """Adds the headers that keep scripts and other sites out, and refuses what another site asks."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            await send(message)

        if scope["type"] == "http":
            headers = dict(scope["headers"])
            site = headers.get(b"sec-fetch-site", b"none")
            page = headers.get(b"sec-fetch-mode", b"navigate") == b"navigate" and scope["method"] == "GET"
            if site not in (b"none", b"same-origin") and not page:
                await Response("another site asks; open the page itself\n", 403)(scope, receive, send_guarded)
                return
        await self.app(scope, receive, send_guarded if scope["type"] == "http" else send)


def application() -> Starlette:
    """Return the application: the page of each tab, the answers to its questions, and its own scripts and styles."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.pool = Pool(tuple({"do": "warm", "tab": tab, "query": ""} for tab in ("train",)))
        app.state.pool.prepare()
        yield
        await app.state.pool.close()

    routes = [
        Route("/", lambda request: RedirectResponse(f"/{next(iter(TABS))}")),
        Route("/command/{tab}", _command),
        Route("/answer/{tab}", _answer),
        Route("/answer/{tab}/{at:int}", _answer),
        Route("/contrast/{tab}", _contrast),
        Route("/fill/{tab}", _fill, methods=["POST"]),
        Route("/assets/{name}", _asset),
        Route("/{tab}", _page),
    ]
    guards = [Middleware(_Guard), Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])]
    return Starlette(routes=routes, middleware=guards, lifespan=lifespan)


def _page(request: Request) -> Response:
    """Return the page of a tab; without a query, that of a first visit."""
    from weft.view.page import render

    tab = request.path_params["tab"]
    if tab not in TABS:
        return Response(f"no tab '{tab}'; known: {', '.join(TABS)}\n", 404)
    query = request.url.query or TABS[tab].start
    error = ""
    try:
        state = parse_state(tab, query)
    except WeftError as problem:
        error, state = str(problem), {}
    front, more = fields_of(tab, state)
    return HTMLResponse(
        render(
            "weft.ui", "ui.html.j2", tabs=TABS, tab=tab, front=front, more=more, error=error,
            files=state.get(FILE, ()), pin=state.get(PIN, ("",))[0], opened=any(any(one.values) for one in more),
        )
    )  # fmt: skip


def _asset(request: Request) -> Response:
    if (found := _ASSETS.get(request.path_params["name"])) is None:
        return Response("no such file\n", 404)
    package, name, kind = found
    return Response(files(package).joinpath(name).read_bytes(), media_type=kind)


def _command(request: Request) -> Response:
    """Return the command of a state, or why it has none, before anything is asked."""
    tab = request.path_params["tab"]
    try:
        found = arguments(TABS[tab].command, parse_state(tab, request.url.query))
        return JSONResponse({"kind": "command", "text": show_command(found)})
    except (WeftError, KeyError) as problem:
        return JSONResponse({"kind": "error", "text": str(problem)})


def _answer(request: Request) -> Response:
    return _stream(request, {"do": "answer", "at": request.path_params.get("at")})


def _contrast(request: Request) -> Response:
    return _stream(request, {"do": "contrast"})


async def _fill(request: Request) -> Response:
    with suppress(ValueError):
        if int(request.headers.get("content-length", "")) <= _LARGEST_DROP:
            found: Any = parse_json(await request.body())
            if isinstance(found, dict) and isinstance(found.get("name"), str) and isinstance(found.get("text"), str):
                return _stream(request, {"do": "fill", "name": found["name"], "text": found["text"]})
    return JSONResponse({"kind": "error", "text": f"a dropped file has at most {_LARGEST_DROP // 2:,} bytes"})


def _stream(request: Request, asked: Mapping[str, Any]) -> Response:
    """Return a stream of JSON lines; the run of a page that is closed is ended."""
    tab = request.path_params["tab"]
    if tab not in TABS:
        return Response(f"no tab '{tab}'\n", 404)

    async def lines() -> AsyncIterator[str]:
        async for message in request.app.state.pool.answers({**asked, "tab": tab, "query": request.url.query}):
            yield to_json(message) + "\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


def serve(port: int, opens: bool) -> None:
    """Serve the page until Ctrl-C; InputError for a port that is taken."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except OSError as error:
        listening.close()
        raise InputError(f"port {port} of {HOST} cannot be used: {error.strerror}; choose another by --port") from error
    address = f"http://{HOST}:{port}/"
    click.echo(f"The page is at {address}, for this computer alone; Ctrl-C ends it.")
    if opens:
        webbrowser.open(address)
    config = uvicorn.Config(application(), log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run([listening])
