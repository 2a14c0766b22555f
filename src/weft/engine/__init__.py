"""The request-level simulator: events on arrays of integers, deterministic; one file per block of hardware."""

from weft.engine import code as code  # it registers itself as the loader of machine code
