"""T3's data movement (ASPLOS 2024, arXiv:2401.16677) in chunks of payload / N, counted on simulated runs.

A ring reduce-scatter on compute units reads 1 + 2 (N - 2) + 2 = 2N - 1 chunks; T3's DMAs read N - 2. The GEMM and
the reduce-scatter write N + (N - 1) + 1 = 2N chunks; under T3, N - 1 local and N - 1 incoming updates.
"""

import pytest

import weft


@pytest.fixture(scope="module", params=[8, 16], ids=lambda tp: f"TP{tp}")
def compared(request):
    return weft.compare(weft.sublayer("t-nlg", "op", tp=request.param), "t3-paper", ("t3", "t3-mca"))


def chunks(result, *causes):
    """Traffic of the causes in chunks: exact, since T-NLG's output is cut in equal chunks."""
    config = result.config
    chunk, rest = divmod(2 * config.m * config.n, config.tp)
    assert rest == 0
    return sum(result.bytes.get(cause, 0) for cause in causes) / chunk


def test_the_ring_on_compute_units_reads_2n_less_1_chunks(compared):
    assert chunks(compared.baseline, "rs_read") == 2 * compared.baseline.config.tp - 1


def test_gemm_and_ring_write_2n_chunks(compared):
    sequential = compared.baseline
    assert chunks(sequential, "gemm_write") == sequential.config.tp
    assert chunks(sequential, "rs_write") == sequential.config.tp
    assert chunks(sequential, "rs_update") == 0


@pytest.mark.parametrize("overlap", ["t3", "t3-mca"])
def test_t3_reads_n_less_2_chunks(compared, overlap):
    assert chunks(compared[overlap], "rs_read") == compared[overlap].config.tp - 2


@pytest.mark.parametrize("overlap", ["t3", "t3-mca"])
def test_t3_updates_n_less_1_chunks_from_here_and_from_the_neighbour(compared, overlap):
    fused = compared[overlap]
    assert chunks(fused, "gemm_write") == fused.config.tp - 1
    assert chunks(fused, "rs_update") == fused.config.tp - 1
    assert chunks(fused, "rs_write") == 0


def test_the_all_gather_moves_the_same_with_and_without_t3(compared):
    for cause in ("ag_read", "ag_write"):
        moved = {result.bytes[cause] for result in compared}
        assert len(moved) == 1
        assert chunks(compared.baseline, cause) == compared.baseline.config.tp - 1
