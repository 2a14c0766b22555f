"""Whole steps: a model under a plan on a machine, timed operator by operator, layer by layer, stage by stage."""

from weft.run.step.clock import train
from weft.run.step.named import step

__all__ = ["step", "train"]
