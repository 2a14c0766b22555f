"""The cases that `weft predict` is given: what is read from them, and what is refused in one sentence."""

import pytest
from click.testing import CliRunner

from weft.cli.cases import collective_sizes, dimensions, read_shapes
from weft.cli.predict import predict
from weft.core.errors import InputError, UnitError


def test_sizes_are_one_a_list_or_every_doubling_with_the_last():
    assert collective_sizes("all_reduce:256MiB")[1].tolist() == [2**28]
    name, sizes = collective_sizes("all_gather:1MiB,3MB,1KiB..5KiB")
    assert name == "all_gather"
    assert sizes.tolist() == [2**20, 3e6, 1024, 2048, 4096, 5120]
    assert collective_sizes("all_reduce:1KiB..4KiB")[1].tolist() == [1024, 2048, 4096]
    assert collective_sizes("all_reduce:2KiB..2KiB")[1].tolist() == [2048]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ("2MiB..1MiB", "write the smaller first, like 1MiB..1GiB"),
        ("1MiB...1GiB", "with two dots"),
        ("1MiB..2MiB..4MiB", "with two dots"),
        ("1e30B..1e31B", "'1e30B' is too large; a size must be at most 1 PiB"),
        ("1.5B", "a size must be a whole number of them"),
        ("0B", "'0B' is too small; a size must be at least 1 B"),
        ("-1MiB", "'-1MiB' is too small; a size must be at least 1 B"),
    ],
)
def test_a_size_that_cannot_be_is_refused_with_the_rule(sizes, message):
    with pytest.raises(InputError, match=message):
        collective_sizes(f"all_reduce:{sizes}")


@pytest.mark.parametrize("text", ["all_reduce", ":1MiB", "all_reduce:"])
def test_a_collective_without_sizes_is_refused_with_an_example(text):
    with pytest.raises(InputError, match="write it like all_reduce:256MiB"):
        collective_sizes(text)
    with pytest.raises(UnitError, match="no unit"):
        collective_sizes("all_reduce:256")


def test_shapes_are_read_whatever_case_and_blanks_their_heads_have(tmp_path):
    (tmp_path / "s.csv").write_text("M, N ,K,Dtype\n1,2,3,BF16\n4, 5 ,6,\n")
    shapes = read_shapes(tmp_path / "s.csv", 7, "fp8")
    assert shapes["n"].tolist() == [2, 5]
    assert shapes["batch"].tolist() == [7, 7]
    assert shapes["dtype"].tolist() == ["bf16", "fp8"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; its first line must name the columns, like m,n,k"),
        ("m,n\n1,2\n", "has no column 'k'"),
        ("m,n,k\n", "has no rows"),
        ("m,n,k\n1,2,3\n1,x,3\n", "line 3: n is 'x'; it must be a whole number above zero"),
        ("m,n,k\n1,0,3\n", "line 2: n is '0'"),
        ("m,n,k\n1,2\n", "line 2: k is missing; each row needs m, n and k"),
        ("m,n,k\n1,2,3000000000\n", "line 2: k is 3000000000; it must be at most 2147483647"),
        ("m,n,k,dtype\n1,2,3,fp17\n", "line 2: unknown dtype 'fp17'"),
    ],
)
def test_a_wrong_file_of_shapes_is_named_with_its_line(tmp_path, text, message):
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_shapes(tmp_path / "s.csv", 1, "bf16")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("rows", "'rows' gives no dimension a whole number"),
        ("rows=" + 5000 * "9", r"\(5000 digits\); it must have at most 15 digits"),
    ],
)
def test_a_dimension_is_a_whole_number_of_some_size(assignment, message):
    with pytest.raises(InputError, match=message):
        dimensions([assignment])
    with pytest.raises(InputError, match="rows is given twice"):
        dimensions(["rows=1", "rows=2"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gemm", 400 * "9" + ",1,1"], "(400 digits) is too large; give at most 2147483647"),
        (["gemm", 5400 * "9" + ",1,1"], "(5400 digits) is too large"),
        (["gemm", "8192x8192x8192"], "is no whole number; write numbers with commas between, like 8192,8192,8192"),
        (["gemm", "1,1,1", "--batch", 20 * "9"], "is not in the range 1<=x<=2147483647"),
        (["layer", "--model", "gpt-3", "--system", "dgx-h100", "--batch", 20 * "9"], "is not in the range"),
    ],
)  # fmt: skip
def test_a_size_beyond_32_bits_is_refused_in_one_sentence(arguments, message):
    result = CliRunner().invoke(predict, arguments)
    assert result.exit_code == 2
    assert message in result.output
