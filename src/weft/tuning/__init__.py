"""What to choose for a machine: strategies, splits, kernels and degrees, from tables of simulated runs."""

from weft.tuning.advisor import advise
from weft.tuning.heuristics import Choice, choose
from weft.tuning.probes import splits_of, tables_for
from weft.tuning.tables import SlowdownTables, load_tables

__all__ = ["Choice", "SlowdownTables", "advise", "choose", "load_tables", "splits_of", "tables_for"]
