"""Data parallelism in closed form: parameter servers, textbook collectives, BSP, SSP and ASP, ZeRO's stages."""

import math

import numpy as np
import pytest
from scipy.stats import expon, uniform

import weft
from weft.core.errors import InputError, UnitError, UnknownNameError
from weft.graph import Collective
from weft.models.parallel.framework import Framework
from weft.papers.textbook.collectives import FORMS, Wire, against_library, parameter_server, switch_point, textbook
from weft.papers.textbook.replicas import Fixed, mean_of_slowest, progress, update_rules, zero_stages
from weft.step.durations import OperatorTimes
from weft.step.pipeline import schedule

WIRE = Wire.of("10 us", "100 GB/s")
GB = 1e9


@pytest.mark.parametrize(("servers", "seconds"), [(1, 1.6), (8, 0.2), (16, 0.2), (4, 0.4), (None, 0.175)])
def test_parameter_servers_share_the_traffic_of_eight_workers(servers, seconds):
    assert parameter_server(GB, 8, 10e9, servers) == pytest.approx(seconds)


def test_servers_on_the_workers_send_what_a_ring_sends():
    ring = textbook("all_reduce", "ring", GB, 8, Wire(0.0, 10e9))
    assert parameter_server(GB, 8, 10e9, None) == pytest.approx(float(ring))


@pytest.mark.parametrize(("name", "megabytes"), [("all_reduce", 1.88), ("broadcast", 5.6)])
def test_ring_beats_tree_from_the_textbook_switch_point_on(name, megabytes):
    found = switch_point(name, "tree", "ring", 8, WIRE)
    assert found / 1e6 == pytest.approx(megabytes, abs=0.005)
    for size, better in ((found * 0.99, "tree"), (found * 1.01, "ring")):
        assert min(("tree", "ring"), key=lambda one: float(textbook(name, one, size, 8, WIRE))) == better


def test_no_switch_where_one_algorithm_is_never_slower():
    assert switch_point("all_gather", "bruck", "ring", 8, WIRE) == math.inf
    assert switch_point("all_gather", "ring", "bruck", 8, WIRE) == 0.0


@pytest.mark.parametrize("ranks", [2, 8, 64])
@pytest.mark.parametrize("name", FORMS)
def test_no_textbook_form_beats_the_lower_bounds(name, ranks):
    volume = {"broadcast": 1, "all_reduce": 2 * (ranks - 1) / ranks}.get(name, (ranks - 1) / ranks)
    rounds = math.log2(ranks)
    for algorithm in FORMS[name]:
        form = FORMS[name][algorithm]
        assert form.volumes(ranks) >= volume - 1e-12
        assert form.latencies(ranks) >= rounds


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: textbook("all_reduce", "halving", GB, 6, WIRE), "power of two"),
        (lambda: textbook("all_reduce", "ring", GB, 1, WIRE), "at least 2"),
        (lambda: Wire.of("10 us", "0 GB/s"), "above zero"),
        (lambda: update_rules([]), "at least one worker"),
        (lambda: update_rules(["1 s"], [0.5]), "whole number of steps"),
        (lambda: parameter_server(GB, 8, 10e9, 0), "servers is 0"),
    ],
)
def test_what_cannot_be_computed_is_refused_in_a_sentence(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_unknown_algorithms_and_units_are_named():
    with pytest.raises(UnknownNameError, match=r"textbook algorithm of broadcast 'rnig'; known: tree, ring"):
        textbook("broadcast", "rnig", GB, 8, WIRE)
    with pytest.raises(UnitError, match="10"):
        Wire.of("10", "100 GB/s")


def test_library_and_textbook_agree_on_the_smallest_and_differ_on_protocols():
    found = against_library("all_reduce", [8, 1 << 20, 1 << 30], 8, "dgx-h100")
    assert found.textbook_s[0] == pytest.approx(found.library_s[0], rel=1e-4)
    assert found.textbook == ("doubling", "doubling", "halving")
    assert found.library[-1] == "nvls"


def test_textbook_bandwidth_over_nodes_is_the_networks():
    inside, between = (against_library("all_gather", [GB], ranks, "2x dgx-h100") for ranks in (8, 16))
    assert between.wire.bandwidth < inside.wire.bandwidth / 4


def test_bsp_waits_for_the_slowest_of_eight_and_asp_for_none():
    found = update_rules([uniform(1, 1)] * 8, [0, 2, math.inf])
    assert found["BSP"].step == pytest.approx(1 + 8 / 9)
    assert found["ASP"].step == pytest.approx(1.5)
    assert found.speedup(found["ASP"]) == pytest.approx(1.26, abs=0.005)
    assert found["BSP"].step > found["SSP 2"].step > found["ASP"].step


@pytest.mark.parametrize("slack", [0, math.inf])
def test_closed_forms_of_bsp_and_asp_agree_with_their_simulation(slack):
    took = np.random.default_rng(1).uniform(1, 2, (4000, 8))
    _, end = progress(took, slack)
    assert end[-1].min() / len(took) == pytest.approx(
        update_rules([uniform(1, 1)] * 8, [slack]).paces[0].step, rel=0.01
    )


def test_slack_hides_no_worker_that_is_always_slow():
    found = update_rules([uniform(1, 1)] * 7 + [uniform(2, 2)], [0, 1, 10, math.inf], steps=4000)
    for rule in ("BSP", "SSP 1", "SSP 10"):
        assert found[rule].step == pytest.approx(3.0, rel=0.02)
    all_fast = update_rules([uniform(1, 1)] * 8, [math.inf])["ASP"].step
    assert all_fast / found["ASP"].step == pytest.approx(7.5 / 8)


def test_no_step_begins_further_ahead_than_the_slack():
    found = update_rules([uniform(1, 1)] * 4 + ["3 s"], [0, 1, 3, math.inf], steps=400)
    assert [max(pace.lag) for pace in found.paces][:3] == [0, 1, 3]
    assert max(found["ASP"].lag) > 100
    for pace in found.paces:
        assert sum(pace.lag.values()) == pytest.approx(1)


def test_asynchronous_gradients_miss_one_update_of_each_other_worker():
    assert update_rules([uniform(1, 1)] * 8, [math.inf])["ASP"].delay == pytest.approx(7, rel=0.01)


def test_slowest_of_exponential_workers_takes_a_harmonic_sum():
    assert mean_of_slowest([expon(scale=1.0)] * 4) == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4, rel=1e-6)


def test_a_fixed_worker_bounds_the_slowest_from_below():
    assert mean_of_slowest([Fixed(3.0), uniform(1, 1)]) == pytest.approx(3.0)
    assert mean_of_slowest([Fixed(1.5), uniform(1, 1)]) == pytest.approx(1.5 + 0.125)


def test_same_seed_gives_the_same_progress():
    first, second = (update_rules([uniform(1, 1)] * 4, [2], seed=7) for _ in range(2))
    assert first == second


def test_zero_stages_hold_and_send_what_the_paper_says():
    found = zero_stages(7_500_000_000, 64)
    assert [one.bytes / 1e9 for one in found] == pytest.approx([120, 31.4, 16.6, 1.88], rel=0.003)
    assert [one.sent / found[0].sent for one in found] == pytest.approx([1, 1, 1, 1.5])


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_training_steps_send_what_zero_stages_say(zero, monkeypatch):
    """The collectives over replicas that the clock of a step prices, against those of the closed form."""
    seen = {}
    case, tail = OperatorTimes.case, OperatorTimes.collective_seconds

    def note(op):
        seen[op, zero] = seen.get((op, zero), 0) + 1

    def noted(self, op, axis="compute"):
        if axis == "dp":
            note(op)
        return case(self, op, axis)

    def noted_tail(self, kind, size, ranks, dtype, axis):
        if axis == "dp":
            note(Collective(kind, size, ranks, dtype))
        return tail(self, kind, size, ranks, dtype, axis)

    monkeypatch.setattr(OperatorTimes, "case", noted)
    monkeypatch.setattr(OperatorTimes, "collective_seconds", noted_tail)
    framework = Framework(gradients="bf16")
    step = weft.step(
        "gpt-1.7b", "dgx-h100", dp=8, batch=8, zero=zero, framework=framework, fidelity="estimate", compare=False
    )  # without steps of other plans
    count = step.chunks[0].parameters
    sent = zero_stages(count, 8, framework)[zero].sent
    sizes = {(op.name, op.bytes) for op, _ in seen}
    kinds = {"reduce_scatter", "all_gather"} if zero else {"all_reduce"}
    assert {name for name, _ in sizes} == kinds
    if zero < 3:
        moved = sum(bytes * (2 if name == "all_reduce" else 1) * 7 / 8 for name, bytes in sizes)
    else:  # parts of the model one by one: each gathered for both passes, and reduced once
        parts = sum(part.parameters for part in step.chunks[0].parts)
        assert {bytes for _, bytes in sizes} == {2 * part.parameters for part in step.chunks[0].parts}
        moved = 3 * 2 * parts * 7 / 8
    assert moved == pytest.approx(sent, rel=1e-3)


def test_pipedream_keeps_a_version_for_every_micro_batch_in_flight():
    order = schedule("pipedream", 4, 8)
    assert order.versions == (4, 3, 2, 1)
    assert order.staleness == (3, 2, 1, 0)
