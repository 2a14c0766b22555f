"""JIT-Q (MLSys 2024): quantization inside memory, just in time, in place of stored copies."""

from weft.papers.jit_q.study import STUDY, JitQStudy, run

__all__ = ["STUDY", "JitQStudy", "run"]
