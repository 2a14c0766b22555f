"""A dropped file fills the form: the dimensions of a model, or what starts a training or a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from weft.core.errors import InputError
from weft.graph.kinds import file_kind
from weft.models import load_model
from weft.ui.answers import Message, ask
from weft.ui.plans import MODEL, state_of
from weft.ui.state import FILE, TABS, State, arguments, known_keys, pack_file, unpack_file, write_query


def fill(tab: str, state: State, name: str, text: str) -> Iterator[Message]:
    """Yield the query of the state that a dropped file describes, and a sentence on what was taken from it.

    Of what starts a run, the form takes model and plan; where its answer differs, the sentence says by how much.
    """
    packed = pack_file(name, text)
    Path(name).write_text(text, encoding="utf-8")
    filled: State
    if "model" in known_keys(tab) and _describes_model(Path(name)):
        filled = {**state, "model": (name,), FILE: (packed,)}
        yield {"kind": "fill", "query": write_query(filled), "text": f"The model is that of {name}."}
        return
    if tab not in ("train", "serve"):
        raise InputError(f"this tab takes no file; drop '{name}' on Train or Serve")
    kept = {key: state[key] for key in _KEPT if key in state}
    words = [*arguments(TABS[tab].command, kept), "--launch", name]
    report, _ = ask(words)
    found = report.answer
    filled = {**kept, **state_of(tab, found.model, found.plan, found.framework)}
    said = f"{name}: {report.lead()}"
    for each in filled.get(FILE, ()):
        Path(MODEL).write_text(unpack_file(each)[1], encoding="utf-8")
    off = ask(arguments(TABS[tab].command, filled))[0].answer.seconds / found.seconds - 1
    if abs(off) > _EQUAL:
        said += f" The file has settings that are no options: the form's time is {off:+.1%} off that of --launch."
    yield {"kind": "fill", "query": write_query(filled), "text": said}


_EQUAL = 1e-6
"""Relative difference of two times up to which they count as equal."""
_KEPT = ("system", "rate", "concurrency", "requests", "input-len", "output-len", "ttft", "tpot", "fidelity", "set")
"""What a launch file leaves to the form: the machine, the load, and how it is timed."""


def _describes_model(file: Path) -> bool:
    with suppress(InputError):
        return file_kind(file) == "model" or (file.suffix == ".toml" and bool(load_model(file)))
    return False
