"""Measurements of the GPU at hand, written in the schema that validation reads."""

from weft_measure.device import Device, Work
from weft_measure.suite import KINDS, Summary, measure
from weft_measure.timing import Timing, time_work

__all__ = ["KINDS", "Device", "Summary", "Timing", "Work", "measure", "time_work"]
