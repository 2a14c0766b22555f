"""One slow part under a served load: which replicas wait, and how much of the delay reaches TPOT."""

import json

import pytest
from click.testing import CliRunner

import weft
from weft.cli.main import weft as cli
from weft.core.errors import InputError
from weft.graph import Gemm
from weft.hardware import slower
from weft.models import SubLayer
from weft.models.parallel import split


def served(straggler, on="8xh100", clients=32, model="llama-3-8b", load=None, **plan):
    load = load or weft.Load(concurrency=clients, input_len=512, output_len=64, requests=6 * clients)
    answer = weft.serve(model, on, weft.ServingPlan(**plan), load)
    return answer.delayed(straggler) if straggler else answer


def test_a_lone_replica_is_late_by_all_that_its_iterations_are():
    """Every token waits for the slow GPU: TPOT grows as the iterations do in which requests decode."""
    late = served("gpu:30%", on="1xh100").late
    assert late.replicas == 1
    assert late.axes == ()
    assert late.own > 1.02
    assert late.reaching == pytest.approx(1, abs=0.25)


def test_of_several_replicas_one_is_late_and_its_share_reaches_the_mean():
    alone, eight = served("gpu:30%", on="1xh100", clients=8).late, served("gpu:30%", clients=64).late
    assert eight.replicas == 1
    assert eight.own == pytest.approx(alone.own, rel=0.05)
    assert 0 < eight.reaching < 0.6 * alone.reaching


def test_ranks_of_a_replica_wait_for_a_slow_gpu_in_every_layer():
    late = served("gpu:20%", tp=8).late
    assert (late.replicas, late.axes) == (1, ("tp",))
    assert late.tpot_s[1] > late.tpot_s[0]


def test_ranks_that_share_experts_wait_for_a_slow_adapter():
    late = served("nic", on="16xh100", clients=64, model="gpt-oss-120b", tp=1, ep=16).late
    assert (late.replicas, late.axes) == (16, ("ep",))
    assert late.tpot_s[1] > late.tpot_s[0]


def test_replicas_within_a_node_wait_for_no_network():
    late = served("node:network=0.5", on="16xh100", tp=8).late
    assert late.own == 1
    assert late.tpot_s[0] == late.tpot_s[1]
    assert late.reaching is None


def test_the_kv_cache_of_a_prompt_passes_a_slow_adapter():
    plan = {"tp": 4, "prefill_replicas": 2}
    usual, late = served(None, on="16xh100", **plan), served("nic:0.01", on="16xh100", **plan).late
    assert late.ttft_s[1] + late.tpot_s[1] * 63 > usual.ttft["mean"] + usual.tpot["mean"] * 63


@pytest.mark.parametrize(
    ("part", "shares", "on", "plan"),
    [
        ("gpu", ("1%", "10%", "30%", "50%"), "8xh100", {"tp": 4}),
        ("gpu", ("1%", "10%", "30%"), "8xh100", {"tp": 2, "prefill_replicas": 2}),
        ("nic", ("1.0", "0.5", "0.1"), "16xh100", {"tp": 16}),
    ],
)
def test_a_slower_part_never_makes_a_load_faster(part, shares, on, plan):
    found = [served(f"{part}:{share}", on=on, **plan).late for share in shares]
    owns = [late.own for late in found]
    assert owns == sorted(owns)
    assert owns[0] >= 1
    assert all(late.tpot_s[1] >= late.tpot_s[0] for late in found)
    assert all(late.output_tokens_per_s[1] <= late.output_tokens_per_s[0] for late in found)
    assert found[-1].output_tokens_per_s[1] <= found[0].output_tokens_per_s[1]


def test_a_network_at_its_full_rate_delays_nothing():
    late = served("nic:1.0", on="16xh100", tp=16).late
    assert late.own == 1
    assert late.tpot_s[0] == late.tpot_s[1]


def test_without_a_slow_part_the_load_is_as_ever():
    with_part, without = served("gpu:20%", tp=8), served(None, tp=8)
    assert without.late is None
    assert with_part.tpot == without.tpot
    assert with_part.output_tokens_per_s == without.output_tokens_per_s


def test_a_slow_part_of_the_network_needs_several_nodes():
    with pytest.raises(InputError, match="8 GPUs are one node; name a slow GPU, like 'gpu:5%'"):
        served("nic", tp=8)


def test_what_is_no_straggler_is_refused_before_anything_is_served(monkeypatch):
    monkeypatch.setattr(weft, "serve", None)
    command = ["serve", "llama-3-8b", "--system", "1xh100", "--concurrency", "8", "--straggler", "rack:5%"]
    done = CliRunner().invoke(cli, command)
    assert isinstance(done.exception, InputError)
    assert "write it like 'gpu:5%'" in str(done.exception)


@pytest.mark.parametrize("on", ["t3-paper", "4xh100"])
def test_a_sub_layer_is_late_by_what_the_engine_says(on):
    """The engine joins four GPUs, one of them with a clock 20 % lower, and all wait for it in the ring: the sub-layer
    ends later by what its GEMM takes longer on the machine on which the waiting replica is timed.
    """
    layer, usual = split(SubLayer.custom(4096, 4096, 4096), 4), weft.system(on)
    drawn = weft.compare(layer, on, "sequential", stragglers="one:20%").drawn["sequential"]
    gemm = next(node.op for node in layer if isinstance(node.op, Gemm))
    closed = weft.estimate(gemm, usual.with_gpu(slower(usual.gpu, 0.2))).seconds - weft.estimate(gemm, usual).seconds
    assert drawn.seconds[0] - drawn.equal_s == pytest.approx(closed, rel=0.15)


def test_the_command_says_who_waits_and_what_reaches_tpot(tmp_path):
    file = tmp_path / "load.json"
    command = ["serve", "llama-3-8b", "--system", "8xh100", "--tp", "8", "--concurrency", "16", "--input-len", "512"]
    done = CliRunner().invoke(cli, [*command, "--output-len", "64", "--straggler", "gpu:50%", "--json", str(file)])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "Straggler: one GPU with a clock 50 % lower makes iterations of 1 replica " in said
    assert "whose TP ranks wait for it: mean TPOT " in said
    found = json.loads(file.read_text())["straggler"]
    assert found["tpot_s"][1] > found["tpot_s"][0]
    assert found["axes"] == ["tp"]
