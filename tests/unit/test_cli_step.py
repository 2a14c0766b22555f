"""`weft step`, `memory`, `prefill` and `decode`: what they print and write, and how they refuse."""

from __future__ import annotations

import json

import pytest

from weft.cli.main import main

PLAN = ["gpt-3", "--system", "64xa100", "--tp", "8", "--pp", "8", "--batch", "16"]
QUICK = ["--fidelity", "estimate"]


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    printed = capsys.readouterr()
    return left.value.code, printed.out, printed.err


def test_a_step_leads_with_the_verdict_and_writes_all_files(capsys, tmp_path):
    folder, trace = tmp_path / "out", tmp_path / "t.json"
    status, out, _ = run(
        capsys, "step", *PLAN, *QUICK, "--out", str(folder), "--trace", str(trace), "--json", str(tmp_path / "a")
    )
    assert status == 0
    assert out.startswith("GPT-3 on 64 GPUs: step time ")
    assert sorted(file.name for file in folder.iterdir()) == ["report.html", "step.json"]
    found = json.loads((folder / "step.json").read_text())
    assert found == json.loads((tmp_path / "a").read_text())
    assert found["plan"]["dp"] == 1
    assert len(list(tmp_path.glob("t_rank*.json"))) == 8


def test_windows_carry_the_error_of_their_class(capsys):
    small = ["llama-2-7b", "--system", "dgx-h100", "--tp", "2", "--dp", "4", "--batch", "32"]
    _, by_engine, _ = run(capsys, "step", *small)
    _, by_nothing, _ = run(capsys, "step", *small, "--fidelity", "estimate")
    assert "windows under priority, typical errors: both side by side are off by" in by_engine
    assert "no public row has priority on h100-sxm" in by_engine
    assert "typical errors" not in by_nothing


def test_the_waterfall_is_a_table_of_parts(capsys, tmp_path):
    status, _, _ = run(capsys, "step", *PLAN, *QUICK, "--csv", str(tmp_path / "w.csv"))
    assert status == 0
    assert (tmp_path / "w.csv").read_text().startswith("part,time_ms,share,what\n")


def test_memory_says_whether_it_fits(capsys):
    status, out, _ = run(capsys, "memory", *PLAN)
    assert status == 0
    assert out.startswith("Fits: peak ")


def test_inference_leads_with_latency_and_throughput(capsys):
    for command in ("prefill", "decode"):
        status, out, _ = run(capsys, command, "llama-3-8b", "--system", "8xh100", "--tp", "8")
        assert status == 0
        assert "tokens/s" in out.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gpt-3", "--system", "64xa100", "--tp", "3"], "the nearest plan that fills it is tp 4, pp 1, dp 16"),
        (["gpt-3", "--system", "64xa100", "--tp", "8", "--pp", "7"], "the nearest plan"),
        ([*PLAN, "--micro-batch", "3"], "give a multiple of 3, such as 15"),
        ([*PLAN, "--schedule", "1f2b"], "did you mean '1f1b'"),
        ([*PLAN, "--overlap", "tp"], "like tp=t3-mca"),
        ([*PLAN, "--overlap", "tp=t3,tp=dma"], "give it once"),
        ([*PLAN, "--framework", "megatron-cor"], "did you mean 'megatron-core'"),
        ([*PLAN, "--set", "memory.bandwith=1 TB/s"], "memory.bandwidth"),
        (["gpt-33", "--system", "64xa100"], "did you mean 'gpt-3'"),
        (["gpt-3", "--system", "64xa1000"], "unknown system '64xa1000'"),
    ],
)
def test_bad_input_is_one_sentence_with_what_would_work(capsys, arguments, words):
    status, out, err = run(capsys, "step", *arguments)
    assert status == 2
    assert out == ""
    assert words in err
    assert len(err.splitlines()) == 1
