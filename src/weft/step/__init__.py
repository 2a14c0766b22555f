"""Whole steps: a model under a plan on a machine, timed operator by operator, layer by layer, stage by stage."""

from weft.step.clock import train
from weft.step.named import step

__all__ = ["step", "train"]
