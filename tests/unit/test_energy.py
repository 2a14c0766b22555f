"""Power and energy of GPUs, by hand, as laws, and in answers."""

import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.cli.main import weft as cli
from weft.core.energy import EnergyTerms
from weft.core.errors import InputError, UnitError
from weft.core.options import SUSTAINED
from weft.estimate.power import Activity, Energy, watts, work_of
from weft.graph import Collective, Gemm
from weft.hardware import gpu
from weft.kernels.gemm import main_loop_flops

B200 = gpu("b200")
ROUND = B200.replace({"power.tdp": "1 kW", "power.idle": 0.2, "power.busy": 0.1, "power.memory": 0.5})
SHARES = st.floats(0, 1)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("gpus", EnergyTerms()),
        ("PUE 1.2", EnergyTerms(pue=1.2)),
        ("0.3 kW/GPU, PUE 1.5", EnergyTerms(300.0, 1.5)),
        ("$0.36/kWh", EnergyTerms(price=1e-7, currency="USD")),
        ("300 W/GPU,0.36 EUR/kWh", EnergyTerms(300.0, 1.0, 1e-7, "EUR")),
    ],
)
def test_terms_of_an_energy_are_told_apart_by_their_units(text, terms):
    assert EnergyTerms.of(text) == terms


@pytest.mark.parametrize("text", ["", "1.2", "PUE 0.9", "PUE 12", "0 USD/kWh", "0.1/kWh", "$0.1 USD/kWh", "0 W/GPU"])
def test_what_is_no_term_of_an_energy_is_refused_with_an_example(text):
    with pytest.raises(InputError, match=r"like '300 W/GPU, PUE 1\.2"):
        EnergyTerms.of(text)


def test_the_power_of_a_node_has_a_unit_of_power():
    with pytest.raises(UnitError, match="watts are expected"):
        EnergyTerms.of("300 GB/GPU")


def test_power_is_that_of_an_idle_gpu_and_what_its_parts_add():
    """Of 2 s kernels run for 1: 200 W idle, 100 W for half of the time, 500 W at a fifth of the memory's rate, and the
    700 W that are left for matrix units at a tenth of the rate of a long GEMM.
    """
    found = watts(ROUND, Activity(seconds=2.0, busy=1.0, matrix=0.2, memory=0.4))
    assert found.parts == pytest.approx({"idle": 200, "busy": 50, "memory": 100, "links": 0, "matrix": 70})
    assert found.mean == pytest.approx(420)


def test_an_idle_gpu_draws_its_idle_power():
    assert watts(ROUND, Activity(seconds=3.0)).mean == pytest.approx(200)


def test_a_long_gemm_draws_the_limit():
    assert watts(ROUND, Activity(1.0, 1.0, matrix=1.0, memory=0.2)).mean == pytest.approx(1000)


@given(SHARES, SHARES, SHARES, SHARES)
def test_power_lies_between_idle_and_the_limit(busy, matrix, memory, links):
    found = watts(B200, Activity(1.0, busy, matrix, memory, links))
    assert 190 - 1e-9 <= found.mean <= 1000 + 1e-9
    assert found.low <= found.mean <= found.high <= 1000 + 1e-9


@given(st.floats(0.1, 10), st.floats(0.1, 10), SHARES, SHARES)
def test_the_energy_of_the_same_work_grows_with_its_time(first, more, matrix, memory):
    def joules(seconds):
        return watts(B200, Activity(seconds, seconds, 0.1 * matrix, 0.1 * memory)).mean * seconds

    assert joules(first + more) >= joules(first) - 1e-9


@given(SHARES, SHARES, st.floats(0, 0.5))
def test_more_work_in_the_same_time_takes_no_less_energy(matrix, memory, more):
    one, other = (watts(B200, Activity(1, 1, matrix + extra, memory)).mean for extra in (0.0, more))
    assert other >= one - 1e-9


def test_work_counts_the_flops_of_a_long_gemm_and_the_least_bytes():
    gemm = Gemm(4096, 4096, 4096)
    found = work_of([(gemm, 0.0), (Collective("all_reduce", 1 << 20, 8), 0.0)], B200)
    assert found.memory == pytest.approx(3 * 4096**2 * 2 / B200.memory.bandwidth)
    rate = main_loop_flops("bf16", B200, SUSTAINED) * B200.compute.compute_units
    assert found.matrix == pytest.approx(2 * 4096**3 / rate)


def test_the_energy_of_tokens_has_the_node_the_building_and_the_price():
    """8 GPUs of 420 W with 80 W of the node each and a PUE of 1.2 draw 4.8 kW: 2.4 J for each of 2,000 tokens/s."""
    drawn = watts(ROUND, Activity(2.0, 1.0, 0.2, 0.4))
    found = Energy(drawn, 8, 2000.0, EnergyTerms.of("80 W/GPU, PUE 1.2, 0.1 USD/kWh"), (0.9, 1.2), days=10)
    assert found.watts == pytest.approx(4800)
    assert found.joules_per_token == pytest.approx(2.4)
    assert found.kwh == pytest.approx(4.8 * 240)
    assert found.cost == pytest.approx(115.2)
    assert found.million_tokens == pytest.approx(2.4e6 / 3.6e6 * 0.1)
    low, high = found.joules_per_token_80
    assert low < 2.4 < high < 2.4 * 1.3


def test_a_gpu_whose_power_is_not_known_says_what_to_state():
    with pytest.raises(InputError, match=r"the power of t3-paper is not known; state its limit"):
        watts(gpu("t3-paper"), Activity(1.0))


def test_the_power_of_a_gpu_changes_no_time_and_no_cached_run():
    machine = weft.system("8xh100")
    assert machine.replace({"power.tdp": "500 W"}).inputs() == machine.inputs()


@pytest.mark.parametrize("name", sorted({*weft.hardware.gpu_names()} - {"t3-paper"}))
def test_every_gpu_on_sale_has_a_limit_and_shares_below_it(name):
    power = gpu(name).power
    assert 50 <= power.tdp <= 1500
    assert power.idle + power.busy < 0.6


@pytest.fixture(scope="module")
def step():
    return weft.step("llama-3-70b", "64xh100", tp=8, pp=4, batch=128, fidelity="estimate", compare=False)


def test_a_training_step_draws_more_than_memory_and_less_than_its_limit(step):
    found = step.over(weft.TrainingRun(energy="gpus", tokens="1T")).run.energy
    assert 400 < found.gpu.mean < 700
    assert found.gpu.parts["matrix"] > found.gpu.parts["memory"]
    assert found.joules_per_token == pytest.approx(found.gpu.mean / step.tokens_per_s_per_gpu)
    assert found.kwh == pytest.approx(found.joules_per_token * 1e12 / 3.6e6)


def test_failures_lengthen_the_run_and_raise_the_energy_of_a_token(step):
    alike = weft.TrainingRun(energy="gpus", tokens="1T")
    some = step.over(weft.TrainingRun(energy="gpus", tokens="1T", failures=1e-2)).run
    none = step.over(alike).run
    assert some.energy.joules_per_token == pytest.approx(none.energy.joules_per_token / some.goodput.goodput)


def test_recomputation_takes_more_energy(step):
    again = weft.step(
        "llama-3-70b", "64xh100", tp=8, pp=4, batch=128, recompute="full", fidelity="estimate", compare=False
    )
    run = weft.TrainingRun(energy="gpus")
    assert again.over(run).run.energy.joules_per_token > 1.1 * step.over(run).run.energy.joules_per_token


def served(clients, **plan):
    load = weft.Load(concurrency=clients, input_len=512, output_len=128)
    return weft.serve("llama-3-8b", "1xh100", weft.ServingPlan(**plan), load).powered("gpus").energy


def test_more_clients_draw_more_power_and_less_energy_for_each_token():
    few, many = served(2), served(64)
    assert 250 < few.gpu.mean < many.gpu.mean < 700
    assert many.joules_per_token < 0.2 * few.joules_per_token


def test_narrower_weights_move_fewer_bytes():
    assert served(2, dtype="fp8").joules_per_token < served(2).joules_per_token


def test_a_server_that_waits_draws_little_more_than_idle_power():
    load = weft.Load(rate=0.02, input_len=512, output_len=32, requests=30)
    found = weft.serve("llama-3-8b", "1xh100", weft.ServingPlan(), load).powered("gpus").energy
    assert 140 <= found.gpu.mean < 160


def test_a_page_shows_what_draws_the_power_only_where_it_was_asked_for(step):
    asked = step.over(weft.TrainingRun(energy="gpus"))
    (shown,) = (part for part in asked.report().sections() if getattr(part, "title", "") == "Power")
    (table,) = shown.parts[0].data.values()
    drawn = {row[1]: row[2] for row in table.rows}
    assert sum(drawn.values()) == pytest.approx(asked.run.energy.gpu.mean, abs=1)
    assert drawn["matrix units"] == asked.run.energy.gpu.parts["matrix"]
    assert "Power" not in [getattr(part, "title", "") for part in step.report().sections()]


@pytest.mark.parametrize(
    "command",
    [
        ["step", "llama-3-8b", "--system", "8xh100", "--batch", "64", "--fidelity", "estimate"],
        ["serve", "llama-3-8b", "--system", "1xh100", "--concurrency", "8", "--input-len", "512", "--output-len", "64"],
    ],
)
def test_commands_state_power_and_energy(command, tmp_path):
    file = tmp_path / "answer.json"
    done = CliRunner().invoke(cli, [*command, "--energy", "300 W/GPU, PUE 1.2, 0.1 USD/kWh", "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert "Power: " in done.output
    assert "W per GPU (80 % interval " in done.output
    assert "(GPUs and 300 W of the node for each, with a PUE of 1.2)" in done.output
    assert "Electricity: " in done.output
    data = json.loads(file.read_text())
    energy = data["run"]["energy"] if command[0] == "step" else data["energy"]
    assert energy["joules_per_token_80"][0] < energy["joules_per_token"] < energy["joules_per_token_80"][1]


def test_an_energy_that_cannot_be_read_is_refused_before_anything_runs():
    command = ["serve", "llama-3-8b", "--system", "1xh100", "--concurrency", "8", "--energy", "lots"]
    done = CliRunner().invoke(cli, command)
    assert isinstance(done.exception, InputError)
    assert "'lots' is no term of an energy" in str(done.exception)
