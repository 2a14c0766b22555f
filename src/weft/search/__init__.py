"""What to choose for a machine: strategies, splits, kernels and degrees, from tables of simulated runs."""

from weft.search.advisor import advise
from weft.search.heuristics import Choice, choose
from weft.search.probes import splits_of, tables_for
from weft.search.tables import SlowdownTables, load_tables

__all__ = ["Choice", "SlowdownTables", "advise", "choose", "load_tables", "splits_of", "tables_for"]
