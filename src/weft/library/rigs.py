"""What is known of the rigs of published measurements beyond the machine that they name, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from weft.catalog import Provenance, Quantity, read_leaves, read_toml
from weft.units import Dimension

_RATE = Quantity(Dimension.BYTES_PER_SECOND)
_PATHS: Mapping[str, Quantity | None] = {
    "version": None,
    "network.per_gpu": _RATE,
    "network.per_node": _RATE,
}


@dataclass(frozen=True)
class KnownRig:
    """A rig by the word that names it in a source: its library's version, and the rates of its network.

    `network` holds the rates per GPU and per node [bytes/s] where they are far from the machine's adapters, else None.
    """

    word: str
    version: str
    network: tuple[float, float] | None
    provenance: Mapping[str, Provenance]

    @property
    def network_from_rows(self) -> bool:
        """Whether the network's rates were read from the very rows that they are used on."""
        kinds = [self.provenance[path].kind for path in ("network.per_gpu", "network.per_node") if self.network]
        return "calibrated" in kinds


@cache
def known_rigs() -> tuple[KnownRig, ...]:
    """Every rig of the catalogue; ConfigError for a leaf that breaks a rule."""
    file = resources.files("weft.library") / "rigs.toml"
    return tuple(_rig(word, table) for word, table in read_toml(file).items())


def _rig(word: str, table: Mapping[str, object]) -> KnownRig:
    leaves = read_leaves(table, _PATHS, f"rigs.toml: {word}")
    rates = tuple(leaves[path].value for path in _PATHS if path in leaves and _PATHS[path])
    return KnownRig(
        word=word,
        version=str(leaves["version"].value) if "version" in leaves else "",
        network=(rates[0], rates[1]) if len(rates) == 2 else None,
        provenance={path: leaf.provenance for path, leaf in leaves.items()},
    )
