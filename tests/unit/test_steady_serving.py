"""Rates and latencies of served loads are those of a steady state; above capacity the capacity; and what bounds."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from deployments import plan_with, serve_with

import weft
from weft.cli.main import weft as cli
from weft.core.contrast import Contrast
from weft.core.fields import stated_fields
from weft.serving.load import EACH_CLIENT
from weft.serving.result import LIFETIMES, ServedRequest, steady_window

MODEL, SYSTEM = "llama-3-8b", "1xh100"
LONG = {"input_len": 4096, "output_len": 256, "tp": 4}
ABOVE = {"rate": 8, **LONG}


def served(**asked):
    return serve_with(MODEL, SYSTEM, **asked)


def test_a_load_at_a_rate_has_as_many_requests_as_a_steady_state_takes():
    """One of four replicas of 30 requests/s that live 20 s: 1,000 requests would end while the batch still fills."""
    answer = serve_with("gpt-oss-120b", "1xh200", rate=7.5, input_len=2048, output_len=512)
    assert answer.completed > 1000
    assert answer.window.lifetimes >= LIFETIMES
    assert answer.requests_per_s == pytest.approx(7.5, rel=0.05)
    assert answer.output_tokens_per_s == pytest.approx(512 * answer.requests_per_s)
    assert answer.mean_running == pytest.approx(answer.requests_per_s * answer.seconds, rel=0.05)


def test_what_arrives_is_answered_where_nothing_waits():
    assert served(rate=4, output_len=512).requests_per_s == pytest.approx(4, rel=0.03)


@pytest.mark.parametrize("load", [{"rate": 6, "output_len": 300}, {"concurrency": 24, "output_len": 200}])
def test_more_requests_change_no_rate_and_no_latency_beyond_noise(load):
    few, many = (served(**load, requests=requests) for requests in (800, 3200))
    assert few.steady
    assert many.requests_per_s == pytest.approx(few.requests_per_s, rel=0.04)
    assert many.tpot["mean"] == pytest.approx(few.tpot["mean"], rel=0.03)
    assert many.ttft["p50"] == pytest.approx(few.ttft["p50"], rel=0.1)


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ({"rate": 6, "output_len": 300, "requests": 60}, "request lifetimes after warm-up; a steady state takes 10"),
        ({"rate": 6, "output_len": 300, "requests": 20}, "Filling and draining count, too"),
        ({"concurrency": 24, "output_len": 200, "requests": 100}, "give --requests 312 or more"),
    ],
)
def test_too_few_requests_are_warned_of_with_a_number_that_is_enough(load, words):
    few = served(**load)
    said = few.report().sentences()[1]
    assert words in said
    assert not few.to_dict()["steady"]
    count = int(said.partition("--requests ")[2].split()[0].replace(",", "").rstrip("."))
    enough = served(**{**load, "requests": count})
    assert enough.window.lifetimes > few.window.lifetimes


def test_clients_count_between_their_first_requests_and_the_last_that_arrives():
    answer = served(concurrency=16, output_len=64, sweep_concurrency=True)
    assert answer.completed == EACH_CLIENT * 16
    assert answer.steady_requests == LIFETIMES * 16
    assert answer.window.end == answer.requests[-1].arrival
    last = answer.curve[-1]
    assert last.tokens_per_s_per_gpu == pytest.approx(answer.output_tokens_per_s_per_gpu)


def test_a_window_begins_where_the_replicas_are_full_and_ends_with_the_last_arrival():
    def one(at):
        return ServedRequest(at, at, at, at + 1, at + 10, 100, 50, 0, 0)

    long = steady_window([one(at / 2) for at in range(400)])
    assert long[:2] == (20.0, 199.5)
    assert long.lifetimes == pytest.approx(17.95)
    assert steady_window([one(at / 2) for at in range(40)]).lifetimes == 0


def test_a_trace_keeps_the_latencies_of_all_its_requests_and_says_which_rates_count(tmp_path):
    file = tmp_path / "trace.csv"
    rows = [f"{at / 8},{500 + 37 * at % 3000},{20 + 11 * at % 200}" for at in range(200)]
    file.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]))
    answer = serve_with(MODEL, SYSTEM, trace=file)
    assert answer.ttft["mean"] == pytest.approx(sum(one.ttft for one in answer.requests) / 200)
    assert 20 <= answer.steady_requests < 200
    assert "Latencies are those of all requests of the trace" in answer.report().notes()[0]


def test_above_capacity_every_answer_states_the_capacity_and_no_latency():
    answer = serve_with("llama-3-70b", "8xh200", **ABOVE, kv_dtype="fp8", ttft="2 s")
    assert answer.capacity == pytest.approx(6.93, rel=0.01)
    assert answer.requests_per_s == answer.capacity
    assert answer.output_tokens_per_s == pytest.approx(256 * answer.capacity)
    record = answer.to_dict()
    assert record["overloaded"]
    for name in ("seconds", "ttft_s", "tpot_s", "latency_s", "goodput", "tpot_interval_80_s", "mean_waiting"):
        assert record[name] is None
    assert "Infinity" not in json.dumps(record)
    text = str(answer)
    assert "8 req/s offered, and the capacity of Llama 3 70B (BF16) on 8 GPUs is 6.93 req/s" in text
    assert "time to first token" not in text
    row = answer.report().rows()[0]
    assert not {"ttft", "tpot", "first", "done"} & row.keys()
    assert row["capacity_per_s"] == answer.capacity


def test_above_capacity_a_change_is_judged_by_capacities():
    first, other = (serve_with("llama-3-70b", "8xh200", **ABOVE, kv_dtype=name) for name in ("bf16", "fp8"))
    found = Contrast({"as asked": first, "kv-dtype fp8": other})
    lead = found.report().sentences()[0]
    assert f"the capacity is {other.capacity:.2f} requests/s instead of {first.capacity:.2f} requests/s" in lead
    assert found.speedup("kv-dtype fp8") == pytest.approx(other.capacity / first.capacity)
    assert first.capacity == pytest.approx(6.28, rel=0.02)
    assert other.capacity == pytest.approx(6.93, rel=0.02)
    assert [row["seconds"] for row in found.rows] == [None, None]
    assert "takes" not in str(found)


def test_a_change_that_answers_the_load_is_held_against_the_capacity():
    done = CliRunner().invoke(
        cli, ["serve", MODEL, "--system", "4xh100", "--replicas", "1", "--rate", "40", "--requests", "400",
              "--against", "replicas=4"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "With replicas 4 the load is answered, " in done.output


def test_a_sweep_lists_loads_above_capacity_without_a_time():
    asked = {"run": "serve", "model": MODEL, "system": SYSTEM, "requests": 300, "output_len": 64}
    found = weft.sweep_file(asked, {"rate": [2, 200]}, cache=False)
    below, above = found
    assert below["seconds"] > 0
    assert above["seconds"] is None
    assert above.why == "the offered load is above capacity"
    assert above["requests_per_s"] == above["capacity_per_s"] < 200
    assert found.best["rate"] == 2
    assert above.answer.overloaded


@pytest.mark.parametrize(
    ("system", "readers", "rate", "words"),
    [
        ("8xh200", 1, 8, "Prefill-bound: capacity 3.69 req/s"),
        ("12xh200", 1, 8, "Prefill-bound: capacity 3.69 req/s"),
        ("8xh200", 1, 3, "Not saturated: prefill-bound at a capacity of about 3.69 req/s"),
    ],
)
def test_a_pool_bounds_a_server_where_one_worker_more_adds_capacity(system, readers, rate, words):
    answer = serve_with("llama-3-70b", system, **LONG, rate=rate, prefill_replicas=readers)
    assert answer.bottleneck == "prefill"
    assert answer.pools.more_prefill == pytest.approx(7.4, rel=0.02)
    assert answer.pools.more_decode == pytest.approx(3.69, rel=0.02)
    assert words in " ".join(answer.report().sentences())


@pytest.mark.parametrize(
    ("load", "bottleneck"),
    [({"input_len": 4096, "output_len": 16}, "prefill"), ({"input_len": 128, "output_len": 500}, "decode")],
)
def test_what_one_worker_more_adds_is_what_a_simulation_with_it_answers(load, bottleneck):
    asked = {"rate": 500, "requests": 600, "max_num_seqs": 64, **load}
    now, prefill, decode = (
        serve_with(MODEL, "3xh100", **asked, replicas=replicas, prefill_replicas=readers)
        for replicas, readers in ((2, 1), (3, 2), (3, 1))
    )
    assert now.bottleneck == bottleneck
    assert now.pools.more_prefill == pytest.approx(prefill.capacity, rel=0.1)
    assert now.pools.more_decode == pytest.approx(decode.capacity, rel=0.1)


def test_capacity_rises_with_replicas():
    found = [
        serve_with(MODEL, "4xh100", rate=900, requests=600, output_len=32, replicas=at).capacity for at in (1, 2, 4)
    ]
    assert 1.8 * found[0] < found[1]
    assert 1.8 * found[1] < found[2]


def test_a_plan_states_what_a_long_run_gives():
    load = {"rate": 12, "input_len": 1024, "output_len": 128}
    plan = plan_with(MODEL, "2xh100", **load, tp=1, ttft="1 s", tpot="30 ms")
    best = plan.best
    long = serve_with(MODEL, "2xh100", **load, **stated_fields(best.plan), requests=10_000)
    assert best.tokens_per_s_per_gpu == pytest.approx(long.output_tokens_per_s_per_gpu, rel=0.03)
    assert best.tokens_per_s_per_gpu == pytest.approx(12 * 128 / best.gpus, rel=0.05)
    assert best.serving.tpot["mean"] == pytest.approx(long.tpot["mean"], rel=0.03)
