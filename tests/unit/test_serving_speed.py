"""A guard of speed: long decodes cost a few events per request, not one per iteration."""

from __future__ import annotations

import random

from deployments import serve_with


def test_ten_thousand_requests_of_a_trace_take_few_turns(tmp_path):
    """10,000 requests of 211 tokens each write two million tokens in some 30,000 turns: within 10 s on one replica."""
    drawn, at, rows = random.Random(5), 0.0, []
    for _ in range(10_000):
        at += drawn.expovariate(6.0)
        rows.append(f"{at},{drawn.randint(20, 2000)},{drawn.randint(20, 400)}")
    file = tmp_path / "trace.csv"
    file.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]))
    answer = serve_with("llama-3-8b", "1xh100", trace=file)
    assert answer.completed == 10_000
    assert len(answer.iterations) < 35_000
    assert answer.num_iterations > 4 * len(answer.iterations)


def test_requests_of_other_replicas_do_not_cut_the_steps_of_one():
    """On 16 replicas a request arrives during every step somewhere; turns are as few as on one with its share."""
    load = {"requests": 640, "input_len": 256, "output_len": 200}
    many = serve_with("llama-3-8b", "16xh100", rate=64, **load)
    assert many.num_iterations > 4 * len(many.iterations)
