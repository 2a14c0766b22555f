"""Pages in a browser: no error, nothing from the network, tables that sort, figures that draw, text that stays.

Every page is opened by headless Chromium with a script that uses it and writes what it found into the document.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pages import PAGES

import weft
from weft.core.report import Section
from weft.core.report.table import Table, number, text
from weft.graph import Collective, Gemm
from weft.models import SubLayer
from weft.models.parallel import split
from weft.simulate.result import Comparison
from weft.view.page import page_text

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here: install the package 'chromium' to try pages in it"),
]
INKED = 60
"""Fewest coloured pixels of a figure that shows something."""
EVIL = "<script>window.broken = true</script>"
BEFORE = """<script>
window.complaints = [];
addEventListener("error", (event) => complaints.push(event.message));
addEventListener("unhandledrejection", (event) => complaints.push(String(event.reason)));
for (const level of ["error", "warn"]) console[level] = (...words) => complaints.push(words.join(" "));
</script>"""
INK = """<script>
async function ink(picture) { // pixels of a visible picture that have a colour, which axes and words have not
  if (!picture?.checkVisibility()) return -1;
  let shown = picture;
  const { width, height } = picture.getBoundingClientRect(), canvas = document.createElement("canvas");
  if (picture.tagName === "svg") {
    shown = new Image();
    shown.src = "data:image/svg+xml," + encodeURIComponent(new XMLSerializer().serializeToString(picture));
    await shown.decode();
  }
  Object.assign(canvas, { width, height });
  const drawing = canvas.getContext("2d");
  drawing.drawImage(shown, 0, 0, width, height);
  const pixels = drawing.getImageData(0, 0, width, height).data;
  let count = 0;
  for (let at = 0; at < pixels.length; at += 4) {
    const [red, green, blue, alpha] = pixels.subarray(at, at + 4);
    count += alpha > 127 && Math.max(red, green, blue) - Math.min(red, green, blue) > 40;
  }
  return count;
}
const inks = (part) => [...document.querySelectorAll("figure")].map((figure) => ink(figure.querySelector(part)));
document.querySelectorAll("details").forEach((one) => { one.open = true; });
const atOnce = inks(".still svg"); // before any script of the page
</script>"""
AFTER = """<script>
const pause = (ms) => new Promise((go) => setTimeout(go, ms)), found = {};
function column(table, at) {
  return [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => row.cells[at].textContent);
}
async function use() {
  const first = document.querySelector(".table"), buttons = first.querySelectorAll("th button");
  const table = first.querySelector("table"), input = first.querySelector("input");
  buttons[1].click();
  found.up = column(table, 1);
  buttons[1].click();
  found.down = column(table, 1);
  input.value = "b";
  input.dispatchEvent(new Event("input"));
  found.filtered = column(table, 0);
  for (const [box, figure] of drawn) if (!figure.view) await draw(box);
  Object.assign(found, { still: await Promise.all(atOnce), live: await Promise.all(inks(".live svg, .live canvas")) });
  const wait = document.querySelector("tr[data-at]");
  if (wait) {
    wait.click();
    await pause(500);
    const [, figure] = [...drawn].find(([, one]) => one.spec.vconcat);
    const [whole, panel] = ["strip_x", "concat_1_concat_0_x"].map((name) => figure.view.view.scale(name).domain());
    const at = (key) => [...wait.closest("table").querySelectorAll("th")].findIndex((head) => head.dataset.key === key);
    const [from, to] = ["start_us", "end_us"].map((key) => +wait.cells[at(key)].dataset.v);
    found.zoomed = panel[0] <= from && to <= panel[1] && panel[1] - panel[0] <= whole[1] - whole[0];
  }
  const choice = document.querySelector(".vega-bind select");
  if (choice) {
    const [, map] = [...drawn].find(([box]) => box.contains(choice));
    const shown = () => map.view.view.scale("x").domain().join(), before = shown();
    choice.value = [...choice.options].map((one) => one.value).find((one) => !["TP", "PP", choice.value].includes(one));
    choice.dispatchEvent(new Event("change"));
    await map.view.view.runAsync();
    found.picked = shown() !== before;
  }
  document.getElementById("theme").click();
  for (let at = 0; at < 30 && [...drawn.values()].some((figure) => !figure.view); at++) await pause(100);
  const loaded = performance.getEntriesByType("resource").map((one) => one.name);
  Object.assign(found, {
    broken: window.broken === true,
    drawn: document.querySelectorAll("figure .plot .live svg, figure .plot .live canvas").length,
    figures: drawn.size,
    contents: document.querySelectorAll("nav a").length,
    requests: loaded.filter((name) => !name.startsWith("data:")),
    overflow: document.body.scrollWidth - document.body.clientWidth,
  });
}
setTimeout(async () => {
  await use().catch((error) => complaints.push(String(error.stack)));
  const said = document.createElement("pre");
  said.id = "found";
  said.textContent = JSON.stringify({ ...found, complaints });
  document.body.append(said);
}, 2500);
</script>"""


def opened(page: Path, width: int = 1400) -> dict[str, Any]:
    """What the script found in a page."""
    tried = page.with_name("tried.html")
    narrow = f"<style>html {{ width: {width}px }}</style>"  # windows without a head have no less than 500 pixels
    written = page.read_text(encoding="utf-8").replace("<style>", f"{BEFORE}{narrow}<style>", 1)
    content, scripts = written.split("</main>")
    scripts, _, end = scripts.rpartition("</body>")
    tried.write_text(f"{content}</main>{INK}{scripts}{AFTER}</body>{end}", encoding="utf-8")
    assert BROWSER is not None
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=60000", f"--window-size={max(width, 500)},1200",
        f"--user-data-dir={page.parent / 'profile'}", "--dump-dom", tried.as_uri(),
    ]  # fmt: skip
    env = {**os.environ, "HOME": str(page.parent)}
    dom = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True, env=env).stdout
    found = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    assert found, f"the page did not come to its end: {dom[-300:]}"
    answer: dict[str, Any] = json.loads(html.unescape(found[1]))
    return answer


def checked(found: dict[str, Any]) -> dict[str, Any]:
    assert found["complaints"] == []
    assert found["requests"] == []
    assert not found["broken"]
    assert found["drawn"] == found["figures"] == len(found["still"]) == len(found["live"])
    assert min([*found["still"], *found["live"]], default=INKED) >= INKED, "a figure is blank"
    assert found["overflow"] <= 0, "the page is wider than the window"
    return found


@pytest.mark.parametrize("name", PAGES)
def test_every_figure_of_a_page_has_ink_at_once_and_when_it_is_interactive(tmp_path: Path, name: str) -> None:
    found = checked(opened(PAGES[name](tmp_path).save(tmp_path / "report.html")))
    assert found["figures"]


def test_tables_sort_by_value_filter_by_words_and_keep_markup_as_text(tmp_path: Path) -> None:
    rows = [["b 10", 10.0], [EVIL, 9.5], ["a", None], ["b 100", 1000.0], ["c", 2.0], ["d", -1.0]]
    table = Table([text("name"), number("value", format_=",.1f")], rows, EVIL)
    page = tmp_path / "report.html"
    page.write_text(page_text(EVIL, EVIL, [EVIL, [EVIL], table, Section(EVIL, [table])]))
    found = checked(opened(page))
    assert found["up"] == ["-1.0", "2.0", "9.5", "10.0", "1,000.0", "–"]
    assert found["down"] == ["1,000.0", "10.0", "9.5", "2.0", "-1.0", "–"]
    assert found["filtered"] == ["b 100", "b 10", EVIL]
    assert found["contents"] == 1


@pytest.mark.parametrize("width", [1400, 390])
def test_the_page_of_runs_draws_every_figure_on_wide_and_narrow_windows(tmp_path: Path, width: int) -> None:
    graph, watched = split(SubLayer.custom(2048, 2048, 512), 4), weft.RunOptions(interference=True)
    answer = weft.compare(graph, "t3-paper", options=watched)
    found = checked(opened(answer.save(tmp_path / "report.html"), width))
    assert found["figures"] == 5
    assert found["zoomed"], "the wait that is clicked is not what the timeline shows"
    assert found["contents"] >= 5


def test_the_page_of_a_gemm_beside_a_collective_draws_every_figure(tmp_path: Path) -> None:
    graph = weft.concurrent(Gemm(2048, 2048, 1024, "bf16"), Collective("all_gather", 16 << 20, 4), 2, 2)
    answer: Comparison = weft.compare(graph, "mi300x", ["streams", "dma"])
    page = answer.save(tmp_path / "report.html")
    assert page.stat().st_size < 3e6
    checked(opened(page))


@pytest.mark.parametrize("width", [1400, 390])
def test_the_page_of_plans_draws_every_figure_and_maps_the_choices_that_are_picked(tmp_path: Path, width: int) -> None:
    fix = {"tp": 8, "pp": [4, 8], "cp": 1, "sp": True, "micro_batch": [1, 2], "recompute": "full"}
    answer = weft.plan("gpt-3", "64xa100", batch=64, fix=fix, refine=0, launcher="megatron")
    page = answer.save(tmp_path / "report.html")
    found = checked(opened(page, width))
    assert found["figures"] == 5
    assert found["picked"], "the map does not follow the choice of its columns"
