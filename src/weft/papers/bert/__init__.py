"""Demystifying BERT (IISWC 2022, arXiv:2104.08335): where a pre-training step of BERT-Large goes, on five GPUs."""

from weft.papers.bert.breakdown import Broken, broken_down
from weft.papers.bert.layer import LayerSeconds, timed_layer
from weft.papers.bert.study import STUDY, BertStudy, run

__all__ = ["STUDY", "BertStudy", "Broken", "LayerSeconds", "broken_down", "run", "timed_layer"]
