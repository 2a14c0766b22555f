"""How kernels share a GPU: co-run strategies, splits, kernels and tiles, simulated and from tables."""

from weft.plan.tune.advisor import advise
from weft.plan.tune.fuse import FuseAdvice, advise_fuse
from weft.plan.tune.heuristics import Choice, choose
from weft.plan.tune.lists import TunedList, tune
from weft.plan.tune.probes import splits_of, tables_for
from weft.plan.tune.tables import SlowdownTables, load_tables

__all__ = [
    "Choice",
    "FuseAdvice",
    "SlowdownTables",
    "TunedList",
    "advise",
    "advise_fuse",
    "choose",
    "load_tables",
    "splits_of",
    "tables_for",
    "tune",
]
