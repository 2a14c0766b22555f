"""What there is: GPUs and systems of them, every value with a unit and a source."""

from weft.hardware.achieved import Achieved
from weft.hardware.fields import Quantity
from weft.hardware.finding import find_gpu
from weft.hardware.gpu import Architecture, Gpu, Vendor, parse_assignment, quantities
from weft.hardware.loading import load, names
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
    "Memory",
    "MemoryCache",
    "Provenance",
    "Quantity",
    "Rates",
    "System",
    "Timing",
    "Tracker",
    "Vendor",
    "find_gpu",
    "load",
    "names",
    "parse_assignment",
    "quantities",
]
