"""Machines as they are sold: a GPU, how many of them a node holds, what joins them, and the network between nodes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from weft.errors import ConfigError, InputError, UnitError
from weft.hardware.fields import BytesPerSecond, Count, CountOrNone, Delay, Quantity, Seconds
from weft.hardware.gpu import Gpu, quantities_of
from weft.hardware.parts import Part
from weft.hardware.sourced import Leaf, Provenance, translated, unknown_key
from weft.hardware.system import System

Topology = Literal["ring", "switch", "mesh", "hybrid", "pcie"]
"""How the GPUs of a node are joined: "hybrid" by the links in `edges`, "pcie" by the host, but for `edges`."""


class Network(Part):
    """The network between nodes: what each GPU has of it in one direction, and its latency.

    `launch` is what its transport adds to the start of a collective beyond what a library takes on InfiniBand.
    """

    kind: str
    bandwidth: BytesPerSecond
    latency: Seconds
    launch: Delay = 0.0


class Machine(Part):
    """A node of equal GPUs and its network; any number of nodes makes a cluster.

    `links_per_pair` joins each two GPUs of a mesh; `edges` lists (GPU, GPU, links) where the graph is irregular,
    `lanes` (GPUs, one-directional rings that are one link wide) there. `switch_reduces` says whether the switch
    sums (NVLS). `usual` marks the machine that a GPU's bare name means. Raises ConfigError for values that break
    a rule.
    """

    name: str
    title: str
    description: str
    aliases: tuple[str, ...] = ()
    usual: bool = False
    gpu: Gpu
    gpus_per_node: Count
    topology: Topology
    links_per_pair: CountOrNone = 0
    switch_reduces: bool = False
    edges: tuple[tuple[int, int, int], ...] = ()
    lanes: tuple[tuple[int, int], ...] = ()
    network: Network
    provenance: Mapping[str, Provenance] = Field(default_factory=dict, repr=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise translated(error, tuple(machine_paths())) from None

    def __hash__(self) -> int:
        return hash((self.name, self.gpu, self.gpus_per_node, self.topology, self.network))

    def value(self, path: str) -> Any:
        """The plain number, text or list at `path` [base unit]; ConfigError names the nearest path."""
        if path not in machine_paths():
            raise unknown_key(path, machine_paths())
        found: Any = self
        for part in path.split("."):
            found = getattr(found, part)
        return found

    def text(self, path: str) -> str:
        """The value at `path` as a user would write it."""
        value, rule = self.value(path), machine_paths().get(path)
        if rule is not None:
            return rule.format(value)
        return "; ".join(" ".join(map(str, row)) for row in value) if isinstance(value, tuple) else str(value)

    @property
    def link_bandwidth(self) -> float:
        """What one link of a GPU carries in one direction, by its data sheet [bytes/s]; 0 without links."""
        return self.gpu.link.bandwidth / self.gpu.link.links if self.gpu.link.links else 0.0

    @property
    def peer_bandwidth(self) -> float:
        """What leads from a GPU to one peer alone, in one direction [bytes/s]; 0 but in a mesh."""
        return self.link_bandwidth * self.links_per_pair if self.topology == "mesh" else 0.0

    def links_between(self, first: int, second: int) -> int:
        """How many links join two GPUs of a node directly; behind a switch, all that a GPU has."""
        self._check_rank(first)
        self._check_rank(second)
        if first == second:
            return 0
        if self.topology == "switch":
            return self.gpu.link.links
        if self.topology == "mesh":
            return self.links_per_pair
        if self.topology == "ring":
            return 1 if abs(first - second) in (1, self.gpus_per_node - 1) else 0
        return sum(links for *pair, links in self.edges if {first, second} == set(pair))

    def lane_count(self, gpus: int) -> int:
        """One-directional rings, one link wide, that `gpus` GPUs of a hybrid node can close at once."""
        fitting = [wide for size, wide in sorted(self.lanes) if size <= gpus]
        return fitting[-1] if fitting else 1

    def bandwidth_among(self, gpus: int) -> float:
        """Peak that each of `gpus` GPUs of one node can send to the others, in one direction [bytes/s].

        Raises InputError unless 2 <= `gpus` <= `gpus_per_node`.
        """
        if not 2 <= gpus <= self.gpus_per_node:
            raise InputError(
                f"{self.name} has {self.gpus_per_node} GPUs in a node; ask for 2 to {self.gpus_per_node}, not {gpus}"
            )
        if self.topology == "mesh":
            return self.link_bandwidth * self.links_per_pair * (gpus - 1)
        if self.topology == "hybrid":
            return self.link_bandwidth * self.lane_count(gpus)
        if self.topology == "pcie":
            bridged = gpus == 2 and self.links_between(0, 1)
            return self.gpu.link.bandwidth if bridged else self.gpu.host.bandwidth
        return self.gpu.link.bandwidth

    def system(self, gpus: int) -> System:
        """What the engine simulates: `gpus` GPUs of a node in a ring, each with the bandwidth that it has there."""
        bandwidth = self.bandwidth_among(gpus)
        same = bandwidth == self.gpu.link.bandwidth
        return System(
            gpu=self.gpu if same else self.gpu.with_values({"link.bandwidth": f"{bandwidth!r} B/s"}),
            gpus=gpus,
            peer_bandwidth=self.peer_bandwidth,
            egress=self.gpu.link.bandwidth if self.peer_bandwidth else 0.0,
        )

    def with_gpu(self, gpu: Gpu) -> Self:
        """The same machine with another description of its GPU, such as a calibrated one."""
        return self.model_copy(update={"gpu": gpu})

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.gpus_per_node:
            raise InputError(f"{self.name} has GPUs 0 to {self.gpus_per_node - 1} in a node, not {rank}")

    @classmethod
    def from_leaves(cls, about: Mapping[str, Any], gpu: Gpu, leaves: Mapping[str, Leaf], file: str) -> Self:
        """A machine from its texts, its GPU and the leaves of a file; ConfigError if one is missing."""
        fields: dict[str, Any] = {**about, "gpu": gpu, "network": {}}
        fields["provenance"] = {path: leaf.provenance for path, leaf in leaves.items()}
        for path in _REQUIRED:
            if path not in leaves:
                raise ConfigError(
                    'this value is missing; add it, like { value = 8, kind = "published", source = "data sheet" }',
                    file,
                    path,
                )
        for path, leaf in leaves.items():
            table = fields["network"] if path.startswith("network.") else fields
            table[path.rpartition(".")[2]] = _plain(path, leaf.value, file)
        try:
            return cls(**fields)
        except ConfigError as error:
            raise ConfigError(error.message, file, error.key) from None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.topology == "mesh" and not self.links_per_pair:
            raise _rule("links_per_pair must be at least 1 in a mesh")
        if self.topology == "hybrid" and not self.edges:
            raise _rule("edges must list the links of a hybrid topology, like [[0, 1, 4], [0, 2, 1]]")
        for first, second, links in self.edges:
            if (
                first == second
                or links < 1
                or not all(0 <= end < self.gpus_per_node for end in (first, second))
            ):
                raise _rule(
                    f"edges holds [{first}, {second}, {links}], but an edge names two different GPUs from 0 to "
                    f"{self.gpus_per_node - 1} and at least one link"
                )
        return self


_REQUIRED = ("gpus_per_node", "topology", "network.kind", "network.bandwidth", "network.latency")


def _rule(sentence: str) -> PydanticCustomError:
    return PydanticCustomError("rule", "{sentence}", {"sentence": sentence})


@cache
def machine_paths() -> Mapping[str, Quantity | None]:
    """Every settable path of a machine and the rule of its number; None for texts and lists."""
    numbers = dict(quantities_of(Machine, "", skip=("gpu",)))
    texts = ("topology", "switch_reduces", "edges", "lanes", "network.kind")
    return {**numbers, **dict.fromkeys(texts)}


def _plain(path: str, raw: Any, file: str) -> Any:
    rule = machine_paths()[path]
    try:
        return raw if rule is None else rule.parse(raw)
    except UnitError as error:
        raise ConfigError(str(error), file, path) from None
