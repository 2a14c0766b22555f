"""Suites of scenarios: the declared one, and what is said of a suite of one's own that cannot be used."""

from collections import Counter

import pytest
from estimates import gemm

from weft import hardware
from weft.core.errors import ConfigError, InputError
from weft.papers.c3 import ScenarioSuite
from weft.papers.c3.scenarios import LAYERS, ROWS, candidates

TOGETHER = (("QKV",), ("O",), ("gate",), ("down",), ("QKV", "O"), ("gate", "gate"), ("gate", "gate", "down"))
SIZES = {
    sum(2 * n * k for n, k in (LAYERS[f"{model} {layer}"] for layer in layers))
    for model in ("Llama-70B", "Llama-405B")
    for layers in TOGETHER
}
"""Sizes of collectives of the rule: the weights of a layer, or of some that run one after the other [bytes]."""
GOOD = """
[[scenario]]
layer = "mine"
gemm = [1024, 1024, 512]
collective = "all_gather"
size = "16 MiB"
"""


def suite(tmp_path, text):
    file = tmp_path / "mine.toml"
    file.write_text(f'title = "mine"\n{text}')
    return ScenarioSuite.load(file)


def test_the_declared_suite_fills_classes_collectives_and_bounds_evenly():
    scenarios = ScenarioSuite.declared().scenarios
    assert len(scenarios) == 30
    assert set(Counter(s.kind for s in scenarios).values()) == {10}
    assert set(Counter((s.kind, s.collective) for s in scenarios).values()) == {5}
    assert Counter(s.bound for s in scenarios) == {"compute": 18, "memory": 12}


def test_what_the_declared_suite_calls_memory_bound_is_so_by_the_closed_form():
    gpu = hardware.gpu("mi300x")
    for scenario in ScenarioSuite.declared().scenarios:
        found = gemm(*scenario.gemm, scenario.dtype, gpu, clock="sustained").bound
        assert scenario.bound in str(found)


def test_gemms_and_sizes_of_the_declared_suite_are_those_of_its_rule():
    for scenario in ScenarioSuite.declared().scenarios:
        assert LAYERS[scenario.layer] == scenario.gemm[1:]
        assert scenario.gemm[0] in ROWS[scenario.bound]
        assert scenario.size in SIZES


def test_gemms_of_the_declared_suite_are_among_the_candidates_of_its_rule():
    gemms = list(candidates(hardware.gpu("mi300x")))
    assert {(s.layer, s.gemm, s.bound) for s in ScenarioSuite.declared().scenarios} <= set(gemms)
    assert all(gemm[0] >= 8192 for _, gemm, bound in gemms if bound == "compute")


def test_a_suite_of_ones_own_needs_neither_bound_nor_class(tmp_path):
    (scenario,) = suite(tmp_path, GOOD).scenarios
    assert (scenario.size, scenario.bound, scenario.kind) == (16 << 20, None, None)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[1024, 1024, 512]", "[1024, 0, 512]", r"mine.toml: scenario 1: GEMM dimension N is 0"),
        ("[1024, 1024, 512]", "[1024, 512]", r"scenario 1: gemm"),
        ('"16 MiB"', '"0 B"', r"scenario 1: .*'0 B' must be greater than zero"),
        ('"16 MiB"', "16", r"scenario 1: '16' has no unit, but bytes are expected"),
        ('"16 MiB"', '"16 MHz"', r"hertz, but bytes are expected"),
        ("all_gather", "all_gahter", r"scenario 1: unknown collective 'all_gahter'.*did you mean 'all_gather'"),
        ("all_gather", "all_reduce", r"all_reduce has to add, which DMA engines cannot.*all_gather or all_to_all"),
        ("layer", "lyer", r"scenario 1: .*layer"),
        ("[[scenario]]", "[[scenarios]]", r"there is no scenario; add one below a line \[\[scenario\]\]"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_suite_is_said_with_its_place(tmp_path, old, new, said):
    with pytest.raises(ConfigError, match=said):
        suite(tmp_path, GOOD.replace(old, new))


def test_a_class_that_there_is_not_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="class"):
        suite(tmp_path, GOOD + 'class = "G-short"\n')


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nothing\.toml' does not exist"):
        ScenarioSuite.load(tmp_path / "nothing.toml")
