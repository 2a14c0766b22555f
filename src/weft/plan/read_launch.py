"""Launch files that users wrote, read as the run that they start; `weft.plan.launch` writes such files.

Shell scripts with Megatron-LM's arguments, overrides of Megatron-Bridge and NeMo, torchtitan's TOML, DeepSpeed's JSON,
and YAML of NeMo AutoModel, NeMo and Primus. The content says which one it is.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft import hardware
from weft.core.errors import ConfigError, InputError, check_type, show_value
from weft.core.files import read_text
from weft.hardware.resolve import Described
from weft.plan.launched import Launched
from weft.plan.read_deepspeed import read_deepspeed
from weft.plan.read_megatron import read_commands
from weft.plan.read_torchtitan import read_torchtitan
from weft.plan.read_yaml import is_yaml, read_yaml
from weft.plan.reading import Machine

_LARGEST = 1 << 18
"""Longest launch file [bytes]."""


def read_launch(
    path: str | Path,
    *,
    system: Described | None = None,
    arguments: Sequence[str] = (),
    define: Mapping[str, str | float] | None = None,
) -> Launched:
    """Return the run that a launch file starts: a script, overrides, a TOML, a JSON or a YAML.

    Of a script, `arguments` are those that its user types behind it ($1, $2), `define` states variables that it does
    not set or sets otherwise, and the `system` answers what Slurm tells a job of its nodes. Raises InputError for a
    file that cannot be read or starts no training, ConfigError that names the file, the argument and its rule for a
    value that cannot be used.
    """
    check_type("arguments", arguments, (list, tuple), "give a list of texts, like ['8b', '4']")
    check_type("define", define or {}, Mapping, "give values by name, like {'TP': '4'}")
    text, file = read_text(path, _LARGEST), str(path)
    defined = {_variable(name): str(value) for name, value in (define or {}).items()}
    found = _document(text, file)
    if found is not None:
        if arguments or defined:
            raise InputError(f"'{path}' is no script; arguments and variables are those of one, leave them out")
        return found
    machine = None
    if system is not None:
        on = hardware.system(system)
        each = on.gpus_per_node if on.node else on.gpus
        machine = Machine(on.gpus // each, each)
    started = read_commands(text, file, tuple(map(str, arguments)), defined, machine)
    if started is None:
        raise InputError(
            f"'{path}' starts no training that Weft knows; give a script with Megatron-LM's arguments, overrides like "
            "model.tensor_model_parallel_size=4, torchtitan's TOML, DeepSpeed's JSON, or YAML of AutoModel, NeMo or "
            "Primus"
        )
    return started


def _variable(name: object) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise InputError(f"{show_value(name)} is no variable of a script; define one by its name, like TP=4")
    return name


def _document(text: str, file: str) -> Launched | None:
    """Return the run of a JSON, TOML or YAML; None for a text that is none of these."""
    if text.lstrip().startswith("{") and (document := _json(text, file)) is not None:
        if {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu"} & document.keys():
            return read_deepspeed(document, file)
        return None
    try:
        tables = tomllib.loads(text) if max(map(len, re.findall(r"[^\s=]+", text)), default=0) < _LONGEST else {}
    except (ValueError, RecursionError):
        tables = {}
    if {"parallelism", "training"} & tables.keys():
        return read_torchtitan(tables, file)
    return read_yaml(text, file) if is_yaml(text) else None


_LONGEST = 5_000
"""Longest word of a TOML [characters]: the parser takes the square of a dotted name's parts."""


def _json(text: str, file: str) -> Mapping[str, Any] | None:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError("it stands there twice, which DeepSpeed refuses; state it once", file, twice)
        return found

    try:
        document = json.loads(text, object_pairs_hook=once)
    except RecursionError:
        raise ConfigError("the JSON is nested too deep; nest less", file) from None
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
