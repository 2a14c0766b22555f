"""Comparisons as tasks of a sweep: runs made once, ideals put together of them, labels as asked."""

import pickle
from dataclasses import replace

from weft import hardware
from weft.core.options import RunOptions
from weft.models import SubLayer
from weft.models.parallel import split
from weft.overlaps.arbiters import COMPUTE_FIRST
from weft.simulate import compare
from weft.sweep.simulations import comparisons

OVERLAPS = ("sequential", "t3", "ideal-overlap", "ideal-rs-nmc")


def test_equal_graphs_run_once_and_answer_as_compare_does_under_their_own_labels():
    graph, system = split(SubLayer.custom(512, 512, 128), 4), hardware.system("t3-paper", gpus=4)
    again = replace(graph, title="again", labels={**graph.labels, "sublayer": "again"})
    seen = []
    cases = [(graph, system, OVERLAPS), (again, system, OVERLAPS)]
    first, second = comparisons(cases, RunOptions(), progress=lambda *about: seen.append(about))
    assert [done for done, _, _ in seen] == [0, 1, 2, 3]  # sequential, t3 and the reduce-scatter near memory
    direct = compare(graph, system, OVERLAPS)
    for name in OVERLAPS:
        assert (first[name].seconds, first[name].durations) == (direct[name].seconds, direct[name].durations)
        assert first[name].traffic == second[name].traffic == direct[name].traffic
    runs = [run for run in second for run in (run, *run.parts)]
    assert {run.graph.labels["sublayer"] for run in runs} == {"again"}
    assert {run.graph.labels["sublayer"] for run in first} == {"custom"}


def test_each_case_runs_under_the_overlaps_that_it_asks_for():
    graph, system = split(SubLayer.custom(512, 512, 128), 4), hardware.system("t3-paper", gpus=4)
    free = system.replace({"compute.stages_in_step": 0})
    one, other = comparisons([(graph, system, ["sequential", "t3"]), (graph, free, ["sequential"])], RunOptions())
    assert (list(one.timelines), list(other.timelines)) == (["sequential", "t3"], ["sequential"])
    assert other.baseline.system.gpu.changes == ("compute.stages_in_step = 0",)


def test_a_policy_that_comes_with_every_task_is_compiled_once_in_a_process():
    """Each task brings a copy; compiled anew, they would fill a worker's memory until it is restarted."""
    first, second = (pickle.loads(pickle.dumps(COMPUTE_FIRST)) for _ in range(2))
    assert first is not second
    assert first.compiled is second.compiled


def test_a_policy_that_was_compiled_here_goes_to_another_process():
    assert COMPUTE_FIRST.compiled is not None
    assert pickle.loads(pickle.dumps(COMPUTE_FIRST)) == COMPUTE_FIRST
