"""How kernels share a GPU: strategies, splits, degrees, kernels and tiles, from simulated runs and tables of them."""

from weft.rooms import callable_room
from weft.tune.advisor import advise
from weft.tune.heuristics import Choice, choose
from weft.tune.joins import Joins, joins
from weft.tune.lists import TunedList, tune
from weft.tune.probes import splits_of, tables_for
from weft.tune.tables import SlowdownTables, load_tables

__all__ = [
    "Choice",
    "Joins",
    "SlowdownTables",
    "TunedList",
    "advise",
    "choose",
    "joins",
    "load_tables",
    "splits_of",
    "tables_for",
    "tune",
]

callable_room(__name__, "weft.tune.lists", "tune")
