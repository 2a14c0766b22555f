"""The page of `weft ui` in headless Chromium: every number is the command's, no script of a text runs, runs end."""

from __future__ import annotations

import html
import itertools
import random
import re
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlencode

import psutil
import pytest
from browser import BROWSER, Browser

from weft.cli.main import main
from weft.ui.state import TABS, pack_file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        BROWSER is None, reason="no Chromium here: install the package 'chromium' to try the page in it"
    ),
]
DONE = 'document.body?.dataset.state === "done"'
CELLS = '[...document.querySelectorAll("#answer td")].map((cell) => cell.textContent)'
SAID = '[...document.querySelectorAll("#lead p, #lead li")].map((said) => said.textContent)'
CHOICES: dict[str, dict[str, list[str]]] = {
    "train": {
        "model": ["llama-3-8b", "gpt-3", "llama-3-70b", "mixtral-8x7b"],
        "system": ["64xh100", "64xa100", "8xmi300x"],
        "tp": ["1", "2", "4", "8", "3"],
        "pp": ["", "1", "2", "4"],
        "batch": ["64", "128", "512"],
        "micro-batch": ["", "1", "2"],
        "recompute": ["", "none", "full", "selective"],
        "precision": ["", "fp8-tensorwise"],
        "zero": ["", "1", "3"],
        "framework": ["", "megatron-core", "torchtitan"],
        "fidelity": ["estimate"],
    },
    "serve": {
        "model": ["llama-3-8b", "llama-3-70b"],
        "system": ["8xh100", "2xh100", "1xh100"],
        "rate": ["1", "4"],
        "tp": ["1", "2", "8"],
        "output-len": ["64", "128"],
        "tpot": ["", "40ms"],
        "framework": ["", "sglang"],
    },
    "overlap": {
        "gemm": ["8192,8192,28672", "4096,4096,8192", "4096,x"],
        "form": ["gemm_rs", "ag_gemm", "gemm_ar"],
        "tp": ["2", "4", "8"],
        "gpu": ["h100-sxm", "mi300x", "t3-paper"],
        "fidelity": ["estimate"],
    },
}


def draw_states(count: int) -> list[tuple[str, str]]:
    draw = random.Random(44)
    tabs = ["train"] * 10 + ["overlap"] * 6 + ["serve"] * 4
    return [
        (tab, urlencode({key: value for key, values in CHOICES[tab].items() if (value := draw.choice(values))}))
        for tab in tabs[:count]
    ]


@pytest.fixture(scope="module")
def server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "weft", "ui", "--port", str(port)], stdout=subprocess.PIPE)
    assert b"for this computer alone" in process.stdout.readline()
    yield f"http://127.0.0.1:{port}", psutil.Process(process.pid)
    children = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    process.wait(10)
    process.stdout.close()
    assert psutil.wait_procs(children, 5)[1] == []


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"), "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    browser.size(1400, 1000)
    yield browser
    complaints = [one for one in browser.seen if one["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
    asked = {one["params"]["request"]["url"] for one in browser.seen if one["method"] == "Network.requestWillBeSent"}
    browser.close()
    assert complaints == []
    assert all(re.match(r"http://127\.0\.0\.1:\d+/|data:|about:", address) for address in asked)


def opened(page, server, tab, query):
    page.open("about:blank")
    page.open(f"{server[0]}/{tab}?{query}")
    page.wait(DONE, 120)


def printed_by(words, folder, capsys):
    """Return what a command prints, its error, and the cells of the page that it writes."""
    with pytest.raises(SystemExit):
        main([*words, "--out", str(folder)])
    out, error = capsys.readouterr()
    report = folder / "report.html"
    text = report.read_text(encoding="utf-8") if report.is_file() else ""
    return out, error, [html.unescape(one) for one in re.findall(r"<td\b[^>]*>(.*?)</td>", text, re.DOTALL)]


@pytest.mark.parametrize(("tab", "query"), draw_states(20), ids=itertools.count())
def test_every_number_is_that_of_the_command_that_the_page_shows(tab, query, page, server, tmp_path, capsys):
    opened(page, server, tab, query)
    command = page.run('document.querySelector("#command").textContent')
    out, error, cells = printed_by(shlex.split(command)[1:], tmp_path / "out", capsys)
    shown = page.run('document.querySelector("#error").textContent')
    if not cells:
        assert error.strip().splitlines()[-1] == f"weft: {shown}"
        return
    assert shown == ""
    found = page.run(CELLS)
    assert found
    assert found == cells[: len(found)]
    plain = out.replace("×", "x").replace("µ", "u")
    for said in page.run(SAID):
        assert said.replace("×", "x").replace("µ", "u").rstrip(".") in plain


def test_the_address_holds_the_state_and_the_pin(page, server):
    opened(page, server, "train", TABS["train"].start)
    page.run('document.querySelector("#pin").click()')
    page.wait(DONE)
    page.run("""(() => { const tp = document.querySelector("#f-tp"); tp.value = "4";
        tp.dispatchEvent(new Event("input", { bubbles: true })); })()""")
    page.wait('document.querySelector("#contrast .lead-of").textContent.includes("With tp 4")')
    address, said = page.run('[location.search.slice(1), document.querySelector("#contrast .lead-of").textContent]')
    assert "tp=4" in address
    opened(page, server, "train", address)
    assert page.run('document.querySelector("#contrast .lead-of").textContent') == said
    assert "instead of" in said
    assert "--against tp=4" in page.run('document.querySelector("#contrast .command").textContent')


def test_a_slider_moves_by_keys(page, server):
    opened(page, server, "train", TABS["train"].start)
    page.run("""document.querySelector('input[data-of="tp"]').focus()""")
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key="ArrowLeft", code="ArrowLeft", windowsVirtualKeyCode=37)
    page.wait('document.querySelector("#command").textContent.includes("--tp 4")')
    page.wait(DONE)
    assert "TP 4" in page.run('document.querySelector("#lead").textContent')


@pytest.mark.parametrize("tab", TABS)
def test_a_small_screen_needs_no_sideways_scrolling(tab, page, server):
    page.size(390, 844)
    opened(page, server, tab, TABS[tab].start) if TABS[tab].is_live else page.open(f"{server[0]}/{tab}")
    page.wait('document.readyState === "complete" && document.querySelector("#command")?.textContent')
    assert page.run("document.documentElement.scrollWidth") <= 390
    page.size(1400, 1000)


EVIL = "<img src=x onerror=window.broken=1><script>window.broken=1</script>"
MODEL = f'title = "{EVIL}"\nsource = "{EVIL}"\nhidden = 4096\nlayers = 8\nheads = 32\nsequence_length = 2048\n'


@pytest.mark.parametrize(
    "stated",
    [
        {"model": EVIL},
        {"system": EVIL},
        {"set": f"{EVIL}={EVIL}"},
        {EVIL: "1"},
        {"pin": EVIL},
        {"pin": f"model={EVIL}"},
        {"model": "evil.toml", "tp": "1", "file": pack_file("evil.toml", MODEL)},
    ],
    ids=itertools.count(),
)
def test_no_script_of_a_state_runs(stated, page, server):
    usual = {"model": "llama-3-8b", "system": "8xh100", "batch": "16", "fidelity": "estimate"}
    page.open("about:blank")
    page.open(f"{server[0]}/train?{urlencode({**usual, **stated})}")
    page.wait('!!(document.querySelector("#error")?.textContent || document.querySelector("#answer td"))', 60)
    page.wait('document.body.dataset.state !== "asking"')
    assert page.run("window.broken ?? null") is None
    assert page.run('document.querySelectorAll("img").length') == 0
    if "file" in stated:
        assert EVIL in page.run('document.querySelector("#lead").textContent')


def test_closing_the_page_ends_the_run_of_the_engine(page, server):
    query = "gemm=32768,16384,16384&form=gemm_rs&tp=8&gpu=t3-paper&fidelity=estimate"
    opened(page, server, "overlap", query)
    page.run('document.querySelector(".ask .go").click()')
    page.wait('document.querySelector(".ask .progress").textContent.includes("simulating")', 120)
    running = {one for one in server[1].children(recursive=True) if one.cpu_percent(1.0) > 10}
    assert running
    page.open("about:blank")
    end = time.monotonic() + 15
    while time.monotonic() < end and any(one.is_running() and one.status() != "zombie" for one in running):
        time.sleep(0.2)
    assert not any(one.is_running() and one.status() != "zombie" for one in running)


def test_a_run_of_the_engine_can_be_cancelled(page, server):
    opened(page, server, "overlap", "gemm=32768,16384,16384&form=gemm_rs&tp=8&gpu=t3-paper&fidelity=estimate")
    page.run('document.querySelector(".ask .go").click()')
    page.wait('document.querySelector(".ask .progress").textContent.includes("simulating")', 120)
    page.run('document.querySelector(".ask .stop").click()')
    page.wait('document.querySelector(".ask .progress").textContent === "cancelled"')
    assert not page.run('document.querySelector(".ask .go").disabled')


def test_the_picture_of_the_documentation_is_small():
    assert (Path(__file__).parents[2] / "docs/_static/ui.png").stat().st_size < 150_000
