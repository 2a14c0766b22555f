"""What there is: GPUs and systems of them, every value with a unit and a source."""

from weft.hardware.fields import Quantity
from weft.hardware.gpu import Gpu, parse_assignment, quantities
from weft.hardware.loading import load, names
from weft.hardware.parts import Arbiter, Cache, Compute, Dma, Link, Memory, Timing, Tracker
from weft.hardware.sourced import Provenance
from weft.hardware.system import System

__all__ = [
    "Arbiter",
    "Cache",
    "Compute",
    "Dma",
    "Gpu",
    "Link",
    "Memory",
    "Provenance",
    "Quantity",
    "System",
    "Timing",
    "Tracker",
    "load",
    "names",
    "parse_assignment",
    "quantities",
]
