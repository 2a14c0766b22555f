"""Who should go first in a memory channel? An arbitration policy of your own beside the built-in ones."""

import weft
from weft.overlaps.arbiters import COMMUNICATION, COMPUTE, NOBODY, POLICIES
from weft.simulate.result.metrics import speedup


@weft.arbiter
def half_queue(view):
    """Communication may fill half of the queue; the other half is kept for compute."""
    if view.communication > 0 and (view.occupancy < view.capacity // 2 or view.waited > view.limit):
        return COMMUNICATION
    return COMPUTE if view.compute > 0 else NOBODY


gpu = weft.gpu("t3-paper")
layer = weft.sublayer("t-nlg", "op", tp=8)
baseline = weft.simulate(layer, gpu, "sequential")
print(f"{'arbiter':<20} {'GEMM us':>8} {'RS us':>8} {'total us':>9} {'speedup':>8}")
for policy in (*POLICIES.values(), half_queue):
    result = weft.simulate(layer, gpu, "t3", weft.RunOptions(arbiter=policy))
    parts = (result.duration("gemm"), result.duration("reduce_scatter"), result.seconds)
    times = " ".join(f"{seconds * 1e6:8.1f}" for seconds in parts)
    print(f"{policy.name:<20} {times}  {speedup(result, baseline):8.3f}")
