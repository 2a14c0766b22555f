"""Where does a layer spend its time? GPT-3's on three systems, in closed form, prefill and decode."""

import weft
from weft.estimate import estimate

SYSTEMS = ("dgx-a100", "dgx-h100", "mi300x-x8")

for phase, batch, sequence in (("prefill", 1, 2048), ("decode", 32, 2048)):
    print(f"\nGPT-3, one layer, TP 8, {phase}, {batch} x {sequence} tokens")
    layer = weft.layer("gpt-3", tp=8, batch=batch, sequence=sequence, phase=phase, attention="fused")
    for system in SYSTEMS:
        found = estimate(layer, system)
        times = {name: float(one.seconds) for name, one in found.operators.items()}
        reduced = sum(time for name, time in times.items() if name.startswith("AllReduce"))
        longest = max(times, key=times.__getitem__)
        print(
            f"{system:<10} {found.seconds * 1e6:7.0f} us, {reduced / found.seconds:4.0%} in all-reduces; "
            f"longest: {longest}, bound by {found.operators[longest].bound}"
        )
