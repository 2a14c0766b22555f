"""`weft plan`: what it prints and writes, how it limits the search, and how it refuses."""

from __future__ import annotations

import json
import tomllib

import pytest

from weft.cli.main import main

PLAN = ["plan", "gpt-3", "--system", "64xa100", "--batch", "64", "--refine", "0", "--fix", "tp=8", "--fix", "sp=yes"]
FEW = [*PLAN, "--fix", "pp=8", "--fix", "schedule=1f1b", "--fix", "micro_batch=1,2", "--fix", "recompute=full"]


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    printed = capsys.readouterr()
    return left.value.code, printed.out, printed.err


def test_the_answer_leads_with_the_plan_and_says_how_to_start_it(capsys):
    status, out, _ = run(capsys, *FEW, "--launch", "megatron")
    assert status == 0
    lines = out.splitlines()
    assert lines[0].startswith("Run GPT-3 on 64 GPUs of dgx-a100 with TP 8, PP 8, ")
    command = out[out.index("torchrun") :]
    assert "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 8" in command
    assert any(line.endswith("--lr 1e-4") for line in lines)


def test_json_has_the_plans_best_first_and_what_was_searched(capsys):
    status, out, _ = run(capsys, *FEW, "--json", "-")
    found = json.loads(out)
    assert status == 0
    times = [one["step_time_s"] for one in found["plans"]]
    assert times == sorted(times)
    assert {one["micro_batch"] for one in found["plans"]} == {1, 2}
    for one in found["plans"]:
        assert one["feasible"]
        assert one["peak_bytes"] <= one["capacity_bytes"]
        assert "of the step" in one["why"]
        assert one["tp"] * one["pp"] * one["cp"] * one["dp"] == 64
    assert found["searched"] == len(found["plans"]) + sum(found["rejected"].values())
    assert found["wall_s"] > 0


def test_out_holds_the_page_the_plans_and_what_starts_the_best(capsys, tmp_path):
    status, _, _ = run(
        capsys, *FEW, "--launch", "megatron", "--out", str(tmp_path / "out"), "--csv", str(tmp_path / "a.csv")
    )
    assert status == 0
    assert sorted(file.name for file in tmp_path.glob("out/*")) == ["launch.sh", "plans.json", "report.html"]
    assert (tmp_path / "out/launch.sh").read_text().startswith("export CUDA_DEVICE_MAX_CONNECTIONS=1")
    assert "torchrun" in (tmp_path / "out/report.html").read_text()
    assert (tmp_path / "a.csv").read_text().startswith("rank,tp,pp,")
    assert json.loads((tmp_path / "out/plans.json").read_text())["launch"].count("torchrun") == 1


@pytest.mark.parametrize(("launcher", "name"), [("torchtitan", "launch.toml"), ("deepspeed", "launch.json")])
def test_other_launchers_get_their_own_file(capsys, tmp_path, launcher, name):
    more = ["--fix", "dp=8", "--fix", "zero=3", "--fix", "recompute=full", "--fix", "micro_batch=1", "--top", "2"]
    small = ["plan", "llama-2-7b", "--system", "dgx-h100", "--batch", "64", "--refine", "0", "--launch", launcher]
    status, out, _ = run(capsys, *small, *more, "--out", str(tmp_path))
    assert status == 0
    text = (tmp_path / name).read_text()
    assert text in out
    if launcher == "torchtitan":
        assert tomllib.loads(text)["parallelism"]["data_parallel_shard_degree"] == 8
    else:
        assert json.loads(text)["zero_optimization"]["stage"] == 3


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--objective", "joy"], "'joy' is not one of 'tokens/s', 'memory', 'cost'"),
        (["--fix", "tp"], "--fix tp: name a field and its value"),
        (["--fix", "tp=4"], "--fix gives tp twice"),
        (["--fix", "tpp=4"], "tpp"),
        (["--fix", "pp=16"], "fix asks for tp 8 x pp 16, which takes 128 GPUs"),
        (["--fix", "batch=3"], "give it as the argument batch"),
        (["--fix", "schedule=zb-h1", "--fix", "pp=8", "--launch", "megatron"], "megatron cannot run it"),
        (["--launch", "slurm"], "'slurm' is not one of"),
    ],
)
def test_contradictions_are_refused_in_one_sentence_and_nothing_is_written(capsys, tmp_path, more, said):
    status, out, err = run(capsys, *PLAN, *more, "--out", str(tmp_path / "out"))
    assert status == 2
    assert said in err
    assert err.count("\n") == 1
    assert out == ""
    assert not list(tmp_path.glob("out/*"))


def test_a_model_that_no_plan_fits_names_the_gpus_that_would_hold_it(capsys, tmp_path):
    tight = ["plan", "gpt-3", "--system", "8xa100", "--batch", "64", "--refine", "0", "--fix", "tp=8", "--fix", "cp=1"]
    less = ["--fix", "micro_batch=1", "--fix", "recompute=full", "--fix", "sp=yes", "--fix", "schedule=1f1b"]
    status, _, err = run(capsys, *tight, *less, "--framework", "megatron-core", "--out", str(tmp_path / "out"))
    assert status == 2
    assert "GPUs would hold it, as with tp 8" in err
    assert not list(tmp_path.glob("out/*"))
