"""Resolve names such as "8xA100-SXM4-80GB" or "16xH100 (2 nodes)" to a GPU or a system.

An index of every name, title and alias lets a name read its own machine's files alone; `write_index` writes it anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

from weft.core.catalog import Shelf, is_file, read_toml
from weft.core.errors import ConfigError, InputError, SystemNamedError, UnknownNameError, check_type, check_whole
from weft.core.files import write_json
from weft.hardware.form import refit
from weft.hardware.gpus import Gpu
from weft.hardware.systems import Node, System

_FILE = "index.json"


class CatalogEntry(NamedTuple):
    """What names a GPU or a node; of a node also its GPU, how many it holds, and whether the GPU's name means it."""

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    gpu: str = ""
    gpus_per_node: int = 0
    usual: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, its aliases and its title."""
        return (self.name, *self.aliases, self.title)


def _catalog() -> Traversable:
    return resources.files("weft.hardware") / "catalog"


@cache
def entries(folder: str) -> Mapping[str, CatalogEntry]:
    """Return the entries of the folder "gpus" or "nodes" by name; a file that the index lacks is read."""
    held, found = _read_index()[folder], {}
    for file in sorted((_catalog() / folder).iterdir(), key=lambda file: file.name):
        name, dot, suffix = file.name.rpartition(".")
        if dot and suffix == "toml":
            found[name] = CatalogEntry(**_type_entries(held[name])) if name in held else _head(file)
    return found


@cache
def _read_index() -> dict[str, dict[str, Any]]:
    """Return the index as written."""
    return json.loads((_catalog() / _FILE).read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def _type_entries(held: Mapping[str, Any]) -> dict[str, Any]:
    return {**held, "aliases": tuple(held["aliases"])}


def _head(file: Traversable) -> CatalogEntry:
    """Return the entry of a file."""
    document = _document(file)
    count = document.get("gpus_per_node", 0)
    return CatalogEntry(
        document.get("name", file.name.removesuffix(".toml")),
        document["title"],
        tuple(document.get("aliases", ())),
        document.get("gpu", ""),
        int(count["value"] if isinstance(count, Mapping) else count),
        bool(document.get("usual", False)),
    )


def _document(file: Traversable) -> dict[str, Any]:
    """Return what a file says, with what it inherits of the file that it extends."""
    document = read_toml(file)
    if not isinstance(document.get("extends"), str):
        return document
    inherited = _document(_catalog() / Path(str(file)).parent.name / f"{document['extends']}.toml")
    return {name: value for name, value in inherited.items() if name not in ("name", "aliases", "usual")} | document


def build_index() -> dict[str, dict[str, Any]]:
    """Return the index as the files of the catalogue give it."""
    found: dict[str, dict[str, Any]] = {}
    for folder in ("gpus", "nodes"):
        files = [file for file in (_catalog() / folder).iterdir() if file.name.endswith(".toml")]
        listed = {file.name.removesuffix(".toml"): _head(file)._asdict() for file in files}
        found[folder] = {name: {**entry, "aliases": list(entry["aliases"])} for name, entry in sorted(listed.items())}
    return found


def write_index() -> None:
    """Write the index of names anew, after a file of the catalogue was added or changed; a test compares both."""
    write_json(Path(str(_catalog() / _FILE)), build_index())


Described = str | Path | Gpu | Node | System
"""What `system` accepts: a name, a TOML file, or a description."""
_DEFAULT_GPUS = 8
"""Default number of GPUs of a system without a node."""
_TEXTS = ("name", "title", "description")
_GPUS = Shelf(
    "GPU", "weft.hardware", "catalog/gpus", (*_TEXTS, "vendor", "architecture"), Gpu.rules(),
    {"aliases": "A100-SXM4-80GB"},
)  # fmt: skip
_NODES = Shelf(
    "system", "weft.hardware", "catalog/nodes", (*_TEXTS, "gpu"), Node.rules(), {"aliases": "hgx-h100"}, ("usual",)
)  # fmt: skip

# Words beside a GPU's name that do not distinguish it from another GPU.
_NOISE = {"nvidia", "amd", "instinct", "tesla", "gpu", "gpus", "accelerator", "oam", "tensor", "core"}
_MEMORY = re.compile(r"hbm\w*|gddr\w*|\d+gi?b")
_SOCKET = re.compile(r"sxm\d*")
# Words around a GPU's name that state its form factor.
_BUILT_IN = {"dgx", "hgx", "nvl72", "nvl", "nvlink", "nvswitch", "node", "nodes", "gcds", "platform"}
_VENDORS = {"nvidia", "amd", "aws", "azure", "systems", "system"}


def gpu_names() -> list[str]:
    """Return the names of the catalogue's GPUs."""
    return _GPUS.names()


def node_names() -> list[str]:
    """Return the names of the catalogue's nodes."""
    return _NODES.names()


@cache
def known_nodes() -> tuple[Node, ...]:
    """Return the nodes of the catalogue."""
    return tuple(map(_known_node, _NODES.names()))


@cache
def _known_node(name: str) -> Node:
    return _node(name)


def gpu(name: str | Path | Gpu) -> Gpu:
    """Resolve a name, title, alias or TOML file to a GPU; a `Gpu` is returned unchanged.

    A file with extends = "t3-paper" states only the differences. Raises UnknownNameError (SystemNamedError for a
    system's name), InputError or ConfigError.
    """
    if isinstance(name, Gpu):
        return name
    check_type("the GPU", name, (str, Path), "give a name like 'h100-sxm', a TOML file, or what weft.gpu answers")
    _check_file(name, "GPU")
    if is_file(name):
        if _describes_node(Path(name)):
            raise SystemNamedError(str(name), _node(name).gpu.name)
        return _read_gpu(name)
    known = str(name) if str(name) in entries("gpus") else _gpu_keys().get(_gpu_key(str(name)))
    if known is not None:
        return _known_gpu(known)
    try:
        found = system(name)
    except InputError:
        raise UnknownNameError("GPU", str(name), _GPUS.names()) from None
    raise SystemNamedError(str(name), found.gpu.name)


def system(what: Described, gpus: int | None = None, nodes: int | None = None) -> System:
    """Resolve a name, TOML file, GPU or node to a system of `gpus` GPUs, spread evenly over `nodes` nodes.

    A name may contain the numbers: "8xh100-sxm", "16xH100 (2 nodes)", "2x dgx-h100". A GPU means the smallest node in
    which it is usually sold that holds `gpus`; a GPU without such a node (the paper's, a user's own) is joined in a
    ring by its links, 8 GPUs by default. Without numbers the system is one whole node; GPUs fill as few nodes as hold
    them.

    Raises UnknownNameError, ConfigError, or InputError for GPUs that cannot be spread evenly.
    """
    check_type("the system", what, (str, Path, Gpu, Node, System), "give a name like 'dgx-h100', a TOML file, or a GPU")
    for name, count in (("gpus", gpus), ("nodes", nodes)):
        if count is not None:
            check_whole(name, count, 1, 8)
    if isinstance(what, Gpu):
        return _of_gpu(what, gpus, nodes)
    if isinstance(what, str | Path):
        what = _of_text(what, gpus, nodes)
    found = System(node=what, gpus=what.gpus_per_node) if isinstance(what, Node) else what
    return found.with_gpus(gpus or found.gpus, nodes)


def _of_text(text: str | Path, gpus: int | None, nodes: int | None) -> Node | System:
    _check_file(text, "system")
    if is_file(text):
        return _node(text) if _describes_node(Path(text), unless_gpu=True) else _of_gpu(_read_gpu(text), gpus, nodes)
    count, rest = _split_count(str(text))
    if named := _node_named(rest):
        return _counted_nodes(named, count, rest)
    hints = [part.strip() for inner in re.findall(r"\(([^)]*)\)", rest) for part in inner.split(",")]
    name = _gpu_meant(re.sub(r"\([^)]*\)", " ", rest), hints)
    if name is None:
        raise UnknownNameError("system", str(text), [*_NODES.names(), *_GPUS.names()])
    stated, hinted = _read_hints(hints, name)
    return _of_gpu(_known_gpu(name), count or gpus, stated or nodes, hinted)


def _check_file(name: str | Path, noun: str) -> None:
    if str(name).lower().endswith((".csv", ".json")):
        raise InputError(f"'{name}' is no {noun}; a file that describes one ends in .toml")


def _of_gpu(gpu: Gpu, gpus: int | None, nodes: int | None, node: Node | None = None) -> System:
    """Place `gpus` GPUs in the given node, or the smallest usual node that holds them, or several of the largest."""
    usual = [entry for entry in entries("nodes").values() if entry.usual and entry.gpu == gpu.name]
    if node is None and usual:
        each = (gpus or 1) // (nodes or 1)
        usual.sort(key=lambda entry: entry.gpus_per_node)
        node = _known_node(next((entry for entry in usual if entry.gpus_per_node >= each), usual[-1]).name)
    if node is None:
        return System(gpu=gpu, gpus=gpus or _DEFAULT_GPUS, nodes=nodes or 1)
    count = gpus or node.gpus_per_node * (nodes or 1)
    return System(gpu=gpu, node=node, gpus=count, nodes=nodes or -(-count // node.gpus_per_node))


def _split_count(text: str) -> tuple[int | None, str]:
    """Split a count off a name, as in "8xH100", "16 GCDs of MI250X" or "2 x dgx-h100"; returns count and rest."""
    found = re.fullmatch(
        r"\s*(\d+)\s*(?:[x×*]\s*|\s)(?:(?:gpus?|gcds?)\s+(?:of\s+)?)?(.+)", text, re.IGNORECASE | re.DOTALL
    )
    return (int(found[1]), found[2]) if found else (None, text)


def _counted_nodes(node: Node, count: int | None, rest: str) -> System:
    """Return whether the count is of nodes ("2x dgx-h100"), not of GPUs ("72xGB200 NVL72": the GPU comes first)."""
    of_gpus = rest.strip().lower() != node.name and _gpu_key(_words(rest)[0]) in _gpu_keys()
    if count is not None and of_gpus:
        return System(node=node, gpus=count, nodes=-(-count // node.gpus_per_node))
    return System(node=node, gpus=(count or 1) * node.gpus_per_node, nodes=count or 1)


def _gpu_meant(text: str, hints: Sequence[str]) -> str | None:
    """Return the name of the GPU that a text means; "PCIe" in brackets selects the card instead of the module."""
    bare = " ".join(word for word in _words(text) if word not in _BUILT_IN)
    tries = [f"{bare} {hint}" for hint in hints if "pcie" in _words(hint)] or [text, bare]
    return next((name for one in tries if (name := _gpu_keys().get(_gpu_key(one)))), None)


def _read_hints(hints: Sequence[str], gpu: str) -> tuple[int | None, Node | None]:
    """Return the number of nodes and the node that the text in brackets states; None for what is missing."""
    nodes: int | None = None
    for hint in hints:
        if found := re.fullmatch(r"(\d+)\s*nodes?", hint, re.IGNORECASE):
            nodes = int(found[1])
        count, rest = _split_count(hint)
        node = _node_named(rest)
        if node is not None and node.gpu.name == gpu:
            return count or nodes, node
    return nodes, None


def _node_named(text: str) -> Node | None:
    """Return the node of that name or alias; separators and vendors' names ("Azure", "NVIDIA") are ignored."""
    wanted = _node_key(text)
    for entry in entries("nodes").values():
        if wanted in {_node_key(name) for name in entry.names}:
            return _known_node(entry.name)
    return None


def _node_key(text: str) -> str:
    return "-".join(word for word in re.findall(r"[a-z0-9]+", text.lower()) if word not in _VENDORS)


def _words(text: str) -> list[str]:
    """Return the lower-case words of a name, split at hyphens, underscores and spaces."""
    return re.findall(r"[a-z0-9.]+", text.lower())


def _gpu_key(text: str, capacity: bool = True) -> frozenset[str]:
    """Return the words that identify a GPU; the memory size is one of them only if `capacity` is set."""
    kept = {_SOCKET.sub("sxm", word) for word in _words(text) if word not in _NOISE}
    sizes = {word for word in kept if re.fullmatch(r"\d+gi?b", word)}
    return frozenset({word for word in kept if not _MEMORY.fullmatch(word)} | (sizes if capacity else set()))


@cache
def _gpu_keys() -> dict[frozenset[str], str]:
    """Map every name, title and alias of the catalogue's GPUs to the GPU's name, with and without memory size."""
    found: dict[frozenset[str], str] = {}
    for capacity in (True, False):
        for entry in entries("gpus").values():
            for text in entry.names:
                found.setdefault(_gpu_key(text, capacity), entry.name)
    return found


@cache
def _known_gpu(name: str) -> Gpu:
    return _read_gpu(name)


def _read_gpu(name_or_path: str | Path) -> Gpu:
    found = _GPUS.read(name_or_path)
    leaves = refit(found.leaves, found.known, found.stated) if found.stated and found.known else found.leaves
    return Gpu.from_leaves(found.about, leaves, found.file)


def _node(name_or_path: str | Path) -> Node:
    """Load a node; its `gpu` is a name of the catalogue or a path relative to the file."""
    found = _NODES.read(name_or_path)
    named = found.about.get("gpu")
    if named is None:
        raise ConfigError('this text is missing; add a line like gpu = "h100-sxm"', found.file, "gpu")
    inside = found.folder / named if found.folder and named.endswith(".toml") else named
    return Node.from_leaves({**found.about, "gpu": gpu(inside)}, found.leaves, found.file)


def _describes_node(file: Path, unless_gpu: bool = False) -> bool:
    """Return whether a TOML file describes a node rather than a GPU: it names its GPU, or extends a node (or just no
    GPU).
    """
    seen: set[Path] = set()
    while file not in seen:
        seen.add(file)
        document = read_toml(file)
        base = document.get("extends")
        if "gpu" in document or not isinstance(base, str):
            return "gpu" in document
        if not is_file(base):
            return base in _NODES.names() or (unless_gpu and base not in _GPUS.names())
        file = file.parent / base
    return False
