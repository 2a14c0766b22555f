"""What would better hardware buy? The same sub-layer while one value of the machine changes at a time."""

import weft

CHANGES: list[dict[str, str | float]] = [
    {},
    {"memory.bandwidth": "2 TB/s"},
    {"link.bandwidth": "300 GB/s"},
    {"rates.fp16": 2048},
    {"memory.ccd_update": 2},  # near-memory updates as fast as writes
]

gpu = weft.gpu("t3-paper")
layer = weft.sublayer("t-nlg", "op", tp=8)
print(f"{'change':<38} {'sequential us':>13} {'t3-mca us':>10} {'speedup':>8}")
for change in CHANGES:
    comparison = weft.compare(layer, gpu.replace(change), ["sequential", "t3-mca"])
    label = ", ".join(f"{path} = {value}" for path, value in change.items()) or "as in the paper"
    times = [result.seconds * 1e6 for result in comparison]
    print(f"{label:<38} {times[0]:13.1f} {times[1]:10.1f} {comparison.speedup('t3-mca'):8.3f}")
