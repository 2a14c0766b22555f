"""The lowered form: workgroup scripts, address maps and DMA commands, and how they become integer tables."""

from weft.program.build import Hardware, Program, Wiring, build
from weft.program.plan import (
    Buffer,
    ChunkRule,
    Command,
    DmaMap,
    Extent,
    Kernel,
    Load,
    Mode,
    Phase,
    PlacedKernel,
    Plan,
    RemoteMap,
    Store,
    Wait,
)

__all__ = [
    "Buffer",
    "ChunkRule",
    "Command",
    "DmaMap",
    "Extent",
    "Hardware",
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
