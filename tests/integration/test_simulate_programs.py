"""Programs and single operators by `weft simulate`: what is shown, written and refused."""

from __future__ import annotations

import json

import pytest

import weft
from weft.cli.main import main
from weft.graph import Graph, Node, Streaming


def simulate(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit status, output and errors of the command."""
    with pytest.raises(SystemExit) as left:
        main(["simulate", *arguments, "--gpu", "h100-sxm"])
    printed = capsys.readouterr()
    return left.value.code, printed.out, printed.err


@pytest.fixture
def program(tmp_path):
    nodes = (
        Node(weft.gemm(512, 512, 512), "gemm", phase="forward"),
        Node(Streaming("gelu", 512 * 512), "gelu", after=("gemm",), phase="forward"),
    )
    return weft.write_graph(Graph(nodes, title="two"), tmp_path / "two.graph.jsonl")


def test_a_file_of_a_program_runs_operator_by_operator(program, tmp_path, capsys):
    record, page = tmp_path / "run.json", tmp_path / "page"
    where = ["--json", str(record), "--out", str(page)]
    status, said, _ = simulate(capsys, "graph", str(program), "--heatmap", "channel", *where)
    assert status == 0
    assert "two takes" in said
    found = json.loads(record.read_text())
    assert [one["kind"] for one in found["operators"]] == ["gemm", "gelu"]
    assert found["heat"]["camping"] >= 1
    assert sum(one["seconds"] for one in found["operators"]) == pytest.approx(found["seconds"], rel=0.05)
    assert "What runs when?" in (page / "report.html").read_text(encoding="utf-8")


def test_an_operator_runs_by_its_name_and_dimensions(capsys):
    words = ["op", "gemv", "--shape", "rows=2048,columns=1024", "--heatmap", "channel", "--no-hashing"]
    status, said, _ = simulate(capsys, *words)
    assert status == 0
    assert "gemv 2048 x 1024" in said
    assert "camping index" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["op", "gemv", "--shape", "rows=2048"], "operator 'gemv' lacks its dimension 'columns'"),
        (["op", "gemv", "--shape", "rows=2,rows=2"], "rows is given twice"),
        (["op", "gemv", "--shape", "rows=2,columns=2", "--tp", "4"], "no such option '--tp'"),
        (["graph", "missing.graph.jsonl"], "missing.graph.jsonl"),
    ],
)
def test_what_names_no_program_is_refused(words, says, capsys):
    status, _, said = simulate(capsys, *words)
    assert status != 0
    assert says in said
