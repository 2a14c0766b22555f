"""`weft validate` and `weft calibrate`: what they print, what they write, and how bad input ends."""

import json
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from estimates import gemm

from weft import hardware
from weft.cli import main as cli
from weft.lab.command import KINDS
from weft.lab.tables import Kind

SLOWER = {"achieved.matrix_bf16": 0.7, "achieved.gemm_memory": 0.6}


@pytest.fixture
def weft(capsys):
    """Runs `weft ARGUMENTS`: exit status, output and error output."""

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            cli.main([*map(str, arguments)])
        return left.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def measurements(tmp_path):
    """GEMMs of a slower H100, which the model of it predicts but for 3 % of noise."""
    random = np.random.default_rng(3)
    gpu = hardware.gpu("h100-sxm").replace({path: str(value) for path, value in SLOWER.items()})
    m, n, k = (2 ** random.integers(6, 14, 240) for _ in range(3))
    seconds = gemm(m, n, k, "bf16", gpu).seconds * np.exp(random.normal(0, 0.03, 240))
    lines = [f"h100-sxm,bf16,{a},{b},{c},{t * 1e6:.6g}" for a, b, c, t in zip(m, n, k, seconds, strict=True)]
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "gemm.csv").write_text("\n".join(["gpu,dtype,m,n,k,time_us", *dict.fromkeys(lines), ""]))
    return folder


def test_the_kinds_in_the_help_are_those_that_there_are():
    assert get_args(Kind) == KINDS


def test_validate_prints_groups_worst_rows_and_problems(weft, measurements):
    with (measurements / "gemm.csv").open("a") as file:
        file.write("h100-sxm,bf16,64,64,64,-5\n")
    status, out, _ = weft("validate", "--data", measurements)
    assert status == 0
    for words in ("rows have a prediction", "h100-sxm   bf16", "Rows that are furthest off", "gemm.csv:"):
        assert words in out
    assert "time_us '-5': this must be greater than zero; the row is left out" in out


def test_validate_writes_json_a_page_and_pictures(weft, measurements, tmp_path):
    out = tmp_path / "out"
    status, _, _ = weft("validate", "--data", measurements, "--json", tmp_path / "v.json", "--out", out)
    assert status == 0
    data = json.loads((tmp_path / "v.json").read_text())
    assert data["groups"][0]["gpu"] == "h100-sxm"
    assert {file.name for file in out.iterdir()} == {
        "report.html", "validation.json", "gemm-predicted.png", "gemm-error.png",
    }  # fmt: skip
    assert "models against measurements" in (out / "report.html").read_text()


def test_calibrate_finds_the_machine_behind_the_rows_and_its_file_serves(weft, measurements, tmp_path):
    file, fit = tmp_path / "mine.toml", tmp_path / "fit.json"
    status, out, _ = weft(
        "calibrate", "--data", measurements / "gemm.csv", "--gpu", "h100-sxm", "--out", file, "--json", fit
    )
    assert status == 0
    assert "Errors on the rows that the fit did not see" in out
    found = json.loads(fit.read_text())
    for one in found["parameters"]:
        if one["path"] in SLOWER:
            assert one["value"] == pytest.approx(SLOWER[one["path"]], rel=0.05)
    assert found["held_out_after"]["mean_abs_err"] < 0.05 < found["held_out_before"]["mean_abs_err"]
    own = hardware.gpu(str(file))
    assert own.provenance["achieved.matrix_bf16"].kind == "calibrated"
    assert "rows held out the mean error is" in own.provenance["achieved.matrix_bf16"].source
    status, out, _ = weft("validate", "--data", measurements, "--gpu", file)
    assert status == 0
    assert "240" in out or "rows have a prediction" in out


def test_a_fit_never_replaces_the_file_that_it_extends(weft, measurements, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("extends = 'h100-sxm'\naliases = ['h100-sxm']\ntitle = 'Mine, calibrated'\n")
    before = file.read_text()
    status, _, err = weft("calibrate", "--data", measurements, "--gpu", file, "--out", file)
    assert status == 2
    assert "is the file of --gpu, which the fitted file extends; write to another file" in err
    assert file.read_text() == before
    other = tmp_path / "other.toml"
    assert weft("calibrate", "--data", measurements, "--gpu", file, "--out", other)[0] == 0
    assert hardware.gpu(str(other)).title == "Mine, calibrated"


def test_calibrate_says_when_the_start_was_fitted_before_and_when_the_fit_made_it_worse(
    weft, measurements, monkeypatch
):
    from weft.lab import catalog

    whole = catalog.calibrate_subject

    def worse(*arguments):
        done = whole(*arguments)
        return replace(done, before=done.after, after=replace(done.before, mean_abs_err=0.9))

    _, out, _ = weft("calibrate", "--data", measurements, "--gpu", "h100-sxm")
    assert "values of h100-sxm were calibrated before" in out
    assert "further off" not in out
    monkeypatch.setattr(catalog, "calibrate_subject", worse)
    _, out, _ = weft("calibrate", "--data", measurements, "--gpu", "h100-sxm")
    assert "after the fit the rows held out are further off" in out
    assert "90.0% after): keep h100-sxm as it is" in out


def test_calibrate_is_reproducible(weft, measurements, tmp_path):
    texts = []
    for name in ("one.toml", "two.toml"):
        assert weft("calibrate", "--data", measurements, "--gpu", "h100-sxm", "--out", tmp_path / name)[0] == 0
        texts.append((tmp_path / name).read_text().replace("two", "one"))
    assert texts[0] == texts[1]


def test_too_few_rows_say_how_many_are_needed(weft, measurements):
    file = measurements / "gemm.csv"
    file.write_text("\n".join(file.read_text().splitlines()[:9]) + "\n")
    status, _, err = weft("calibrate", "--data", file, "--gpu", "h100-sxm")
    assert status == 2
    assert "rows are too few to fit any parameter: 'achieved." in err
    assert "rows that depend on it and has" in err


def test_a_gpu_of_a_file_goes_by_its_own_name_in_groups(weft, measurements, tmp_path):
    (tmp_path / "mine.toml").write_text("extends = 'h100-sxm'\naliases = ['h100-sxm']\n")
    (tmp_path / "same.toml").write_text("extends = 'h100-sxm'\nname = 'h100-sxm'\n")
    for file, label in (("mine.toml", "mine "), ("same.toml", "h100-sxm (same.toml)")):
        _, out, _ = weft("validate", "--data", measurements, "--gpu", tmp_path / file)
        groups = out[out.index("Errors of each group") : out.index("Rows that are furthest off")]
        assert f" {label}" in groups
        assert ("h100-sxm  " in groups) is False


def test_a_gpus_file_is_no_library_and_measurements_are_no_gpu(weft, measurements, tmp_path):
    gpu, data = tmp_path / "mine.toml", measurements / "gemm.csv"
    gpu.write_text("extends = 'h100-sxm'\n")
    status, _, err = weft("validate", "--data", data, "--library", gpu)
    assert status == 2
    assert "mine.toml' describes a GPU, not a library profile; name it with --gpu" in err
    status, _, err = weft("validate", "--data", data, "--gpu", data)
    assert status == 2
    assert "gemm.csv' is no GPU; a file that describes one ends in .toml" in err
    assert "gemm.csv' is no GPU" in weft("calibrate", "--data", data, "--gpu", data)[2]
    status, _, err = weft("validate", "--data", data, "--library", tmp_path / "none.toml")
    assert status == 2
    assert "none.toml" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("validate", "--data", "nowhere"), "the folder of measurements 'nowhere' does not exist"),
        (("validate", "--kinds", "gems"), "unknown kind of measurement 'gems'; known: gemm"),
        (("validate", "--gpu", "h100-smx"), "unknown GPU 'h100-smx'"),
        (("calibrate",), "name either a --gpu or a --system to calibrate"),
        (("calibrate", "--gpu", "b200", "--system", "dgx-h100"), "name either a --gpu or a --system"),
        (("calibrate", "--gpu", "b200", "--holdout", "30"), "'--holdout': 30.0 is not in the range 0<x<1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_ends_in_one_sentence(weft, measurements, monkeypatch, arguments, sentence):
    monkeypatch.setenv("WEFT_DATA", str(measurements))
    status, _, err = weft(*arguments)
    assert status == 2
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_the_bar_needs_no_training_steps(weft, tmp_path):
    rows = tmp_path / "nccl_tuning.csv"
    rows.write_text(
        "collective,algorithm,nodes,gpus_per_node,protocol,latency_us,bandwidth_gb_s\n"
        "all_gather,ring,2,8,simple,70.0,409.6\nall_gather,ring,2,8,ll128,44.6,313.2\n"
    )
    status, shown, _ = weft("validate", "--data", rows, "--bar")
    assert status == 0
    assert "NCCL's own cost model over nodes" in shown
