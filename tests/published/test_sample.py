"""How far off the models are on the sample of public measurements in tests/data/sample (its README: whose)."""

from pathlib import Path

import numpy as np
import pytest

from weft.lab.machines import Machines
from weft.lab.run import subjects_of
from weft.lab.subjects import predict_subject

SAMPLE = Path(__file__).parents[1] / "data" / "sample"
CLOSED_FORM = {
    ("gemm", "a100-sxm-80gb", "bf16"): 0.11,
    ("gemm", "a100-sxm-80gb", "fp16"): 0.08,
    ("gemm", "a100-pcie-80gb", "fp32"): 0.10,
    ("gemm", "h100-sxm", "bf16"): 0.11,
    ("gemm", "h100-sxm", "fp32"): 0.10,
    ("gemm", "h100-sxm", "fp8"): 0.14,
    ("gemm", "b200", "bf16"): 0.12,
    ("gemm", "mi210", "fp32"): 0.13,
    ("gemm", "mi210", "bf16"): 0.10,
    ("gemm", "mi210", "fp16"): 0.13,
    ("gemm", "mi250x-gcd", "fp16"): 0.19,
    ("collective", "a100-sxm-80gb", ""): 0.045,
    ("collective", "h100-sxm", ""): 0.06,
    ("collective", "b200", ""): 0.04,
    ("collective", "mi250x-gcd", "torch"): 0.075,
    ("collective", "a100-sxm-80gb", "profiler"): 0.19,
    ("collective", "h100-sxm", "profiler"): 0.28,
    ("layer", "dgx-a100", "prefill"): 0.06,
    ("layer", "dgx-a100", "decode"): 0.55,
}
"""Mean absolute errors allowed, about a third above today's, by kind, machine, and data type, host or phase."""


def subjects(*kinds):
    found, problems, _ = subjects_of(SAMPLE, Machines.of((), ()), kinds)
    assert not problems
    return found


def errors(subjects, kinds):
    """Absolute errors of each row by kind, machine, and what else tells groups apart."""
    found = {}
    for part in (predict_subject(subject) for subject in subjects if subject.kind in kinds):
        subject = part.subject
        told = {"gemm": "dtype", "collective": "host", "layer": "phase"}.get(subject.kind)
        labels = subject.labels[told].tolist() if told else [""] * len(subject.measured)
        off = np.abs(part.seconds / subject.measured - 1).tolist()
        for label, error in zip(labels, off, strict=True):
            found.setdefault((subject.kind, subject.machine, label), []).append(error)
    return found


def test_closed_forms_are_off_by_no_more_than_the_bars():
    kinds = ("gemm", "collective", "layer")
    found = errors(subjects(*kinds), kinds)
    assert set(found) == set(CLOSED_FORM)
    assert {key: np.mean(off) for key, off in found.items() if np.mean(off) > CLOSED_FORM[key]} == {}
    assert sum(map(len, found.values())) > 800


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "file"), [("ring", "collective"), ("contention", "contention")])
def test_the_engine_is_off_by_no_more_than_its_bars(kind, file):
    found = errors(subjects(file), {kind})
    assert found
    assert all(np.mean(off) <= 0.10 for off in found.values()), found


def test_the_sample_stays_small_and_every_row_names_its_source():
    files = [file for file in SAMPLE.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 200_000
    sources = (
        "ai-dynamo/aiconfigurator",
        "openfabric-systems/simllm",
        "microsoft/vidur",
        "sitar-lab/NeuSight",
    )
    sources += ("ROCm/hipBLASLt", "microsoft/nnscaler", "PrincetonUniversity/LLMCompass")
    about = (SAMPLE / "README.md").read_text()
    for source in sources:
        assert source in about
    for file in SAMPLE.glob("*.csv"):
        head, *rows = file.read_text().splitlines()
        assert "source" in head
        assert all(any(source in row for source in sources) for row in rows)
