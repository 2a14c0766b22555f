"""The BERT study: groups that add up to a step, LAMB's share, layers timed call by call, and what near memory buys."""

import csv
import json

import pytest

from weft import hardware
from weft.core.errors import InputError
from weft.core.options import SUSTAINED
from weft.graph import Attention, Gemm
from weft.models.parallel.framework import framework
from weft.models.parallel.plan import TrainingPlan
from weft.papers.bert import broken_down, timed_layer
from weft.papers.bert.breakdown import AGAIN, EXPOSED, FC, GEMMS, GROUPS, LAMB, SOFTMAX
from weft.papers.bert.gemms import products
from weft.papers.bert.study import MODEL, TRACED, TRAINER, BertStudy, measured_rows
from weft.step.rank_parts import rank_parts

MI210 = hardware.gpu("mi210")
ONE = hardware.system(MI210, gpus=1)


def step(dtype="fp32", sequence=128, count=32, repeats=1, gpus=1, how=TRAINER, **more):
    plan = TrainingPlan(
        dp=gpus, batch=gpus * count * repeats, micro_batch=count, sequence=sequence, dtype=dtype, **more
    )
    return broken_down(MODEL, hardware.system(MI210, gpus=gpus), plan, how, SUSTAINED)


@pytest.fixture(scope="module")
def study():
    return BertStudy.run(gpu="mi210")


@pytest.mark.parametrize("more", [{}, {"gpus": 8}, {"recompute": "full"}, {"repeats": 4, "dtype": "fp16"}])
def test_groups_add_up_to_the_step(more):
    found = step(**more)
    assert sum(found.groups.values()) == pytest.approx(found.seconds, rel=1e-9)
    assert set(found.groups) <= set(GROUPS)


def test_only_replicas_expose_communication_and_only_checkpointing_computes_again():
    assert EXPOSED in step(gpus=8).groups
    assert AGAIN in step(recompute="full").groups
    assert not {EXPOSED, AGAIN} & set(step().groups)


def test_a_step_is_that_of_its_kernels_without_the_calibration_residual():
    assert "calibration residual" not in step(gpus=8).step.parts
    assert "exposed dp" in step(gpus=8).step.parts


def test_lamb_is_second_on_short_sequences_and_falls_behind_the_softmax_on_long_ones():
    short, long = step(), step(sequence=512, count=8)
    assert short.rank == 2
    assert long.rank == 3
    assert long.groups[SOFTMAX] > long.groups[LAMB]


def test_lambs_time_does_not_depend_on_tokens_and_its_share_falls():
    few, many = step(count=4), step(count=64)
    assert few.groups[LAMB] == pytest.approx(many.groups[LAMB])
    assert few.share(LAMB) > 5 * many.share(LAMB)


def test_lambs_share_falls_with_accumulation_and_rises_with_faster_arithmetic():
    once, after_eight, mixed = step(), step(repeats=8), step(dtype="fp16")
    assert once.share(LAMB) > 6 * after_eight.share(LAMB)
    assert mixed.share(LAMB) > 2 * once.share(LAMB)


def test_fused_operators_take_less_time_and_leave_gemms_a_larger_share():
    fused = framework("megatron-2022")
    plain, joined = step(), step(how=fused)
    assert joined.groups[SOFTMAX] < plain.groups[SOFTMAX]
    assert joined.share(*GEMMS) > plain.share(*GEMMS)


def test_a_call_costs_every_operator_the_same():
    plan = TrainingPlan(batch=16, micro_batch=8, sequence=512, dtype="fp32")
    short, long = (timed_layer(MODEL, MI210, plan, TRACED, call, SUSTAINED) for call in (10e-6, 20e-6))
    calls = (long.seconds - short.seconds) / 10e-6
    assert calls == pytest.approx(round(calls))
    assert 40 < calls < 70
    assert sum(map(long.share, long.groups)) == pytest.approx(1)


def test_gemms_of_attention_do_less_work_per_byte_than_those_of_layers():
    plan = TrainingPlan(batch=32, micro_batch=32, sequence=128, dtype="fp32")
    found = {(one.name, one.phase): one for one in products(MODEL, MI210, plan, TRAINER, SUSTAINED)}
    scores, first = found["scores", "forward"], found["FC1", "forward"]
    assert 10 * scores.intensity < first.intensity
    assert scores.efficiency < first.efficiency < 1
    assert found["FC1", "gradient of weight"].op.k == 4096


def test_arithmetic_near_memory_speeds_up_the_update_alone():
    one = step(dtype="fp16")
    assert one.near_memory(1) == 1
    assert 1 < one.near_memory(4) < one.near_memory(8) < 1 / (1 - one.share(LAMB))


def test_a_single_gpu_reduces_nothing():
    one = step()
    assert one.reduced_traffic(1) == 0
    assert one.reduced_traffic(8) == pytest.approx(2 * 4 * 336e6 * 7 / 8, rel=0.01)


def test_its_figures_are_those_of_its_tables_and_plain_data(study):
    headline = {row.id: row for row in study.headline()}
    assert headline["bert.lamb.rank"].weft == 2
    assert headline["bert.lamb.rank"].published is None
    assert headline["bert.share.h100-sxm.fc"].published == 0.456
    assert "bert.lamb.error" not in headline
    data = json.loads(json.dumps(study.to_dict()))
    phases = {(one["gpu"], one["dtype"], one["sequence"]): one for one in data["phases"]}
    share = phases["mi210", "fp32", 128]["groups_s"][LAMB] / phases["mi210", "fp32", 128]["step_s"]
    assert share == pytest.approx(headline["bert.lamb.share.fp32"].weft)
    assert len(phases) == 20


def test_its_page_opens_with_the_finding(study, tmp_path):
    page = study.page(tmp_path).read_text(encoding="utf-8")
    assert "On mi210 GEMMs take" in page
    assert page.index("LAMB comes second") < page.index(">Headline</h2>")


ROW = {
    "id": "row", "task": "pretrain (LAMB)", "framework": "PyTorch 21.11, apex", "model": "BERT-Large",
    "layers": 24, "hidden": 1024, "ffn": 4096, "heads": 16, "kv_heads": 16, "vocab": 30528, "seq_len": 128,
    "gpu": "v100-sxm2-32gb", "gpus": 1, "precision": "FP32", "tp": 1, "pp": 1, "dp": 1, "zero_stage": 0,
    "mbs_seq": 32, "gbs_seq": 64, "recompute": "none", "step_time_s": 1.0, "network": "", "experts": "",
    "topk": "", "vp": "", "cp": 1, "ep": 1, "overlap_or_schedule": "", "notes": "",
}  # fmt: skip


def written(file, *rows):
    with file.open("w", newline="") as out:
        lines = csv.DictWriter(out, [*ROW])
        lines.writeheader()
        lines.writerows(rows)
    return file


def test_measured_steps_stand_beside_weft(tmp_path):
    (found,) = measured_rows(written(tmp_path / "steps.csv", ROW, {**ROW, "id": "long", "seq_len": 512, "mbs_seq": 4}))
    assert (found.gpu, found.measured, found.id) == ("v100-sxm2-32gb", 1.0, "row")
    assert found.error == pytest.approx(found.weft - 1)


def test_measurements_without_such_steps_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        measured_rows(tmp_path / "none.csv")
    for changes, words in (
        ({"seq_len": 512}, "no steps of BERT-Large"),
        ({"gpu": "k80"}, "'row' cannot be predicted"),
    ):
        with pytest.raises(InputError, match=words):
            measured_rows(written(tmp_path / "steps.csv", {**ROW, **changes}))


def layer_of(name):
    plan = TrainingPlan(batch=8, micro_batch=8, sequence=128, dtype="fp32")
    return rank_parts(MODEL, plan, framework(name))["dense"]


def test_eager_layers_project_queries_keys_and_values_apart_and_add_their_gradients_up():
    eager, fused = layer_of("apex-bert"), layer_of("megatron-2022")
    gemms = [[node.name for node in one.forward if isinstance(node.op, Gemm)] for one in (eager, fused)]
    assert gemms[0] == ["query", "key", "value", *gemms[1][1:]]
    assert eager.parameters == fused.parameters
    assert sum(node.name.endswith(".join") for node in eager.backward) == 4
    assert sum(node.name.endswith(".join") for node in fused.backward) == 2


def test_eager_norms_sum_the_gradients_of_their_parameters_in_a_kernel_of_their_own():
    names = [node.op.name for node in layer_of("apex-bert").backward if node.name.startswith("norm1")]
    assert names == ["layernorm_backward", "layernorm_sums"]


def test_heads_are_copied_apart_where_a_framework_does_not_read_them_in_strides():
    copied, strided = (
        [node.name for node in layer_of(name).forward if not isinstance(node.op, Attention)]
        for name in ("hugging-face", "apex-bert")
    )
    assert "heads" in copied
    assert "heads" not in strided


def test_the_largest_group_is_that_of_the_feed_forward_gemms(study):
    for layer in study.layers.values():
        assert max(layer.groups, key=layer.groups.__getitem__) == FC
