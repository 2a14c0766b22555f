"""Contract suites for your own overlaps, policies, arbiters and schedules: the laws that the built-in ones keep.

`check_arbiter`, `check_overlap`, `check_policy` and `check_pipeline_schedule` return nothing where every law holds, and
raise `ContractError` where a law is broken: its message names the member, the law, the case and what was found. They
need no test framework.
"""

from __future__ import annotations

from weft.testing.arbiters import check_arbiter
from weft.testing.laws import ContractError
from weft.testing.overlaps import check_overlap
from weft.testing.policies import check_policy
from weft.testing.schedules import check_pipeline_schedule

__all__ = ["ContractError", "check_arbiter", "check_overlap", "check_pipeline_schedule", "check_policy"]
