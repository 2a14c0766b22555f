"""Measurements are read by their columns, and whatever is wrong with a file or a row is named with its line."""

import math

import pytest

import weft
from weft.core.errors import InputError
from weft.core.files import data_folder
from weft.lab import tables
from weft.lab.problems import Problem, consistent, merge_problems
from weft.lab.tables import TABLES, layer_times, read_file, read_folder, seconds_of

HEAD = "gpu,dtype,m,n,k,time_us,source,notes"


def write(folder, text, name="gemm.csv"):
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def read(file):
    """The rows of a file, None if it cannot be used, and its problems."""
    found = read_file(file)
    return (found.rows if found.kind else None), found.problems


def problems_of(folder, *rows):
    _, problems = read(write(folder, "\n".join([HEAD, *rows, ""])))
    return [str(problem) for problem in problems]


def test_rows_are_read_with_their_lines(tmp_path):
    rows, problems = read(write(tmp_path, f"{HEAD}\nh100-sxm,bf16,1024,512,256,9.5,here,\n\nb200,fp8,1,2,3,4,,x\n"))
    assert not problems
    assert rows.index.tolist() == [2, 4]
    assert rows["gpu"].tolist() == ["h100-sxm", "b200"]
    assert rows["k"].tolist() == [256, 3]
    assert seconds_of(rows).tolist() == pytest.approx([9.5e-6, 4e-6])


def test_columns_may_stand_in_any_order_and_beside_others(tmp_path):
    rows, problems = read(write(tmp_path, "time_us,power,k,n,m,dtype,gpu\n7,400,3,2,1,fp16,mi210\n", "anything.csv"))
    assert not problems
    assert [rows[name].iloc[0] for name in ("m", "n", "k", "time_us")] == [1, 2, 3, 7]
    assert rows["notes"].tolist() == [""]


def test_a_byte_order_mark_and_spaces_in_the_header_do_no_harm(tmp_path):
    rows, problems = read(write(tmp_path, "\ufeffgpu, dtype ,m,n,k,time_us\nb200,bf16,1,2,3,4\n"))
    assert not problems
    assert len(rows) == 1


@pytest.mark.parametrize(
    ("cell", "rule"),
    [
        ("-3", "must be greater than zero"),
        ("0", "must be greater than zero"),
        ("nan", "no finite number"),
        ("inf", "no finite number"),
        ("12 us", "no number; write it plainly"),
        ("", "a number is missing"),
    ],
)
def test_an_impossible_time_is_named_with_line_value_and_rule(tmp_path, cell, rule):
    told = problems_of(tmp_path, "b200,bf16,64,64,64,5,,", f"b200,bf16,64,64,64,{cell},,")
    assert len(told) == 1
    assert told[0].startswith(f"gemm.csv line 3: time_us '{cell}'")
    assert rule in told[0]
    assert told[0].endswith("the row is left out")


def test_a_size_that_is_not_whole_is_named(tmp_path):
    assert "line 2: m '6.5': this must be a whole number" in problems_of(tmp_path, "b200,bf16,6.5,64,64,5,,")[0]


def test_a_row_with_too_few_or_too_many_cells_is_named(tmp_path):
    told = problems_of(tmp_path, "b200,bf16,64,64,64", "b200,bf16,64,64,64,5,,,one,two")
    assert "line 2: this row has 5 cells, but the header has 8" in told[0]
    assert "line 3: this row has 10 cells" in told[1]


def test_lines_are_those_of_the_file_even_after_a_cell_with_a_line_break(tmp_path):
    told = problems_of(tmp_path, 'b200,bf16,64,64,64,5,,"two\nlines"', "b200,bf16,64,64,64,-1,,")
    assert "gemm.csv line 4:" in told[0]


def test_a_missing_column_is_a_problem_of_the_file_and_names_one_alike(tmp_path):
    rows, problems = read(write(tmp_path, "gpu,dtype,m,n,k,time\nb200,bf16,1,1,1,1\n"))
    assert rows is None
    assert str(problems[0]) == (
        "gemm.csv: column 'time_us': this column is missing; is it 'time'?; the file is left out"
    )


def test_a_file_of_no_kind_says_which_kinds_there_are(tmp_path):
    rows, problems = read(write(tmp_path, "a,b\n1,2\n", "other.csv"))
    assert rows is None
    assert "no kind of measurements has these columns" in str(problems[0])
    assert "gemm.csv, collectives.csv" in str(problems[0])


def test_a_file_with_only_a_header_or_not_in_utf8_is_a_problem(tmp_path):
    assert "header only" in str(read(write(tmp_path, HEAD + "\n"))[1][0])
    binary = tmp_path / "bad.csv"
    binary.write_bytes(b"gpu,\xff\xfe\n")
    assert "bad.csv: this is no text in UTF-8" in str(read(binary)[1][0])
    assert "gemm.csv: this file is empty; write" in str(read(write(tmp_path, "\n"))[1][0])


@pytest.mark.parametrize(("sign", "words"), [(";", "semicolons"), ("\t", "tabs")])
def test_a_file_without_commas_says_what_parts_its_cells(tmp_path, sign, words):
    text = f"{HEAD}\nb200,bf16,1,1,1,5,,\n".replace(",", sign)
    rows, problems = read(write(tmp_path, text))
    assert rows is None
    assert f"the cells of this file are parted by {words}; export it with commas" in str(problems[0])


def test_every_problem_of_a_row_is_named(tmp_path):
    told = problems_of(tmp_path, "b200,bf16,x,64.5,,-1,,")
    assert [text.split(":")[1].split()[0] for text in told] == ["m", "n", "k", "time_us"]
    assert all(text.startswith("gemm.csv line 2: ") for text in told)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (bytes(range(256)) * 64, "this is no text in UTF-8; export it as CSV in UTF-8"),
        (b"gpu,dtype\0,m,n,k,time_us\n", "this is no text in UTF-8"),
        (f"{HEAD}\nb200,bf16,1,1,1,5,,\n".encode("utf-16"), "this is text in UTF-16; export it as CSV in UTF-8"),
        (f"{HEAD}\nb200,bf16,1,1,1,5,,\n".encode("utf-16-le"), "this is no text in UTF-8"),
        (b"", "this file is empty; write a line of column names and rows"),
        (b"\xef\xbb\xbf", "this file is empty"),
        (f"{HEAD},m\nb200,bf16,1,1,1,5,,,2\n".encode(), "column 'm': this column is there more than once; keep one"),
        (f'{HEAD}\nb200,bf16,1,1,1,5,,"{"x" * 200_000}\n'.encode(), "this is no CSV (field larger than field limit"),
        (b"one column\n1\n", "column 'gpu': this column is missing"),
    ],
    ids=[
        "binary",
        "NUL",
        "UTF-16",
        "UTF-16 without a mark",
        "empty",
        "only a mark",
        "column twice",
        "open quote",
        "text",
    ],
)
def test_a_file_that_is_no_table_is_left_out_in_one_sentence(tmp_path, content, rule):
    file = tmp_path / "gemm.csv"
    file.write_bytes(content)
    rows, problems = read(file)
    assert rows is None
    assert rule in str(problems[0])
    assert str(problems[0]).endswith("; the file is left out")
    with pytest.raises(InputError, match=r"holds no measurements that can be used: gemm\.csv: "):
        read_folder(file)


def test_a_file_beyond_the_largest_size_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "LARGEST_MIB", 0)
    _, (problem,) = read(write(tmp_path, f"{HEAD}\nb200,bf16,1,1,1,5,,\n"))
    assert "this file is larger than 0 MiB; split it into files of fewer rows" in str(problem)


def test_a_folder_in_the_place_of_a_file_cannot_be_read(tmp_path):
    (tmp_path / "gemm.csv").mkdir()
    with pytest.raises(InputError, match="is a folder, not a file; name a file in it"):
        read_folder(tmp_path)


def test_a_mark_in_front_and_line_ends_of_windows_do_no_harm(tmp_path):
    (tmp_path / "gemm.csv").write_bytes(f"\ufeff{HEAD}\r\nb200,bf16,1,1,1,5,,\r\nb200,bf16,1,1,1,0,,\r\n".encode())
    rows, (problem,) = read(tmp_path / "gemm.csv")
    assert rows.index.tolist() == [2]
    assert problem.lines == (3,)


def test_data_types_may_be_in_capitals(tmp_path):
    rows, problems = read(write(tmp_path, f"{HEAD}\nb200,BF16,1,1,1,5,,\n"))
    assert not problems
    assert rows["dtype"].tolist() == ["bf16"]


def test_a_file_of_another_kind_than_asked_for_says_which_columns_are_needed(tmp_path):
    write(tmp_path, f"{HEAD}\nb200,bf16,1,1,1,5,,\n")
    with pytest.raises(InputError, match="holds gemm rows only; collective rows need the columns system, coll"):
        read_folder(tmp_path, ["collective"])


def test_problems_are_told_in_the_order_of_the_lines_and_no_row_both_counts_and_does_not():
    late = Problem("a.csv", (9,), "m", "x", "this is no number")
    again = Problem("a.csv", (5,), "earlier line", "3", "again", used=True)
    early = Problem("a.csv", (4,), "n", "x", "this is no number")
    out = Problem("a.csv", (5,), "time_us", "1", "too fast")
    other = Problem("b.csv", (2,), "m", "x", "this is no number")
    told = consistent([late, again, early, out, other])
    assert again not in told
    assert again in consistent([late, again])
    assert [problem.lines for problem in merge_problems(told)] == [(4,), (5,), (9,), (2,)]


@pytest.mark.parametrize("kind", [kind for kind in TABLES if kind != "layer"])
def test_every_kind_is_known_by_its_columns(tmp_path, kind):
    columns = TABLES[kind].columns()
    cells = ["x" if cell is str else "4" for cell in columns.values()]
    found = read_file(write(tmp_path, f"{','.join(columns)}\n{','.join(cells)}\n", "measured.csv"))
    assert not found.problems
    assert found.kind == kind


def test_a_layers_columns_say_phase_batch_and_length(tmp_path):
    text = "system,op,prefill_bs8_seq2048_s,decode_bs4_ctx3072_s,source\n4xA100,Softmax,2e-3,1e-5,\n"
    rows, problems = read(write(tmp_path, text, "gpt3_layer_tp4.csv"))
    assert not problems
    found = [(phase, batch, length, seconds.tolist()) for phase, batch, length, seconds in layer_times(rows)]
    assert found == [("prefill", 8, 2048, [2e-3]), ("decode", 4, 3072, [1e-5])]


def test_blank_optional_numbers_read_as_nan(tmp_path):
    columns = TABLES["overlap"].columns()
    cells = ["x" if cell is str else "" for cell in columns.values()]
    rows, problems = read(write(tmp_path, f"{','.join(columns)}\n{','.join(cells)}\n", "overlap.csv"))
    assert not problems
    assert math.isnan(rows["overlap_us"].iloc[0])


def test_any_subset_of_files_is_read_and_kinds_choose_among_them(tmp_path):
    write(tmp_path, f"{HEAD}\nb200,bf16,1,1,1,5,,\n")
    write(tmp_path, "system,collective,ranks,bytes,time_us\n8xH100,all_reduce,8,1024,9\n", "collectives.csv")
    assert {file.kind for file in read_folder(tmp_path)} == {"gemm", "collective"}
    assert [file.kind for file in read_folder(tmp_path, ["gemm"])] == ["gemm"]


def test_a_folder_without_usable_files_is_refused_with_the_reason(tmp_path):
    with pytest.raises(InputError, match=r"has no \.csv file"):
        read_folder(tmp_path)
    write(tmp_path, "gpu,dtype,m,n,k,time\n")
    with pytest.raises(InputError, match="this column is missing"):
        read_folder(tmp_path)


def test_the_folder_is_the_given_one_else_the_environments(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    with pytest.raises(InputError, match=r"'nowhere' does not exist; put measurements .* docs/howto/validate\.md"):
        data_folder("nowhere")


def test_alike_problems_are_told_once_with_their_first_lines():
    alike = [
        Problem("gemm.csv", (line,), "time_us", str(-line), "this must be greater than zero") for line in range(2, 42)
    ]
    (told,) = merge_problems(alike)
    assert str(told) == (
        "gemm.csv lines 2, 3, 4, 5, 6 and 35 more: time_us '-2', '-3', '-4' and 37 more: "
        "this must be greater than zero; these rows are left out"
    )


@pytest.mark.parametrize("numbers", ["x", "1"])
@pytest.mark.parametrize("kind", TABLES)
def test_a_file_whose_every_row_is_left_out_is_refused_in_a_sentence(tmp_path, kind, numbers):
    columns = {**TABLES[kind].columns(needed=False), **({"prefill_bs1_seq8_s": float} if kind == "layer" else {})}
    row = ["x" if of is str else numbers for of in columns.values()]
    write(tmp_path, f"{','.join(columns)}\n{','.join(row)}\n", TABLES[kind].file)
    with pytest.raises(InputError, match=r"can be compared|can be used"):
        weft.validate(tmp_path)
