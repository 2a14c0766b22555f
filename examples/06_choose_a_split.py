"""How should an all-gather share eight H100 with GEMMs of several sizes? A runtime's answer, in microseconds."""

from time import perf_counter

from weft.core.store import Store
from weft.graph import Collective, Gemm
from weft.plan.tune import choose, tables_for

# A hundred short simulations; the store keeps them, so the next start takes a second.
tables = tables_for("h100-sxm", collectives=("all_gather",), jobs=2, store=Store())
for rows in (512, 2048, 8192):
    gemm = Gemm(rows, 8192, 8192, "bf16")
    choose(gemm, Collective("all_gather", 1 << 20, 8), tables)  # the first time, the shape's tiles are worked out
    for mib in (4, 64, 512):
        begun = perf_counter()
        choice = choose(gemm, Collective("all_gather", mib << 20, 8), tables)
        taken = (perf_counter() - begun) * 1e6
        apart = "" if choice.units is None else f" with {choice.units} SMs"
        print(
            f"{rows:5} rows beside {mib:3} MiB: {choice.strategy}{apart}, {choice.speedup:.2f}x "
            f"({choice.low:.2f} to {choice.high:.2f}), chosen in {taken:.0f} us"
        )
