"""SeqPoint (ISPASS 2020): iterations of networks of sequences that stand for an epoch."""

from weft.papers.seqpoint.study import STUDY, SeqPointStudy, run

__all__ = ["STUDY", "SeqPointStudy", "run"]
