"""No option is silently ignored: each changes the answer of its command, or is refused beside what makes it moot."""

import hostile
import pytest

pytestmark = pytest.mark.slow

OUTPUTS = {"--details", "--explain", "--json", "--csv", "--out", "--trace", "--page", "--graph", "--chakra", "--all"}
"""Where an answer goes and how much of it is printed, not what it says."""
MANNERS = {"--jobs", "--no-cache", "--dask", "--shard"}
"""How runs are made; answers must not depend on them."""
LINES = (
    "step mega-gpt-2 --system 16xa100 --tp 4 --pp 2 --batch 16 --fidelity estimate",
    "step mixtral-8x7b --system 16xh100 --ep 8 --batch 16 --sequence 1024 --fidelity estimate",
    "step llama-3-8b --system 8xh100 --cp 2 --tp 4 --batch 8 --sequence 4096 --fidelity estimate",
    "step llama-3-8b --system 8xh100 --zero 3 --batch 8 --sequence 1024 --fidelity estimate",
    "step graph.jsonl --system h100-sxm",
    "plan mega-gpt-2 --system 8xh100 --batch 8 --refine 0",
    "memory mega-gpt-2 --system 16xa100 --tp 4 --pp 2 --batch 16",
    "memory mixtral-8x7b --system 16xh100 --ep 8 --batch 16",
    "memory llama-3-8b --system 8xh100 --cp 2 --tp 4 --batch 8",
    "memory llama-3-8b --system 8xh100 --zero 3 --batch 8",
    "schedule find --stages 2 --micro-batches 4 --forward 2ms --backward 2ms --weight 1ms",
    "schedule find --stages 2 --micro-batches 4 --forward 2ms --backward 2ms --weight 1ms --memory 3 --kept 0.5",
    "schedule check schedule.json --forward 2ms --backward 2ms --weight 1ms",
    "schedule check schedule.json --forward 2ms --backward 2ms --weight 1ms --activations 3GB --memory 24GB",
    "sample lengths.csv",
    "prefill llama-3-8b --system 8xh100 --tp 8",
    "decode llama-3-8b --system 8xh100 --tp 8",
    "serve llama-3-8b --system 8xh100 --tp 4 --rate 40 --requests 64",
    "serve llama-3-8b --system 8xh100 --tp 4 --concurrency 4 --requests 16 --input-len 100-2000",
    "predict collective all_reduce:1MiB --ranks 8 --system dgx-h100",
    "predict collective all_gather:1MiB --ranks 8 --system mi300x-x8",
    "predict gemm 4096,4096,4096",
    "predict gemm --shapes gemms.csv",
    "predict layer --model gpt-3 --system dgx-h100",
    "predict op softmax --shape rows=4096,columns=4096",
    "advise fuse --form ag_gemm --gemm 8192,11008,4096 --tp 8 --system hgx-h800",
    "tiles 128,512,512 --gpu h100-sxm",
    "rewrite mega-gpt-2 --system 8xh100 --tp 2 --sequence 64 --most 5",
    "roofline mega-gpt-2 --system 16xa100 --tp 4 --pp 2 --batch 16",
    "roofline mixtral-8x7b --system 16xh100 --ep 8 --batch 16 --sequence 1024",
    "roofline llama-3-8b --system 8xh100 --cp 2 --tp 4 --batch 8",
    "roofline llama-3-8b --system 8xh100 --zero 3 --batch 8",
    "import trace.json",
    "export graph.jsonl --chakra out",
    "overlaps list",
)
"""Command lines on whose answers options act, one or several for each command that answers within seconds."""
VALUES = (
    *("2", "1", "4", "3", "8", "16", "64", "0.5", "0.001", "bf16", "fp16", "fp8", "fp32", "int8", "h100-sxm", "mi300x"),
    *("8xa100", "16xmi300x", "dgx-a100", "link.bandwidth=300 GB/s", "network.bandwidth=10 GB/s", "compute.clock=1 GHz"),
    *("memory.bandwidth=1 TB/s", "memory.capacity=40 GB", "clocks.sustained=1 GHz", "tp=4", "tp=flux", "dp=sequential"),
    "tp=in-network",
    *("full", "all_gather", "attention", "1 GB", "40 GB", "3ms", "1ms,2ms", "1us", "8,16", "time_ms", "length", "ring"),
    *("rows=64,columns=64", "gemms.csv", "add_norm", "megatron", "1,3", "4,4", "1,1", "tree", "nvls"),
)
"""Values that some option takes."""
DEFAULTS = {
    **dict.fromkeys(("--tp", "--pp", "--cp", "--ep", "--micro-batch", "--nodes", "--batch"), ("1",)),
    "--dp": [*map(str, range(1, 17))],
    "--context": ("ring", "2048"),
    "--schedule": ("1f1b",),
    "--precision": ("bf16",),
}
"""Values that state what holds anyhow."""
MOOT = {
    ("memory", "--batch"): "without a pipeline, micro-batches follow each other in the same memory",
    ("memory", "--context"): "the keys of other ranks are held for a moment, which is not counted",
    ("memory", "--dispatcher"): "the buffers of the library that exchanges tokens are not counted",
    ("rewrite", "--alpha"): "the best graph is found at once, where few rules apply",
    ("memory", "--set"): "only the capacity of the memory counts",
    ("roofline", "--batch"): "a roofline shows a micro-batch",
    ("roofline", "--schedule"): "a roofline shows a micro-batch",
    ("roofline", "--pp"): "a roofline shows the layers of the model",
    ("export", "--system"): "times stand in the files",
}
"""Options by command that need not act on every line, and why."""


@pytest.fixture(autouse=True)
def folder(tmp_path):
    lengths = "length,time_ms\n" + "".join(f"{64 + n * 37 % 401},{10 + n * 13 % 29}.5\n" for n in range(400))
    with hostile.work_folder(tmp_path):
        (tmp_path / "lengths.csv").write_text(lengths)
        yield


def answer(words):
    """What a command answers; "" if it refuses."""
    json = next((option for option in hostile.options_of(" ".join(words)) if option.opts[0] == "--json"), None)
    return hostile.command([*words, *([] if json is None else ["--json"] if json.is_flag else ["--json", "-"])])


def tries(words, option):
    """The line with every value of an option that may be taken."""
    if option.is_flag:
        for flag in (*option.opts, *option.secondary_opts):
            yield flag, [*words, flag]
        return
    known = getattr(option.type, "choices", ()) or getattr(option.type, "known", tuple)()
    place = words.index(option.opts[0]) if option.opts[0] in words and not option.multiple else len(words)
    given = words[place + 1 : place + 2]
    for value in dict.fromkeys([*map(str, list(known)[:12]), *VALUES]):
        if [value] != given:
            yield value, [*words[:place], *words[place + 2 :], option.opts[0], value]


@pytest.mark.parametrize("line", LINES)
def test_an_option_that_is_taken_changes_the_answer(line):
    words = line.split()
    before = answer(words)
    assert before
    silent = {}
    for option in hostile.options_of(line):
        name = option.opts[0]
        if name in OUTPUTS | MANNERS or (words[0], name) in MOOT:
            continue
        taken = []
        for value, changed in tries(words, option):
            if value in DEFAULTS.get(name, ()):
                continue
            after = answer(changed)
            taken += [value] if after else []
            if after not in ("", before):
                break
        else:
            # Of a flag and its opposite, one states what holds anyhow.
            stated = taken[:1] if option.is_flag and option.secondary_opts and len(taken) == 1 else []
            silent.update({name: taken} if taken != stated else {})
    assert silent == {}
