"""The best deployment for training or serving, with its launch file; recomputation, pipeline orders, tuning."""

from weft.core.callables import make_callable
from weft.plan.plans import Planned, Plans
from weft.plan.training import plan

__all__ = ["Planned", "Plans", "plan"]

make_callable(__name__, "weft.plan.training", "plan")
