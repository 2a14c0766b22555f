"""What there is: GPUs, nodes and systems of them, every value with a unit and a source."""

from weft.catalog.sourced import Provenance
from weft.hardware.fabric import FABRICS, Fabric
from weft.hardware.gpus import Gpu, parse_assignment
from weft.hardware.nodes import Network, Node, Topology
from weft.hardware.parts import DTYPES, Link
from weft.hardware.resolve import Described, gpu, gpu_names, known_nodes, node_names, system
from weft.hardware.ring_kernels import KernelCost, RingKernels
from weft.hardware.systems import System

__all__ = [
    "DTYPES",
    "FABRICS",
    "Described",
    "Fabric",
    "Gpu",
    "KernelCost",
    "Link",
    "Network",
    "Node",
    "Provenance",
    "RingKernels",
    "System",
    "Topology",
    "gpu",
    "gpu_names",
    "known_nodes",
    "node_names",
    "parse_assignment",
    "system",
]
