"""A memo of machine-learning systems: its worked numbers against those of Weft's functions, topic by topic."""

from weft.papers.memo.study import STUDY, MemoStudy, run

__all__ = ["STUDY", "MemoStudy", "run"]
