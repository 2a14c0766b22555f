"""Figures of measured servers beside simulated ones."""

import pytest
from click.testing import CliRunner

import weft
from weft.cli.main import weft as cli
from weft.core.errors import InputError
from weft.models import load_model
from weft.serving.measured import MeasuredFigure

BASE = ("serve", "llama-3-8b", "--system", "1xh100", "--concurrency", "4", "--requests", "40", "--output-len", "32")


@pytest.fixture(scope="module")
def served():
    return weft.serve("llama-3-8b", "1xh100", weft.ServingPlan(), weft.Load(concurrency=4, requests=40, output_len=32))


def said(served, *figures):
    return served.judged(*figures).needs


def test_a_figure_inside_the_interval_is_to_be_expected(served):
    (sentence,) = said(served, f"TPOT {served.tpot['mean'] * 1e3} ms")
    assert sentence.endswith("than predicted, within the 80 % interval: as is to be expected.")


def test_a_latency_just_beyond_its_interval_is_slow_and_just_within_is_not(served):
    high = served.tpot_interval[1]
    assert "within" in said(served, f"TPOT {high * 0.999e3} ms")[0]
    slow = said(served, f"TPOT {high * 1.001e3} ms")
    assert "slower than it should be" in slow[0]
    assert "--cpu-overhead" in slow[1]


def test_a_rate_below_its_interval_is_slow_and_above_is_odd(served):
    low, high = served.output_tokens_per_s_interval
    assert "slower than it should be" in said(served, f"{low * 0.99} output tokens/s")[0]
    assert "check what was measured" in said(served, f"{high * 1.01} output tokens/s")[0]


def test_fewer_tokens_at_the_predicted_tpot_mean_fewer_requests_at_once(served):
    tpot = served.tpot["mean"]
    rate = served.output_tokens_per_s_interval[0] * 0.9
    *_, advice = said(served, f"TPOT {tpot * 1e3} ms", f"{rate} output tokens/s")
    assert f"but {rate * tpot:,.0f} requests decode at once" in advice


def test_a_long_ttft_alone_points_at_the_queue(served):
    *_, advice = said(served, f"TPOT {served.tpot['mean'] * 1e3} ms", f"TTFT {served.ttft['mean'] * 3e3} ms")
    assert advice.startswith("TTFT alone is long: look at the queue")


@pytest.mark.parametrize(
    ("text", "what", "value", "statistic"),
    [
        ("TPOT 31.4 ms", "TPOT", 0.0314, "mean"),
        ("mean ITL 31.4ms", "TPOT", 0.0314, "mean"),
        ("p99 ttft 1.2 s", "TTFT", 1.2, "p99"),
        ("2,008 output tokens/s", "output tokens/s", 2008, "mean"),
        ("500 total tokens/s/GPU", "total tokens/s/gpu", 500, "mean"),
        ("6.17 req/s", "req/s", 6.17, "mean"),
    ],
)
def test_figures_are_read_as_benchmarks_print_them(text, what, value, statistic):
    found = MeasuredFigure.of(text)
    assert (found.what, found.statistic) == (what, statistic)
    assert found.value == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "TPOT", "31.4 ms", "TPOT 3 req/s", "2008 tokens/s", "p99 6 req/s", "TPOT 0 ms"])
def test_other_texts_are_refused_with_an_example(text):
    with pytest.raises(InputError):
        MeasuredFigure.of(text)


def test_rates_count_prompts_and_gpus_as_their_names_say(served):
    output, total, each = (
        MeasuredFigure.of(f"1 {name}").predicted(served)
        for name in ("output tokens/s", "total tokens/s", "total tokens/s/GPU")
    )
    assert total == pytest.approx(output + served.input_tokens_per_s)
    assert each == pytest.approx(total)


def test_the_command_refuses_figures_where_there_is_no_one_server():
    for more in (("--plan", "--ttft", "1s"), ("--against", "concurrency=2")):
        done = CliRunner().invoke(cli, [*BASE, "--measured", "TPOT 9 ms", *more])
        assert isinstance(done.exception, InputError)
        assert "--measured" in str(done.exception)


def test_the_command_prints_the_sentences_of_the_function(served):
    done = CliRunner().invoke(cli, [*BASE, "--measured", "TPOT 90 ms"])
    assert done.exit_code == 0, done.output
    assert said(served, "TPOT 90 ms")[0] in done.output


def test_servers_read_the_positions_of_the_released_weights():
    model = load_model("deepseek-v3")
    assert (model.sequence_length, model.context_limit) == (4096, 163_840)
    assert load_model("llama-3-8b").context_limit == load_model("llama-3-8b").sequence_length
