"""Runs the examples of a Markdown page, so that what a reader copies works and prints what the page shows.

The rules, for who writes a page:

* A `python` block is executed; blocks of one page share their names and one temporary folder.
  A `text` block right after it is what it must print. A block that starts with `>>>` is a doctest.
* A `console` block holds `$ weft ...` commands (also `$ python ...`), each followed by what it must print;
  nothing shown, nothing compared. A command must succeed, unless an error, "weft: ...", is shown.
* In shown output, `...` stands for anything within a line; alone on a line, for any number of lines (at the end:
  also none).
* A block in one of `FILE_LANGUAGES`, or in python, whose first line is `# file: NAME` is saved as that file.
* `<!--- skip: next "why" -->` leaves the next block out, for a stated reason.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from sybil import Document, Example, Region
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser

FILE_LANGUAGES = ("toml", "yaml", "bash")
COMMANDS = {"weft": [sys.executable, "-m", "weft"], "python": [sys.executable]}
TIMEOUT_S = 300
NOTICE = re.compile(r"^weft: compiling .*\n", re.MULTILINE)
"""What the first run ever says, and no later one: not part of what a page shows."""

_FILE = re.compile(r"# file: (?P<name>[\w./-]+)\n")
_OUTPUT_AFTER = re.compile(r"[ \t]*\n\s*```text\n(?P<output>.*?)^```", re.DOTALL | re.MULTILINE)


class FileParser(CodeBlockParser):
    """Blocks of a language that runs nothing: saved if they name a file, left alone otherwise."""

    def evaluate(self, example: Example) -> None:
        _save_file(str(example.parsed))


class PythonParser(CodeBlockParser):
    """Python blocks that are not doctests: executed, and their output compared if the page shows it."""

    language = "python"

    def __call__(self, document: Document) -> Iterable[Region]:
        for region in super().__call__(document):
            if not region.parsed.startswith(">>>"):
                yield region

    def evaluate(self, example: Example) -> str | None:
        if _save_file(str(example.parsed)):
            return None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            PythonEvaluator()(example)
        shown = _OUTPUT_AFTER.match(example.document.text, example.end)
        return difference(shown["output"], printed.getvalue()) if shown else None


class ConsoleParser(CodeBlockParser):
    """Console blocks: every command is run, and its output compared if the page shows it."""

    language = "console"

    def evaluate(self, example: Example) -> str | None:
        for command, shown in commands(str(example.parsed)):
            problem = run(command, shown)
            if problem:
                return f"$ {command}\n{problem}"
        return None


def commands(block: str) -> list[tuple[str, str]]:
    r"""The commands of a console block, each with the output that is shown below it; `\` continues a line."""
    found: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        found.append((re.sub(r"\s+", " ", command) if "'" not in command else command, shown.strip("\n")))
    return found


def run(command: str, shown: str) -> str | None:
    """Run one command in the current folder; what is wrong with it, or None."""
    program, *arguments = shlex.split(command, comments=True)
    if program not in COMMANDS:
        known = " and ".join(COMMANDS)
        return f"'{program}' is not run here, only {known} are; use a `sh` block, or skip it with a reason"
    plain = os.environ | {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        [*COMMANDS[program], *arguments],
        capture_output=True,
        text=True,
        env=plain,
        timeout=TIMEOUT_S,
        check=False,
    )
    printed = done.stdout + NOTICE.sub("", done.stderr)
    should_fail = shown.startswith("weft: ")
    if (done.returncode != 0) != should_fail:
        return f"ended with status {done.returncode} and printed:\n{printed}"
    return difference(shown, printed) if shown else None


def difference(shown: str, printed: str) -> str | None:
    """None if `printed` is what the page shows, up to `...` and trailing blanks; both otherwise."""
    if re.fullmatch(_pattern(_trimmed(shown)), _trimmed(printed), flags=re.DOTALL):
        return None
    return f"shown:\n{_trimmed(shown)}\n\nprinted:\n{_trimmed(printed)}\n"


def _pattern(shown: str) -> str:
    lines = [r"[^\n]*?".join(map(re.escape, line.split("..."))) for line in shown.split("\n")]
    whole = [r".*?" if line == r"[^\n]*?" else line for line in lines]
    pattern = "\n".join(whole)
    return pattern.removesuffix("\n.*?") + r"(\n.*)?" if pattern.endswith("\n.*?") else pattern


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n"))


def _save_file(block: str) -> bool:
    named = _FILE.match(block)
    if named:
        path = Path(named["name"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block[named.end() :])
    return named is not None
