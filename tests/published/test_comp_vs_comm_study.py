"""The study of computation against communication in whole, against the published figures."""

import pytest

from published import broken
from weft.papers import comp_vs_comm

MEASURED = {"profiling.saved", *(f"{kind}_projection.error" for kind in ("gemm", "partial_gemm", "norm", "all_reduce"))}


@pytest.mark.slow
def test_every_published_figure_is_met_or_off_as_the_deviations_say():
    study = comp_vs_comm.run(jobs=1)
    claims = comp_vs_comm.DECLARED.claims
    if not study.projections:  # no measurements here
        claims = {name: claim for name, claim in claims.items() if name not in MEASURED}
    assert broken(study.headline(), claims) == []


@pytest.mark.slow
def test_every_machine_with_a_whole_baseline_is_projected_within_the_bar():
    found = comp_vs_comm.run(jobs=1).projections
    if not found:
        pytest.skip("there are no measurements here")
    whole = [one.errors for one in found["gemm"]]
    assert len(whole) >= 3
    assert all(len(one.baseline) >= 20 for one in found["gemm"])
    assert max(one.mean_abs_err for one in whole) <= 0.10
    assert max(one.p90_abs_err for one in whole) <= 0.30
