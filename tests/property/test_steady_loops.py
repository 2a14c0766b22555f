"""The steady state of closed loops, beside loops that are simulated request by request."""

import pytest
from deployments import forward_with, prefill_with, serve_with

import weft
from weft.models import load_model
from weft.serving.framework import serves
from weft.serving.steady import steady, steady_at
from weft.serving.step_times import Shape, StepTimes


@pytest.fixture(scope="module")
def times():
    return StepTimes(forward_with(load_model("llama-3-8b"), weft.system("1xh100"), library="vllm"))


def simulated(framework, clients, prompt, answer):
    """A loop of requests whose lengths differ, so that they do not keep step."""
    lengths = {
        "input_len": (int(0.8 * prompt), int(1.2 * prompt)),
        "output_len": (int(0.8 * answer), int(1.2 * answer)),
    }
    return serve_with(
        "llama-3-8b",
        "1xh100",
        framework=framework,
        library="vllm",
        concurrency=clients,
        requests=6 * clients,
        **lengths,
    )


def stated(times, framework, clients, prompt, answer, **more):
    how = serves(times.forward, weft.ServingPlan(framework=framework))
    return steady(
        times.seconds, clients, prompt, answer, tokens=how.tokens, host=how.host, mixes=framework != "sglang",
        **{"outside": how.outside(prompt), **more},
    )  # fmt: skip


@pytest.mark.parametrize("framework", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("load", [(4, 1024, 256), (32, 1024, 256), (16, 4096, 256), (48, 256, 512)], ids=str)
def test_time_per_token_and_throughput_are_those_of_the_simulated_loop(times, framework, load):
    loop, state = simulated(framework, *load), stated(times, framework, *load)
    assert state.tpot == pytest.approx(loop.tpot["mean"], rel=0.07)
    assert state.rate == pytest.approx(loop.requests_per_s, rel=0.12)  # the loop's start and end count, too


def test_requests_that_come_together_delay_each_other_half_as_much(times):
    apart, together = (stated(times, "sglang", 64, 2048, 64, together=each) for each in (False, True))
    alone = stated(times, "sglang", 1, 2048, 64)
    assert 0.4 < (together.tpot - alone.tpot) / (apart.tpot - alone.tpot) < 0.75
    assert together.ttft > apart.ttft


def test_an_idle_server_reads_the_first_of_prompts_that_come_together_by_itself(times):
    """Four prompts of 2,000 tokens: one, and three behind it, as long as a step holds them."""
    found = stated(times, "sglang", 4, 2000, 100, together=True, outside=0.0)
    first, others = (times.seconds(Shape(prefills=n, new=2000 * n, pairs=n * 2000 * 2001 // 2)) for n in (1, 3))
    host = serves(times.forward, weft.ServingPlan(framework="sglang")).host
    assert found.ttft == pytest.approx(first + host + 0.75 * (others + host), rel=0.02)


def test_a_request_waits_until_the_scheduler_looks_for_it(times):
    at_once, later = (stated(times, "sglang", 4, 1024, 256, waits=each) for each in (0.0, 5.0))
    assert later.ttft - at_once.ttft == pytest.approx(5 * at_once.tpot, rel=0.05)
    alone = [stated(times, "sglang", 1, 1024, 256, waits=each) for each in (0.0, 5.0)]
    assert alone[0] == alone[1]


def test_clients_beyond_the_memory_wait(times):
    all_run, some = (stated(times, "vllm", 64, 1024, 256, most=most, outside=0.0) for most in (64, 16))
    sixteen = stated(times, "vllm", 16, 1024, 256, outside=0.0)
    assert some.tpot == sixteen.tpot < all_run.tpot
    assert some.rate == sixteen.rate
    assert 64 / some.rate == pytest.approx(some.ttft + 255 * some.tpot)


def test_one_client_waits_for_its_own_prompt_alone(times):
    state = stated(times, "vllm", 1, 1000, 100, outside=0.0)
    assert (
        prefill_with("llama-3-8b", "1xh100", sequence=1000, library="vllm").seconds < state.ttft < 2 * state.tpot + 0.04
    )


@pytest.mark.parametrize("rate", [0.5, 4.0, 20.0])
def test_a_rate_has_the_steady_state_of_as_many_clients_as_ask_so_often(rate):
    def seconds(step: Shape) -> float:
        return 0.01 + 1e-4 * step.decodes + 1e-5 * step.new

    found = steady_at(seconds, rate, 512, 64, tokens=2048)
    assert found is not None
    clients = round(found.rate * (found.ttft + 63 * found.tpot))
    assert found == steady(seconds, clients, 512, 64, tokens=2048)
    assert found.rate >= rate
    fewer = clients - max(clients // 32, 1) - 1
    assert fewer < 1 or steady(seconds, fewer, 512, 64, tokens=2048).rate < rate
    assert steady_at(seconds, 1e4, 512, 64, tokens=2048, most=256) is None
