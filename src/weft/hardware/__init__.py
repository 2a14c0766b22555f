"""GPUs, nodes, fabrics and systems; every value has a unit and a source."""

from weft.core.catalog import Provenance
from weft.hardware.fabric import FABRICS, Fabric
from weft.hardware.form import form
from weft.hardware.gpus import DTYPES, Gpu, GpuLink, parse_assignment
from weft.hardware.resolve import Described, gpu, gpu_names, known_nodes, node_names, system
from weft.hardware.stragglers import Stragglers, slower, slowest
from weft.hardware.systems import Cpu, KernelCost, Network, Node, RingKernels, System, Topology, chain_gain

__all__ = [
    "DTYPES",
    "FABRICS",
    "Cpu",
    "Described",
    "Fabric",
    "Gpu",
    "GpuLink",
    "KernelCost",
    "Network",
    "Node",
    "Provenance",
    "RingKernels",
    "Stragglers",
    "System",
    "Topology",
    "chain_gain",
    "form",
    "gpu",
    "gpu_names",
    "known_nodes",
    "node_names",
    "parse_assignment",
    "slower",
    "slowest",
    "system",
]
