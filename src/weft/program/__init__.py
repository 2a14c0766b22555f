"""The lowered form: workgroup scripts, address maps and DMA commands, and how they become integer tables."""

from weft.program.build import Program, build
from weft.program.plan import Buffer, PlacedKernel, Plan
from weft.program.rules import ChunkRule, DmaMap, Mode, RemoteMap
from weft.program.script import Command, Extent, Kernel, Load, Phase, Store, Wait
from weft.program.wiring import Hardware, Hop, Wiring

__all__ = [
    "Buffer",
    "ChunkRule",
    "Command",
    "DmaMap",
    "Extent",
    "Hardware",
    "Hop",
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
    "Wiring",
    "build",
]
