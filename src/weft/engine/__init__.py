"""The request-level simulator: deterministic and event-driven, on arrays of integers alone."""

from weft.engine import code as code  # it registers itself as the loader of machine code
