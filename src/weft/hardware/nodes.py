"""Nodes, servers as they are sold: a GPU, how many of them, what joins them, and the network to other nodes."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from weft.catalog.fields import BytesPerSecond, Count, CountOrNone, Delay, Seconds
from weft.catalog.sourced import Part, Sourced, broken_rule
from weft.errors import InputError
from weft.hardware.gpus import Gpu

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


class Node(Sourced):
    """A server as it is sold: equal GPUs, what joins them, and its network; any number of nodes makes a cluster.

    `links_per_pair` joins each two GPUs of a mesh; `edges` lists (GPU, GPU, links) where the graph is irregular,
    `lanes` there (GPUs, one-directional rings, one link wide, that so many close at once). `switch_reduces` says
    whether the switch sums (NVLS). `usual` marks the node that a GPU's bare name means.
    """

    _texts: ClassVar[tuple[str, ...]] = ("topology", "switch_reduces", "edges", "lanes", "network.kind")
    _optional: ClassVar[tuple[str, ...]] = (
        "links_per_pair", "switch_reduces", "edges", "lanes", "network.launch"
    )  # fmt: skip
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

    def __hash__(self) -> int:
        return hash((self.name, self.gpu, self.gpus_per_node, self.topology, self.network))

    @property
    def link_bandwidth(self) -> float:
        """What one link of a GPU carries in one direction, by its data sheet [bytes/s]; 0 without links."""
        return self.gpu.link.bandwidth / self.gpu.link.links if self.gpu.link.links else 0.0

    def links_between(self, first: int, second: int) -> int:
        """How many links join two GPUs of a node directly; none behind a switch."""
        if self.topology == "mesh":
            return self.links_per_pair if first != second else 0
        return sum(links for *pair, links in self.edges if {first, second} == set(pair))

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
            fitting = [wide for size, wide in sorted(self.lanes) if size <= gpus]
            return self.link_bandwidth * (fitting[-1] if fitting else 1)
        if self.topology == "pcie":
            bridged = gpus == 2 and self.links_between(0, 1)
            return self.gpu.link.bandwidth if bridged else self.gpu.host.bandwidth
        return self.gpu.link.bandwidth

    def with_gpu(self, gpu: Gpu) -> Self:
        """The same node with another description of its GPU, such as a calibrated one."""
        return self.model_copy(update={"gpu": gpu})

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.topology == "mesh" and not self.links_per_pair:
            raise broken_rule("links_per_pair must be at least 1 in a mesh")
        if self.topology == "hybrid" and not self.edges:
            raise broken_rule("edges must list the links of a hybrid topology, like [[0, 1, 4], [0, 2, 1]]")
        for first, second, links in self.edges:
            if first == second or links < 1 or not all(0 <= end < self.gpus_per_node for end in (first, second)):
                raise broken_rule(
                    f"edges holds [{first}, {second}, {links}], but an edge names two different GPUs from 0 to "
                    f"{self.gpus_per_node - 1} and at least one link"
                )
        return self
