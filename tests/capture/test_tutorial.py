"""The tutorial of captured models, run from its first block to its last."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; make test-capture runs this")
pytest.importorskip("transformers", reason="transformers is not installed; make test-capture runs this")

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "my-model.md"


def test_every_block_of_the_tutorial_runs_and_prints_what_the_page_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "tutorial"}
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 6
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    printed = " ".join(capsys.readouterr().out.split())
    for shown in re.findall(r"```text\n(.*?)```", text, re.DOTALL):
        assert " ".join(shown.split()) in printed
    assert (tmp_path / "step.html").is_file()
    assert (tmp_path / "gpt.graph.jsonl.gz").is_file()
