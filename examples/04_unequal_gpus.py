"""What does one slow GPU cost the others? Four GPUs, every one of them simulated."""

import weft
from weft.models import SubLayer
from weft.models.parallel import split

gpu = weft.gpu("t3-paper")
layer = split(SubLayer.custom(m=4096, n=2048, k=8192), tp=4)
machines = {
    "all alike": weft.System(gpu=gpu, gpus=4),
    "GPU 2 at 1.0 GHz": weft.System(gpu=gpu, gpus=4, variants={2: gpu.replace({"compute.clock": "1.0 GHz"})}),
    "GPU 2 sends at 75 GB/s": weft.System(gpu=gpu, gpus=4, variants={2: gpu.replace({"link.bandwidth": "75 GB/s"})}),
    "GPU 2 starts 50 us late": weft.System(gpu=gpu, gpus=4, start={2: "50 us"}),
}
print(f"{'machine':<24} {'total us':>8}   GEMM ends, per GPU [us]")
for name, machine in machines.items():
    result = weft.simulate(layer, machine, "t3-mca", weft.RunOptions(mode="explicit"))
    ends = [span.end_fs / 1e9 for span in result.spans if span.operator == "gemm"]
    print(f"{name:<24} {result.seconds * 1e6:8.1f}   {'  '.join(f'{end:.1f}' for end in ends)}")
