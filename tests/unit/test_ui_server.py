"""The server of the page: who may ask, what it sends along, and what it says where it cannot start."""

import asyncio
import socket

import pytest
import uvicorn
from click.testing import CliRunner

from weft.core.errors import InputError
from weft.ui import command
from weft.ui.server import HOST, application, serve
from weft.ui.state import TABS

OWN = {"host": f"{HOST}:8321"}


def ask(path, query="", method="GET", **headers):
    """Return status, headers and text of a response, without a socket and without processes that answer."""
    sent, app = [], application()
    stated = {**OWN, **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": "http", "method": method, "path": path, "query_string": query.encode(), "scheme": "http",
        "server": (HOST, 8321), "headers": [(name.encode(), value.encode()) for name, value in stated.items()],
    }  # fmt: skip

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    text = b"".join(one.get("body", b"") for one in sent[1:]).decode()
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}, text


@pytest.mark.parametrize("tab", TABS)
def test_a_page_forbids_scripts_of_its_text_and_anything_from_elsewhere(tab):
    status, headers, text = ask(f"/{tab}")
    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self' 'unsafe-eval'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "http://" not in text.replace("http://127.0.0.1", "")
    assert "https://" not in text
    assert "<script>" not in text


def test_the_first_address_leads_to_the_first_tab():
    status, headers, _ = ask("/")
    assert (status, headers["location"]) == (307, "/train")


def test_another_host_name_is_refused():
    assert ask("/train", host="evil.example")[0] == 400


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_cannot_ask(site):
    assert ask("/answer/train", sec_fetch_site=site, sec_fetch_mode="cors")[0] == 403
    assert ask("/assets/ui.js", sec_fetch_site=site, sec_fetch_mode="no-cors")[0] == 403
    assert ask("/answer/train", sec_fetch_site=site, sec_fetch_mode="navigate")[0] == 403
    assert ask("/fill/train", method="POST", sec_fetch_site=site, sec_fetch_mode="navigate")[0] == 403


def test_a_link_of_another_site_opens_the_page():
    assert ask("/train", sec_fetch_site="cross-site", sec_fetch_mode="navigate")[0] == 200


def test_a_hostile_query_is_text_of_the_page():
    evil = "%22%3E%3Cscript%3Ealert(1)%3C/script%3E"
    for query in (f"model={evil}", f"{evil}=1", f"pin={evil}", f"file={evil}"):
        assert "<script>alert" not in ask("/train", query)[2]


@pytest.mark.parametrize("path", ["/nothing", "/assets/../server.py", "/assets/state.py", "/answer/nothing"])
def test_nothing_else_is_served(path):
    assert ask(path)[0] == 404


def test_the_command_of_a_state_needs_no_answer():
    assert ask("/command/contention", "gemm=1,2,3&corun=all_gather:1MiB&gpu=mi300x")[2] == (
        '{"kind":"command","text":"weft simulate corun --gemm 1,2,3 --corun all_gather:1MiB --gpu mi300x"}'
    )


def test_a_file_that_is_too_large_is_refused_unread():
    assert "at most 200,000 bytes" in ask("/fill/train", method="POST", content_length="9999999")[2]


def test_a_port_that_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} of 127.0.0.1 cannot be used: .*; choose another by --port"):
            serve(port)


def test_a_browser_that_comes_as_soon_as_the_address_is_told_is_not_refused(monkeypatch, capsys):
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    met = []

    def run(self, sockets):
        met.append(f"http://{HOST}:{port}/" in capsys.readouterr().out)
        with socket.create_connection((HOST, port), timeout=5):
            met.append(True)
        sockets[0].close()

    monkeypatch.setattr(uvicorn.Server, "run", run)
    serve(port)
    assert met == [True, True]


def test_without_its_libraries_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'starlette and uvicorn; run: pip install "weft\[ui\]"'):
        CliRunner().invoke(command.ui, [], catch_exceptions=False, standalone_mode=False)
