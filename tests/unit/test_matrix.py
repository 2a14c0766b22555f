"""Sweeps of a question in a file: rows, reasons, shards, tables, and what is refused."""

import csv
import gzip
import hashlib
import json
import math
import os

import pytest

import weft
from weft.core import files
from weft.core.errors import ConfigError, InputError, UnknownNameError
from weft.core.store.task import as_json
from weft.sweep import matrix, questions
from weft.sweep.matrix import axis_of
from weft.sweep.run import sweep_file
from weft.sweep.shards import merge_shards

GEMM = {"run": "estimate", "gemm": "512,512,512", "system": "h100-sxm"}
STEP = {"run": "step", "model": "gpt-3", "system": "64xa100", "batch": 64, "fidelity": "estimate", "pp": 8}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "gemm.toml"
    path.write_text('run = "estimate"\ngemm = "512,512,512"\nsystem = "h100-sxm"\n[vary]\ndtype = ["bf16", "fp8"]\n')
    return path


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("tp=1,2,8", (1, 2, 8)),
        ("batch=64:512:x2", (64, 128, 256, 512)),
        ("pp=2:8:+3", (2, 5, 8)),
        ("link.bandwidth=100 GB/s:400 GB/s:x2", ("100 GB/s", "200 GB/s", "400 GB/s")),
        ("schedule=1f1b,interleaved:2", ("1f1b", "interleaved:2")),
        ("gemm=8,8,8;4,4,4", ("8,8,8", "4,4,4")),
        ("sp=true,false", (True, False)),
        ("system=dgx-h100,2x hgx-b200", ("dgx-h100", "2x hgx-b200")),
    ],
)
def test_values_are_lists_and_ranges_with_both_ends(text, values):
    assert axis_of(text)[1] == values


@pytest.mark.parametrize("text", ["tp", "tp=", "=1", "a=1:8:x1", "a=0:8:x2", "a=1 GB/s:8 GiB/s:x2"])
def test_a_text_that_varies_nothing_is_refused(text):
    with pytest.raises(InputError, match=r"varies nothing|is no range"):
        axis_of(text)


def test_every_combination_is_a_row_with_its_inputs_and_version(file):
    found = list(sweep_file(file, {"memory.bandwidth": ["2 TB/s", "4 TB/s"]}))
    assert [(row["dtype"], row["memory.bandwidth"]) for row in found] == [
        ("bf16", "2 TB/s"), ("bf16", "4 TB/s"), ("fp8", "2 TB/s"), ("fp8", "4 TB/s"),
    ]  # fmt: skip
    assert {(row["gemm"], row["system"], row["weft"]) for row in found} == {
        ("512,512,512", "h100-sxm", weft.__version__)
    }
    slow = weft.system("h100-sxm").replace({"memory.bandwidth": "2 TB/s"})
    assert found[0]["seconds"] == weft.estimate(weft.gemm(512, 512, 512, "bf16"), slow).seconds


def test_a_combination_that_does_not_work_is_a_row_with_the_reason():
    works, not_ = sweep_file(STEP, {"tp": [8, 3]})
    assert (works["why"], works["plan.dp"]) == ("", 1)
    assert works["seconds"] == weft.step("gpt-3", "64xa100", tp=8, pp=8, batch=64, fidelity="estimate").seconds
    assert not_["why"].startswith("the plan tp 3 x pp 8 takes 24 GPUs a replica")
    assert "seconds" not in not_


def test_the_summary_has_the_best_first_and_counts_reasons():
    found = sweep_file({**STEP, "batch": 256}, {"tp": [3, 8], "recompute": ["none", "full"]}).summary
    assert (found.rows, list(found.reasons.values())) == (4, [2])
    assert [row["seconds"] for row in found.best] == sorted(row["seconds"] for row in found.best)


@pytest.mark.parametrize("question", [
    {"run": "memory", "model": "gpt-3", "system": "64xa100", "tp": 8, "pp": 8, "batch": 64},
    {"run": "estimate", "collective": "all_reduce:1MiB", "ranks": 8, "system": "dgx-h100"},
    {"run": "estimate", "work": "t-nlg/fc2", "tp": 8, "system": "dgx-h100"},
    {"run": "simulate", "gemm": [256, 256, 64], "tp": 2, "system": "t3-paper", "overlap": "t3"},
    {"run": "simulate", "gemm": [512, 512, 64], "collective": "all_reduce:64KiB", "ranks": 4, "loops": [1, 1],
     "system": "dgx-h100", "overlap": "streams"},
])  # fmt: skip
def test_each_kind_of_question_is_answered(question):
    (row,) = sweep_file(question, cache=False)
    assert row["why"] == ""
    assert row["peak_bytes" if question["run"] == "memory" else "seconds"] > 0


@pytest.mark.parametrize(
    ("question", "vary", "error", "words"),
    [
        ({"model": "gpt-3"}, {}, ConfigError, "'run' is missing"),
        ({**STEP, "run": "stpe"}, {}, UnknownNameError, "did you mean 'step'"),
        ({**STEP, "modle": "x"}, {}, ConfigError, "modle: unknown key; did you mean 'model'"),
        (STEP, {"tpp": [1]}, ConfigError, "tpp: unknown key; did you mean 'tp'"),
        (STEP, {"link.bandwith": ["1 GB/s"]}, ConfigError, "did you mean 'link.bandwidth'"),
        (STEP, {"link.bandwidth": [300]}, ConfigError, "has no unit"),
        (STEP, {"tp": ["many"]}, ConfigError, "tp: 'many' cannot be used"),
        (STEP, {"tp": []}, InputError, "tp varies over an empty list"),
        (STEP, {"system": ["dgx-h10"]}, UnknownNameError, "unknown system 'dgx-h10'"),
        (STEP, {"model": ["gtp-3"]}, UnknownNameError, "unknown model 'gtp-3'"),
        ({**GEMM, "collective": "all_reduce:1MiB"}, {}, None, "takes one of"),
    ],
)
def test_bad_questions_are_one_sentence(question, vary, error, words):
    if error is None:
        assert words in next(iter(sweep_file(question, vary)))["why"]
        return
    with pytest.raises(error, match=words):
        sweep_file(question, vary)


def test_what_has_been_run_is_not_run_again(tmp_path):
    told = []
    sweep_file(GEMM, {"dtype": ["bf16"]}, out=tmp_path / "runs")
    sweep_file(GEMM, {"dtype": ["bf16"]}, out=tmp_path / "runs", progress=lambda *said: told.append(said))
    assert told == [(1, 1, "1 cached")]


def test_shards_part_the_runs_and_merge_into_the_whole_table(tmp_path):
    vary = {"gemm": [[64 * size, 512, 512] for size in range(1, 13)]}
    whole = sweep_file(GEMM, vary, out=tmp_path / "whole.csv")
    parts = [sweep_file(GEMM, vary, shard=(index, 3), out=tmp_path / str(index)) for index in (1, 2, 3)]
    assert sum(map(len, parts)) == len(whole) == 12
    assert all(0 < len(part) < 12 for part in parts)
    merge_shards([tmp_path / "2", tmp_path / "3", tmp_path / "1"], tmp_path / "merged.csv")
    assert (tmp_path / "merged.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_a_merge_says_what_is_missing_and_writes_nothing(tmp_path):
    vary = {"gemm": [[64 * size, 512, 512] for size in range(1, 9)]}
    for index in (1, 2):
        sweep_file(GEMM, vary, shard=(index, 2), out=tmp_path / str(index))
    next((tmp_path / "1" / "runs").glob("??/*.gz")).unlink()
    with pytest.raises(
        InputError, match=r"of 8 runs are missing: 1 of shard 1/2; \d of shard 2/2, whose folder is not"
    ):
        merge_shards([tmp_path / "1"], tmp_path / "table.csv")
    assert not (tmp_path / "table.csv").exists()


def test_shards_of_other_questions_or_versions_are_not_merged(tmp_path):
    for name, dtype in (("one", "bf16"), ("other", "fp16")):
        sweep_file({**GEMM, "dtype": dtype}, out=tmp_path / name)
    with pytest.raises(InputError, match=r"'.*other' holds a sweep of another question than '.*one'"):
        merge_shards([tmp_path / "one", tmp_path / "other"])
    manifest = tmp_path / "other" / "sweep.json"
    ours = (tmp_path / "one" / "sweep.json").read_text()
    manifest.write_text(ours.replace('"code": "', '"code": "0'))
    with pytest.raises(InputError, match="holds runs of other sources of Weft"):
        merge_shards([tmp_path / "one", tmp_path / "other"])
    with pytest.raises(InputError, match="holds runs of other sources of Weft"):
        sweep_file({**GEMM, "dtype": "bf16"}, out=tmp_path / "other")
    with pytest.raises(InputError, match="holds no shard of a sweep"):
        merge_shards([tmp_path])


def test_a_folder_of_another_sweep_is_left_alone(tmp_path):
    sweep_file(GEMM, out=tmp_path / "runs")
    with pytest.raises(InputError, match="holds a sweep of another question; name another folder"):
        sweep_file(GEMM, {"dtype": ["fp16"]}, out=tmp_path / "runs")


def test_a_shard_needs_a_folder_and_a_number_within(tmp_path):
    with pytest.raises(InputError, match="shard 1/2 needs a folder"):
        sweep_file(GEMM, shard=(1, 2))
    with pytest.raises(InputError, match="shard 3/2 is none of 2"):
        sweep_file(GEMM, shard=(3, 2), out=tmp_path / "runs")


def test_parquet_and_csv_hold_the_same_rows(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    found = sweep_file(STEP, {"tp": [3, 8]}, out=tmp_path / "table.parquet")
    found.save(tmp_path / "table.csv")
    table = pandas.read_parquet(tmp_path / "table.parquet")
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert list(table) == list(rows[0]) == found.columns.names
    assert float(rows[1]["seconds"]) == table["seconds"][1] == list(found)[1]["seconds"]
    assert rows[0]["seconds"] == ""
    assert table["fits"].isna().tolist() == [True, False]


def test_a_file_that_changes_is_another_question(tmp_path):
    gpu = tmp_path / "mine.toml"
    answers = []
    for rate in ("2 TB/s", "4 TB/s"):
        gpu.write_text(f'extends = "h100-sxm"\nname = "mine"\nsource = "us"\n[memory]\nbandwidth = "{rate}"\n')
        questions._named_system.cache_clear()
        matrix.digest_of.cache_clear()
        (row,) = sweep_file({**GEMM, "gemm": "8192,64,8192", "system": str(gpu)}, out=tmp_path / rate[0])
        answers.append(row["seconds"])
    assert answers[0] > answers[1]
    with pytest.raises(InputError, match="another question"):
        merge_shards([tmp_path / "2", tmp_path / "4"])


def test_the_answer_shows_itself(tmp_path):
    found = sweep_file(GEMM, {"gemm": ["512,512,512", "1024,512,512"], "memory.bandwidth": ["2 TB/s", "4 TB/s"]})
    assert len(found.to_dict()["rows"]) == 4
    assert len(found.plot().data["curves"].rows) == 4
    page = found.save(tmp_path / "page.html").read_text()
    assert "4 of 4 combinations run" in page


STEPS = {"run": "step", "model": "llama-3-8b", "system": "64xh100", "batch": 64, "fidelity": "estimate"}


def test_the_axis_with_most_values_is_drawn_across():
    found = sweep_file(STEPS, {"link.bandwidth": ["300 GB/s", "450 GB/s", "900 GB/s"], "tp": [2, 8]})
    assert found.scale[0] == "link.bandwidth"
    figure = found.plot().data["curves"]
    assert figure.distinct("value") == [300, 450, 900]
    assert figure.distinct("series") == ["tp 2", "tp 8"]


def test_more_combinations_than_colours_are_a_heat_map_of_the_best_over_each_two_axes():
    found = sweep_file(
        STEPS, {"tp": [1, 2, 4, 8], "pp": [1, 2, 4], "micro_batch": [1, 2], "recompute": ["none", "full"]}
    )
    cells = found.plot().data["cells"]
    assert (cells.rows[0][0], cells.rows[0][1]) == ("tp", "pp")
    (cell,) = [row for row in cells.rows if row[:4] == ("tp", "pp", "tp 8", "pp 2")]
    fits = [point for point in found if not point.why and point["fits"] and point.values[:2] == (8, 2)]
    assert cell[4] == pytest.approx(min(point.seconds for point in fits))


def test_what_does_not_fit_the_memory_is_counted_apart(tmp_path):
    found = sweep_file({**STEPS, "model": "llama-3-70b"}, {"tp": [1, 8], "pp": [1, 4]})
    fits = sum(bool(point["fits"]) for point in found)
    assert 0 < fits < 4
    assert found.summary.unfit == 4 - fits
    assert f"4 of 4 combinations run, {fits} of them fit the memory" in str(found)


def test_a_file_and_the_function_answer_the_same_points():
    vary = {"link.bandwidth": ["150 GB/s", "300 GB/s"], "overlap": ["sequential", "t3"]}
    asked = {"run": "simulate", "work": "t-nlg/op", "tp": 8, "system": "t3-paper", "options": {"memory": "bandwidth"}}
    by_file = sweep_file(asked, vary, cache=False)
    options = weft.RunOptions(memory="bandwidth")
    by_call = weft.sweep("t-nlg/op", "t3-paper", ["sequential", "t3"], tp=8, options=options,
                         cache=False, **{"link.bandwidth": vary["link.bandwidth"]})  # fmt: skip
    assert [point.seconds for point in by_file] == [point.seconds for point in by_call]
    assert [point.speedup for point in by_file] == [point.speedup for point in by_call]
    assert by_file.points[3].answer.overlap == "t3"
    assert by_file.points[3].answer.seconds == by_file.points[3].seconds


def test_a_combination_that_does_not_work_leaves_the_others_in_a_call():
    works, not_ = weft.sweep("t-nlg/fc2", "h100-sxm", tp=[8, 9], by="estimate")
    assert works.why == ""
    assert not_.why.startswith("TP 9 cannot split")
    with pytest.raises(InputError, match="TP 9 cannot split"):
        weft.sweep("t-nlg/fc2", "h100-sxm", tp=9, by="estimate")


def test_a_folder_keeps_no_question_of_objects(tmp_path):
    shape = weft.gemm(512, 512, 512)
    with pytest.raises(InputError, match="keeps a question of names"):
        sweep_file({"run": "estimate", "work": shape, "system": "h100-sxm"}, out=tmp_path / "runs")


def test_a_page_is_written_where_the_answer_shall_go(tmp_path):
    sweep_file(GEMM, {"gemm": ["512,512,512", "1024,512,512"]}, out=tmp_path / "page.html")
    assert "2 of 2 combinations run" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("text", ["rate=1:1e308:x1.0000001", "rate=1:2:+1e-300"])
def test_a_range_of_too_many_values_is_refused(text):
    with pytest.raises(InputError, match="has more than 10,000 values; take a larger step"):
        axis_of(text)


def test_a_range_with_exponents_is_one():
    assert axis_of("rate=1e2:4e2:x2") == ("rate", (100, 200, 400))


@pytest.fixture
def shard(file, tmp_path):
    """A shard's folder, its records, and a function that gives one another content with a right checksum."""
    sweep_file(file, out=tmp_path / "shard", shard=(1, 1), cache=False)
    records = sorted((tmp_path / "shard" / "runs").rglob("*.json.gz"))
    assert len(records) == 2

    def changed(record):
        entry = json.loads(gzip.decompress(records[0].read_bytes()))
        digest = hashlib.sha256(as_json({"inputs": entry["inputs"], "record": record}).encode()).hexdigest()
        entry |= {"record": record, "checksum": digest}
        records[0].write_bytes(gzip.compress(json.dumps(entry).encode()))

    return tmp_path / "shard", records, changed


@pytest.mark.parametrize(
    "record",
    [
        {"found": 5}, [], {}, None, 7, {"why": 3}, {"why": "", "found": {}}, {"found": {}},
        {"found": {"seconds": None}}, {"found": {"seconds": [1]}}, {"found": {"seconds": "1"}},
        {"found": {"seconds": math.nan}}, {"found": {"seconds": math.inf}}, {"found": {"seconds": True}},
        {"found": {"seconds": 1.0, "parts": {"a": 1}}},
    ],
    ids=str,
)  # fmt: skip
def test_a_record_of_a_wrong_form_counts_as_missing(shard, capsys, record):
    folder, records, changed = shard
    changed(record)
    with pytest.raises(InputError, match="1 of 2 runs are missing"):
        merge_shards([folder])
    assert f"'{records[0]}' is damaged" in capsys.readouterr().err
    assert records[0].exists()  # merging makes nothing again, and so removes nothing


@pytest.mark.parametrize("kind", ["pipe", "link", "device", "bomb"])
def test_a_record_that_is_no_file_of_a_run_counts_as_missing(shard, capsys, kind, monkeypatch):
    folder, records, _ = shard
    monkeypatch.setattr(files, "LARGEST_UNPACKED", 1 << 20)
    records[0].unlink()
    if kind == "pipe":
        os.mkfifo(records[0])
    elif kind == "link":
        (folder / "elsewhere").write_text("{}")
        records[0].symlink_to(folder / "elsewhere")
    elif kind == "device":
        records[0].symlink_to("/dev/zero")
    else:
        records[0].write_bytes(gzip.compress(bytes(4 << 20)))
    with pytest.raises(InputError, match="1 of 2 runs are missing"):
        merge_shards([folder])
    assert "is damaged" in capsys.readouterr().err
    assert records[0].is_symlink() or records[0].exists()


def test_a_shard_is_filled_anew_where_a_record_is_of_a_wrong_form(shard, file):
    folder, _, changed = shard
    changed({"found": 5})
    sweep_file(file, out=folder, shard=(1, 1), cache=False)
    assert len(merge_shards([folder]).points) == 2
