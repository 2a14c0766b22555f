"""Laws of whole training steps over random plans: parts add up, bounds hold, symmetric ranks agree."""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import weft
from weft.models import Transformer
from weft.models.parallel.framework import Framework, framework
from weft.models.parallel.plan import TrainingPlan
from weft.step.clock import train
from weft.step.memory import memory

laws = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
NODE = weft.system("dgx-a100")
MODEL = Transformer(
    name="small", title="small", hidden=2048, layers=16, heads=16, sequence_length=1024, vocabulary=32000
)  # fmt: skip
FLUSHING = ("gpipe", "1f1b", "interleaved:2", "zb-h1", "zb-h2")


@st.composite
def plans(draw):
    tp, pp, dp = draw(st.sampled_from([1, 2, 8])), draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 8]))
    schedule = draw(st.sampled_from(FLUSHING)) if pp > 1 else "1f1b"
    micro_batches = pp * draw(st.integers(2, 4))
    micro_batch = draw(st.sampled_from([1, 2]))
    return TrainingPlan(
        tp=tp,
        pp=pp,
        dp=dp,
        sp=draw(st.booleans()),
        batch=micro_batches * micro_batch * dp,
        micro_batch=micro_batch,
        sequence=1024,
        schedule=schedule,
        zero=draw(st.sampled_from([0, 1, 3])) if dp > 1 else 0,
        recompute=draw(st.sampled_from(["none", "full"])),
    )


def run(plan, used=None, **hardware):
    system = NODE.with_gpus(plan.gpus) if plan.gpus > 8 or plan.gpus in (1, 2, 4, 8) else None
    assume(system is not None)
    return train(MODEL, system.replace(hardware), plan, used, fidelity="estimate")


@laws
@given(plans())
def test_parts_add_up_to_the_step_on_average_and_on_every_device(plan):
    step = run(plan)
    assert sum(step.parts.values()) == pytest.approx(step.seconds, rel=1e-3)
    for device in range(step.devices):
        assert sum(step.rank_parts(device).values()) == pytest.approx(step.seconds, rel=1e-3)
    assert all(part >= -1e-9 for part in step.parts.values())


@laws
@given(plans())
def test_step_is_no_shorter_than_the_work_of_its_busiest_device(plan):
    step = run(plan)
    assert step.seconds >= max(step.work(device).seconds for device in range(step.devices)) * (1 - 1e-9)


FRAMEWORKS = st.sampled_from([None, framework("megatron-core")])
SCALES = (1, 2, 4, 8)


def scaled(plan, used, path):
    """Steps with links of 1, 2, 4 and 8 times the bandwidth."""
    return [run(plan, used, **{path: f"{scale * NODE.value(path) / 1e9} GB/s"}) for scale in SCALES]


@laws
@given(plans(), FRAMEWORKS)
@example(TrainingPlan(dp=2, batch=4, micro_batch=2, sequence=1024, zero=3), framework("megatron-core"))
@example(TrainingPlan(tp=8, dp=2, sp=True, batch=8, micro_batch=2, sequence=1024), framework("megatron-core"))
def test_faster_links_never_slow_a_step(plan, used):
    """A library holds at most 64 channels' compute units, however fast its links are."""
    for slower, faster in pairwise(scaled(plan, used, "link.bandwidth")):
        assert faster.seconds <= slower.seconds * (1 + 1e-9)


@laws
@given(plans(), FRAMEWORKS)
def test_a_faster_network_slows_a_step_by_no_more_than_what_its_channels_hold(plan, used):
    """Through several nodes the library opens more channels for a faster network, up to those of one node.

    What they cost kernels is compute units times seconds, which few units may take from the idle end of a wave of
    tiles, and many may not. Without a pipeline, in which one device's contention delays the next one, only
    contention grows.
    """
    for slower, faster in pairwise(scaled(plan, used, "network.bandwidth")):
        lost = [step.parts.get("contention", 0.0) for step in (slower, faster)]
        assert plan.pp > 1 or faster.seconds - lost[1] <= (slower.seconds - lost[0]) * (1 + 1e-9)
        assert faster.seconds <= 1.02 * slower.seconds


@laws
@given(plans())
def test_memory_curve_ends_where_it_began(plan):
    for device in memory(MODEL, NODE, plan, Framework()).devices:
        assert device.held[0] > 0
        assert device.left == pytest.approx(0, abs=1)


@laws
@given(plans())
def test_all_devices_of_a_symmetric_pipeline_agree(plan):
    """Without the ends of the model, chunks are equal, and so is what every device computes."""
    step = run(plan)
    inner = [chunk.all.seconds for chunk in step.chunks[1:-1]]
    assert inner == pytest.approx(inner[:1] * len(inner))
