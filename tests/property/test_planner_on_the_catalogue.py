"""Pairs of models and machines of the catalogue: mixtures, long contexts, 8 and 4 bits, odd numbers of GPUs."""

import pytest

import weft
from weft.models.parallel.layers import stage_layers

ONE = {"cp": 1, "micro_batch": [1, 2], "recompute": ["none", "full"]}
LONG = {"micro_batch": 1, "recompute": ["none", "full"], "sp": True}
PAIRS = [
    ("mpt-125m", "1xa100", 64, 2048, {}),
    ("mpt-760m", "2xv100-16gb", 64, 2048, ONE),
    ("bert-large", "8xmi210", 256, 512, ONE),
    ("t5-11b", "16xa100", 128, 512, ONE),
    ("gpt-7.5b", "3xa100", 96, 2048, ONE),
    ("gpt-18.4b", "6xh100", 96, 2048, ONE),
    ("gpt-22b", "16xa100-40gb", 64, 2048, ONE),
    ("gpt-39.1b", "12xh100", 96, 2048, ONE),
    ("gpt-1008b", "3072xa100", 3072, 2048, {**ONE, "tp": 8, "sp": True}),
    ("mt-nlg", "1024xa100", 1920, 2048, {**ONE, "tp": 8, "sp": True}),
    ("palm", "2048xh100", 2048, 2048, {**ONE, "tp": 8, "sp": True}),
    ("t-nlg", "16xmi100", 64, 1024, ONE),
    ("mega-gpt-2", "8xmi250x", 64, 1024, ONE),
    ("mpt-70b", "24xb300", 120, 2048, ONE),
    ("bloom-176b", "48xgb300", 240, 2048, {**ONE, "tp": [4, 8]}),
    ("internlm-20b", "64xa800", 512, 4096, {**ONE, "pp": [1, 2, 4]}),
    ("llama-2-13b", "16xv100-32gb", 64, 4096, ONE),
    ("llama-3-8b", "8xmi300x", 64, 8192, ONE),
    ("llama-3-8b", "dgx-h100", 32, 131072, LONG),
    ("llama-3.1-405b", "512xh200", 64, 131072, {**LONG, "tp": 8, "pp": [8, 16]}),
    ("qwen2.5-7b", "8xl40s", 64, 8192, LONG),
    ("qwen2.5-32b", "32xmi355x", 64, 32768, {**LONG, "tp": [1, 2, 4]}),
    ("llama-3-70b", "64xmi300x", 128, 8192, {**ONE, "precision": "fp8-tensorwise", "pp": [1, 2]}),
    ("llama-3-70b", "64xb200", 128, 8192, {**ONE, "precision": "nvfp4", "pp": [1, 2]}),
    ("llama-3-70b", "64xgb200", 128, 8192, {**ONE, "precision": "mxfp8", "pp": [1, 4]}),
    ("gpt-oss-20b", "8xh100", 64, 8192, ONE),
    ("gpt-oss-120b", "64xh100", 256, 8192, {**ONE, "pp": 4, "tp": [1, 2]}),
    ("mixtral-8x7b", "16xh100", 128, 4096, {**ONE, "pp": [1, 2]}),
    ("mixtral-8x22b", "128xh200", 256, 65536, {**LONG, "tp": [4, 8], "pp": 4, "ep": 8}),
    ("qwen3-30b-a3b", "16xh100", 512, 4096, {**ONE, "pp": 1, "tp": 1}),
    ("qwen3-235b-a22b", "256xb200", 1024, 4096, {**ONE, "tp": 1, "pp": 8, "ep": [8, 16]}),
    ("deepseek-v3", "256xgb200", 4096, 4096, {**ONE, "precision": "mxfp8", "tp": 1, "pp": [4, 8], "ep": 64}),
    ("kimi-k2", "1024xb200", 2048, 4096, {**ONE, "tp": 1, "pp": 16, "ep": [32, 64]}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "on", "batch", "sequence", "fix"), PAIRS)
def test_the_best_plan_is_one_that_runs(model, on, batch, sequence, fix):
    """It uses every GPU, fits, attains a twentieth of the peak or more, and takes as long as `weft.step` says."""
    best = weft.plan(model, on, batch=batch, sequence=sequence, fix=fix, refine=0, top=1).best
    plan = best.plan
    assert plan.gpus == weft.system(on).gpus
    assert best.feasible
    peak = {"": 1.0, "fp8-tensorwise": 2.0, "mxfp8": 2.0, "nvfp4": 4.0}[plan.precision]
    assert 0.05 < best.mfu < peak
    assert best.step().seconds == pytest.approx(best.step_time_s, rel=1e-6)
    assert not plan.layers or plan.layers == stage_layers(best.setting.model, plan.pp, plan.chunks)
