"""Pipelines of stages that serve: batches pass on one after the other, each in every stage once."""

import pytest
from deployments import decode_with, forward_with, prefill_with, serve_with

import weft
from weft.core.errors import InputError
from weft.serving.replica import Pipeline
from weft.serving.step_times import Shape, StepTimes

MODEL = "llama-3-8b"


def decoded(**how):
    return decode_with(MODEL, "8xh100", batch=16, context=1200, library="vllm", **how)


def test_a_batch_waits_for_the_stage_that_the_one_before_it_holds():
    pipeline = Pipeline(2)
    assert pipeline.end(0.0, [1.0, 3.0]) == 4.0
    assert pipeline.end(0.0, [1.0, 1.0]) == 5.0  # waits for the second stage
    assert pipeline.end(9.0, [1.0, 1.0]) == 11.0


def test_a_token_passes_all_layers_and_sends_between_stages():
    whole, staged = decoded(tp=2), decoded(tp=2, pp=4)
    sends, waits = staged.parts["exposed pp"], staged.parts["bubble"]
    assert sends > 0 < waits  # for the stage with the logits
    assert staged.seconds - sends - waits == pytest.approx(whole.seconds, rel=1e-6)
    prompt = prefill_with(MODEL, "8xh100", tp=2, pp=4)
    assert "bubble" not in prompt.parts


@pytest.mark.parametrize(
    "shape", [Shape(64, 64 * 900), Shape(0, 0, 1, 2048, 2048 * 2049 // 2), Shape(8, 9000, 2, 600, 90300)]
)
def test_the_stages_of_an_iteration_add_up_to_its_time(shape):
    """Over PCIe, where sends between stages count."""
    times = StepTimes(forward_with(weft.load_model("llama-3-70b"), weft.system("8xl40s"), pp=8, dtype="fp8"))
    stages = times.stages(shape)
    assert len(stages) == 8
    assert sum(stages) == pytest.approx(times.seconds(shape), rel=1e-12)
    assert 7 * times.forward.send(shape.decodes + shape.new) > 0.002 * sum(stages)


def test_stages_hold_their_part_of_the_weights():
    whole, staged = decoded(tp=1), decoded(tp=1, pp=4)
    assert whole.weights / 4 < staged.weights < whole.weights / 3
    assert staged.cache == whole.cache  # of one of four batches, a quarter of each on four GPUs


def test_equal_batches_keep_all_stages_busy():
    load = {"requests": 64, "concurrency": 64, "input_len": 200, "output_len": 600, "cpu_overhead": "0 ms"}
    served = serve_with(MODEL, "4xh100", pp=4, **load)
    decode = decode_with(MODEL, "4xh100", pp=4, batch=16, context=500, library="vllm")
    assert served.replicas == 4
    assert min(one.tpot for one in served.requests) == pytest.approx(decode.seconds, rel=0.05)


@pytest.mark.parametrize("policy", ["vllm", "sglang", "trtllm-no-evict"])
def test_no_token_is_lost_in_a_pipeline(policy):
    load = {"rate": 20, "requests": 60, "input_len": (50, 3000), "output_len": (1, 200), "seed": 3}
    served = serve_with(MODEL, "4xl40s", tp=2, pp=2, scheduler=policy, **load)
    assert served.completed == 60
    assert sum(iteration.written for iteration in served.iterations) == sum(one.output - 1 for one in served.requests)
    assert sum(iteration.prompt * iteration.steps for iteration in served.iterations) >= sum(
        one.input for one in served.requests
    )


def test_prompts_in_chunks_leave_fewer_bubbles_than_whole_ones():
    """Stages wait where batches differ (Sarathi-Serve, arXiv:2403.02310)."""
    load = {"requests": 60, "concurrency": 60, "input_len": 3000, "output_len": 100}
    chunks, whole = (serve_with(MODEL, "8xh100", pp=8, max_num_batched_tokens=tokens, **load) for tokens in (512, 8192))
    assert chunks.tpot["p99"] < whole.tpot["p99"]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"pp": 3}, r"tp 1 and pp 3 do not fill the 8 GPUs"),
        ({"pp": 64}, r"pp 64 is more than the 32 layers"),
        ({"pp": 0}, r"pp is 0"),
    ],
)
def test_stages_that_do_not_fit_are_refused(how, words):
    with pytest.raises(InputError, match=words):
        decoded(**how)


def test_replicas_fill_pipelines():
    with pytest.raises(InputError, match=r"3 replicas of 2 GPUs do not fill pipelines of pp 2.*multiple of 2"):
        serve_with(MODEL, "8xh100", tp=2, pp=2, replicas=3, rate=1)
