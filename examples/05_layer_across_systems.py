"""Where does a layer spend its time? GPT-3's on three systems, in closed form, prefill and decode."""

from weft.predict.layer import layer

SYSTEMS = ("dgx-a100", "dgx-h100", "mi300x-x8")

for phase, batch, sequence in (("prefill", 1, 2048), ("decode", 32, 2048)):
    print(f"\nGPT-3, one layer, TP 8, {phase}, {batch} x {sequence} tokens")
    for system in SYSTEMS:
        found = layer("gpt-3", system, tp=8, batch=batch, sequence=sequence, phase=phase, attention="fused")
        reduced = sum(entry.seconds for entry in found.operators if entry.name.startswith("AllReduce"))
        longest = max(found.operators, key=lambda entry: entry.seconds)
        print(
            f"{system:<10} {found.seconds * 1e6:7.0f} us, {reduced / found.seconds:4.0%} in all-reduces; "
            f"longest: {longest.name}, bound by {longest.prediction.bound_names()}"
        )
