"""Suites of scenarios: the declared one, and what is said of a suite of one's own that cannot be used."""

from collections import Counter

import pytest

from weft.errors import ConfigError, InputError
from weft.hardware import load
from weft.predict import collective, gemm
from weft.studies.c3 import choosing, declared_suite, load_suite
from weft.sweep import Store
from weft.sweep.streams import Setting

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
    return load_suite(file)


def test_the_declared_suite_fills_classes_collectives_and_bounds_evenly():
    scenarios = declared_suite().scenarios
    assert len(scenarios) == 30
    assert set(Counter(s.kind for s in scenarios).values()) == {10}
    assert set(Counter((s.kind, s.collective) for s in scenarios).values()) == {5}
    assert Counter(s.bound for s in scenarios) == {"compute": 18, "memory": 12}


def test_what_the_declared_suite_calls_memory_bound_is_so_by_the_closed_form():
    gpu = load("mi300x")
    for scenario in declared_suite().scenarios:
        found = gemm(*scenario.gemm, scenario.dtype, gpu, clock="sustained").bound_names()
        assert scenario.bound in str(found)


def test_gemms_and_sizes_of_the_declared_suite_are_those_of_its_rule():
    for scenario in declared_suite().scenarios:
        assert choosing.LAYERS[scenario.layer] == scenario.gemm[1:]
        assert scenario.gemm[0] in choosing.ROWS[scenario.bound]
        assert scenario.size in choosing.SIZES
    assert declared_suite().rule == choosing.RULE


def test_gemms_of_the_declared_suite_are_among_the_candidates_of_its_rule():
    candidates = list(choosing.candidates(load("mi300x")))
    assert {(s.layer, s.gemm, s.bound) for s in declared_suite().scenarios} <= set(candidates)
    assert all(gemm[0] >= 8192 for _, gemm, bound in candidates if bound == "compute")


def test_the_rule_fills_every_class_by_closed_forms_too():
    """The declared suite is picked by simulated times; closed forms are near enough to fill every cell."""
    gpu = load("mi300x")
    collectives = {
        (name, size): float(collective(name, size, 8, gpu).seconds)
        for name in choosing.COLLECTIVES
        for size in choosing.SIZES
    }
    pairs = [
        choosing.Pair(
            s,
            float(gemm(*s.gemm, s.dtype, gpu, clock="sustained").seconds) / collectives[s.collective, s.size],
        )
        for s in choosing.possible_scenarios(gpu)
    ]
    found = list(choosing.picked(pairs))
    ratios = {(p.scenario.gemm, p.scenario.collective, p.scenario.size): p.ratio for p in pairs}
    assert len({(s.gemm, s.collective, s.size) for s in found}) == len(found) == 30
    for s in found:
        ratio = ratios[s.gemm, s.collective, s.size]
        assert s.kind == ("G-long" if ratio > 1.15 else "C-long" if ratio < 1 / 1.15 else "GC-equal")
        assert not any(bound / 1.02 < ratio < bound * 1.02 for bound in (1.15, 1 / 1.15))
    assert max(Counter(s.kind for s in found if s.size == choosing.SIZES[-1]).values()) == 1


@pytest.mark.slow
def test_the_declared_suite_is_what_its_rule_gives_on_simulated_times():
    assert choosing.chosen_suite(Setting(load("mi300x")), store=Store()) == declared_suite()


def test_a_suite_that_is_written_down_reads_as_the_same(tmp_path):
    file = tmp_path / "again.toml"
    file.write_text(choosing.toml(declared_suite()))
    assert load_suite(file) == declared_suite()


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
        load_suite(tmp_path / "nothing.toml")
