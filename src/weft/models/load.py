"""Models by name in the catalogue, or from a user's file."""

from __future__ import annotations

import re
from pathlib import Path

from weft.core.catalog import Shelf, is_file
from weft.core.errors import ConfigError, InputError, UnknownNameError, check_type
from weft.core.extensions import find_reader
from weft.core.files import beginning
from weft.graph import Graph, read_graph
from weft.graph.kinds import file_kind
from weft.models.transformer import Transformer

_SHELF = Shelf("model", "weft.models", "catalog", ("name", "title"), Transformer.rules())


def model_names() -> list[str]:
    """Return the models of the catalogue."""
    return _SHELF.names()


def load_model(name_or_path: Transformer | str | Path) -> Transformer:
    """Load a model by its name in the catalogue, from a TOML file, or from the `config.json` of a Hugging Face model.

    The content of a file says which it is. A model is returned as it is.

    Raises UnknownNameError, InputError or ConfigError, which names the file, the field and an example.

    >>> round(load_model("llama-3-8b").parameters / 1e9, 2)
    8.03
    """
    if isinstance(name_or_path, Transformer):
        return name_or_path
    check_type("the model", name_or_path, (str, Path), "give a name like 't-nlg', a TOML file or a config.json")
    _refuse_other_names(str(name_or_path))
    if _is_json(name_or_path):
        from weft.models.huggingface import from_config  # imported for such a file only

        return from_config(Path(name_or_path))
    found = _SHELF.read(Path(name_or_path) if _names_file(name_or_path) else name_or_path)
    return Transformer.from_leaves(found.about, found.leaves, found.file)


def named_model(name: str) -> str:
    """Return the model of the catalogue that a name on Hugging Face, or of a folder of weights, means; "" for none.

    What names add for a fine-tuned, dated or quantized release of the same dimensions does not count.

    >>> named_model("nvidia/Llama-3.3-70B-Instruct-FP8")
    'llama-3-70b'
    """
    wanted = _plain_name(name)
    known = {_plain_name(each): each for each in model_names()}
    return _SAME_DIMENSIONS.get(wanted) or known.get(wanted, "")


def _plain_name(name: str) -> str:
    """Return the letters and digits of a name that say which model it is."""
    plain = (
        name.rstrip("/")
        .rpartition("/")[2]
        .lower()
        .replace("_", "-")
        .removesuffix(".yaml")
        .removeprefix("meta-")
        .removeprefix("nvidia-")
    )
    while (shorter := _RELEASE.sub("", plain)) != plain:
        plain = shorter
    return re.sub(r"[^a-z0-9]", "", plain)


_RELEASE = re.compile(
    r"-(instruct|base|chat|it|hf|thinking|pt|v0\.[0-9]|w-mxfp4-a-fp8|[0-9]{4}|fp8|fp4|bf16|nvfp4|mxfp4|awq|gptq|int4|int8|w4a16|w8a8|"
    r"w8a16|dynamic|block|kv|model|opt|channel|quantized(\.w[0-9]+a[0-9]+)?)$"
)
_SAME_DIMENSIONS = {
    "llama318b": "llama-3-8b", "llama3170b": "llama-3-70b", "llama3370b": "llama-3-70b", "llama38b": "llama-3-8b",
    "deepseekr1": "deepseek-v3", "deepseekv31": "deepseek-v3", "minimaxm21": "minimax-m2", "minimaxm25": "minimax-m2",
    "minimaxm27": "minimax-m2",
    "deepseekr1distillllama8b": "llama-3-8b", "deepseekr1distillllama70b": "llama-3-70b",
    "deepseekr1distillqwen7b": "qwen2.5-7b", "deepseekr1distillqwen14b": "qwen2.5-14b",
    "deepseekr1distillqwen32b": "qwen2.5-32b", "deepseekr10528qwen38b": "qwen3-8b", "qwq32b": "qwen2.5-32b",
    "qwen25coder7b": "qwen2.5-7b", "qwen25coder14b": "qwen2.5-14b", "qwen25coder32b": "qwen2.5-32b",
    "qwen25math7b": "qwen2.5-7b", "qwen25math72b": "qwen2.5-72b", "qwen3coder30ba3b": "qwen3-30b-a3b",
    "deepseekv20628": "deepseek-v2", "deepseekv25": "deepseek-v2", "deepseekcoderv2": "deepseek-v2",
    "deepseekcoderv2lite": "deepseek-v2-lite",
    "llama417b16e": "llama-4-scout", "llama417bx16e": "llama-4-scout", "llama4scout17b16e": "llama-4-scout",
    "llama417b128e": "llama-4-maverick", "llama417bx128e": "llama-4-maverick",
    "llama4maverick17b128e": "llama-4-maverick",
}  # fmt: skip
"""Later releases with the dimensions of an earlier one (config.json of the released weights)."""


def _refuse_other_names(name: str) -> None:
    """Raise UnknownNameError for a name on Hugging Face, such as "owner/name", and InputError for a script."""
    path = Path(name)
    if name.endswith((".sh", ".py", ".sbatch")):
        raise InputError(f"'{name}' is a script, not a model; read a launch script with: weft step --launch {name}")
    if (
        name.count("/") == 1
        and not name.endswith((*_SUFFIXES, ".toml"))
        and name[0] not in "./~"
        and not path.parent.exists()
    ):
        raise UnknownNameError("model", name, model_names())


def graph_in(work: object) -> Graph | None:
    """Return the graph in a file that a user names where a model could stand, by its content; None for all else."""
    if not isinstance(work, str | Path) or not _names_file(work):
        return None
    kind = file_kind(work)
    if kind == "graph":
        return read_graph(work)
    if kind != "execution trace":
        return None
    reader = find_reader(kind)
    if reader is None:
        raise InputError(f"'{work}' is an {kind}, which the extension 'torch' of Weft reads; it is not installed")
    graph: Graph = reader(work)
    return graph


def _names_file(name: str | Path) -> bool:
    """Return whether a user means a file rather than a model of the catalogue, which goes before a file of its name."""
    text = str(name)
    return is_file(name) or text.endswith(_SUFFIXES) or (text not in _SHELF.names() and _is_regular(text))


def _is_regular(name: str | Path) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _is_json(name: str | Path) -> bool:
    """Return whether a file describes a model in JSON, by its content. Raises ConfigError for other files."""
    if not _names_file(name) or not _is_regular(name):
        return str(name).endswith(".json")
    kind = file_kind(name)
    if kind in _OTHERS:
        raise ConfigError(_OTHERS[kind], str(name))
    return str(name).endswith(".json") or beginning(name).lstrip().startswith((b"{", b"\xef\xbb\xbf{"))


_SUFFIXES = (".json", ".jsonl", ".gz", ".et")
_OTHERS = {
    "graph": "this is a graph of operators, not a model; weft.read_graph reads it, and 'weft step' times it",
    "trace": "this is a trace of PyTorch's profiler, not a model; 'weft import TRACE --graph step.jsonl.gz' writes its "
    "operators as a graph, which 'weft step' times",
    "execution trace": "this is an execution trace, not a model; weft.read_graph reads it, and 'weft step' times it",
}
"""What is said of files that hold no model."""
