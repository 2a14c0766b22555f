"""Several GPUs: servers as sold, systems of them, and the costs of a collective library's kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, InstanceOf, model_validator

from weft.core.catalog import (
    Bytes,
    BytesPerSecond,
    Count,
    CountOrNone,
    Delay,
    Factor,
    Part,
    Provenance,
    Rules,
    Seconds,
    Share,
    Sourced,
    Whole,
    broken_rule,
    changes,
    check_path,
    read_leaves,
    read_toml,
)
from weft.core.errors import InputError, check_type
from weft.hardware.fabric import Fabric
from weft.hardware.gpus import Gpu

GENERATIONS = ("ampere", "hopper", "blackwell", "cdna")
_FILE = "ring_kernels.toml"


class KernelCost(Part):
    """What a kernel of one protocol costs.

    `start` [s] passes from its launch to its first load, `sync` [s] from a slice's arrival to the receiver's next load;
    a workgroup keeps `in_flight` bytes in flight; its stores reach the share `link` of the link's payload rate.
    `acknowledge` [s] passes from the departure of stores to a peer until the workgroup continues in their place.
    """

    start: Delay
    sync: Delay
    in_flight: Bytes
    link: Share
    acknowledge: Delay = 0.0


class RingKernels(Sourced):
    """Costs of a library's kernels: rings by protocol, pushes to all peers, reduction in the switch, sends (`pairs`).

    `pairs` is what a workgroup of large sends and receives keeps in flight in either direction [bytes].
    """

    ll: KernelCost
    ll128: KernelCost
    simple: KernelCost
    direct_ll: KernelCost | None = None
    direct_simple: KernelCost | None = None
    nvls: KernelCost | None = None
    pairs: Bytes

    def cost(self, kernel: str) -> KernelCost:
        """Return the costs of "ll", "ll128", "simple", "direct_ll", "direct_simple" or "nvls".

        Raises InputError if the library lacks the kernel.
        """
        found: KernelCost | None = getattr(self, kernel)
        if found is None:
            raise InputError(
                f"no '{self.name}.{kernel}' kernel is known: libraries push to all peers on AMD's GPUs alone, and "
                "reduce in the switch from NVIDIA's Hopper on; take another algorithm, such as 'ring'"
            )
        return found


@cache
def ring_kernels(vendor: str, architecture: str) -> RingKernels:
    """Kernel costs of the library on a GPU generation: "cdna" serves all of AMD's, "ampere" also unknown ones."""
    name = "cdna" if vendor == "amd" else architecture if architecture in GENERATIONS else "ampere"
    table = read_toml(resources.files("weft.hardware") / "catalog" / _FILE)[name]
    label = f"{_FILE}: {name}"
    return RingKernels.from_leaves({"name": name}, read_leaves(table, RingKernels.rules(), label), label)


Topology = Literal["ring", "switch", "mesh", "hybrid", "pcie"]
"""How the GPUs of a node are connected: "hybrid" by the links in `edges`, "pcie" through the host and by `edges`."""


Cpu = Literal["intel", "amd", "arm"]
"""The vendor of a node's CPUs; "arm" for all of Arm's architecture, such as Grace."""


def chain_gain(topology: Topology, gpus: int, whole: int) -> float:
    """Return how much more rings over several nodes move on the links of `gpus` GPUs of each than rings inside one.

    Each leaves the node at another GPU, so that it passes one link less in a node than it has GPUs there. GPUs of a
    mesh form as many such chains, each over links of its own, if the node's `whole` GPUs take part: RCCL has those
    chains in a table. It searches chains of fewer GPUs, and measured ones use no more of the links than rings do: two
    nodes of 8 x MI300X reach 44 GB/s a link, of 4 x MI300X 39 (ROCm/mori examples/fsdp_sdma/RESULTS.md @3e1448e).
    """
    chains = topology == "switch" or (topology == "mesh" and gpus == whole)
    return gpus / (gpus - 1) if chains and gpus > 1 else 1.0


class Network(Part):
    """The network between nodes: each GPU's rate in one direction, and its latency.

    `launch` is what its transport adds to the start of a collective, compared with InfiniBand. The adapters of `leaf`
    nodes share leaf switches, whose uplinks to the spine have `oversubscription` times less bandwidth (1: as much).
    """

    kind: str
    bandwidth: BytesPerSecond
    latency: Seconds
    launch: Delay = 0.0
    oversubscription: Factor = 1.0
    leaf: Count = 1

    @property
    def oversubscribed(self) -> bool:
        """Whether uplinks of leaf switches have less bandwidth than adapters."""
        return self.oversubscription > 1


class Node(Sourced):
    """A server as sold: equal GPUs, their interconnect, and the network; any number of nodes makes a cluster.

    `links_per_pair` joins each two GPUs of a mesh. In an irregular graph `edges` lists (GPU, GPU, links), and `lanes`
    lists (number of GPUs, how many one-directional rings of one link's width they form at once). `host_path` is the
    share of the PCIe rate that peers reach through root complexes and sockets. `switch_reduces` says whether the switch
    sums (NVLS), `merge_entries` and `merge_window` [s] whether it merges requests, as in `Fabric` (no switch on sale
    does; assumed: 64 to 4096 entries and 0.5 to 10 us, or 0 and 0). `cpu` is the vendor of its CPUs: NCCL assumes
    other rates between nodes for AMD's. `usual` marks the node of a GPU's bare name.
    """

    _texts: ClassVar[tuple[str, ...]] = ("topology", "switch_reduces", "edges", "lanes", "cpu", "network.kind")
    title: str
    description: str
    aliases: tuple[str, ...] = ()
    usual: bool = False
    gpu: Gpu
    gpus_per_node: Count
    topology: Topology
    links_per_pair: CountOrNone = 0
    host_path: Share = 1.0
    switch_reduces: bool = False
    merge_entries: CountOrNone = 0
    merge_window: Delay = 0.0
    edges: tuple[tuple[int, int, int], ...] = ()
    lanes: tuple[tuple[int, int], ...] = ()
    cpu: Cpu = "intel"
    network: Network

    @property
    def link_bandwidth(self) -> float:
        """What one link of a GPU carries in one direction, by its data sheet [bytes/s]; 0 without links."""
        return self.gpu.link.bandwidth / self.gpu.link.links if self.gpu.link.links else 0.0

    def links_between(self, first: int, second: int) -> int:
        """Return how many links join two GPUs of a node directly; none behind a switch."""
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
            return self.gpu.host.bandwidth if self._through_host(gpus) else self.gpu.link.bandwidth
        return self.gpu.link.bandwidth

    def path_share(self, gpus: int) -> float:
        """Return share of that peak that the paths between `gpus` GPUs let through: `host_path` over PCIe, else 1."""
        return self.host_path if self._through_host(gpus) else 1.0

    def _through_host(self, gpus: int) -> bool:
        return self.topology == "pcie" and not (gpus == 2 and self.links_between(0, 1))

    def with_gpu(self, gpu: Gpu) -> Self:
        """Return the same node with another description of its GPU, such as a calibrated one."""
        return self.model_copy(update={"gpu": gpu})

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.topology == "mesh" and not self.links_per_pair:
            raise broken_rule("links_per_pair must be at least 1 in a mesh")
        if self.network.oversubscription < 1:
            raise broken_rule(
                f"network.oversubscription is {self.network.oversubscription:g}; give 1 (uplinks carry all that the "
                "adapters of a leaf send) or more, like 4"
            )
        if self.topology == "hybrid" and not self.edges:
            raise broken_rule("edges must list the links of a hybrid topology, like [[0, 1, 4], [0, 2, 1]]")
        for first, second, links in self.edges:
            if first == second or links < 1 or not all(0 <= end < self.gpus_per_node for end in (first, second)):
                raise broken_rule(
                    f"edges holds [{first}, {second}, {links}], but an edge names two different GPUs from 0 to "
                    f"{self.gpus_per_node - 1} and at least one link"
                )
        return self


_LIBRARY = "library."
_PROSE = {"provenance", "title", "description", "aliases"}


def _gpu_inputs(gpu: Gpu) -> dict[str, Any]:
    """Return the values of a GPU that decide a run, and those that the user set: its power changes no time."""
    origins = {path: p for path, p in gpu.provenance.items() if not path.startswith("power.")}
    changed = {path: p.text for path, p in origins.items() if p.kind == "set by user"}
    return {"gpu": gpu.model_dump(exclude={*_PROSE, "power"}), "changed": changed}


class System(Whole):
    """`gpus` GPUs spread evenly over `nodes` nodes; without a `node`, each is joined to a switch by its link.

    `fabric` replaces the node's interconnect. All GPUs are equal unless `variants` gives some ranks another one;
    `start` delays ranks that begin late [seconds]. `library` holds the kernel costs of the vendor's collective library.
    Raises ConfigError for values that break a rule.
    """

    gpu: Gpu
    gpus: Count
    node: Node | None = None
    nodes: Count = 1
    library: RingKernels
    fabric: InstanceOf[Fabric] | None = None
    variants: Mapping[int, Gpu] = Field(default_factory=dict)
    start: Mapping[int, Delay] = Field(default_factory=dict)

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)  # typed loosely, since `_complete` fills in fields that are left out

    def __hash__(self) -> int:
        varied = (*sorted(self.variants), *sorted(self.start.items()))
        return hash((self.name, self.gpu, self.gpus, self.nodes, self.library, varied))

    @property
    def name(self) -> str:
        """The name of its node, or of its GPU without one."""
        return self.node.name if self.node else self.gpu.name

    def __repr__(self) -> str:
        """One line that names it."""
        return f"<System {self.label}>"

    __str__ = __repr__

    @property
    def label(self) -> str:
        """How many GPUs, and the system's name: "64 x dgx-h100"."""
        return f"{self.gpus} x {self.name}"

    @property
    def gpus_per_node(self) -> int:
        """How many GPUs of each node take part."""
        return self.gpus // self.nodes

    @property
    def peer_bandwidth(self) -> float:
        """Rate of the links from a GPU to a single peer, in one direction [bytes/s]; 0 outside a mesh of one node."""
        node = self.node if self.nodes == 1 else None
        return node.link_bandwidth * node.links_per_pair if node and node.topology == "mesh" else 0.0

    @property
    def uniform(self) -> bool:
        """Whether all GPUs are equal, equally connected and start together, so that one can represent all."""
        return self.representatives == 1

    @property
    def representatives(self) -> int:
        """How many neighbouring GPUs can represent all: 1, those of a node or a row of the fabric, or 0 (none can)."""
        if any(gpu != self.gpu for gpu in self.variants.values()) or any(self.start.values()):
            return 0
        return 1 if self.fabric is None or self.fabric.symmetric else self.fabric.period

    def gpu_of(self, rank: int) -> Gpu:
        """Return the GPU of a rank."""
        return self.variants.get(rank, self.gpu)

    def start_of(self, rank: int) -> float:
        """Return how late a rank begins [seconds]."""
        return self.start.get(rank, 0.0)

    def with_gpus(self, gpus: int, nodes: int | None = None, apart: int = 1) -> Self:
        """Return the same node or GPU with another number of GPUs, on as few nodes as hold them unless `nodes` says.

        Of an oversubscribed network every `apart`-th node is taken, so that fewer of them share a leaf switch. Raises
        InputError for GPUs that cannot be spread so, and where ranks differ.
        """
        if apart > 1 and self.node and self.node.network.oversubscribed:
            near = {"leaf": max(self.node.network.leaf // apart, 1)}
            network = self.node.network.model_copy(update=near)
            thinned = self.node.model_copy(update={"network": network})
            return self.model_copy(update={"node": thinned}).with_gpus(gpus, nodes)
        if gpus == self.gpus and nodes in (None, self.nodes):
            return self
        if self.variants or self.start or self.fabric:
            why = "that a fabric joins" if self.fabric else "that differ"
            raise InputError(f"the system has {self.gpus} GPUs {why}, but {gpus} are asked for; make them equal")
        return self._with(gpus=gpus, nodes=nodes or self._least_nodes(gpus))

    def can_have(self, gpus: int) -> bool:
        """Return whether `with_gpus(gpus)` makes a system: GPUs that are alike, on nodes that hold equally many."""
        return not (self.variants or self.start or self.fabric) and gpus % self._least_nodes(gpus) == 0

    def _least_nodes(self, gpus: int) -> int:
        return -(-gpus // self.node.gpus_per_node) if self.node else 1

    def with_gpu(self, gpu: Gpu) -> Self:
        """Return the same system with another description of its GPU, such as a calibrated one."""
        alike = (gpu.vendor, gpu.architecture) == (self.gpu.vendor, self.gpu.architecture)
        return self._with(gpu=gpu, library=self.library if alike else None)

    def with_variants(self, variants: Mapping[int, Gpu]) -> Self:
        """Return the same system with other GPUs at some ranks."""
        return self._with(variants=variants)

    @property
    def provenance(self) -> Mapping[str, Provenance]:
        """Where each value of the GPU, the node and the library comes from, by its path."""
        return self._merge_values(lambda part: part.provenance)

    @property
    def rules(self) -> Rules:
        """The path of every value of the GPU, the node and the library, with the rule of its number."""
        return self._merge_values(lambda part: part.rules())

    def _merge_values(self, of: Callable[[Sourced], Mapping[str, Any]]) -> dict[str, Any]:
        library = {f"{_LIBRARY}{path}": found for path, found in of(self.library).items()}
        return {**of(self.gpu), **(of(self.node) if self.node else {}), **library}

    def value(self, path: str) -> Any:
        """The value at a path such as "link.bandwidth", "network.latency" or "library.simple.in_flight" [base unit]."""
        field, own = self._place(path)
        return getattr(self, field).value(own)

    def text(self, path: str) -> str:
        """Return the value at `path` as a user would write it."""
        field, own = self._place(path)
        return str(getattr(self, field).text(own))

    def _place(self, path: str) -> tuple[str, str]:
        """The field of the system ("gpu", "node" or "library") that holds the value at a path, and the path there."""
        check_path(path, self.rules)
        if path.startswith(_LIBRARY):
            return "library", path.removeprefix(_LIBRARY)
        return "gpu" if path in self.gpu.rules() else "node", path

    @property
    def changes(self) -> tuple[str, ...]:
        """What the user set, as texts such as "memory.bandwidth = 2 TB/s"."""
        return changes(self.provenance)

    def inputs(self) -> dict[str, Any]:
        """Every value that decides a run, and which of them the user set, as plain data: the key of kept records."""
        node = None if self.node is None else self.node.model_dump(exclude={*_PROSE, "gpu"})
        if node and self.node and not self.node.network.oversubscribed:  # decides nothing
            del node["network"]["oversubscription"], node["network"]["leaf"]
        own = self.model_dump(mode="json", include={"gpus", "nodes", "start"})
        library = self.library.model_dump(exclude=_PROSE)
        variants = {str(rank): _gpu_inputs(gpu) for rank, gpu in self.variants.items()}
        joined = {"node": node, "fabric": None if self.fabric is None else repr(self.fabric)}
        return {**_gpu_inputs(self.gpu), **own, **joined, "library": library, "variants": variants}

    def replace(self, values: Mapping[str, Any]) -> Self:
        """Return a copy with the values at the given paths replaced, such as {"link.bandwidth": "300 GB/s"}.

        Raises ConfigError for an unknown path (naming the nearest), a missing unit, or a broken rule.
        """
        check_type("what to replace", values, Mapping, 'give values by path, like {"link.bandwidth": "300 GB/s"}')
        if not values:
            return self
        split: dict[str, dict[str, Any]] = {}
        for path, value in values.items():
            field, own = self._place(path)
            split.setdefault(field, {})[own] = value
        return self._with(**{field: getattr(self, field).replace(own) for field, own in split.items()})

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Fill in the node's GPU if none is given, put a given GPU into the node, add its generation's library."""
        node, gpu = values.get("node"), values.get("gpu")
        if isinstance(node, Node) and gpu is None:
            values = {**values, "gpu": node.gpu}
        elif isinstance(node, Node) and isinstance(gpu, Gpu) and node.gpu is not gpu:
            values = {**values, "node": node.with_gpu(gpu)}
        found = values.get("gpu")
        if values.get("library") is None and isinstance(found, Gpu):
            values = {**values, "library": ring_kernels(found.vendor, found.architecture)}
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.gpus % self.nodes:
            raise broken_rule(
                f"{self.gpus} GPUs cannot be spread evenly over {self.nodes} nodes; choose a multiple of the nodes"
            )
        if self.node and self.gpus_per_node > self.node.gpus_per_node:
            raise broken_rule(
                f"{self.name} has {self.node.gpus_per_node} GPUs in a node, not {self.gpus_per_node}; ask for at least "
                f"{-(-self.gpus // self.node.gpus_per_node)} nodes"
            )
        if self.fabric is not None and self.fabric.gpus != self.gpus:
            raise broken_rule(
                f"the fabric '{self.fabric.name}' joins {self.fabric.gpus} GPUs, but the system has {self.gpus}"
            )
        for field, ranks in (("variants", self.variants), ("start", self.start)):
            outside = [rank for rank in ranks if not 0 <= rank < self.gpus]
            if outside:
                raise broken_rule(f"{field} names rank {outside[0]}, but the ranks run from 0 to {self.gpus - 1}")
        return self
