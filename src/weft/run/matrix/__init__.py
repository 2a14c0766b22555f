"""Sweeps of a question in a file: every combination of values, here, on a cluster or in shards, as one table."""

from weft.run.matrix.merge import merge_shards
from weft.run.matrix.outcome import Runs
from weft.run.matrix.sweep import sweep_file

__all__ = ["Runs", "merge_shards", "sweep_file"]
