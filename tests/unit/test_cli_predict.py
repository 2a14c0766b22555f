"""The `predict` commands: what they print and write, for one case and for many."""

import csv
import json

import pytest
from click.testing import CliRunner

from weft.cli.predict import predict
from weft.core.errors import InputError, UnknownNameError


def run(*arguments, group=predict):
    result = CliRunner().invoke(group, [str(word) for word in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_gpus_are_set_side_by_side_with_bound_rate_and_where_the_time_goes():
    shown = run("gemm", "8192,8192,8192", "--gpu", "h100-sxm,mi300x")
    rows = [line for line in shown.splitlines() if "8192 x 8192 x 8192" in line]
    assert [row.split()[0] for row in rows] == ["h100-sxm", "mi300x"]
    assert all("compute" in row and "█" in row and "%" in row for row in rows)


def test_json_holds_the_case_and_parts_that_add_up(tmp_path):
    run("gemm", "4096,4096,4096", "--dtype", "fp8", "--json", tmp_path / "g.json")
    (row,) = json.loads((tmp_path / "g.json").read_text())["predictions"]
    assert (row["gpu"], row["m"], row["dtype"], row["clock"]) == ("h100-sxm", 4096, "fp8", "sustained")
    parts = {name: value for name, value in row.items() if name.endswith("_us") and name != "time_us"}
    assert sum(parts.values()) == pytest.approx(row["time_us"])
    assert row["tflops"] == pytest.approx(2 * 4096**3 / row["time_us"] / 1e6)


def test_a_gemm_under_a_mask_keeps_the_librarys_tile_and_takes_more_rounds(tmp_path):
    shown = run("gemm", "4096,4096,4096", "--gpu", "mi300x", "--compute-units", 128, "--json", tmp_path / "g.json")
    assert "GEMMs on 128 compute units, long runs at the power limit" in shown
    run("gemm", "4096,4096,4096", "--gpu", "mi300x", "--json", tmp_path / "whole.json")
    few, whole = (json.loads((tmp_path / name).read_text())["predictions"][0] for name in ("g.json", "whole.json"))
    assert few["compute_units"] == 128
    assert few["time_us"] / whole["time_us"] == pytest.approx(3 ** (2 / 3), rel=0.03)  # 3 rounds at 3 ** (1 / 3)
    with pytest.raises(InputError, match="compute_units is 305, but mi300x has 304"):
        run("gemm", "4096,4096,4096", "--gpu", "mi300x", "--compute-units", 305)


def test_a_file_of_shapes_gives_a_row_each(tmp_path):
    shapes = tmp_path / "shapes.csv"
    shapes.write_text("k,m,n,dtype,other\n64,128,256,bf16,x\n4096,1,4096,fp16,y\n")
    run("gemm", "--shapes", shapes, "--gpu", "a100-sxm-80gb,b200", "--csv", tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["gpu"], row["m"], row["dtype"]) for row in rows] == [
        ("a100-sxm-80gb", "128", "bf16"),
        ("a100-sxm-80gb", "1", "fp16"),
        ("b200", "128", "bf16"),
        ("b200", "1", "fp16"),
    ]
    alone = tmp_path / "alone.json"
    run("gemm", "1,4096,4096", "--dtype", "fp16", "--gpu", "b200", "--json", alone)
    (one,) = json.loads(alone.read_text())["predictions"]
    assert float(rows[3]["time_us"]) == pytest.approx(one["time_us"])


def test_a_long_file_shows_its_beginning_and_says_how_many_more(tmp_path):
    shapes = tmp_path / "shapes.csv"
    shapes.write_text("m,n,k\n" + "512,512,512\n" * 50)
    assert "10 more rows; --json FILE or --csv FILE writes them all" in run("gemm", "--shapes", shapes)


def test_a_change_of_the_machine_changes_the_time(tmp_path):
    for name, change in (("plain", ()), ("slow", ("--set", "memory.bandwidth=1 TB/s"))):
        run("op", "gelu", "--shape", "elements=268435456", *change, "--json", tmp_path / f"{name}.json")
    plain, slow = (
        json.loads((tmp_path / f"{name}.json").read_text())["predictions"][0]["time_us"] for name in ("plain", "slow")
    )
    assert slow == pytest.approx(3.35 * plain, rel=0.02)


@pytest.mark.parametrize(
    "asked",
    [
        ("collective", "all_gather:256MiB", "--ranks", "8", "--system", "dgx-h100"),
        ("exchange", "dispatch:4096x7168,top8/256", "--ep", "8", "--system", "dgx-h100"),
    ],
)
def test_a_changed_link_changes_a_collective_and_an_exchange(tmp_path, asked):
    for name, change in (("plain", ()), ("slow", ("--set", "link.bandwidth=225 GB/s"))):
        run(*asked, *change, "--json", tmp_path / f"{name}.json")
    plain, slow = (
        json.loads((tmp_path / f"{name}.json").read_text())["predictions"][0]["time_us"] for name in ("plain", "slow")
    )
    assert 1.5 * plain < slow < 2.1 * plain


def test_collectives_over_sizes_and_systems_with_a_page(tmp_path):
    shown = run(
        "collective",
        "all_reduce:1MiB..8MiB",
        "--ranks",
        8,
        "--system",
        "dgx-h100,dgx-a100",
        "--out",
        tmp_path,
    )
    assert len([line for line in shown.splitlines() if " MiB " in line]) == 8
    assert "all_reduce over 8 GPUs" in shown
    page = (tmp_path / "report.html").read_text()
    assert page.count("<figure") == 4
    assert "bus bandwidth" in page
    assert "direct-simple" not in page
    assert "nvls" in page


def test_every_size_says_by_which_algorithm_and_files_do_too(tmp_path):
    shown = run(
        "collective",
        "allreduce:1MiB,64MiB",
        "--ranks",
        8,
        "--system",
        "dgx-h100",
        "--csv",
        tmp_path / "c.csv",
    )
    assert "all_reduce over 8 GPUs" in shown
    with (tmp_path / "c.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["by"] for row in rows] == ["ring-ll", "nvls"]
    assert all(row["by"] in shown for row in rows)
    assert "copy engines" in run("collective", "all_gather:1MiB", "--ranks", 8, "--system", "mi300x-x8", "--dma")


def test_a_profile_of_the_library_may_come_from_a_file(tmp_path):
    profile = tmp_path / "mine.toml"
    slow = '{ value = "900 us", kind = "assumed", low = "1 us", high = "1 ms", source = "a test" }'
    extended = f'extends = "nccl-h100"\n[nvls]\nlaunch = {slow}\n'
    profile.write_text(extended)
    times = []
    for given in ([], ["--library", profile]):
        run(
            "collective",
            "all_reduce:64MiB",
            "--ranks",
            8,
            "--system",
            "dgx-h100",
            *given,
            "--json",
            tmp_path / "c",
        )
        times.append(json.loads((tmp_path / "c").read_text())["predictions"][0]["time_us"])
    assert times[1] > times[0] + 500


def test_a_bound_that_is_not_the_largest_part_is_explained_under_the_table():
    small = run("gemm", "128,128,128", "--gpu", "mi300x")
    assert "bound latency: latency, fill and split together" in small
    assert "bound " not in run("gemm", "8192,8192,8192").replace("  bound  ", "")


def test_operators_are_written_as_csv_as_well(tmp_path):
    run("op", "gelu", "--shape", "elements=1048576", "--gpu", "h100-sxm,mi300x", "--csv", tmp_path / "o.csv")
    with (tmp_path / "o.csv").open(newline="") as file:
        assert [row["gpu"] for row in csv.DictReader(file)] == ["h100-sxm", "mi300x"]


def test_collective_json_holds_bytes_and_bandwidths(tmp_path):
    run(
        "collective",
        "reduce_scatter:64MiB",
        "--ranks",
        4,
        "--system",
        "hgx-a100-4",
        "--json",
        tmp_path / "c.json",
    )
    (row,) = json.loads((tmp_path / "c.json").read_text())["predictions"]
    assert row["bytes"] == 64 * 2**20
    assert row["busbw_gbs"] == pytest.approx(0.75 * row["algbw_gbs"])
    assert row["algbw_gbs"] == pytest.approx(row["bytes"] / row["time_us"] / 1e3)


def test_ranks_on_more_nodes_go_through_the_network(tmp_path):
    times = []
    for nodes in (1, 2):
        file = tmp_path / f"{nodes}.json"
        run(
            "collective",
            "all_reduce:64MiB",
            "--ranks",
            8,
            "--system",
            "dgx-h100",
            "--nodes",
            nodes,
            "--json",
            file,
        )
        times.append(json.loads(file.read_text())["predictions"][0])
    assert times[1]["time_us"] > times[0]["time_us"]
    assert times[1]["network_us"] > 0


def test_operators_are_listed_and_shown_with_bandwidth():
    listed = run("ops")
    assert "layernorm" in listed
    assert "rows, columns" in listed
    shown = run("op", "layernorm", "--shape", "rows=16384,columns=4096", "--gpu", "a100-sxm-80gb")
    row = next(line for line in shown.splitlines() if "a100-sxm-80gb" in line)
    assert "memory" in row
    assert "[kv_heads=0], [causal=0]" in " ".join(listed.split())


def test_attention_shows_the_rate_at_which_it_multiplies(tmp_path):
    shape = "batch=8,heads=32,query=2048,keys=2048,head=128"
    shown = run("op", "attention_fused", "--shape", shape, "--json", tmp_path / "a.json")
    assert "TFLOP/s" in shown
    (row,) = json.loads((tmp_path / "a.json").read_text())["predictions"]
    assert row["tflops"] == pytest.approx(4 * 8 * 32 * 2048 * 2048 * 128 / row["time_us"] / 1e6)


def test_a_shape_that_is_no_assignment_is_refused():
    with pytest.raises(InputError, match="'rows' gives no dimension a whole number"):
        run("op", "softmax", "--shape", "rows")


def test_a_layer_shows_each_operator_and_the_total(tmp_path):
    shown = run(
        "layer", "--model", "gpt-3", "--tp", 4, "--batch", 8, "--sequence", 2048, "--system", "hgx-a100-4",
        "--attention", "batched", "--json", tmp_path / "l.json",
    )  # fmt: skip
    for word in ("Q_K_V", "AllReduce_FFN", "total", "share"):
        assert word in shown
    record = json.loads((tmp_path / "l.json").read_text())
    assert len(record["operators"]) == 12


def test_layers_on_several_systems_are_one_table_each(tmp_path):
    files = ("--json", tmp_path / "l.json", "--csv", tmp_path / "l.csv")
    shown = run(
        "layer", "--model", "gpt-3", "--tp", 8, "--system", "dgx-a100,dgx-h100", "--attention", "batched", *files
    )
    assert shown.count("total") == 2
    layers = json.loads((tmp_path / "l.json").read_text())["layers"]
    assert [one["system"] for one in layers] == ["dgx-a100", "dgx-h100"]
    assert layers[1]["time_us"] < layers[0]["time_us"]
    with (tmp_path / "l.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["system"] for row in rows] == 12 * ["dgx-a100"] + 12 * ["dgx-h100"]


def test_a_layer_takes_another_gpu_in_the_place_of_the_systems_own(tmp_path):
    slow = tmp_path / "slow.toml"
    leaf = '{value = "1 TB/s", kind = "assumed", source = "a test", low = "1 TB/s", high = "2 TB/s"}'
    slow.write_text(f'extends = "h100-sxm"\n[memory]\nbandwidth = {leaf}\n')
    times = []
    for given in ([], ["--gpu", slow], ["--set", "memory.bandwidth=1 TB/s"]):
        case = ("--model", "gpt-3", "--tp", 8, "--system", "dgx-h100", "--phase", "decode")
        run("layer", *case, *given, "--json", tmp_path / "l.json")
        times.append(json.loads((tmp_path / "l.json").read_text())["time_us"])
    assert times[1] > 1.5 * times[0]
    assert times[2] == pytest.approx(times[1])


@pytest.mark.parametrize(
    "case",
    [
        ("gemm", "8,8,8"),
        ("op", "gelu", "--shape", "elements=8"),
        ("layer", "--model", "gpt-3", "--system", "h100"),
    ],
)
def test_a_data_type_may_be_written_in_capitals(case):
    assert "bf16" in run(*case, "--dtype", "BF16").replace("BF16", "")


def test_heads_that_do_not_divide_are_said_under_the_table():
    shown = run("layer", "--model", "t-nlg", "--tp", 8, "--system", "mi300x-x8")
    assert "note: 28 heads do not divide by TP 8: the times are those of a GPU with 4" in shown


@pytest.mark.parametrize("arguments", [["gemm"], ["gemm", "1,2"], ["gemm", "1,2,3", "--shapes", __file__]])
def test_a_gemm_needs_one_shape_or_one_file(arguments):
    with pytest.raises(InputError, match="8192,8192,8192"):
        run(*arguments)


@pytest.mark.parametrize("command", ["gemm", "collective", "op", "ops", "layer"])
def test_every_help_has_an_example(command):
    assert "weft predict " in run(command, "--help")


def test_unknown_names_are_left_to_the_root_command_to_say():
    with pytest.raises(UnknownNameError):
        run("op", "sofmax")
    with pytest.raises(UnknownNameError):
        run("collective", "all_reduc:1MiB", "--ranks", 8, "--system", "dgx-h100")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ((), "with the protocol and algorithm that the library would choose."),
        (("--algorithm", "ring-ll128"), "with the algorithm that was asked for, ring-ll128."),
        (("--library", "vllm-custom"), "with vllm-custom's own kernels."),
    ],
)
def test_a_collective_says_who_chose_its_algorithm(asked, said):
    out = run("collective", "all_reduce:64KiB", "--ranks", 8, "--system", "dgx-h100", *asked)
    assert f"Predicted in closed form, {said}" in out
