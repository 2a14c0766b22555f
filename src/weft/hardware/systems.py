"""Several GPUs and how they are connected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from pydantic import Field, InstanceOf, ValidationError, model_validator

from weft.catalog.fields import Count, Delay
from weft.catalog.sourced import Part, Provenance, Rules, Sourced, broken_rule, is_path, translated, unknown_key
from weft.errors import InputError, check_type
from weft.hardware.fabric import Fabric
from weft.hardware.gpus import Gpu
from weft.hardware.nodes import Node
from weft.hardware.ring_kernels import RingKernels, ring_kernels

_LIBRARY = "library."


class System(Part):
    """`gpus` GPUs in all, spread evenly over `nodes` nodes; without a `node`, each is joined to a switch by its link.

    `fabric` joins them in another way than the node does. All are alike unless `variants` gives a GPU of its own to
    some ranks; `start` gives ranks that begin late their delay [seconds]. `library` is what the kernels of the vendor's
    collective library cost. Raises ConfigError for values that break a rule.
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
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise translated(error, tuple(type(self).model_fields)) from None

    def __hash__(self) -> int:
        varied = (*sorted(self.variants), *sorted(self.start.items()))
        return hash((self.name, self.gpu, self.gpus, self.nodes, self.library, varied))

    @property
    def name(self) -> str:
        """The name of its node, or of its GPU without one."""
        return self.node.name if self.node else self.gpu.name

    @property
    def gpus_per_node(self) -> int:
        """How many GPUs of each node take part."""
        return self.gpus // self.nodes

    @property
    def peer_bandwidth(self) -> float:
        """What leads from a GPU to one peer alone, in one direction [bytes/s]; 0 but in a mesh of one node."""
        node = self.node if self.nodes == 1 else None
        return node.link_bandwidth * node.links_per_pair if node and node.topology == "mesh" else 0.0

    @property
    def uniform(self) -> bool:
        """Whether all GPUs are equal, equally joined and start together, so that one can stand for all."""
        joined = self.fabric is None or self.fabric.symmetric
        return joined and all(gpu == self.gpu for gpu in self.variants.values()) and not any(self.start.values())

    def gpu_of(self, rank: int) -> Gpu:
        """The GPU of a rank."""
        return self.variants.get(rank, self.gpu)

    def start_of(self, rank: int) -> float:
        """How late a rank begins [seconds]."""
        return self.start.get(rank, 0.0)

    def with_gpus(self, gpus: int, nodes: int | None = None) -> Self:
        """The same node or GPU with another number of GPUs, on as few nodes as hold them unless `nodes` says.

        Raises InputError for GPUs that cannot be spread so, and where ranks differ.
        """
        if gpus == self.gpus and nodes in (None, self.nodes):
            return self
        if self.variants or self.start or self.fabric:
            why = "that a fabric joins" if self.fabric else "that differ"
            raise InputError(f"the system has {self.gpus} GPUs {why}, but {gpus} are asked for; make them equal")
        least = -(-gpus // self.node.gpus_per_node) if self.node else 1
        return type(self)(**{**dict(self), "gpus": gpus, "nodes": nodes or least})

    def with_gpu(self, gpu: Gpu) -> Self:
        """The same system with another description of its GPU, such as a calibrated one."""
        alike = (gpu.vendor, gpu.architecture) == (self.gpu.vendor, self.gpu.architecture)
        return type(self)(**{**dict(self), "gpu": gpu, "library": self.library if alike else None})

    @property
    def provenance(self) -> Mapping[str, Provenance]:
        """Where each value of the GPU, the node and the library comes from, by its path."""
        return self._merged(lambda part: part.provenance)

    @property
    def rules(self) -> Rules:
        """The path of every value of the GPU, the node and the library, with the rule of its number."""
        return self._merged(lambda part: part.rules())

    def _merged(self, of: Callable[[Sourced], Mapping[str, Any]]) -> dict[str, Any]:
        library = {f"{_LIBRARY}{path}": found for path, found in of(self.library).items()}
        return {**of(self.gpu), **(of(self.node) if self.node else {}), **library}

    def value(self, path: str) -> Any:
        """The value at a path such as "link.bandwidth", "network.latency" or "library.simple.in_flight" [base unit]."""
        part, own = self._part(path)
        return part.value(own)

    def text(self, path: str) -> str:
        """The value at `path` as a user would write it."""
        part, own = self._part(path)
        return part.text(own)

    def _part(self, path: str) -> tuple[Sourced, str]:
        """The part of the system that holds the value at a path, and the path there."""
        if not is_path(path, self.rules):
            raise unknown_key(path, self.rules)
        if path.startswith(_LIBRARY):
            return self.library, path.removeprefix(_LIBRARY)
        return (self.gpu if path in self.gpu.rules() or self.node is None else self.node), path

    @property
    def changes(self) -> tuple[str, ...]:
        """What the user set, as texts such as "memory.bandwidth = 2 TB/s"."""
        return tuple(f"{path} = {p.text}" for path, p in self.provenance.items() if p.kind == "set by user")

    def replace(self, values: Mapping[str, Any]) -> Self:
        """A copy with the values at the given paths replaced, such as {"link.bandwidth": "300 GB/s"}.

        Raises ConfigError for an unknown path (naming the nearest), a missing unit, or a broken rule.
        """
        check_type(
            "what to replace", values, Mapping, 'give values by their paths, like {"link.bandwidth": "300 GB/s"}'
        )
        split: dict[str, dict[str, Any]] = {}
        for path, value in values.items():
            part, own = self._part(path)
            field = {Gpu: "gpu", Node: "node", RingKernels: "library"}[type(part)]
            split.setdefault(field, {})[own] = value
        parts = {field: getattr(self, field).replace(own) for field, own in split.items()}
        return type(self)(**{**dict(self), **parts})

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The GPU is the node's unless given, and goes into it if it is; the library is that of its generation."""
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
