"""Prices of GPU hours, and what tokens, served loads and plans cost by them."""

import json

import pytest
from click.testing import CliRunner

import weft
from weft.cli.main import weft as cli
from weft.core.errors import InputError
from weft.core.price import Price


@pytest.mark.parametrize(
    ("text", "amount", "currency"),
    [
        ("3.6 USD/GPU/h", 1e-3, "USD"),
        ("$3.6/GPU/h", 1e-3, "USD"),
        ("7.2 EUR/GPU/hour", 2e-3, "EUR"),
        ("0.001 USD/GPU/s", 1e-3, "USD"),
    ],
)
def test_a_price_is_a_number_a_currency_and_a_time(text, amount, currency):
    assert Price.of(text, "h100-sxm") == Price(pytest.approx(amount), currency)


@pytest.mark.parametrize("text", ["3.5", "USD/GPU/h", "3.5 USD/h", "-1 USD/GPU/h", "0 USD/GPU/h", "$3 USD/GPU/h", ""])
def test_what_is_no_price_is_refused_with_an_example(text):
    with pytest.raises(InputError, match=r"write it like '3\.5 USD/GPU/h'"):
        Price.of(text, "h100-sxm")


def test_a_file_has_a_price_for_each_gpu(tmp_path):
    file = tmp_path / "prices.toml"
    file.write_text('h100-sxm = "2.5 USD/GPU/h"\n')
    assert Price.of(str(file), "h100-sxm") == Price.of("2.5 USD/GPU/h", "h100-sxm")
    with pytest.raises(InputError, match="has no price of mi300x; add a line like mi300x = "):
        Price.of(str(file), "mi300x")


def test_tokens_cost_their_share_of_the_hours_of_all_gpus():
    """8 GPUs at 3.6 USD an hour: 0.008 USD a second, for 1,000 tokens."""
    assert Price.of("3.6 USD/GPU/h", "h100-sxm").of_tokens(8, 1000) == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("value", "text"), [(0.1234, "0.123 USD"), (12.34, "12.3 USD"), (4567.0, "4.57 k USD"), (5.2e7, "52 M USD")]
)
def test_an_amount_has_three_digits_and_its_currency(value, text):
    assert Price(1).text(value) == text


LOAD = weft.Load(concurrency=16, input_len=512, output_len=128, requests=64)


def test_a_served_load_costs_its_gpus_by_its_output_tokens_and_by_both_apart():
    served = weft.serve("llama-3-8b", "1xh100", weft.ServingPlan(tp=1), LOAD).priced("3.6 USD/GPU/h")
    cost, seconds = served.costs, 1 / served.output_tokens_per_s
    assert cost.output == pytest.approx(1e-3 * seconds * 1e6)
    apart = cost.prompt * served.input_tokens_per_s + cost.decode * served.output_tokens_per_s
    assert apart == pytest.approx(1e-3 * 1e6)
    assert 0 < cost.prompt < cost.decode < cost.output
    low, high = cost.interval
    assert low < cost.output < high
    assert served.to_dict()["costs"]["output"] == cost.output


def test_a_load_without_a_price_costs_nothing_that_is_said():
    served = weft.serve("llama-3-8b", "1xh100", weft.ServingPlan(tp=1), LOAD)
    assert served.costs is None
    assert "Cost" not in str(served)


def test_plans_and_loads_say_what_tokens_cost_on_the_command_line(tmp_path):
    file = tmp_path / "plans.json"
    command = "plan llama-3-8b --system 8xh100 --batch 64 --sequence 4096 --refine 0 --price"
    done = CliRunner().invoke(cli, [*command.split(), "2.5 USD/GPU/h", "--energy", "gpus", "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert "Cost: " in done.output
    assert "Power: " in done.output
    found = json.loads(file.read_text())
    first = found["plans"][0]
    rate = 64 * 4096 / first["step_time_s"]
    assert found["energy"]["joules_per_token"] == pytest.approx(found["energy"]["watts"] / rate)
    assert found["cost_of_million_tokens"][0] == pytest.approx(2.5 / 3600 * 8 / rate * 1e6)


@pytest.mark.parametrize(
    "command",
    [
        "serve llama-3-8b --system 1xh100 --rate 1",
        "plan llama-3-8b --system 8xh100 --batch 64",
        "step llama-3-8b --system 8xh100 --batch 64 --tokens 1T",
    ],
)
def test_a_price_that_is_none_is_refused_before_anything_is_simulated(command, monkeypatch):
    for name in ("serve", "plan", "step"):
        monkeypatch.setattr(weft, name, None)
    done = CliRunner().invoke(cli, [*command.split(), "--price", "3.5"])
    assert "'3.5' is not a price of a GPU" in str(done.exception) + done.output
