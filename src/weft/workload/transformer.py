"""Transformers by their dimensions, from the catalogue of models or from a user's file."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from weft.errors import ConfigError
from weft.hardware.fields import Count, Quantity
from weft.hardware.loading import file_label, find, names_in
from weft.hardware.parts import Part
from weft.hardware.sourced import Leaf, Provenance, read_leaves, read_toml, translated
from weft.units import Dimension

_NUMBER = Quantity(Dimension.COUNT, whole=True)
_LEAVES: Mapping[str, Quantity | None] = {
    "hidden": _NUMBER,
    "layers": _NUMBER,
    "sequence_length": _NUMBER,
    "batch": _NUMBER,
    "ffn_multiple": _NUMBER,
    "heads": _NUMBER,
    "tensor_parallel": None,
}
# Elements of an attention head where a model does not say: what most large models have.
_HEAD = 128
_EXAMPLES = {
    "name": '"my-model"',
    "title": '"My model"',
    "hidden": '{ value = 4096, kind = "published", source = "model card" }',
    "layers": '{ value = 32, kind = "published", source = "model card" }',
    "sequence_length": '{ value = 2048, kind = "published", source = "model card" }',
    "batch": '{ value = 4, kind = "assumed", low = 1, high = 8, source = "fits the memory" }',
    "tensor_parallel": '{ value = [8], kind = "published", source = "model card" }',
}


class Transformer(Part):
    """A Transformer's dimensions: hidden size H, layers, tokens per step, studied tensor-parallel degrees.

    The attention heads span H together; without their number, they have 128 elements each. `provenance`
    explains each value. Raises ConfigError for values that break a rule.
    """

    name: str
    title: str
    hidden: Count
    layers: Count
    sequence_length: Count
    batch: Count
    ffn_multiple: Count = 4
    heads: Count | None = None
    tensor_parallel: tuple[int, ...]
    provenance: Mapping[str, Provenance] = Field(default_factory=dict, repr=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise translated(error, tuple(type(self).model_fields)) from None

    def __hash__(self) -> int:
        return hash((self.name, self.hidden, self.layers, self.tokens, self.tensor_parallel))

    @property
    def tokens(self) -> int:
        """Tokens per step: sequence length x batch."""
        return self.sequence_length * self.batch

    @property
    def attention_heads(self) -> int:
        """Number of attention heads."""
        return self.heads or max(self.hidden // _HEAD, 1)

    @field_validator("tensor_parallel", mode="before")
    @classmethod
    def _check_degrees(cls, degrees: Any) -> Any:
        listed = isinstance(degrees, list | tuple) and len(degrees) > 0
        if not listed or not all(type(degree) is int and degree > 1 for degree in degrees):
            sentence = f"{degrees!r} must be a list of whole numbers above 1; write it like [8, 16]"
            raise PydanticCustomError("rule", "{sentence}", {"sentence": sentence})
        return degrees


def model_names() -> list[str]:
    """The models of the catalogue."""
    return names_in(resources.files("weft.workload") / "models")


def load_model(name_or_path: str | Path) -> Transformer:
    """The model of the catalogue with that name, or the one that a TOML file describes.

    Raises UnknownNameError, InputError or ConfigError, which names the file, the field and an example.
    """
    file = find("model", name_or_path, resources.files("weft.workload") / "models")
    label = file_label(file)
    document = read_toml(file)
    about: dict[str, Any] = {key: document.pop(key) for key in ("name", "title") if key in document}
    leaves = read_leaves(document, _LEAVES, label)
    _require({**about, **leaves}, label)
    try:
        return Transformer(**_fields(about, leaves))
    except ConfigError as error:
        raise ConfigError(error.message, label, error.key) from None


def _fields(about: Mapping[str, Any], leaves: Mapping[str, Leaf]) -> dict[str, Any]:
    values = {path: leaf.value for path, leaf in leaves.items()}
    return {**about, **values, "provenance": {path: leaf.provenance for path, leaf in leaves.items()}}


def _require(given: Mapping[str, object], file: str) -> None:
    for key, example in _EXAMPLES.items():
        if key not in given:
            raise ConfigError(f"this field is missing; add a line like {key} = {example}", file, key)
