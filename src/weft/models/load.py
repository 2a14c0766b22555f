"""Models by name in the catalogue, or from a user's file."""

from __future__ import annotations

from pathlib import Path

from weft.catalog import Shelf
from weft.errors import check_type
from weft.models.huggingface import from_config
from weft.models.transformer import Transformer

_SHELF = Shelf("model", "weft.models", "catalog", ("name", "title"), Transformer.rules())


def model_names() -> list[str]:
    """The models of the catalogue."""
    return _SHELF.names()


def load_model(name_or_path: Transformer | str | Path) -> Transformer:
    """Load a model by its name in the catalogue, from a TOML file, or from the `config.json` of a Hugging Face model.

    A model is returned as it is.

    Raises UnknownNameError, InputError or ConfigError, which names the file, the field and an example.

    >>> round(load_model("llama-3-8b").parameters / 1e9, 2)
    8.03
    """
    if isinstance(name_or_path, Transformer):
        return name_or_path
    check_type("the model", name_or_path, (str, Path), "give a name like 't-nlg', a TOML file or a config.json")
    if str(name_or_path).endswith(".json"):
        return from_config(Path(name_or_path))
    found = _SHELF.read(name_or_path)
    return Transformer.from_leaves(found.about, found.leaves, found.file)
