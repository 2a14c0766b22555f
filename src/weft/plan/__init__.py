"""The best plan of a model on a system, with its launch file; what it recomputes, and the order of its pipeline."""

from weft.core.rooms import callable_room
from weft.plan.plans import Planned, Plans
from weft.plan.training import plan

__all__ = ["Planned", "Plans", "plan"]

callable_room(__name__, "weft.plan.training", "plan")
