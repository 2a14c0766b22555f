"""Choose strategies, splits, kernels and degrees for a machine, from tables of simulated runs."""

from weft.search.advisor import advise
from weft.search.heuristics import Choice, choose
from weft.search.joins import Joins, joins
from weft.search.probes import splits_of, tables_for
from weft.search.tables import SlowdownTables, load_tables

__all__ = [
    "Choice",
    "Joins",
    "SlowdownTables",
    "advise",
    "choose",
    "joins",
    "load_tables",
    "splits_of",
    "tables_for",
]
