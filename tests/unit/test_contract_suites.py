"""`weft.testing`: every law of a contract catches a member that breaks it, by its name, the law and the case."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from random import Random

import numpy as np
import pytest

import weft
from weft.core.errors import InputError, UnknownNameError, WeftError
from weft.graph import Node
from weft.overlaps import OVERLAPS, OverlapMethod
from weft.overlaps.arbiters import ROUND_ROBIN
from weft.serving.policies import first_come, running_first, vllm
from weft.step.pipeline import Schedule, schedule
from weft.testing import ContractError, check_arbiter, check_overlap, check_pipeline_schedule, check_policy
from weft.testing import arbiters as arbiter_suite
from weft.testing import overlaps as overlap_suite
from weft.testing import policies as policy_suite
from weft.testing import schedules as schedule_suite
from weft.testing.laws import check_laws

# -- arbiters ------------------------------------------------------------------------------------------------------


def starves_communication(view):
    return 0 if view.compute > 0 else -1


def starves_compute(view):
    return 1 if view.communication > 0 else -1


def answers_two(view):
    return 2


def chooses_an_empty_stream(view):
    return 1


def divides_by_zero(view):
    return 1 if view.communication // view.compute else 0


def overflows(view):
    """A power of two grows without end in Python, and has a sign in 64 bits."""
    first = view.communication > 0 and 1 << view.occupancy > 0
    return 1 if first or view.compute == 0 else 0


def holds_the_gemm_up(view):
    if view.communication > 0:
        return 1
    return 0 if view.occupancy < 2 else -1


def iterations():
    calls = count()

    def counts_its_calls(view):
        if view.compute > 0 and view.communication > 0:
            return next(calls) % 2
        return 0 if view.compute > 0 else 1

    return counts_its_calls


@pytest.mark.parametrize(
    ("rule", "law", "case"),
    [
        (starves_communication, "It admits somebody to an empty queue", "views of a channel"),
        (starves_compute, "It admits somebody to an empty queue", "views of a channel"),
        (answers_two, "It answers COMPUTE", "views of a channel"),
        (chooses_an_empty_stream, "It chooses a stream that has a request", "views of a channel"),
        (divides_by_zero, "It answers every view", "views of a channel"),
        (iterations(), "It has no state", "views of a channel"),
        (overflows, "Its machine code answers as its Python function does", "views of a channel"),
        (holds_the_gemm_up, "It orders streams that meet", "a sub-layer under 'sequential'"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_an_arbiter_that_breaks_a_law_is_named_with_the_law_and_the_case(rule, law, case):
    with pytest.raises(ContractError) as caught:
        check_arbiter(weft.arbiter(rule))
    error = caught.value
    assert (error.member, error.case) == (f"arbiter '{rule.__name__}'", case)
    assert error.law.startswith(law)
    assert str(error).startswith(f"arbiter '{rule.__name__}' breaks a law of its contract, '{law}")


def test_an_arbiter_under_which_a_run_cannot_end_does_not_serve_every_request(monkeypatch):
    monkeypatch.setattr(arbiter_suite, "ANSWERS", ())
    with pytest.raises(ContractError, match=r"'Every request that waits is served'.*has starved the comm") as caught:
        check_arbiter(weft.arbiter(starves_communication))
    assert caught.value.case == "a sub-layer under 'sequential'"


@pytest.mark.parametrize(("more", "change"), [(512, "repeats"), (-512, "loses")])
def test_a_run_that_loses_or_repeats_a_request_breaks_the_law_of_traffic(more, change):
    whole = arbiter_suite._run("t3", ROUND_ROBIN)
    cause = next(iter(whole.traffic))
    other = replace(whole, traffic={**whole.traffic, cause: whole.traffic[cause] + more})
    with pytest.raises(ContractError, match="It loses no request and repeats none"):
        check_laws(change, "t3", arbiter_suite.RUNS, other, other, whole)


def test_runs_that_differ_break_the_law_of_repetition():
    whole = arbiter_suite._run("t3", ROUND_ROBIN)
    other = replace(whole, durations={name: 1.01 * seconds for name, seconds in whole.durations.items()})
    with pytest.raises(ContractError, match="The same run gives the same times"):
        check_laws("one", "t3", arbiter_suite.RUNS, other, whole, whole)


def test_what_is_no_arbiter_is_refused():
    with pytest.raises(UnknownNameError, match="unknown arbiter 'fair'"):
        check_arbiter("fair")


# -- policies ------------------------------------------------------------------------------------------------------


def starves(server):
    """Never start the first request."""
    running_first(server)
    for request in list(server.waiting):
        if request.id and not server.schedule_tokens(request, request.uncomputed_tokens):
            break


def admits_beyond_the_kv_cache(server):
    """Take the limit off the memory."""
    server.pool.capacity = 10**15
    vllm(server)


def runs_too_many(server):
    server.sequences = 10**6
    vllm(server)


def gives_twice(server):
    vllm(server)
    for request in list(server.running):
        server.schedule_tokens(request, 1)


def rolls_dice(server):
    running_first(server)
    if server.waiting:
        request = DICE.choice(list(server.waiting))
        server.schedule_tokens(request, request.uncomputed_tokens)
    if not server.batch:
        first_come(server)


DICE = Random(5)


@pytest.mark.parametrize(
    ("policy", "law", "case"),
    [
        (starves, "It serves every request to its end", "light"),
        (gives_twice, "It serves every request to its end", "light"),
        (runs_too_many, "No more requests run at once than sequences are allowed", "few sequences"),
        (admits_beyond_the_kv_cache, "The requests that run never hold more than the KV cache", "scarce KV cache"),
        (rolls_dice, "The same seed gives the same answer", "the same seed twice"),
    ],
)
def test_a_policy_that_breaks_a_law_is_named_with_the_law_and_the_case(policy, law, case):
    with pytest.raises(ContractError) as caught:
        check_policy(policy)
    error = caught.value
    assert (error.member, error.case) == (f"policy '{policy.__name__}'", case)
    assert error.law.startswith(law)


def test_a_policy_that_wastes_a_faster_gpu_lowers_the_goodput():
    """It runs one request at a time after an iteration that is shorter than any on the slower GPU."""

    def seconds(iteration):
        return (iteration.end - iteration.start) / iteration.steps

    def lazy(server):
        if server.iterations and server.running and seconds(server.iterations[-1]) < shortest:
            server.schedule_tokens(server.running[0], server.running[0].uncomputed_tokens)
        else:
            vllm(server)

    def serve(policy, where):
        return policy_suite._serve("", "", policy, policy_suite._PLAN, policy_suite._GOALS, where)

    shortest = 0.999 * min(map(seconds, serve("vllm", "1xh100").iterations))
    faster = weft.system("1xh100").replace({"memory.bandwidth": "4.5 TB/s"})
    slow, fast = (serve(lazy, where) for where in ("1xh100", faster))
    with pytest.raises(ContractError, match="A faster GPU does not lower the goodput"):
        check_laws("lazy", "more bandwidth", (policy_suite.faster_gpus_serve_more,), slow, fast)


@pytest.fixture(scope="module")
def answer():
    return policy_suite._serve("", "", "vllm", *policy_suite.LOADS["clients"])


@pytest.mark.parametrize(
    ("change", "law"),
    [
        (
            lambda iterations: [iterations[0]._replace(prompt=iterations[0].prompt - 1), *iterations[1:]],
            "Every answer has its tokens",
        ),
        (lambda iterations: [*iterations[:9], *iterations[10:]], "Every answer has its tokens"),
        (
            lambda iterations: [
                iteration._replace(start=iteration.start + 1e-3 * (at == 9)) for at, iteration in enumerate(iterations)
            ],
            "A replica is never idle while a request is in it",
        ),
        (
            lambda iterations: [
                iteration._replace(start=iteration.start - 1e-3 * (at == 9)) for at, iteration in enumerate(iterations)
            ],
            "A replica is never idle while a request is in it",
        ),
        (
            lambda iterations: [iteration._replace(running=iteration.running - 1) for iteration in iterations],
            "Little's law holds",
        ),
    ],
)
def test_an_answer_that_cannot_be_breaks_a_law(answer, change, law):
    with pytest.raises(ContractError, match=law):
        check_laws("one", "clients", policy_suite.LAWS, replace(answer, iterations=change(answer.iterations)), 512)


# -- pipeline schedules --------------------------------------------------------------------------------------------


def test_devices_that_wait_for_each_other_do_not_run_all_tasks():
    """The first device waits for a backward before its second forward, which the other device awaits before that."""
    good = schedule("1f1b", 2, 2)
    orders = np.array([0, 4, 1, 5]), np.array([2, 3, 6, 7])  # F0 B0 F1 B1 of stage 0, F0 F1 B0 B1 of stage 1
    with pytest.raises(
        ContractError, match=r"schedule 'crossed'.*do not wait for each other.*2 micro-batches"
    ) as caught:
        check_pipeline_schedule(Schedule("crossed", good.placement, good.replica, orders))
    assert caught.value.case == "2 devices, 2 micro-batches"


def altered(change):
    one = schedule("zb-h1", 4, 8)
    from weft.step.pipeline import run_schedule

    ran = run_schedule(one, schedule_suite.TIMES, schedule_suite.SENDS)
    return one, change(ran)


def moved(ran, kind, stage, micro_batch, by):
    start, end = ran.start.copy(), ran.end.copy()
    start[kind, stage, micro_batch] += by
    end[kind, stage, micro_batch] += by
    return replace(ran, start=start, end=end)


@pytest.mark.parametrize(
    ("change", "law"),
    [
        (lambda ran: moved(ran, 0, 2, 3, -1.0), "A task starts when its input has arrived"),
        (lambda ran: moved(ran, 1, 1, 3, -5.0), "A task starts when its input has arrived"),
        (lambda ran: moved(ran, 0, 0, 1, 0.9), "A device runs one task after the other"),
        (lambda ran: replace(ran, end=ran.end / 9, start=ran.start / 9), "No makespan beats the work"),
    ],
)
def test_times_that_cannot_be_break_a_law(change, law):
    laws = {statement: one for one in schedule_suite.LAWS for statement in [one.__doc__.splitlines()[0]]}
    (wanted,) = (one for statement, one in laws.items() if statement.startswith(law))
    with pytest.raises(ContractError, match=law):
        check_laws("one", "4 devices", (wanted,), *altered(change))


def test_a_function_that_takes_no_size_has_no_schedule_to_check():
    def refuses(devices, micro_batches):
        raise InputError(f"{devices} devices are too few")

    with pytest.raises(ContractError, match=r"schedule 'refuses'.*It takes one of the sizes.*5 devices are too few"):
        check_pipeline_schedule(refuses)


def test_a_function_that_builds_schedules_is_checked():
    check_pipeline_schedule(lambda devices, micro_batches: schedule("gpipe", devices, micro_batches))


# -- overlap methods -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Halves(OverlapMethod):
    """The first and the second operator of a graph in two halves of the rows each, its four nodes `changed`."""

    name: str = "halves"
    title: str = "Halves"
    summary: str = "both operators in two halves"
    changed: Callable[..., tuple[Node, ...]] = lambda *nodes: nodes

    joins = "halves"
    patterns = ("gemm_rs", "gemm_ar", "ag_gemm")

    def apply(self, graph, gpu):
        self.check(graph)
        first, second = (
            replace(node, op=replace(node.op, **{field: getattr(node.op, field) // 2}), stream=node.op.kind)
            for node in graph
            for field in ("m" if node.op.kind == "gemm" else "bytes",)
        )
        late = replace(second, iteration=1, after=(f"{first.name}.1",))
        return replace(graph, nodes=self.changed(first, replace(first, iteration=1), second, late))


def sends_at_once(a, b, c, d):
    return a, b, replace(c, after=(), stream="own"), replace(d, after=(), stream="other")


def sends_the_second_half_with_the_first(a, b, c, d):
    return a, b, c, replace(d, after=c.after)


def moves_half(a, b, c, d):
    return (a, b, c) if a.op.kind == "gemm" else (a, c, replace(d, after=(a.id,)))


def computes_half(a, b, c, d):
    return (a, c, replace(d, after=(a.id,))) if a.op.kind == "gemm" else (a, b, c)


def computes_twice(a, b, c, d):
    gemm = a if a.op.kind == "gemm" else d
    return a, b, c, d, replace(gemm, iteration=2)


def sends_without_adding(a, b, c, d):
    return a, b, *(replace(one, op=replace(one.op, name="all_to_all", bytes=sent(one.op))) for one in (c, d))


def sent(op):
    """The bytes of an all-to-all that sends as much."""
    return op.bytes * (2 if op.name == "all_reduce" else 1)


@pytest.mark.parametrize(
    ("changed", "law", "found"),
    [
        (sends_at_once, "A collective waits for the part of the GEMM that it sends", "none of"),
        (sends_the_second_half_with_the_first, "A collective waits for the part of the GEMM", "100% of the work"),
        (moves_half, "Its collectives move the bytes", "bytes of each GPU"),
        (computes_half, "It computes the FLOPs of the graph's GEMMs", "FLOPs of each GPU"),
        (computes_twice, "It computes the FLOPs of the graph's GEMMs", "FLOPs of each GPU"),
    ],
)
@pytest.mark.parametrize("pattern", ["ag_gemm", "gemm_rs", "gemm_ar"])
def test_an_overlap_that_breaks_a_law_of_its_work_is_named_with_the_law_and_the_pattern(changed, law, found, pattern):
    method = type("OneForm", (Halves,), {"patterns": (pattern,)})(changed=changed)
    with pytest.raises(ContractError, match=found) as caught:
        check_overlap(method)
    assert (caught.value.member, caught.value.case) == ("overlap 'halves'", pattern)
    assert caught.value.law.startswith(law)


@pytest.mark.parametrize("pattern", ["gemm_rs", "gemm_ar"])
def test_an_overlap_that_sends_what_it_should_add_breaks_the_law_of_sums(pattern):
    method = type("OneForm", (Halves,), {"patterns": (pattern,)})(changed=sends_without_adding)
    with pytest.raises(ContractError, match="adds, and none of all_to_all does") as caught:
        check_overlap(method)
    assert caught.value.law.startswith("Where the graph's collective adds up data")


def test_a_piece_of_a_gemm_of_another_name_is_refused_with_the_name_to_give():
    """Times are looked up by name: a piece of another name would be left out of them."""
    method = Halves(
        changed=lambda a, b, c, d: (a, replace(b, name="rest", iteration=0), c, replace(d, after=("rest",)))
    )
    graph = weft.dependent("gemm_rs", weft.gemm(1024, 1024, 256), 4)
    with pytest.raises(InputError, match=r"'halves' runs a GEMM 'rest' .* the name of the whole, 'gemm'"):
        weft.simulate(graph, "a100", method)


def test_a_method_with_a_formula_of_a_pair_has_one_on_the_axis_of_a_step():
    timed = type("Timed", (Halves,), {"patterns": ("gemm_rs", "tp"), "closed_forms": ("gemm_rs",)})()
    plain = type("Plain", (Halves,), {"patterns": ("gemm_rs", "tp")})()
    assert timed.applies("tp", "closed form")
    assert not plain.applies("tp", "closed form")


def test_an_overlap_that_cuts_both_operators_in_halves_keeps_the_contract():
    check_overlap(Halves())


def test_an_overlap_may_move_less_or_compute_less_where_its_class_says_so():
    check_overlap(type("Less", (Halves,), {"leaves_out": ("collective",)})(changed=moves_half))
    check_overlap(type("Less", (Halves,), {"leaves_out": ("gemm",)})(changed=computes_half))


def test_a_layer_of_experts_whose_combine_waits_for_no_gemm_breaks_the_law_of_order():
    def early(graph):
        *others, combine = graph.nodes
        return replace(graph, nodes=(*others, replace(combine, after=("dispatch",), stream="own")))

    given = overlap_suite.samples(4)["moe_layer"]
    assert overlap_suite.work_waits_for_its_data(OVERLAPS["sequential"], "moe_layer", given, given) is None
    found = overlap_suite.work_waits_for_its_data(OVERLAPS["sequential"], "moe_layer", given, early(given))
    assert found == "'combine' does not wait for 'down'"


def test_a_class_in_place_of_an_object_is_refused_with_what_to_write():
    graph = weft.dependent("gemm_rs", weft.gemm(1024, 1024, 256), 4)
    for give in (
        check_overlap,
        weft.register_overlap,
        lambda method: weft.simulate(graph, "a100", method),
        lambda method: weft.compare(graph, "a100", [method]),
    ):
        with pytest.raises(InputError, match=r"Halves.*; give an object.* Halves\(\)"):
            give(Halves)
    with pytest.raises(InputError, match=r"3 is no overlap method.*weft\.overlaps\.OverlapMethod"):
        check_overlap(3)


def test_a_broken_law_is_an_error_of_weft_and_a_failed_assertion():
    error = ContractError("policy 'own'", "Nothing is lost", "light", "2 of 3 requests")
    assert isinstance(error, WeftError)
    assert isinstance(error, AssertionError)
    assert str(error) == (
        "policy 'own' breaks a law of its contract, 'Nothing is lost', in the case 'light': 2 of 3 requests"
    )
