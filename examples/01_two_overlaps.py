"""What does overlapping buy? One sub-layer under the baseline, T3, and T3 with its memory arbitration."""

import weft

gpu = weft.gpu("t3-paper")
layer = weft.sublayer("t-nlg", "op", tp=8)  # attention output projection, split over 8 GPUs
comparison = weft.compare(layer, gpu, ["sequential", "t3", "t3-mca"])
print(comparison)

print("\nDRAM traffic by cause [MB]")
for result in comparison:
    moved = ", ".join(f"{' '.join(cause)} {count / 1e6:.1f}" for cause, count in result.traffic.items())
    print(f"{result.overlap:<11} {moved}")

print("\nWhere the GEMM's workgroups spent their time")
for result in comparison:
    waits = result.spans[0].waits
    shares = ", ".join(f"{what} {spent / sum(waits.values()):.0%}" for what, spent in waits.items() if spent)
    print(f"{result.overlap:<11} {shares}")
