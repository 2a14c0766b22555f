"""The lowered form: workgroup scripts, address maps and DMA commands, and how they become integer tables."""

from weft.engine.program.build import Hardware, Program, Wiring, below, build, tiles_of
from weft.engine.program.plan import (
    Access,
    Buffer,
    ChunkRule,
    Command,
    DmaMap,
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
    "Access",
    "Buffer",
    "ChunkRule",
    "Command",
    "DmaMap",
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
    "below",
    "build",
    "tiles_of",
]
