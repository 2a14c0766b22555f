"""Plans as states: the form that asks for a model and a plan, such as those of a launch file or of a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.fields import stated_fields
from weft.core.files import to_json
from weft.models import Transformer, load_model, model_names
from weft.models.parallel.deployment import Deployment
from weft.models.parallel.framework import Framework
from weft.ui.state import FILE, TABS, State, pack_file, params_of

MODEL = "model.toml"
"""The file of a model that the catalogue does not have, such as one whose dimensions a script states."""


def state_of(tab: str, model: Transformer, plan: Deployment, framework: Framework | str) -> State:
    """Return the state whose command asks for a model and a plan."""
    params = params_of(TABS[tab].command)
    state: dict[str, tuple[str, ...]] = {"model": (model.name,)}
    if model.name not in model_names() or load_model(model.name) != model:
        state = {"model": (MODEL,), FILE: (pack_file(MODEL, _model_text(model)),)}
    for name, value in stated_fields(plan).items():
        key = name.replace("_", "-")
        if key in params and value not in (None, "", (), {}):
            state[key] = (_text(value),)
    return state | ({"framework": (framework.name,)} if isinstance(framework, Framework) else {})


def _model_text(model: Transformer) -> str:
    stated = {"source": "the dropped file", **model.model_dump(exclude_defaults=True, exclude={"name", "provenance"})}
    return "".join(f"{name} = {to_json(value)}\n" for name, value in stated.items() if value is not None)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ",".join(f"{axis}={name}" for axis, name in value.items())
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
