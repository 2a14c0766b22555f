"""One slow part of a machine: how much of its delay reaches a training step, and who waits."""

import pytest
from click.testing import CliRunner

import weft
from weft.cli.main import weft as cli
from weft.core.errors import InputError
from weft.step.straggler import Straggler, delayed


def timed(model="llama-3-70b", on="64xh100", **plan):
    return weft.step(model, on, fidelity="estimate", compare=False, **{"tp": 8, "pp": 4, "batch": 128, **plan})


@pytest.fixture(scope="module")
def step():
    return timed()


@pytest.mark.parametrize(
    ("text", "straggler"),
    [
        ("gpu:5%", Straggler("gpu", 0.05)),
        ("gpu:0.05", Straggler("gpu", 0.05)),
        ("node:network=0.5", Straggler("node", 0.5)),
        ("nic", Straggler("nic", 0.5)),
        ("nic:0.25", Straggler("nic", 0.25)),
    ],
)
def test_a_straggler_names_a_part_and_a_share(text, straggler):
    assert Straggler.of(text) == straggler


@pytest.mark.parametrize("text", ["gpu", "node:0.5", "rack:5%", "gpu:network=5%", "", "nic:fast"])
def test_what_is_no_straggler_is_refused_with_how_to_write_one(text):
    with pytest.raises(InputError, match="'gpu:5%'"):
        Straggler.of(text)


@pytest.mark.parametrize(("text", "said"), [("gpu:0%", "up to 0.5"), ("gpu:60%", "up to 0.5"), ("nic:1.5", "up to 1")])
def test_a_share_out_of_range_is_refused(text, said):
    with pytest.raises(InputError, match=said):
        Straggler.of(text)


def test_a_gpu_alone_takes_as_much_longer_as_its_kernels_at_the_lower_clock():
    """Without other GPUs nothing waits or hides: GEMMs and attention take 1 / 0.95 of their time."""
    step = timed("llama-3-8b", "1xb300", tp=1, pp=1, batch=4, sequence=4096)
    late = delayed(step, "gpu:5%").late
    clocked = sum(step.parts[name] for name in ("gemm", "attention"))
    assert late.delay_s == pytest.approx(clocked * (1 / 0.95 - 1), rel=1e-6)
    assert late.waits == {}


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved:5"])
@pytest.mark.parametrize("share", ["1%", "5%", "20%"])
def test_a_delay_reaches_a_step_at_most_whole(schedule, share):
    """Each task of the slow stage is at most once on the longest chain of tasks."""
    late = delayed(timed(pp=8, batch=32, schedule=schedule), f"gpu:{share}").late
    assert 0 < late.delay_s <= late.own_s * (1 + 1e-9)


@pytest.mark.parametrize("part", ["gpu", "nic", "node:network="])
def test_a_slower_part_never_makes_a_step_faster(step, part):
    shares = ("1%", "5%", "30%") if part == "gpu" else ("1.0", "0.7", "0.3")
    delays = [delayed(step, part + share if "=" in part else f"{part}:{share}").late.delay_s for share in shares]
    assert delays == sorted(delays)
    assert delays[0] >= 0


def test_a_network_at_its_full_rate_delays_nothing(step):
    assert delayed(step, "nic:1.0").late.delay_s == 0


def test_a_network_of_half_the_rate_costs_no_more_than_half_of_all_networks(step):
    slow = weft.system("64xh100").replace({"network.bandwidth": "25 GB/s"})
    other = weft.step("llama-3-70b", slow, step.plan, framework=step.framework, fidelity="estimate", compare=False)
    assert delayed(step, "node:network=0.5").late.delay_s <= other.seconds - step.seconds + 1e-9


def test_one_node_has_no_network_to_be_slow():
    with pytest.raises(InputError, match="8 GPUs are one node"):
        timed("llama-3-8b", "8xh100", tp=8, pp=1, batch=8, straggler="nic")


def test_a_step_says_what_a_slow_part_costs_and_who_waits():
    command = "step llama-3-70b --system 64xh100 --tp 8 --pp 4 --batch 128 --fidelity estimate --straggler gpu:5%"
    done = CliRunner().invoke(cli, command.split())
    assert done.exit_code == 0, done.output
    assert "Straggler: one GPU with a clock 5 % lower in stage 3" in done.output
    assert "Its TP and PP and DP groups wait for it." in done.output
    assert "Straggler" not in CliRunner().invoke(cli, command.split()[:-2]).output
