import json

import pytest
from click.testing import CliRunner

from weft import hardware as machines
from weft.cli.catalogues import hardware
from weft.cli.main import main
from weft.cli.simulate import sublayer
from weft.core.errors import InputError, OutputError, UnknownNameError


def run(*arguments):
    result = CliRunner().invoke(hardware, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_list_shows_every_gpu_and_system_in_a_row():
    lines = run("list").splitlines()
    for name in (*machines.gpu_names(), *machines.node_names()):
        assert any(line.split()[:1] == [name] for line in lines), name
    row = next(line for line in lines if line.split()[:1] == ["h100-sxm"])
    for word in ("132", "989", "85.5 GB", "3.35 TB/s", "50 MiB", "18 x, 450 GB/s"):
        assert word in row


def test_the_list_as_json_holds_base_units():
    entries = {entry["name"]: entry for entry in json.loads(run("list", "--json"))}
    assert entries["mi300x"]["kind"] == "gpu"
    assert entries["mi300x"]["peak_flops"]["bf16"] == pytest.approx(1307.4e12, rel=1e-3)
    assert "fp8" not in entries["mi210"]["peak_flops"]
    assert entries["p4de"]["kind"] == "system"
    assert entries["p4de"]["network"]["bandwidth"] == 6.25e9


def test_a_system_is_shown_with_its_gpu_links_and_sources():
    shown = run("show", "mi250x-x8")
    assert "Its GPU: mi250x-gcd" in shown
    assert "0 1 4; 2 3 4" in shown
    assert "Slingshot 11" in shown


def test_a_system_as_json_is_plain_data():
    system = json.loads(run("show", "dgx-h100", "--json"))
    values = {value["path"]: value for value in system["values"]}
    assert (values["network.bandwidth"]["value"], values["network.bandwidth"]["unit"]) == (50e9, "bytes/s")
    assert values["switch_reduces"]["value"] is True
    assert all(value["source"] for value in values.values())


def test_a_gpu_is_shown_by_its_other_names():
    assert run("show", "A100-SXM4-80GB").startswith("a100-sxm-80gb: ")


def test_a_file_is_shown_as_what_it_describes(tmp_path):
    (tmp_path / "gpu.toml").write_text("extends = 'h100-sxm'\n")
    (tmp_path / "node.toml").write_text("extends = 'dgx-h100'\ngpus_per_node = 4\n")
    (tmp_path / "again.toml").write_text("extends = 'node.toml'\n")
    assert "compute.compute_units" in run("show", "--all", str(tmp_path / "gpu.toml"))
    for name in ("node", "again"):
        assert "gpus_per_node" in run("show", str(tmp_path / f"{name}.toml"))


def test_a_gpu_is_shown_in_few_lines_and_all_values_on_request():
    shown = run("show", "h100-sxm")
    assert len(shown.splitlines()) < 20
    for part in ("132 SMs", "bf16 989.4", "85.5 GB, 3.35 TB/s", "18 links, 450 GB/s each way", "--all"):
        assert part in shown
    values = run("show", "h100-sxm", "--all")
    assert "4096 FLOP per clock and unit, 989.4 TFLOP/s" in values
    assert f"{sum('assumed' in line for line in values.splitlines())} assumed" in shown


def test_a_form_is_written_once_and_read_back(tmp_path):
    path = tmp_path / "mine.toml"
    assert f"weft hardware show {path}" in run("new", "--like", "h100-sxm", "--out", str(path))
    path.write_text(path.read_text().replace('bandwidth = "3.352 TB/s"', 'bandwidth = "22 TB/s"'))
    assert "check memory.channels" in run("show", str(path))
    with pytest.raises(OutputError, match="exists already; name another file by --out"):
        CliRunner().invoke(hardware, ["new", "--like", "h100-sxm", "--out", str(path)], catch_exceptions=False)


def test_a_doubtful_machine_is_questioned_beside_the_answer(capsys):
    with pytest.raises(SystemExit):
        main(["predict", "collective", "all_reduce:1MiB", "--ranks", "8", "--system", "8xb200"])
    assert "note:" not in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["decode", "llama-3-8b", "--system", "8xb200", "--tp", "8", "--set", "rates.bf16=4500"])
    assert "for 4500 TFLOP/s of the whole GPU write '4500 TFLOP/s'" in capsys.readouterr().err


def test_an_unknown_name_is_compared_with_gpus_and_systems():
    with pytest.raises(UnknownNameError, match=r"unknown system 'dgx-h101'.*did you mean 'dgx-h100'"):
        CliRunner().invoke(hardware, ["show", "dgx-h101"], catch_exceptions=False)


def test_a_system_is_shown_by_what_rows_call_it():
    assert run("show", "8xH100").startswith("dgx-h100: ")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("dgx-h100", "'dgx-h100' is a system, not a GPU; its GPU is h100-sxm"),
        ("gemm.csv", "'gemm.csv' is no GPU; a file that describes one ends in .toml"),
        ("h100-smx", "unknown GPU 'h100-smx'"),
    ],
)
def test_what_is_no_gpu_is_told_as_what_it_is(name, sentence):
    with pytest.raises(InputError, match=sentence):
        machines.gpu(name)


def test_a_data_type_may_be_in_capitals(tmp_path):
    context = sublayer.make_context("weft", ["--dtype", "BF16", "--out", str(tmp_path)])
    assert context.params["dtype"] == "bf16"
