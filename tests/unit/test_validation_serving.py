"""Served loads that were measured: what is read from them, what is left out, and loads with their model left out."""

from dataclasses import replace

import numpy as np
import pytest

import weft
from weft.estimate import errors
from weft.estimate.errors import load_error
from weft.lab.bar import demands, lines, predicted_by
from weft.lab.classes import class_errors
from weft.lab.pools import PooledLoop, Workers, sizes, workers
from weft.lab.ranking import replicas_ranked
from weft.lab.recipes import DEFAULTS, ServerRecipe, recipe
from weft.lab.serving import MODELS, ClosedLoop, hosts, loads_left_out

HEAD = (
    "system,model,framework,version,precision,gemm_dtype,moe_dtype,mode,plan,isl,osl,concurrency,ttft_s,tpot_s,"
    "tokens_per_s_per_gpu,throughput_kind,upstream"
)
NAMES = {"llama-3-8b": "meta-llama/Llama-3.1-8B-Instruct", "llama-3-70b": "meta-llama/Llama-3.1-70B"}


def point(model="llama-3-8b", tp=1, clients=4, framework="vllm", gpu="h100-sxm"):
    return ClosedLoop(model, gpu, tp, 1, framework, "bf16", "", "bf16", 1024, 256, clients, alike=False)


def row(of, host=2e-3, mode="agg", name="", plan="", tokens=True):
    """A row of what Weft says of a point with the host's time of this size [s]."""
    found = of.served(host)
    rate = f"{found.rate * sum(of.tokens) / of.gpus:.9g},in+out" if tokens else ","
    degrees = plan or f"tp={of.gpus} pp=1 dp_attn=1 moe_tp={of.gpus} moe_ep=1 batch={of.clients}"
    gpu = of.gpu.replace("-", "_")
    start = f"{gpu},{name or NAMES[of.model]},{of.framework},1,bf16,,,{mode},{degrees},{of.prompt},{of.answer}"
    return f"{start},{of.clients},{found.ttft:.9g},{found.tpot:.9g},{rate},db"


def found(folder, *rows):
    (folder / "serving_points.csv").write_text("\n".join([HEAD, *rows, ""]))
    return weft.validate(folder, kinds=["serving"])


def test_loads_are_predicted_as_a_steady_closed_loop_of_the_frameworks_step(tmp_path):
    answer = found(tmp_path, row(point(), host=None), row(point(clients=8), host=None))
    assert {part.subject.labels["quantity"].iloc[0]: len(part.subject) for part in answer.predictions} == {
        "TPOT": 2, "TTFT": 1, "throughput": 2,
    }  # fmt: skip
    for part in answer.predictions:
        assert part.seconds / part.subject.measured == pytest.approx(1, abs=1e-6)


def test_the_hosts_time_is_found_again_from_rows_that_have_it(tmp_path):
    answer = found(tmp_path, *(row(point(clients=each), host=3e-3) for each in (4, 8, 16)))
    assert hosts([part.subject for part in answer.predictions]) == {"host.vllm": pytest.approx(3e-3)}


def test_a_model_is_predicted_with_the_host_fitted_to_the_others(tmp_path):
    """Each row has a host of its own, so that the row of the other model decides what is said of one."""
    answer = found(tmp_path, row(point(), host=1e-3), row(point("llama-3-70b", tp=8), host=3e-3))
    left = loads_left_out([part.subject for part in answer.predictions], "model")
    off = {
        part.subject.labels["model"].iloc[0]: (part.seconds - part.subject.measured)[0]
        for part in left
        if part.subject.labels["quantity"].iloc[0] == "TPOT"
    }
    assert off == {"llama-3-8b": pytest.approx(2e-3, rel=1e-3), "llama-3-70b": pytest.approx(-2e-3, rel=1e-3)}


def test_loads_are_predicted_by_every_protocol_though_no_table_holds_their_values(tmp_path):
    answer = found(tmp_path, row(point(), host=1e-3), row(point("llama-3-70b", tp=8), host=3e-3))
    by = predicted_by(answer)
    assert sum(len(part.subject) for part in by["model left out"]) == sum(len(p.subject) for p in answer.predictions)
    assert {part.subject.kind for part in by["GPU left out"]} <= {"serving"}


def test_what_is_not_compared_is_named_with_its_reason(tmp_path):
    answer = found(
        tmp_path, row(point()), row(point(), mode="disagg"), row(point(), name="Qwen/Qwen3.5-397B-A17B"),
        row(point(), plan="tp=8 pp=1 dp_attn=1 moe_tp=4 moe_ep=2 batch=4"),
        row(point(), name=NAMES["llama-3-70b"]),
    )  # fmt: skip
    told = " ".join(answer.complaints())
    for reason in ("mode 'disagg'", "model 'Qwen/Qwen3.5-397B-A17B'", "moe_ep=2", "leaves no memory"):
        assert reason in told
    assert answer.rows_used == 1


_ONE, _TWO = (f"tp={tp} pp=1 dp_attn=1 moe_tp={tp} moe_ep=1 batch=4" for tp in (1, 2))
POOLS = f"prefill:workers=1 {_ONE} decode:workers=2 {_TWO}"


def test_pools_of_prompts_and_of_answers_are_simulated_each_in_its_layout(tmp_path):
    of = PooledLoop(
        "llama-3-8b", "h100-sxm", Workers(1, 1, 1), Workers(2, 2, 1), "vllm", "bf16", "", "bf16", 1024, 256, 4
    )
    assert of.gpus == 5
    seen, (prompt, answer) = of.served(), of.tokens
    rate = seen.rate * (prompt + answer) / 5
    told = row(point(), mode="disagg", plan=POOLS).split(",")
    told[12:15] = f"{seen.ttft:.9g}", f"{seen.tpot:.9g}", f"{rate:.9g}"
    answer = found(tmp_path, ",".join(told))
    assert {part.subject.kind for part in answer.predictions} == {"disaggregated"}
    assert {part.subject.labels["quantity"].iloc[0] for part in answer.predictions} == {"TPOT", "TTFT", "throughput"}
    for part in answer.predictions:
        assert part.seconds / part.subject.measured == pytest.approx(1, abs=1e-6)


def test_a_pool_that_reads_faster_answers_sooner_and_writes_as_fast():
    of = {"framework": "vllm", "dtype": "bf16", "weights": "", "kv_dtype": "bf16", "prompt": 4096, "answer": 64}
    one, two = (
        PooledLoop("llama-3-8b", "h100-sxm", Workers(each, 1, 1), Workers(1, 1, 1), clients=16, **of).served()
        for each in (1, 2)
    )
    assert two.ttft < 0.7 * one.ttft
    assert two.rate > 1.3 * one.rate


@pytest.mark.parametrize(
    ("degrees", "pool"),
    [
        ("workers=3 tp=8 pp=1 dp_attn=1 moe_tp=1 moe_ep=8", Workers(3, 8, 8)),
        ("workers=1 tp=4 pp=1 dp_attn=1 moe_tp=4 moe_ep=1", Workers(1, 4, 1)),
        ("workers=1 tp=1 pp=1 dp_attn=32 moe_tp=1 moe_ep=32", Workers(1, 1, 32)),
        ("workers=1 tp=1 pp=1 dp_attn=8 moe_tp=8 moe_ep=1", None),
        ("workers=1 tp=8 pp=1 dp_attn=1 moe_tp=2 moe_ep=4", None),
        ("workers=1 tp=16 pp=1 dp_attn=1 moe_tp=16 moe_ep=1", None),
    ],
)
def test_a_pools_degrees_are_read_or_refused(degrees, pool):
    stated = sizes(f"prefill:{degrees} decode:{degrees}")
    assert workers(stated["reads"]) == workers(stated["writes"]) == pool
    assert sizes(f"prefill:{degrees} decode:tp=8") is None


def test_loads_of_too_many_clients_for_every_quantity_are_named(tmp_path):
    answer = found(tmp_path, row(point()), row(point(clients=256)), row(point(clients=256), tokens=False))
    left_out = {line for problem in answer.problems if not problem.used for line in problem.lines}
    assert left_out == {3, 4}
    assert answer.rows_used + len(left_out) == answer.rows_read == 3
    assert "concurrency '256': only times to the first token at up to 4 clients" in " ".join(answer.complaints())


def test_loads_with_whole_experts_on_each_gpu_are_compared(tmp_path):
    """A row may state TP as the product of the degrees of experts, each the number of GPUs."""
    for plan in ("tp=2 pp=1 dp_attn=1 moe_tp=1 moe_ep=2", "tp=4 pp=1 dp_attn=1 moe_tp=2 moe_ep=2"):
        told = row(point("qwen3-30b-a3b", tp=2), name="Qwen/Qwen3-30B-A3B", plan=f"{plan} batch=4")
        answer = found(tmp_path, told)
        assert answer.rows_used == 1
        assert answer.predictions[0].subject.rows["gpus"].tolist() == [2]


def test_servers_run_as_the_benchmarks_recipes_start_them():
    """Sources: SemiAnalysisAI/InferenceX, benchmarks, by date."""
    of = {"framework": "trtllm", "gpu": "b200"}
    held = recipe(replace(point("llama-3-70b", tp=2, **of), answer=1024), "blackwell")
    assert (held.waits, recipe(replace(point("llama-3-70b", tp=8, **of), answer=1024), "blackwell").waits) == (20, 0)
    asked = [recipe(point("deepseek-v3", 8, each, "sglang", "b200"), "blackwell").waits for each in (4, 16)]
    assert asked == [5, 15]
    m2 = [replace(point("minimax-m2", 2, gpu="b200"), version=each) for each in ("0.17.0", "0.19.0")]
    assert [recipe(each, "blackwell").graphed for each in m2] == [None, 2048]
    assert recipe(point(), "hopper") == DEFAULTS


def test_a_recipe_changes_what_a_client_sees():
    of = point("llama-3-70b", tp=2, framework="trtllm", gpu="b200")
    plain, held = of.served(), replace(of, recipe=ServerRecipe(waits=20)).served()
    assert held.ttft - plain.ttft == pytest.approx(20 * plain.tpot, rel=0.1)


def test_the_first_requests_come_at_once_and_wait_for_each_other():
    """Ten requests of each client: their mean holds a tenth of the start, which requests of equal lengths repeat."""
    of = point("llama-3-70b", tp=8, clients=64, gpu="h200-sxm")
    drawn, alike = of.served(), replace(of, alike=True).served()
    assert drawn.ttft > alike.ttft
    assert drawn.rate * sum(of.tokens) < alike.rate * (of.prompt + of.answer)


def test_replicas_of_more_gpus_are_ranked_by_time_per_token(tmp_path):
    loads = [point("llama-3-70b", tp=tp, gpu="h200-sxm") for tp in (2, 4, 8)]
    answer = found(tmp_path, *map(row, loads))
    ranked = replicas_ranked(answer.predictions)
    assert (ranked.pairs, ranked.right) == (3, 3)


def test_the_bar_has_lines_for_every_framework_and_quantity(tmp_path):
    answer = found(tmp_path, *(row(point(framework=name)) for name in ("vllm", "sglang", "trtllm")))
    wanted = [one for one in demands() if one.kind == "serving" and one.protocol == "as shipped"]
    told = lines(wanted, {"as shipped": answer.predictions})
    assert len([line for line in told if line.rows]) == len(told) >= 6


def test_answers_carry_the_error_of_their_class_and_a_range(tmp_path, monkeypatch):
    rows = [row(point(clients=each), host=None) for each in (4, 8, 12, 16)]
    answer = found(tmp_path, *rows)
    classes = class_errors({"as shipped": answer.predictions})
    assert classes["serving"]["vllm-dense-TPOT"] == [0.999, 1.001, 4, 1]
    monkeypatch.setitem(errors.CARRIED, "serving", {"vllm-dense-TPOT": [0.9, 1.1, 40, 3]})
    served = weft.serve("llama-3-8b", "1xh100", weft.ServingPlan(), weft.Load(concurrency=4, requests=8, output_len=16))
    assert served.tpot_interval == pytest.approx((0.9 * served.tpot["mean"], 1.1 * served.tpot["mean"]))
    low, high = served.output_tokens_per_s_interval
    assert low < served.output_tokens_per_s < high
    assert "; 80 % interval " in str(served)
    assert "80 % interval -10% to +10%, from 40 rows whose model the fit left out" in str(served)
    assert load_error("vllm", mixture=True, gpu=weft.gpu("h100-sxm")) is None
    amd = load_error("vllm", mixture=False, gpu=weft.gpu("mi300x"))
    assert amd.high == pytest.approx(1.32)
    assert "loads on mi300x: 80 % interval -24% to +32%, from 5 rows that no fit saw, off by 20%" in amd.why
    by_rate = weft.serve("llama-3-8b", "1xh100", weft.ServingPlan(), weft.Load(rate=4, requests=8, output_len=16))
    assert by_rate.output_tokens_per_s_interval is None


def test_models_of_the_rows_are_in_the_catalogue():
    assert set(MODELS.values()) <= set(weft.models.model_names())
    assert np.all([weft.models.load_model(name).layers for name in set(MODELS.values())])
