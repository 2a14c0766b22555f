"""A dropped file fills the form: the dimensions of a model, or what starts a training or a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.core.errors import InputError
from weft.core.fields import stated_fields
from weft.core.files import to_json
from weft.graph.kinds import file_kind
from weft.models import Transformer, load_model, model_names
from weft.ui.answers import Message, ask
from weft.ui.state import FILE, TABS, State, arguments, known_keys, pack_file, params_of, unpack_file, write_query


def fill(tab: str, state: State, name: str, text: str) -> Iterator[Message]:
    """Yield the query of the state that a dropped file describes, and a sentence on what was taken from it.

    The configuration of a model becomes the model of the form, and travels in the address. Of what starts a run, the
    form takes model and plan; where its command and the form's answer differ, the sentence says by how much.
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
    filled = {**kept, **_state_of(tab, report.answer)}
    said = f"{name}: {report.lead()}"
    for each in filled.get(FILE, ()):
        Path(_MODEL).write_text(unpack_file(each)[1], encoding="utf-8")
    off = ask(arguments(TABS[tab].command, filled))[0].answer.seconds / report.answer.seconds - 1
    if abs(off) > _EQUAL:
        said += f" The file has settings that are no options: the form's time is {off:+.1%} off that of --launch."
    yield {"kind": "fill", "query": write_query(filled), "text": said}


_KEPT = ("system", "rate", "concurrency", "requests", "input-len", "output-len", "ttft", "tpot", "fidelity", "set")
"""What a launch file leaves to the form: the machine, the load, and how it is timed."""


def _describes_model(file: Path) -> bool:
    if file_kind(file) == "model":
        return True
    if file.suffix != ".toml":
        return False
    try:
        load_model(file)
    except InputError:
        return False
    return True


def _state_of(tab: str, found: Any) -> State:
    """Return the state whose command asks for the model and the plan of an answer."""
    params = params_of(TABS[tab].command)
    state: dict[str, tuple[str, ...]] = {"model": (found.model.name,)}
    if found.model.name not in model_names() or load_model(found.model.name) != found.model:
        state = {"model": (_MODEL,), FILE: (pack_file(_MODEL, _model_text(found.model)),)}
    for name, value in stated_fields(found.plan).items():
        key = name.replace("_", "-")
        if key in params and value not in (None, "", (), {}):
            state[key] = (_text(value),)
    return state | ({"framework": (found.framework.name,)} if tab == "train" else {})


_EQUAL = 1e-6
"""Relative difference of two times up to which they count as equal."""
_MODEL = "model.toml"
"""The file of a model that the catalogue does not have, such as one whose dimensions a script states."""


def _model_text(model: Transformer) -> str:
    """Return the TOML file of a model's dimensions."""
    stated = model.model_dump(exclude_defaults=True, exclude={"name", "provenance"})
    lines = {"source": "the dropped file", **stated}
    return "".join(f"{name} = {to_json(value)}\n" for name, value in lines.items() if value is not None)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ",".join(f"{axis}={name}" for axis, name in value.items())
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
