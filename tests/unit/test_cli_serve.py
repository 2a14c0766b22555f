"""`weft serve`: what it prints and writes, and how it refuses."""

from __future__ import annotations

import csv
import json

import pytest
from click.testing import CliRunner

import weft
from weft.cli.main import main
from weft.cli.main import weft as cli

BASE = ("serve", "llama-3-8b", "--system", "1xh100", "--requests", "40", "--output-len", "32")


def run(*arguments):
    return CliRunner().invoke(cli, [*map(str, arguments)])


def test_the_command_says_what_the_function_says(tmp_path):
    done = run(*BASE, "--rate", "8", "--input-len", "100-2000", "--ttft", "200ms", "--json", tmp_path / "a.json")
    assert done.exit_code == 0, done.output
    answer = weft.serve(
        "llama-3-8b",
        "1xh100",
        weft.ServingPlan(),
        weft.Load(rate=8, requests=40, input_len=(100, 2000), output_len=32),
        weft.Limits(ttft="200 ms"),
    )
    assert json.loads((tmp_path / "a.json").read_text()) == json.loads(json.dumps(answer.to_dict()))
    assert done.output.startswith("Llama 3 8B (BF16) on 1 GPU: TTFT ")


def test_requests_are_written_as_a_table_and_a_page(tmp_path):
    done = run(*BASE, "--concurrency", "4", "--csv", tmp_path / "r.csv", "--out", tmp_path / "page")
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader((tmp_path / "r.csv").read_text().splitlines()))
    assert len(rows) == 40
    assert {"arrival", "first", "done", "ttft", "tpot"} <= rows[0].keys()
    page = (tmp_path / "page" / "report.html").read_text()
    for question in (
        "Requests and KV cache over time",
        "Latency distribution",
        "Engine iterations",
    ):
        assert question in page


def test_another_machine_or_option_is_held_against_the_first():
    for changed in ("memory.bandwidth=5 TB/s", "scheduler=sglang", "concurrency=2"):
        done = run(*BASE, "--concurrency", "8", "--against", changed)
        assert done.exit_code == 0, done.output
        for part in ("prefill", "decode"):
            assert f"\n  {part} " in done.output


def test_a_sweep_asks_under_every_combination():
    asked = {"run": "serve", "model": "llama-3-8b", "system": "1xh100", "requests": 20, "output_len": 8, "rate": 5}
    found = weft.sweep_file(asked, {"framework": ["vllm", "sglang"], "input_len": [128, 1024]}, cache=False)
    assert len(found) == 4
    one = weft.serve(
        "llama-3-8b",
        "1xh100",
        weft.ServingPlan(framework="sglang"),
        weft.Load(requests=20, output_len=8, rate=5, input_len=1024),
    )
    (same,) = (point for point in found if (point["framework"], point["input_len"]) == ("sglang", 1024))
    assert same["seconds"] == pytest.approx(one.seconds)


def test_a_sweep_refuses_a_value_by_its_key():
    asked = {"run": "serve", "model": "llama-3-8b", "system": "1xh100", "rate": 5, "max_num_batched_tokens": 0}
    (row,) = weft.sweep_file(asked, {}, cache=False)
    assert row["why"].startswith("max_num_batched_tokens is 0; it must be a whole number")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rate", "4", "--scheduler", "vlm"], "did you mean 'vllm'"),
        (["--rate", "4", "--input-len", "9000"], "exceeds the 8,192 tokens of llama-3-8b's context"),
        (["--rate", "4", "--input-len", "x"], "'x' is no number of tokens"),
        (["--rate", "0"], "0"),
        (["--trace", "nope.csv"], "nope.csv"),
        ([], "give rate (requests/s), concurrency (clients) or a trace"),
        (["--concurrency", "4", "--arrivals", "even"], "leave it out"),
        (["--trace", "a.csv", "--input-len", "4"], "and input_len is 4; leave it out"),
        (
            ["--rate", "4", "--num-speculative-tokens=4", "--acceptance-rate=0.5", "--max-num-batched-tokens=3"],
            "give max_num_batched_tokens 5 or more",
        ),
        (["--rate", "4", "--attainment", "0.9"], "attainment is the SLO attainment that a plan must reach"),
    ],
)
def test_a_bad_load_is_refused_in_a_sentence(arguments, words, capsys):
    with pytest.raises(SystemExit) as left:
        main([*BASE[:4], *arguments])
    assert left.value.code == 2
    assert words in capsys.readouterr().err
