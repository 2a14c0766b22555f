"""Measurements of the GPU at hand, written in the schema that validation reads."""

from weft.measure.device import Device, Work
from weft.measure.suite import KINDS, Summary, measure
from weft.measure.timing import Timing, time_work

__all__ = ["KINDS", "Device", "Summary", "Timing", "Work", "measure", "time_work"]
