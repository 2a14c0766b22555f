"""The planner: uniform plans, stage borders, meshes and per-operator sharding, and why not the others."""

from weft.search.planner.plans import Planned, Plans
from weft.search.planner.search import plan

__all__ = ["Planned", "Plans", "plan"]
