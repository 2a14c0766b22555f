"""NCCL's statement of its own cost model is compared by latency, rate and choice."""

import pytest

import weft

HEAD = "collective,algorithm,nodes,gpus_per_node,protocol,latency_us,bandwidth_gb_s"
RING, LL = "all_gather/reduce_scatter,ring,2,8,simple,70.0,409.6", "all_gather/reduce_scatter,ring,2,8,ll,23.3,41.6"


def validated(tmp_path, *rows, head=HEAD):
    (tmp_path / "tuning.csv").write_text("\n".join([head, *rows]) + "\n")
    found = weft.validate(tmp_path / "tuning.csv")
    (part,) = found.predictions
    names = zip(part.subject.rows["what"], part.subject.rows["protocol"], strict=True)
    return dict(zip(names, zip(part.seconds, part.subject.measured, strict=True), strict=True)), found


def test_a_row_states_a_latency_and_a_rate_and_all_of_a_collective_a_choice(tmp_path):
    figures, found = validated(tmp_path, RING, LL)
    assert figures["latency", "simple"] == (pytest.approx(70e-6), pytest.approx(70e-6))
    assert figures["transfer of 1 GB", "ll"] == (pytest.approx(1 / 41.6), pytest.approx(1 / 41.6))
    assert figures["choice", "simple"] == (1.0, 1.0)
    assert found.rows_used == 2


def test_a_model_that_prefers_another_protocol_is_a_share_of_wrong_choices(tmp_path):
    """With LL at a tenth of its latency and ten times its rate, Weft's choice differs at large sizes."""
    figures, _ = validated(tmp_path, RING, LL.replace("41.6", "416"))
    assert 0.2 < figures["choice", "simple"][0] < 0.8


def test_an_algorithm_that_the_model_does_not_compare_is_refused_by_name(tmp_path):
    _, found = validated(tmp_path, RING, LL.replace("ring", "tree"))
    assert any("algorithm is 'tree'" in text or "tree" in text for text in found.complaints())
    assert found.rows_used == 1


def test_a_row_may_state_its_system_and_release(tmp_path):
    """p5 has AMD's CPUs: 22.5 GB/s of LL over two nodes."""
    head, row = f"{HEAD},system,version", "all_gather,ring,2,8,ll,37.3,24.0,p5,2.29.2"
    figures, _ = validated(tmp_path, row, head=head)
    assert figures["transfer of 1 GB", "ll"][0] == pytest.approx(1 / (22.5 * 16 / 15))
