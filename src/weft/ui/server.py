"""The server of the page: on 127.0.0.1 only, for pages of its own only, without anything from the network."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
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
_KEPT = 100
"""Answers that are told again without asking: those of the places where a slider has been."""
_HEADERS = {
    # Vega compiles the expressions of figures: 'unsafe-eval'. A page holds no script, so none that a text brings runs.
    "content-security-policy": (
        "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
_ASSETS = {
    "vega.js": "weft.view",
    "parts.js": "weft.view",
    "page.css": "weft.view",
    "ui.js": "weft.ui",
    "ui.css": "weft.ui",
}


class _Guard:
    """Adds the headers that keep scripts and other sites out, and refuses what another site asks."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            await send(message)

        if scope["type"] == "http":
            headers = dict(scope["headers"])
            site = headers.get(b"sec-fetch-site", b"none")
            page = headers.get(b"sec-fetch-mode", b"navigate") == b"navigate" and scope["path"].count("/") == 1
            if site not in (b"none", b"same-origin") and not page:
                await Response("another site asks; open the page itself\n", 403)(scope, receive, send_guarded)
                return
        await self.app(scope, receive, send_guarded if scope["type"] == "http" else send)


def application() -> Starlette:
    """Return the application: the page of each tab, the answers to its questions, and its own scripts and styles."""
    first = next(iter(TABS))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.pool = Pool({"do": "answer", "tab": first, "query": TABS[first].start})
        app.state.kept = {}
        await app.state.pool.prepare()
        yield
        await app.state.pool.close()

    routes = [Route("/", lambda request: RedirectResponse(f"/{first}")), Route("/assets/{name}", _asset)]
    for tab in TABS:
        routes += [
            Route(f"/{tab}", partial(_page, tab)),
            Route(f"/command/{tab}", partial(_command, tab)),
            Route(f"/answer/{tab}", partial(_stream, tab, {"do": "answer"})),
            Route(f"/answer/{tab}/{{at:int}}", partial(_stream, tab, {"do": "answer"})),
            Route(f"/values/{tab}", partial(_stream, tab, {"do": "values"})),
            Route(f"/contrast/{tab}", partial(_stream, tab, {"do": "contrast"})),
            Route(f"/fill/{tab}", partial(_fill, tab), methods=["POST"]),
        ]
    guards = [Middleware(_Guard), Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])]
    return Starlette(routes=routes, middleware=guards, lifespan=lifespan)


def _page(tab: str, request: Request) -> Response:
    """Return the page of a tab; without a query, that of a first visit."""
    from weft.view.page import render

    error, state = "", parse_state(tab, "")
    try:
        state = parse_state(tab, request.url.query or TABS[tab].start)
    except WeftError as problem:
        error = str(problem)
    front, more = fields_of(tab, state)
    return HTMLResponse(
        render(
            "weft.ui", "ui.html.j2", tabs=TABS, tab=tab, front=front, more=more, error=error,
            files=state.get(FILE, ()), pin=state.get(PIN, ("",))[0], opened=any(any(one.values) for one in more),
        )
    )  # fmt: skip


def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _ASSETS:
        return Response("no such file\n", 404)
    folder = "" if name == "vega.js" else "templates/"
    kind = "text/css" if name.endswith("css") else "text/javascript"
    return Response(files(_ASSETS[name]).joinpath(folder + name).read_bytes(), media_type=kind)


def _command(tab: str, request: Request) -> Response:
    """Return the command of a state, or why it has none, before anything is asked."""
    try:
        found = arguments(TABS[tab].command, parse_state(tab, request.url.query))
        return JSONResponse({"kind": "command", "text": show_command(found)})
    except WeftError as problem:
        return JSONResponse({"kind": "error", "text": str(problem)})


async def _fill(tab: str, request: Request) -> Response:
    with suppress(ValueError):
        if int(request.headers.get("content-length", "")) <= _LARGEST_DROP:
            found: Any = parse_json(await request.body())
            if isinstance(found, dict) and all(isinstance(found.get(key), str) for key in ("name", "text")):
                return _stream(tab, {"do": "fill", "name": found["name"], "text": found["text"]}, request)
    return JSONResponse({"kind": "error", "text": f"a dropped file has at most {_LARGEST_DROP // 2:,} bytes"})


def _stream(tab: str, asked: Mapping[str, Any], request: Request) -> Response:
    """Return a stream of JSON lines; the run of a page that is closed is ended."""
    question = {**asked, "at": request.path_params.get("at"), "tab": tab, "query": request.url.query}
    kept: dict[str, list[str]] = request.app.state.kept

    async def lines() -> AsyncIterator[str]:
        key, told, is_whole = to_json(question), [], True
        for line in kept.get(key, ()):
            yield line
        if key in kept:
            return
        async for message in request.app.state.pool.answers(question):
            line = to_json(message) + "\n"
            is_whole = is_whole and message["kind"] != "error"
            told += [line] * (message["kind"] != "progress")
            yield line
        if is_whole:
            kept[key] = told
            while len(kept) > _KEPT:
                del kept[next(iter(kept))]

    return StreamingResponse(lines(), media_type="application/x-ndjson")


def serve(port: int) -> None:
    """Serve the page until Ctrl-C; InputError for a port that is taken."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen()  # a browser that comes before the server is ready waits, and is not refused
    except OSError as error:
        listening.close()
        raise InputError(f"port {port} of {HOST} cannot be used: {error.strerror}; choose another by --port") from error
    click.echo(f"The page is at http://{HOST}:{port}/, for this computer alone; Ctrl-C ends it.")
    config = uvicorn.Config(application(), log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run([listening])
