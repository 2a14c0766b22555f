"""Recipes of Megatron-Bridge and torchtitan by name: their plans stand in their source, and here (`recipes.toml`)."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from weft.core.errors import InputError
from weft.core.files import packaged_toml
from weft.models import load_model
from weft.plan.launched import Launched
from weft.plan.read_megatron import read_overrides

_SOURCE = "Megatron-Bridge of 2026-08-22 (067f987)"


@cache
def _table() -> Mapping[str, Any]:
    return packaged_toml("weft.plan", "recipes.toml")


def is_recipe(name: str) -> bool:
    """Return whether Weft has the recipe of that name."""
    return name in _table()["recipes"]


def recipe_settings(name: str) -> tuple[str, dict[str, str]]:
    """Return the model of a recipe of Megatron-Bridge, and what it states; KeyError for an unknown one."""
    table = _table()
    model, _, *words = table["recipes"][name].split()
    settings = dict(word.split("=", 1) for word in (*table["common"].split(), *words))
    return model, {table["short"].get(short, short): value for short, value in settings.items()}


def registered_settings(name: str) -> tuple[str, dict[str, str]] | None:
    """Return the model and the settings of a configuration of torchtitan's registries; None for an unknown one."""
    table = _table()
    if name not in table["torchtitan"]:
        return None
    model, *words = table["torchtitan"][name].split()
    return model, {
        table["torchtitan_short"][short]: value for short, _, value in (word.partition("=") for word in words)
    }


def read_recipe(name: str, overridden: Mapping[str, str], file: str, notes: tuple[str, ...]) -> Launched:
    """Return the run of a recipe of Megatron-Bridge with overrides.

    Raises InputError for a recipe that Weft does not have; it names those like it.
    """
    recipes = _table()["recipes"]
    if not is_recipe(name):
        near = difflib.get_close_matches(name, recipes, 3, 0.7)
        like = f"; like it are {', '.join(near)}" if near else ""
        raise InputError(
            f"'{file}' starts the recipe {name}, which is not among the {len(recipes)} of {_SOURCE} that Weft has "
            f"(pre-training of models of the catalogue){like}. State its plan as overrides "
            "(model.tensor_model_parallel_size=2), or by options: weft step MODEL --framework megatron-bridge --tp --pp"
        )
    model, stated = recipe_settings(name)
    changed = {each.rpartition(".")[2] for each in overridden}
    kept = {each: value for each, value in stated.items() if each not in changed}
    plan = f"The plan is that of the recipe {name} in {_SOURCE}."
    own = read_overrides(kept | dict(overridden), file, (plan, *notes))
    used = {each: value for each, value in own.used.items() if each in overridden}
    said = tuple(note for note in own.notes if not note.startswith("The arguments leave --num-layers"))
    return replace(
        own, launcher="megatron-bridge", model=own.model or load_model(model), used={"--recipe": name, **used},
        notes=said,
    )  # fmt: skip
