"""A process that answers the questions of pages: a JSON line for each question, JSON lines for what is told.

It runs in a folder of its own that holds nothing but the files of the question, and in a session of its own, so that
ending it ends what it started.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from altair.utils.schemapi import debug_mode

from weft.cli import progress
from weft.cli.main import sentence_of
from weft.core.errors import WeftError
from weft.core.files import parse_json, to_json
from weft.ui import answers
from weft.ui.fill import fill
from weft.ui.state import FILE, PIN, State, parse_state, unpack_file

_PROGRESS_S = 0.5
"""Least time between two lines of progress [s]: a page shows each in the place of the one before."""


def main() -> None:
    """Answer the questions on standard input until it ends."""
    told = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    progress.QUIET_S = _PROGRESS_S
    warnings.simplefilter("ignore")
    # Figures are not checked against the schema of Vega-Lite: tests do that, and it takes half of an answer.
    with tempfile.TemporaryDirectory(prefix="weft-ui-") as folder, debug_mode(False):
        os.chdir(folder)
        for line in sys.stdin:
            for message in tell(parse_json(line)):
                told.write(to_json(message) + "\n")
            told.write('{"kind": "end"}\n')
            for file in Path().iterdir():
                file.unlink()


def tell(asked: Mapping[str, Any]) -> Iterator[answers.Message]:
    """Yield what a page is told on its question: what the answer yields, or the sentence of the command's error."""
    try:
        tab, state = asked["tab"], parse_state(asked["tab"], asked["query"])
        for value in state.get(FILE, ()):
            name, text = unpack_file(value)
            Path(name).write_text(text, encoding="utf-8")
        yield from _find(asked["do"], tab, state, asked)
    except (WeftError, click.ClickException, OSError, MemoryError) as error:
        yield {"kind": "error", "text": sentence_of(error)}
    except Exception as error:  # noqa: BLE001 - a defect of Weft is told, and the next question answered
        yield {"kind": "error", "text": f"this state meets a defect of Weft: {type(error).__name__}: {error}"}


def _find(do: str, tab: str, state: State, asked: Mapping[str, Any]) -> Iterator[answers.Message]:
    if do == "fill":
        yield from fill(tab, state, asked["name"], asked["text"])
    elif do == "values":
        yield from answers.values(state)
    elif do == "contrast":
        pinned = parse_state(tab, state.get(PIN, ("",))[0])
        yield from answers.contrast(tab, pinned, {key: values for key, values in state.items() if key != PIN})
    else:
        yield from answers.answer(tab, state, asked.get("at"))


if __name__ == "__main__":
    main()
