"""Demystifying BERT (IISWC 2022, arXiv:2104.08335): where a pre-training step of BERT-Large goes, on five GPUs."""

from weft.studies.bert.breakdown import Broken, broken_down
from weft.studies.bert.layer import Layer, timed_layer
from weft.studies.bert.study import STUDY, BertStudy, run

__all__ = ["STUDY", "BertStudy", "Broken", "Layer", "broken_down", "run", "timed_layer"]
