"""Commands that pass through every library: `make test-matrix` compares their answers between Pythons and versions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft.core.files import parse_json

COMMANDS = {
    "simulate": "simulate sublayer --gemm 1024,1024,512 --tp 4 --overlap t3-mca --compare sequential --no-cache",
    "step": "step gpt-3 --system 64xa100 --tp 8 --pp 8 --batch 64",
    "predict": "predict gemm 8192,8192,8192 --gpu h100-sxm",
    "serve": "serve llama-3-8b --system h100 --requests 100 --rate 4",
    "schedule": "schedule --stages 4 --micro-batches 8 --forward 1ms --backward 2ms --weight 1ms --memory 5",
}
PAGES = {"simulate", "step", "serve"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_answers_without_a_warning(name, tmp_path):
    asked = [*COMMANDS[name].split(), "--json", str(tmp_path / "answer.json")]
    asked += ["--out", str(tmp_path / "page")] if name in PAGES else []
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "weft", *asked], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "Warning" in done.stderr) == (0, False), done.stderr
    text = (tmp_path / "answer.json").read_text(encoding="utf-8")
    assert parse_json(text)
    if name in PAGES:
        assert "vegaEmbed" in (tmp_path / "page" / "report.html").read_text(encoding="utf-8")
    if folder := os.environ.get("WEFT_MATRIX"):
        (Path(folder) / f"{name}.json").write_text(text, encoding="utf-8")
