"""What there is: GPUs and systems of them, every value with a unit and a source."""

from weft.hardware.achieved import Achieved
from weft.hardware.fields import Quantity
from weft.hardware.finding import SystemMatch, find_gpu, find_system
from weft.hardware.gpu import Architecture, Gpu, Vendor, parse_assignment, quantities
from weft.hardware.loading import describes_system, load, load_system, names, system_names
from weft.hardware.machine import Machine, Network, Topology, machine_paths
from weft.hardware.parts import (
    Arbiter,
    Cache,
    Compute,
    Dma,
    Host,
    Launch,
    Link,
    Memory,
    MemoryCache,
    Timing,
    Tracker,
)
from weft.hardware.rates import DTYPES, Clocks, ClockState, Dtype, Rates
from weft.hardware.sourced import Provenance
from weft.hardware.system import System

__all__ = [
    "DTYPES",
    "Achieved",
    "Arbiter",
    "Architecture",
    "Cache",
    "ClockState",
    "Clocks",
    "Compute",
    "Dma",
    "Dtype",
    "Gpu",
    "Host",
    "Launch",
    "Link",
    "Machine",
    "Memory",
    "MemoryCache",
    "Network",
    "Provenance",
    "Quantity",
    "Rates",
    "System",
    "SystemMatch",
    "Timing",
    "Topology",
    "Tracker",
    "Vendor",
    "describes_system",
    "find_gpu",
    "find_system",
    "load",
    "load_system",
    "machine_paths",
    "names",
    "parse_assignment",
    "quantities",
    "system_names",
]
