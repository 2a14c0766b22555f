"""The lowered form: workgroup scripts, address maps and DMA commands, and how they become integer tables."""

from weft.program.build import Program, build
from weft.program.plan import Buffer, PlacedKernel, Plan
from weft.program.rules import ChunkRule, DmaMap, Mode, RemoteMap
from weft.program.script import Cause, Command, Extent, Kernel, Load, Phase, Store, Wait

__all__ = [
    "Buffer",
    "Cause",
    "ChunkRule",
    "Command",
    "DmaMap",
    "Extent",
    "Kernel",
    "Load",
    "Mode",
    "Phase",
    "PlacedKernel",
    "Plan",
    "Program",
    "RemoteMap",
    "Store",
    "Wait",
    "build",
]
