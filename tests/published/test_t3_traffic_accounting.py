"""T3's data movement (ASPLOS 2024, arXiv:2401.16677) in chunks of payload / N, counted on simulated runs.

A ring reduce-scatter on compute units reads 1 + 2 (N - 2) + 2 = 2N - 1 chunks; T3's DMAs read N - 2. The GEMM and
the reduce-scatter write N + (N - 1) + 1 = 2N chunks; under T3, N - 1 local and N - 1 incoming updates.
"""

import pytest

import weft


@pytest.fixture(scope="module", params=[8, 16], ids=lambda tp: f"TP{tp}")
def compared(request):
    return weft.compare(weft.sublayer("t-nlg", "op", tp=request.param), "t3-paper", ("t3", "t3-mca"))


def chunks(result, *cause):
    """Traffic of an operator in chunks: exact, since T-NLG's output is cut in equal chunks."""
    chunk, rest = divmod(result.gemm.output_bytes, result.graph.ranks)
    assert rest == 0
    return result.bytes(*cause) / chunk


def test_the_ring_on_compute_units_reads_2n_less_1_chunks(compared):
    assert chunks(compared.baseline, "reduce_scatter", "read") == 2 * compared.baseline.graph.ranks - 1


def test_gemm_and_ring_write_2n_chunks(compared):
    sequential = compared.baseline
    assert chunks(sequential, "gemm", "write") == sequential.graph.ranks
    assert chunks(sequential, "reduce_scatter", "write") == sequential.graph.ranks
    assert chunks(sequential, "reduce_scatter", "update") == 0


@pytest.mark.parametrize("overlap", ["t3", "t3-mca"])
def test_t3_reads_n_less_2_chunks(compared, overlap):
    assert chunks(compared[overlap], "reduce_scatter", "read") == compared[overlap].graph.ranks - 2


@pytest.mark.parametrize("overlap", ["t3", "t3-mca"])
def test_t3_updates_n_less_1_chunks_from_here_and_from_the_neighbour(compared, overlap):
    fused = compared[overlap]
    assert chunks(fused, "gemm", "update") == fused.graph.ranks - 1
    assert chunks(fused, "reduce_scatter", "update") == fused.graph.ranks - 1
    assert chunks(fused, "reduce_scatter", "write") == 0


def test_the_all_gather_moves_the_same_with_and_without_t3(compared):
    for kind in ("read", "write"):
        moved = {result.bytes("all_gather", kind) for result in compared}
        assert len(moved) == 1
        assert chunks(compared.baseline, "all_gather", kind) == compared.baseline.graph.ranks - 1
