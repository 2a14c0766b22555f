"""Launch files that users wrote, read as the run that they start; `weft.plan.launch` writes such files.

Shell scripts with Megatron-LM's arguments, recipes and overrides of Megatron-Bridge and NeMo, torchtitan's TOML,
DeepSpeed's JSON, YAML of NeMo AutoModel, NeMo, Primus and SageMaker HyperPod, and settings of Hugging Face's trainers.
The content says which one it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from weft import hardware
from weft.core.errors import InputError, check_type, show_value
from weft.hardware.resolve import Described
from weft.plan.documents import BY_OPTIONS, source_text
from weft.plan.launched import Launched
from weft.plan.read_commands import read_commands
from weft.plan.read_settings import read_document, read_flat
from weft.plan.reading import Machine


def read_launch(
    path: str | Path,
    *,
    system: Described | None = None,
    arguments: Sequence[str] = (),
    define: Mapping[str, str | float] | None = None,
) -> Launched:
    """Return the run that a launch file starts: a script, overrides, a TOML, a JSON or a YAML; or a command itself.

    Of a script, `arguments` are those that its user types behind it ($1, $2), `define` states variables that it does
    not set or sets otherwise, and the `system` answers what Slurm tells a job of its nodes. Raises InputError for a
    file that cannot be read or starts no training, ConfigError that names the file, the argument and its rule for a
    value that cannot be used.
    """
    check_type("arguments", arguments, (list, tuple), "give a list of texts, like ['8b', '4']")
    check_type("define", define or {}, Mapping, "give values by name, like {'TP': '4'}")
    text, file = source_text(path)
    defined = {_variable(name): str(value) for name, value in (define or {}).items()}
    flat = read_document(text, file)
    found = None if flat is None else read_flat(flat, file, defined)
    if found is not None:
        if arguments:
            raise InputError(f"'{path}' is no script; arguments are those of one, leave them out")
        for name in defined:
            if not re.search(rf"\$\{{[^}}]*\b{re.escape(name)}\b", text):
                raise InputError(f"'{path}' has no variable ${{{name}}}; define one that it has, or leave it out")
        return found
    machine = None
    if system is not None:
        on = hardware.system(system)
        each = on.gpus_per_node if on.node else on.gpus
        machine = Machine(on.gpus // each, each)
    started = read_commands(text, file, tuple(map(str, arguments)), defined, machine)
    if started is None:
        raise InputError(
            f"'{path}' starts no training that Weft knows; give a script with Megatron-LM's arguments or that names a "
            "file of settings, overrides like model.tensor_model_parallel_size=4, a recipe of Megatron-Bridge, "
            "torchtitan's TOML, DeepSpeed's JSON, or YAML of AutoModel, NeMo, NeMo-RL, Primus, HyperPod, Axolotl, "
            f"LLaMA-Factory, TRL or Accelerate; or {BY_OPTIONS}; for a server: weft serve --launch"
        )
    return started


def _variable(name: object) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise InputError(f"{show_value(name)} is no variable of a script; define one by its name, like TP=4")
    return name
