"""Training steps of many plans at once, at the fidelity "estimate": what `train` and `memory` say of each."""

from weft.run.step.many.evaluate import Many, Shared, many, shared_on

__all__ = ["Many", "Shared", "many", "shared_on"]
