"""A small answer of every kind, for its page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from estimates import gemm
from kineto import Recorded
from small_gemms import small_mi100

import weft
from weft import hardware
from weft.core.answer import Answer
from weft.models import SubLayer
from weft.models.parallel import split
from weft.plan.tune.lists import read_gemms
from weft.plan.tune.perturb import Row, Sensitivity
from weft.plan.tune.tiles import Template

_SHAPES = [weft.gemm(512, 512, 512), weft.gemm(64, 4096, 4096)]
_GPUS = ["h100-sxm", "mi300x"]
_TILES = Template((64, 128), (64, 128), (32, 64), (2, 4), (128,), (1, 4))
_MOVED = [Row("as chosen", "", {"speedup": 1.2}), Row("link", "1 GB/s", {"speedup": 1.1})]


def _comparison() -> Answer:
    watched = weft.RunOptions(interference=True)
    return weft.compare(split(SubLayer.custom(2048, 2048, 512), 4), "t3-paper", options=watched)


def _beside() -> Answer:
    graph = weft.concurrent(weft.gemm(2048, 2048, 1024, "bf16"), weft.all_gather("16 MiB", ranks=4), 2, 2)
    return weft.compare(graph, "mi300x", ["streams", "dma"])


def _heat() -> Answer:
    watched = weft.RunOptions(heatmap="bank")
    return weft.simulate(split(SubLayer.custom(1024, 1024, 512), 4), "t3-paper", "t3", options=watched)


def _advice() -> Answer:
    return weft.advise(weft.gemm(1024, 2048, 1024, "bf16"), weft.all_gather("8 MiB", ranks=8), "h100-sxm")


def _fuse_advice() -> Answer:
    shape = weft.gemm(4096, 8192, 8192, "bf16")
    return weft.advise_fuse("gemm_rs", shape, 8, "h100-sxm", fidelity="estimate", m_range=(256, 4096))


def _graph_step() -> Answer:
    return weft.step(weft.concurrent(_SHAPES[0], weft.all_gather("1 MiB")).only("compute"), "h100-sxm")


def _plans() -> Answer:
    fix = {"tp": 8, "pp": [4, 8], "cp": 1, "sp": True, "micro_batch": [1, 2], "recompute": "full"}
    return weft.plan("gpt-3", "64xa100", batch=64, fix=fix, refine=0, launcher="megatron")


def _step(**plan: object) -> Answer:
    return weft.step("llama-3-8b", "8xh100", batch=16, sequence=4096, fidelity="estimate", **plan)


def _scaling() -> Answer:
    plan = {"tp": 8, "pp": 4, "batch": 64, "fidelity": "estimate"}
    return weft.scale("llama-3-70b", "64xh100", compute=[1, 4], network=[1, 2], **plan)


def _sample() -> Answer:
    from weft.papers.sample import iterations

    lengths = np.random.default_rng(7).integers(50, 1200, 500).astype(float)
    seconds = 0.02 + 1e-4 * lengths
    return weft.sample(iterations(lengths, {"a": seconds, "b": seconds / 3}))


def _study() -> Answer:
    from weft.papers import study

    return study("memo").run()


def _trace() -> Answer:
    return weft.read_trace(Path(__file__).parents[1] / "traces" / "mi250_train.json.gz")


def _traces(folder: Path) -> Answer:
    """Two ranks, of which the second is late into an all-reduce."""
    runs = folder / "ranks"
    runs.mkdir()
    for rank, start in enumerate((60, 140)):
        made = Recorded(distributedInfo={"rank": rank, "world_size": 2})
        made.gemm(0)
        made.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 6, start, 200 - start, stream=20)
        made.write(runs / f"rank{rank}.json")
    found: Answer = weft.read_traces(runs)
    return found


def _tuning(folder: Path) -> Answer:
    listed = folder / "gemms.csv"
    listed.write_text("name,m,n,k,dtype,count\nhead,128,64,128,fp16,3\n")
    return weft.tune(read_gemms(listed), small_mi100())


def _validation(folder: Path) -> Answer:
    """GEMMs of an H100 that are 3 % noise away from its model."""
    random = np.random.default_rng(3)
    m, n, k = (2 ** random.integers(6, 14, 240) for _ in range(3))
    seconds = gemm(m, n, k, "bf16", hardware.gpu("h100-sxm")).seconds * np.exp(random.normal(0, 0.03, 240))
    lines = [f"h100-sxm,bf16,{a},{b},{c},{t * 1e6:.6g}" for a, b, c, t in zip(m, n, k, seconds, strict=True)]
    measured = folder / "gemm.csv"
    measured.write_text("\n".join(["gpu,dtype,m,n,k,time_us", *dict.fromkeys(lines), ""]))
    return weft.validate(measured)


PAGES: Mapping[str, Callable[[Path], Answer]] = {
    "advice": lambda _: _advice(),
    "comparison": lambda _: _comparison(),
    "comparison: ways to share": lambda _: _beside(),
    "estimate": lambda _: weft.estimate(weft.gemm([1, 64, 4096], 4096, 4096), _GPUS),
    "fuse advice": lambda _: _fuse_advice(),
    "graph step": lambda _: _graph_step(),
    "contrast: before and after": lambda _: weft.Contrast({"as asked": _step(tp=2, pp=2), "pp 4": _step(tp=2, pp=4)}),
    "contrast: overlaps": lambda _: weft.step_overlaps("llama-3-8b", "8xh100", tp=8, batch=8, sequence=4096),
    "inference": lambda _: weft.decode("llama-3-8b", "8xh100", weft.ServingPlan(tp=2)),
    "memory": lambda _: weft.memory("llama-3-70b", "64xh100", tp=8, pp=4, batch=128, recompute="selective"),
    "plans": lambda _: _plans(),
    "recomputation": lambda _: weft.recompute("llama-3-8b", "8xh100", "70 GB", zero=3, batch=16, sequence=8192),
    "rewriting": lambda _: weft.rewrite("llama-3-8b", "h100-sxm", sequence=64),
    "roofline": lambda _: weft.roofline("llama-3-8b", "8xh100", batch=8),
    "sample": lambda _: _sample(),
    "scaling": lambda _: _scaling(),
    "schedule": lambda _: weft.find_schedule(3, 4, "1 ms", "1 ms", "1 ms", memory=4),
    "sensitivity": lambda _: Sensitivity("t3", ["t-nlg"], _MOVED, {"speedup": ".3f"}),
    "serving": lambda _: weft.serve("llama-3-8b", "1xh100", weft.ServingPlan(), weft.Load(rate=4, requests=40)),
    "serving plans": lambda _: weft.plan_serving(
        "llama-3-8b", "2xh100", weft.Load(rate=8, requests=40), weft.Limits(ttft="1s", tpot="40ms")
    ),
    "step: pipeline": lambda _: _step(tp=2, pp=2),
    "step: sharded": lambda _: _step(zero=3, recompute="full"),
    "study": lambda _: _study(),
    "sweep": lambda _: weft.sweep(_SHAPES, _GPUS, by="estimate"),
    "tiles": lambda _: weft.tiles(weft.gemm(512, 1024, 4096), "h100-sxm", _TILES),
    "timeline": lambda _: _heat(),
    "trace": lambda _: _trace(),
    "distributed trace": _traces,
    "trace comparison": lambda _: weft.compare_trace(_trace(), "h100-sxm"),
    "tuning": _tuning,
    "validation": _validation,
}
"""How to make an answer of each kind of `REPORTS`, with what sets it apart after a colon; given a folder for files."""
