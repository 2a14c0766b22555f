"""The lowered form: workgroup scripts, address maps and DMA commands, and how they become integer tables."""

from weft.engine.program.build import Hardware, Program, Wiring, below, build, tiles_of
from weft.engine.program.plan import (
    Buffer,
    ChunkAccess,
    ChunkLoad,
    ChunkRule,
    ChunkStore,
    DmaCommand,
    DmaMap,
    Kernel,
    Mode,
    Phase,
    PlacedKernel,
    Plan,
    RemoteMap,
    Wait,
)

__all__ = [
    "Buffer",
    "ChunkAccess",
    "ChunkLoad",
    "ChunkRule",
    "ChunkStore",
    "DmaCommand",
    "DmaMap",
    "Hardware",
    "Kernel",
    "Mode",
    "Phase",
    "PlacedKernel",
    "Plan",
    "Program",
    "RemoteMap",
    "Wait",
    "Wiring",
    "below",
    "build",
    "tiles_of",
]
