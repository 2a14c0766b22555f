"""Hostile inputs, drawn at random: files that are nearly right or none, calls, objects and command lines with values
that nobody means, names that are misspelt, shards of others, and signals at any moment.

A try is drawn from a source of random numbers (`random.Random`, or hypothesis' `randoms`) and run by `tried`, which
names what went wrong: a traceback, a hang, an answer that is not finite, a misspelt name that was taken, a cell that a
spreadsheet computes, a file left behind, or a message that is no sentence of Weft's.
`tests/integration/test_hostile_inputs.py` runs some, `benchmarks/hostile.py` as many as one likes, with a limit of
memory.
"""

import contextlib
import csv
import gzip
import inspect
import io
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import kineto
import numpy as np

import weft
from weft.cli import main as cli
from weft.core import files
from weft.core.errors import WeftError
from weft.core.fields import _rules
from weft.graph import (
    KINDS,
    DmaCopies,
    Joined,
    KernelChoice,
    LibraryCollective,
    MoEExchange,
    PaperAllReduce,
    Send,
    Tensor,
    TiledGemm,
    TokenExchange,
    TrackedArrivals,
    TrackedDirect,
    TrackedRing,
    View,
)
from weft.graph.collective import Copy
from weft.graph.named import Constant
from weft.hardware.stragglers import Stragglers
from weft.kernels import GemmTiling
from weft.kernels.copies import DmaGather
from weft.models.block import FusionStyle
from weft.models.parallel.framework import framework
from weft.overlaps import find_simulated

LONGEST_S = 10
"""Most processor time that a try may take [s]."""
LONGEST_WAIT_S = 120
"""Longest time that a try may take on a computer that does other work, too [s]."""
UGLY = re.compile(r"Traceback|object at 0x|NoneType|pydantic|Errno|Input should|instance of|sys\.set_int|Error\(")
"""What no message to a user holds."""
NOT_FINITE = re.compile(r"(?<![\w./'=-])[-+]?(nan|inf|NaN|Infinity(?! Cache| Fabric))(?![\w./'-])")
"""A number in an answer that is none."""
SIMULATED_S = 300
"""Longest time of what simulates many runs, all of which its arguments may ask for [s]."""
SIMULATED = (
    *("study", "advise", "tune", "sweep", "simulate", "compare", "balance_loops", "sweep_file", "replay", "scale"),
)
"""Commands and functions that do."""


class Try(NamedTuple):
    """One hostile input: what it is, how it is run, and the text that says how to repeat it."""

    kind: str
    run: Callable[[], Any]
    text: str
    longest_s: int = LONGEST_S


class Found(NamedTuple):
    """What went wrong in a try: "traceback", "hang", "not finite", "silent", "message" or "status", with details."""

    what: str
    kind: str
    text: str
    detail: str


class SilentError(Exception):
    """A value that cannot be meant was taken."""


class HangError(BaseException):
    """A try took longer than it may."""


VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    3,
    7,
    2**31 - 1,
    2**31,
    2**63,
    10**40,
    -(10**40),
    0.5,
    -0.0,
    1e-320,
    1e308,
    math.nan,
    math.inf,
    -math.inf,
    "",
    " ",
    "nope",
    "nan",
    "inf GB/s",
    "-1",
    "1e400",
    "9" * 5000,
    "\ud83d",
    "\x00",
    "é" * 70,
    "8",
    "1 GiB",
    "1 us",
    "h100-sxm",
    "/dev/zero",
    "/",
    ".",
    b"bytes",
    [],
    (),
    {},
    set(),
    [1],
    (1, 2, 3),
    {"a": 1},
    [[]],
    [None],
    object(),
    print,
    int,
    ...,
    1j,
    np.nan,
    np.int32(4),
    np.float32(2.5),
    np.array([]),
    np.array([1, 2]),
    np.array([math.nan]),
    np.array([[8]]),
    np.array(["x"]),
    range(3),
    Path("nope"),
    Path(),
    iter(()),
)
"""Values that a caller may pass by mistake or by malice."""
WORDS = (
    "0",
    "-1",
    "1",
    "2",
    "3",
    "7",
    "8",
    "64",
    "512",
    "2147483647",
    "2147483648",
    "1e400",
    "nan",
    "inf",
    "-inf",
    "1.5",
    "1e-9",
    "9" * 40,
    "0x10",
    "1_0",
    "²",
    "٣",
    "",
    " ",
    "nope",
    ",",
    ",,",
    "=",
    "-",
    "--",
    "a=b",
    "é",
    "🦊",
    "/dev/null",
    "/dev/zero",
    ".",
    "..",
    "/",
    "folder",
    "1 GB",
    "1 GiB",
    "1us",
    "0 s",
    "-1 s",
    "1e300 s",
    "nan GB/s",
    "1,2",
    "8,8,8",
    "512,512,512",
    "a,b",
    "tp=8",
    "all_reduce:1MiB",
    "all_gather:0B",
    "h100-sxm",
    "8xh100",
    "0xh100",
    "999999999xh100",
    "t3-paper",
    "bf16",
    "fp8",
    "int8",
    "fp99",
    "t-nlg",
    "gpt-3",
    "t3",
    "t3-mca",
    "sequential",
    "ring",
    "full",
    "none",
    "auto",
    "sustained",
    "memory.bandwidth=2TB/s",
    "memory.bandwidth=nan",
    "x",
    "y.json",
    "\udcff",
    "1" * 3000,
    "%s%n",
    "$(id)",
    "<script>",
)
"""Values of options and arguments."""


def tried(one: Try) -> Found | None:
    """Run a try; None if it ended in an answer with finite numbers or in a sentence of Weft's."""
    before = {number: signal.signal(number, _hang) for number in (signal.SIGALRM, signal.SIGPROF)}
    signal.setitimer(signal.ITIMER_PROF, one.longest_s)
    signal.alarm(max(one.longest_s, LONGEST_WAIT_S))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            answer = one.run()
        found = _not_finite(answer)
        return None if found is None else Found("not finite", one.kind, one.text, found)
    except HangError:
        return Found("hang", one.kind, one.text, "".join(traceback.format_exc().splitlines(keepends=True)[-12:]))
    except WeftError as error:
        told = str(error)
        return Found("message", one.kind, one.text, told[:300]) if UGLY.search(told) or not told.strip() else None
    except SilentError as error:
        return Found("silent", one.kind, one.text, str(error)[:2000])
    except AssertionError as error:
        return Found("status", one.kind, one.text, str(error)[-2000:])
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException:  # noqa: BLE001 - every other error is what is looked for
        return Found("traceback", one.kind, one.text, traceback.format_exc()[-1500:])
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _hang(number: int, frame: Any) -> None:
    signal.alarm(1)  # once more, for code that swallows it
    raise HangError


def _not_finite(answer: Any) -> str | None:
    """Where the plain data of an answer holds a number that is not finite."""
    if isinstance(answer, str):
        found = NOT_FINITE.search(answer)
        return answer[max(0, found.start() - 80) : found.end() + 40] if found else None
    data = answer.to_dict() if hasattr(answer, "to_dict") and not isinstance(answer, type) else answer
    return next((f"{path}: {value}" for path, value in _numbers(data, "") if not math.isfinite(value)), None)


def _numbers(data: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _numbers(value, f"{path}.{key}")
    elif isinstance(data, list | tuple):
        for number, value in enumerate(data):
            yield from _numbers(value, f"{path}[{number}]")
    elif isinstance(data, float):
        yield path, data


# Files


def _trace() -> bytes:
    made = kineto.Recorded(deviceProperties=[{"name": "NVIDIA A100"}])
    for start in range(0, 300, 100):
        made.gemm(start)
    made.kernel("ncclKernel_AllReduce", 8, 30, 500, stream=20, **{"Collective name": "allreduce", "In msg nelems": 64})
    return json.dumps({"deviceProperties": made.head.get("deviceProperties"), "traceEvents": made.events}).encode()


_FEEDER = {
    "workload_graph": [
        {
            "Id": 1,
            "Name": "first",
            "NodeType": 4,
            "ctrl_deps": [],
            "data_deps": [],
            "num_ops": 8,
            "tensor_size": 4,
            "runtime": 3,
        },
        {"Id": 2, "Name": "sum", "NodeType": 7, "ctrl_deps": [1], "data_deps": [1], "comm_type": 0, "comm_size": 4096},
    ]
}
_CALL = {
    "id": 3,
    "name": "aten::mm",
    "ctrl_deps": 2,
    "inputs": {
        "values": "[[1, 2, 0, 64, 4, 'cuda:0'], [3, 4, 0, 64, 4, 'cuda:0']]",
        "shapes": [[8, 8], [8, 8]],
        "types": ["Tensor(float)"] * 2,
    },
    "outputs": {"values": "[[5, 6, 0, 64, 4, 'cuda:0']]", "shapes": [[8, 8]], "types": ["Tensor(float)"]},
    "attrs": [{"name": "op_schema", "type": "string", "value": "aten::mm(Tensor self, Tensor mat2) -> Tensor"}],
}
_NESTED = {
    "schema": "1.1.1-chakra.0.0.4",
    "pid": 1,
    "nodes": [{**_CALL, "id": 2, "name": "process", "ctrl_deps": 2}, _CALL],
}
_CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
_MODEL = b'title = "x"\nhidden = 1024\nheads = 8\nlayers = 2\nsequence_length = 128\nbatch = 1\ntensor_parallel = [2]\n'
_GPU = b'extends = "h100-sxm"\ntitle = "mine"\n[memory]\nbandwidth = "3 TB/s"\n[compute]\ncompute_units = 100\n'
_NODE = b'extends = "dgx-h100"\ntitle = "mine"\ngpus_per_node = 4\n[network]\nbandwidth = "50 GB/s"\n'
_SWEEP = (
    b'run = "estimate"\nwork = "t-nlg/fc2"\nsystem = "t3-paper"\ntp = 8\n'
    b'[vary]\n"link.bandwidth" = ["150 GB/s", "300 GB/s"]\n'
)
_GEMMS = b"m,n,k,dtype,count\n512,512,512,fp16,4\n1024,512,256,fp16,2\n"
_LOG = b"length,time_ms\n" + b"".join(b"%d,%d.5\n" % (64 + 8 * (n % 9), 10 + n % 9) for n in range(40))
_MEASURED = b"gpu,dtype,m,n,k,time_us\n" + b"".join(
    b"h100-sxm,bf16,%d,%d,%d,%d\n" % (m, n, 2048, m * n // 16_000 + 20)
    for m in range(512, 4096, 512)
    for n in (1024, 4096)
)
_SCENARIOS = (
    b'title = "mine"\n[[scenario]]\nlayer = "x"\ngemm = [512, 512, 512]\ncollective = "all_gather"\nsize = "1 MiB"\n'
)
_SCHEDULE = {"name": "mine", "devices": ["F0 F1 B0 W0 B1 W1", "F0 B0 F1 B1 W0 W1"]}


_SCRIPT = b"""N=8; ARGS=(--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64
 --swiglu --vocab-size 128256 --moe-layer-freq "([0]*3+[1]*77)")
torchrun --nproc-per-node $N --nnodes ${N} pretrain_gpt.py "${ARGS[@]}" --bf16 --lr 1e-4 \\
 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --seq-length 8192 --micro-batch-size 1 \\
 --global-batch-size $((N * 16)) --num-layers-per-virtual-pipeline-stage 4 --recompute-granularity full
"""
_TITAN = b"""[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "full"
"""
_DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "zero_hpz_partition_size": 4},
}


_REQUESTS = b"arrival_s,input_tokens,output_tokens\n" + b"".join(b"%d.5,%d,8\n" % (n, 100 + n) for n in range(6))
_LINES = b"".join(
    b'{"timestamp": %d, "input_length": %d, "output_length": 4, "hash_ids": [%d, %d]}\n' % (n * 900, 700, n % 2, n)
    for n in range(6)
)


def _plan() -> dict[str, Any]:
    """An all-reduce between two ranks as a plan of MSCCL++."""
    gpus = []
    for rank in range(2):
        channel = {"channel_type": "memory", "channel_ids": [0]}
        far = [{"rank": 1 - rank, "type": kind, "access_channel_types": ["memory"]} for kind in "so"]
        own, other = ({"type": "i", "index": one, "size": 1} for one in (rank, 1 - rank))
        ops = [
            {"name": "put", "src_buff": [other], "dst_buff": [{"buffer_id": 0, "index": 0, "size": 1}]},
            {"name": "signal"},
            {"name": "wait"},
            {
                "name": "res",
                "src_buff": [own, {"type": "s", "index": 0, "size": 1}],
                "dst_buff": [{"type": "o", "index": rank, "size": 1}, {"buffer_id": 1, "index": rank, "size": 1}],
            },
            {"name": "signal"},
            {"name": "wait"},
        ]
        refs = [{"access_channel_type": "memory", "remote_buffer_ids": [0, 1]}]
        block = {"id": 0, "ops": [{**channel, **op} for op in ops], "channels": [channel], "remote_buffer_refs": refs}
        gpus.append(
            {"id": rank, "input_chunks": 2, "output_chunks": 2, "scratch_chunks": 1, "threadblocks": [block],
             "channels": [{"channel_type": "memory", "connected_to": [1 - rank]}], "remote_buffers": far}
        )  # fmt: skip
    head = {"name": "pair", "collective": "allreduce", "protocol": "Simple", "inplace": False}
    return {**head, "num_threads_per_block": 256, "gpus": gpus}


def _timeline() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        run = weft.simulate(weft.gemm_queue([weft.Gemm(64, 64, 64)]), "h100-sxm")
        return run.save(Path(folder) / "run.json").read_bytes()


_TRAINER = b"""base_model: Qwen/Qwen3-0.6B
sequence_len: 1024
micro_batch_size: 1
gradient_accumulation_steps: 2
bf16: auto
fsdp_version: 2
fsdp_config: {reshard_after_forward: true}
"""
_SERVER = b"""TP=${TP:-2}
cat > options.yaml <<END
max-num-seqs: 64
END
vllm serve Qwen/Qwen3-8B --tensor-parallel-size $TP --config options.yaml --speculative-config '{"method": "ngram"}'
"""
_DEPLOYED = b"""services:
  decode:
    replicas: 2
    mainContainer:
      env: [{name: TP, value: "2"}]
      command: [/bin/sh, -c]
      args: ["python3 -m dynamo.vllm --model Qwen/Qwen3-8B --tensor-parallel-size $TP"]
"""


@cache
def seeds() -> dict[str, bytes]:
    """A right file of every kind, by its name."""
    graph = weft.layer("gpt-3", tp=8)
    lines = "".join(f"{line}\n" for line in weft.graph.graph_lines(graph))
    return {
        "trace.json": _trace(),
        "feeder.json": json.dumps(_FEEDER).encode(),
        "nested.json": json.dumps(_NESTED).encode(),
        "graph.jsonl": lines.encode(),
        "config.json": json.dumps(_CONFIG).encode(),
        "model.toml": _MODEL,
        "gpu.toml": _GPU,
        "node.toml": _NODE,
        "sweep.toml": _SWEEP,
        "gemms.csv": _GEMMS,
        "log.csv": _LOG,
        "measured.csv": _MEASURED,
        "scenarios.toml": _SCENARIOS,
        "schedule.json": json.dumps(_SCHEDULE).encode(),
        "chakra.et": _messages(graph),
        "pretrain.sh": _SCRIPT,
        "titan.toml": _TITAN,
        "deepspeed.json": json.dumps(_DEEPSPEED).encode(),
        "trainer.yaml": _TRAINER,
        "serve.sh": _SERVER,
        "deploy.yaml": _DEPLOYED,
        "requests.csv": _REQUESTS,
        "requests.jsonl": _LINES,
        "plan.json": json.dumps(_plan()).encode(),
        "timeline.json": _timeline(),
    }


def _messages(graph: Any) -> bytes:
    try:
        with tempfile.TemporaryDirectory() as folder:
            (made,) = weft.write_chakra(graph, folder).files[:1]
            return Path(made).read_bytes()
    except WeftError:  # without protobuf
        return b""


def _stepped(path: Path) -> Any:
    return weft.step(weft.read_graph(path), "8xh100").to_dict()


def _read_trace(path: Path) -> Any:
    return weft.read_trace(path)


def _validated(path: Path) -> Any:
    return weft.validate(path)


def _sampled(path: Path) -> Any:
    from weft.papers.sample import read_log

    return weft.sample(read_log(path, None, ()))


READERS: dict[str, tuple[Callable[[Path], Any], ...]] = {
    "trace.json": (
        _read_trace,
        lambda p: weft.compare_trace(weft.read_trace(p), "h100-sxm"),
        _stepped,
    ),
    "feeder.json": (_stepped, lambda p: weft.read_execution_trace(p, 8).graph.title),
    "nested.json": (_stepped, lambda p: weft.read_execution_trace(p, 8).graph.title),
    "chakra.et": (_stepped, lambda p: weft.read_execution_trace(p, 8).graph.title),
    "graph.jsonl": (_stepped, lambda p: weft.estimate(weft.read_graph(p), "h100-sxm")),
    "config.json": (
        lambda p: weft.memory(weft.load_model(p), "8xh100", tp=8),
        lambda p: weft.decode(p, "8xh100", weft.ServingPlan(tp=8)),
        lambda p: weft.step(p, "8xh100", tp=8, fidelity="estimate"),
    ),
    "model.toml": (
        lambda p: weft.memory(weft.load_model(p), "8xh100", tp=8),
        lambda p: weft.prefill(p, "8xh100", weft.ServingPlan(tp=8)),
        lambda p: weft.step(p, "8xh100", tp=2, batch=8, fidelity="estimate"),
    ),
    "gpu.toml": (
        lambda p: weft.estimate(weft.gemm(512, 512, 512), weft.gpu(p)),
        lambda p: weft.estimate(weft.all_reduce("1 MiB", 8), weft.system(p)),
        lambda p: weft.decode("llama-3-8b", p, weft.ServingPlan(tp=8)),
    ),
    "node.toml": (
        lambda p: weft.estimate(weft.all_reduce("1 MiB", 4), weft.system(p)),
        lambda p: weft.step("llama-3-8b", p, tp=4, fidelity="estimate"),
    ),
    "sweep.toml": (lambda p: weft.sweep_file(p, cache=False),),
    "pretrain.sh": (lambda p: weft.read_launch(p).step("64xh100", fidelity="estimate"),),
    "titan.toml": (lambda p: weft.read_launch(p).step("8xh100", fidelity="estimate"),),
    "deepspeed.json": (lambda p: weft.read_launch(p).step("8xh100", "llama-3-8b", fidelity="estimate"),),
    "trainer.yaml": (lambda p: weft.read_launch(p).step("8xh100", fidelity="estimate"),),
    "serve.sh": (lambda p: weft.read_server(Path(p)).plan(),),
    "deploy.yaml": (lambda p: weft.read_server(Path(p)).plan(),),
    "log.csv": (_sampled,),
    "measured.csv": (_validated, lambda p: weft.calibrate(p, gpu="h100-sxm")),
    "schedule.json": (weft.check_schedule,),
    "requests.csv": (lambda p: weft.serve("llama-3-8b", "1xh100", weft.ServingPlan(), weft.Load(trace=p)),),
    "requests.jsonl": (lambda p: weft.serve("llama-3-8b", "1xh100", weft.ServingPlan(), weft.Load(trace=p)),),
    "plan.json": (
        weft.read_collective,
        lambda p: weft.simulate(weft.read_collective(p).graph("64 KiB"), "2xh100").seconds,
    ),
    "timeline.json": (weft.Timeline.load, lambda p: weft.Timeline.load(p).to_dict()),
}
"""What reads each kind of file, and what is asked of the answer."""


def mutated(draw: Any, name: str) -> bytes:
    """A file of a kind with one to three faults: of its bytes, or of a value, a key or an item of its JSON."""
    data = seeds()[name]
    for _ in range(draw.randint(1, 3)):
        whole = name.endswith((".json", ".jsonl")) and draw.random() < 0.7
        data = _other_value(draw, data, name.endswith("l")) if whole else _other_bytes(draw, data)
    if name.endswith(".sh") and draw.random() < 0.3:
        data = _other_script(draw, data)
    return gzip.compress(data, mtime=0) if draw.random() < 0.1 else data


SCRIPTS = (
    b"A=ab\n" + b"A=$A$A\n" * 30 + b"echo $A\n",
    b"echo 'never closed\n" + b"x y z\n" * 3000,
    b"X=(\n" + b"a b\n" * 3000,
    b"Y=${a:-" * 3000,
    b"cat <<EOF\n--num-layers 96\n",
    b": <<'END'\n--num-layers 96\nEND\n",
    b"$(touch made-by-a-script) `touch made-by-a-script`\n",
    b"N=$((1 / 0)) M=$(( ((((((1))))) )\n",
    b"python preprocess.py --num-layers 2\n",
)
"""Pieces of launch scripts that grow, never end, or would do something."""


def _other_script(draw: Any, data: bytes) -> bytes:
    """A script with a hostile piece between two of its lines."""
    lines = data.split(b"\n")
    lines.insert(draw.randint(0, len(lines)), draw.choice(SCRIPTS))
    return b"\n".join(lines)


def _other_bytes(draw: Any, data: bytes) -> bytes:
    """Bytes with a piece cut out, twice, changed or put in."""
    begin = draw.randint(0, max(len(data) - 1, 0))
    end = min(len(data), begin + draw.choice((1, 1, 4, 16, 1000)))
    way = draw.randint(0, 6)
    if way == 0:
        return data[:begin]
    if way == 1:
        return data[:begin] + data[end:]
    if way == 2:
        return data[:end] + data[begin:end] * draw.choice((1, 2, 500)) + data[end:]
    if way == 3:
        return data[:begin] + bytes(draw.randint(0, 255) for _ in range(draw.choice((1, 2, 8)))) + data[begin:]
    if way == 4:
        words = (
            b"nan",
            b"1e400",
            b"-1",
            b"0",
            b"[" * 3000,
            b"9" * 5000,
            b'"',
            b"null",
            b"\n",
            b"\x00",
            b"\xff",
            b"2147483648",
            b"{}",
        )
        return data[:begin] + draw.choice(words) + data[begin:]
    numbers = list(re.finditer(rb"\d+", data))
    if way == 5 and numbers:
        place = draw.choice(numbers)
        words = (
            b"0",
            b"-1",
            b"nan",
            b"inf",
            b"1e308",
            b"1e-300",
            b"9" * 30,
            b"2147483648",
            b'"x"',
            b"[]",
            b"1.5",
            b"true",
            b"1000000",
        )
        return data[: place.start()] + draw.choice(words) + data[place.end() :]
    lines = data.split(b"\n")
    lines.insert(draw.randint(0, len(lines)), draw.choice(lines))
    return b"\n".join(lines)


_PLAIN = (
    None,
    True,
    0,
    -1,
    1,
    1.5,
    -0.0,
    1e308,
    1e-320,
    math.nan,
    math.inf,
    2**31,
    2**63,
    2**64,
    10**40,
    "",
    "nope",
    "x" * 3000,
    "\ud83d",
    "nan",
    "[]",
    "[[1, 2, 0, 1e9, 4, 'cuda:0']]",
    [],
    {},
    [[]],
    [None],
    {"a": 1},
    [1, "a"],
    [-1, -1],
    [0, 0],
    [10**12] * 6,
)


def _other_value(draw: Any, data: bytes, by_line: bool) -> bytes:
    """JSON with a value replaced, left out or twice."""
    try:
        lines = data.split(b"\n") if by_line else [data]
        place = draw.randint(0, len(lines) - 1)
        document = json.loads(lines[place])
    except (ValueError, RecursionError):
        return _other_bytes(draw, data)
    holders = list(_holders(document))
    if not holders:
        return data
    holder = draw.choice(holders)
    key = draw.choice(list(holder)) if isinstance(holder, dict) else draw.randint(0, len(holder) - 1)
    way = draw.randint(0, 4)
    if way == 0 and isinstance(holder, dict):
        del holder[key]
    elif way == 1 and isinstance(holder, list):
        holder.append(holder[key])
    elif way == 2 and isinstance(holder[key], int | float):
        holder[key] = draw.choice(
            (holder[key] * -1, holder[key] * 10**9, holder[key] / 3, str(holder[key]), [holder[key]])
        )
    else:
        holder[key] = draw.choice(_PLAIN)
    lines[place] = json.dumps(document).encode()
    return b"\n".join(lines)


def _holders(value: Any) -> Iterator[Any]:
    """Every object and list in JSON that holds something."""
    if isinstance(value, dict | list) and value:
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _holders(inner)


def a_file(draw: Any, folder: Path) -> Try:
    """A broken file and what reads it."""
    name = draw.choice(sorted(READERS))
    content, read = mutated(draw, name), draw.choice(READERS[name])
    path = folder / name
    return Try(f"file {name}", lambda: (path.write_bytes(content), read(path))[1], f"{read} of {content[:2000]!r}")


# Files that are none, or hold more than any reader takes


def _pipe(path: Path) -> None:
    os.mkfifo(path)


SPECIAL: dict[str, Callable[[Path], Any]] = {
    "pipe": _pipe,
    "packed pipe": _pipe,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "memory": lambda path: path.symlink_to("/proc/self/mem"),
    "folder": lambda path: path.mkdir(),
    "circle": lambda path: path.symlink_to(path),
    "bomb": lambda path: path.write_bytes(_bomb()),
    "cut off": lambda path: path.write_bytes(gzip.compress(b"a,b\n1,2\n")[:-4]),
    "no gzip": lambda path: path.write_bytes(b"a,b\n1,2\n"),
    "deep JSON": lambda path: path.write_bytes(b'{"a":' + b"[" * 200_000),
    "deep TOML": lambda path: path.write_bytes(b"[" + b".".join([b"a"] * 5000) + b"]\n"),
    "long key": lambda path: path.write_bytes(b".".join([b"a"] * 400_000) + b" = 1\n"),
    "long cell": lambda path: path.write_bytes(b"m,n,k\n" + b"1" * 200_000 + b",2,3\n"),
    "long number": lambda path: path.write_bytes(b'{"a": ' + b"9" * 5000 + b"}"),
    "infinity": lambda path: path.write_bytes(b'{"a": Infinity}'),
    "other encoding": lambda path: path.write_bytes("m,n,k\n1,2,3\n".encode("utf-16")),
    "zeros": lambda path: path.write_bytes(bytes(1 << 20)),
    "nothing": lambda path: path.write_bytes(b""),
}
"""What a path may be instead of a file of its kind, and how it is made."""


@cache
def _bomb() -> bytes:
    """A few hundred kilobytes that unpack to 300 MiB."""
    return gzip.compress(bytes(300 << 20), 9)


def a_special_file(draw: Any, folder: Path) -> Try:
    """A path that is no file of its kind, and what reads it; pipes are given up after a fraction of a second."""
    name, kind = draw.choice(sorted(READERS)), draw.choice(sorted(SPECIAL))
    read = draw.choice(READERS[name])
    packed = kind in ("packed pipe", "bomb", "cut off", "no gzip") or draw.random() < 0.1

    def run() -> Any:
        place = Path(tempfile.mkdtemp(dir=folder))
        path = place / (f"{name}.gz" if packed else name)
        SPECIAL[kind](path)
        before, files.SILENCE_S = files.SILENCE_S, 0.1
        try:
            return read(path)
        finally:
            files.SILENCE_S = before
            shutil.rmtree(place)

    return Try(f"special {kind}", run, f"{read} of a {kind} as {name}{'.gz' * packed}")


# Objects, and names that are misspelt

_GEMM, _MOVED = weft.Gemm(512, 512, 512), weft.Collective("all_gather", 1 << 20, 8)
_TENSOR = Tensor((8, 8))
OBJECTS = [
    _GEMM,
    weft.Collective("all_reduce", 1024, 8),
    TokenExchange("all_to_all", 1024, 8, tokens=8, hidden=8, top_k=2, experts=8),
    Send(1024),
    Copy(1024),
    weft.Attention(1, 8, 64, 64, 64),
    KINDS["call"]("aten.add", (_TENSOR,), (_TENSOR,)),
    KINDS["convolution"](8, 8, 8),
    KINDS["ctc"](8, 8, 4, 8),
    KINDS["gemv"](8, 8),
    KINDS["grouped_gemm"](2, 8, 8, 8),
    weft.Opaque("x", 8, 8),
    KINDS["pooling"](1, 1),
    KINDS["recurrent"]("gru", 8, 8, 8),
    KINDS["scan"]("mamba2", 8, 8, 8, 8, 8),
    weft.Streaming("gelu", 8),
    _TENSOR,
    View("x", (8,)),
    Joined(("a", "b")),
    Constant((2, 2)),
    weft.Node(_GEMM, "a"),
    weft.Graph((weft.Node(_GEMM, "a"),)),
    KernelChoice(),
    TiledGemm(GemmTiling()),
    LibraryCollective(),
    PaperAllReduce(),
    DmaCopies(),
    TrackedRing(),
    TrackedDirect(),
    TrackedArrivals(),
    MoEExchange(weft.Routing(8, 2, 8, 4)),
    weft.Routing(8, 2, 8, 4),
    weft.BenchmarkProtocol(),
    weft.RunOptions(),
    weft.TrainingPlan(tp=2, dp=2, batch=8),
    weft.TrainingRun(tokens="1T", price="2 USD/GPU/h", failures=1e-3, checkpoint_every="10min"),
    framework("megatron-core"),
    FusionStyle(),
    Stragglers("gpus"),
    GemmTiling(),
    DmaGather("all_gather", 1 << 20, 8),
    find_simulated("streams"),
    find_simulated("dma"),
    find_simulated("sequential"),
    find_simulated("t3"),
    find_simulated("t3-all-gather"),
    weft.Deployment(tp=2),
    weft.ServingPlan(tp=2),
    weft.Load(rate=4, input_len=512, output_len=128),
    weft.Limits(ttft="1s", tpot="50ms"),
]
"""A right object of every class that users fill in."""


def misspelt(draw: Any, name: str) -> str:
    """A name with a letter left out, twice, in another case or another letter."""
    at = draw.randint(0, max(len(name) - 1, 0))
    letter = name[at : at + 1] or "x"
    way = draw.choice(("", letter * 2, letter.swapcase(), draw.choice("xyz_ -")))
    return f"{name[:at]}{way}{name[at + 1 :]}"


def an_object(draw: Any, folder: Path) -> Try:
    """An object with one or two wrong fields; a misspelt name must be refused, and what is taken must be of use."""
    sample = draw.choice(OBJECTS)
    rules = {one.name: one for *_, one in _rules(type(sample), True)}
    name = draw.choice([field.name for field in fields(sample)])
    changed, typo = {name: draw.choice(VALUES)}, ""
    choices = rules[name].choices if name in rules else ()
    if choices and draw.random() < 0.7:
        typo = misspelt(draw, draw.choice(choices))
        changed = {name: typo}
        typo = typo if typo not in choices else ""
    if draw.random() < 0.2:
        changed[draw.choice([field.name for field in fields(sample)])] = draw.choice(VALUES)

    def run() -> Any:
        made = replace(sample, **changed)
        if typo:
            raise SilentError(f"{type(sample).__name__}({name}={typo!r}) was taken")
        return _used(made)

    told = ", ".join(f"{key}={str(value)[:60]!r}" for key, value in changed.items())
    return Try(f"object {type(sample).__name__}", run, f"{type(sample).__name__}({told})", SIMULATED_S)


def _used(made: Any) -> Any:
    """What is asked of an object of each kind, in closed form where there is one."""
    if isinstance(made, weft.graph.Op):
        return weft.estimate(made, "8xh100")
    if isinstance(made, weft.graph.KernelChoice):
        return weft.estimate(weft.Graph((weft.Node(_MOVED, "moved", choice=made),), 8), "8xh100")
    if isinstance(made, weft.Node):
        return weft.estimate(weft.Graph((weft.Node(_GEMM, "first"), made)), "8xh100")
    if isinstance(made, weft.Graph):
        return weft.estimate(made, "8xh100")
    if isinstance(made, weft.TrainingPlan):
        return weft.memory("llama-3-8b", weft.system("8xh100").with_gpus(made.gpus), made)
    if isinstance(made, weft.BenchmarkProtocol):
        return weft.estimate(_MOVED, "8xh100", harness=made)
    if isinstance(made, weft.RunOptions):
        return weft.simulate(weft.gemm_queue([weft.Gemm(64, 64, 64)]), "h100-sxm", options=made).seconds
    if isinstance(made, weft.Routing):
        return made.counts.tolist() if made.tokens < 1 << 20 else None
    if isinstance(made, Stragglers):
        return len(made.runs(weft.system("8xh100"), _NOTED)) if made.draws < 100 else None
    return None


# Shards of sweeps


@cache
def shard_files() -> dict[str, bytes]:
    """The files of a sweep's shard, by their paths."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sweep.toml").write_bytes(_SWEEP)
        place = Path(folder) / "shard"
        weft.sweep_file(Path(folder) / "sweep.toml", out=place, shard=(1, 1), cache=False)
        return {str(file.relative_to(folder)): file.read_bytes() for file in place.rglob("*") if file.is_file()}


def a_shard(draw: Any, folder: Path) -> Try:
    """A shard of a sweep with a broken file, which is merged, or filled further."""
    name = draw.choice(sorted(shard_files()))
    content = shard_files()[name]
    if name.endswith(".gz"):
        broken = gzip.decompress(content)
        for _ in range(draw.randint(1, 3)):
            broken = _other_value(draw, broken, False) if draw.random() < 0.7 else _other_bytes(draw, broken)
        content = gzip.compress(broken, mtime=0) if draw.random() < 0.8 else _other_bytes(draw, content)
    else:
        content = _other_value(draw, content, False) if draw.random() < 0.7 else _other_bytes(draw, content)
    merges = draw.random() < 0.6

    def run() -> Any:
        restore(folder)
        (folder / name).write_bytes(content)
        if merges:
            return command(["sweep", "merge", "shard", "--json", "merged.json"])
        return weft.sweep_file(folder / "sweep.toml", out=folder / "shard", shard=(1, 1), cache=False)

    return Try("shard", run, f"{'merge' if merges else 'fill'} with {name} = {content[:2000]!r}")


# Calls

_NOTED = weft.RunOptions()


def _layer() -> Any:
    return weft.layer("gpt-3", tp=8)


CALLS: dict[str, dict[str, Any]] = {
    "Attention": {"batch": 1, "heads": 8, "query": 64, "keys": 64, "head": 64},
    "Collective": {"name": "all_gather", "bytes": 1024, "ranks": 8},
    "Gemm": {"m": 64, "n": 64, "k": 64},
    "Graph": {"nodes": (weft.Node(_GEMM, "a"),)},
    "BenchmarkProtocol": {},
    "Node": {"op": _GEMM, "name": "a"},
    "Opaque": {"name": "x"},
    "TrainingPlan": {"tp": 2, "batch": 8},
    "RunOptions": {},
    "Streaming": {"name": "gelu", "rows": 8},
    "System": {"gpu": weft.gpu("h100-sxm"), "gpus": 8},
    "advise": {"gemm": _GEMM, "collective": _MOVED, "system": "mi300x", "spread": False},
    "advise_fuse": {
        "form": "gemm_rs",
        "gemm": weft.Gemm(512, 512, 512),
        "ranks": 8,
        "on": "h100-sxm",
        "fidelity": "estimate",
    },
    "all_gather": {"bytes": 1024},
    "all_reduce": {"bytes": 1024},
    "all_to_all": {"bytes": 1024},
    "reduce_scatter": {"bytes": 1024},
    "arbiter": {"rule": lambda view: 0},
    "balance_loops": {"gemm": _GEMM, "collective": _MOVED, "system": "mi300x"},
    "calibrate": {"data": "measured.csv", "gpu": "h100-sxm"},
    "check_schedule": {"path": "schedule.json"},
    "compare": {"work": "t-nlg/fc2", "system": "t3-paper", "overlaps": ["sequential"], "tp": 8},
    "concurrent": {"gemm": _GEMM, "collective": _MOVED},
    "decode": {"model": "llama-3-8b", "on": "8xh100", "plan": weft.ServingPlan(tp=8)},
    "dependent": {"form": "gemm_rs", "gemm": _GEMM, "ranks": 8},
    "estimate": {"work": _GEMM, "system": "h100-sxm"},
    "find_schedule": {"stages": 2, "micro_batches": 2, "forward": "1 ms", "backward": "1 ms", "weight": "1 ms"},
    "gemm": {"m": 64, "n": 64, "k": 64},
    "gemm_queue": {"gemms": [_GEMM, _GEMM]},
    "gpu": {"name": "h100-sxm"},
    "iteration": {"model": "gnmt", "batch": 8, "source": 16, "target": 16},
    "layer": {"model": "gpt-3", "tp": 8},
    "load_model": {"name_or_path": "gpt-3"},
    "memory": {"model": "llama-3-8b", "on": "8xh100", "tp": 8},
    "operator": {"name": "softmax", "rows": 8, "columns": 8},
    "overlaps": {"place": None},
    "perturb": {"tasks": [], "moves": [], "figures": len},
    "plan": {"model": "mega-gpt-2", "system": "8xh100", "batch": 8, "refine": 0, "budget_s": 1.0},
    "prefill": {"model": "llama-3-8b", "on": "8xh100", "plan": weft.ServingPlan(tp=8)},
    "read_execution_trace": {"path": "feeder.json"},
    "read_graph": {"path": "graph.jsonl"},
    "read_launch": {"path": "pretrain.sh"},
    "read_server": {"source": "serve.sh"},
    "read_trace": {"path": "trace.json"},
    "read_traces": {"path": "trace.json"},
    "recompute": {"model": "llama-3-8b", "system": "8xh100", "tp": 8},
    "roofline": {"model": "llama-3-8b", "on": "8xh100", "tp": 8},
    "serve": {
        "model": "llama-3-8b",
        "on": "8xh100",
        "plan": weft.ServingPlan(tp=8),
        "load": weft.Load(rate=4.0, requests=8),
    },
    "rewrite": {"work": "mega-gpt-2", "system": "h100-sxm", "sequence": 64, "most": 5},
    "sample": {"log": "log.csv"},
    "scale": {"model": "llama-3-8b", "system": "8xh100", "compute": (1, 2), "tp": 8},
    "simulate": {"work": "t-nlg/fc2", "system": "t3-paper", "overlap": "sequential", "tp": 8},
    "step": {"model": "llama-3-8b", "on": "8xh100", "tp": 8, "fidelity": "estimate"},
    "sublayer": {"model": "t-nlg", "name": "fc2", "tp": 8},
    "sweep": {"work": "t-nlg/fc2", "system": "t3-paper", "tp": 8, "by": "estimate", "cache": False},
    "sweep_file": {"asked": "sweep.toml", "cache": False},
    "system": {"what": "dgx-h100"},
    "tiles": {"gemm": _GEMM, "gpu": "h100-sxm"},
    "tune": {"gemms": [_GEMM, _GEMM], "system": "mi100"},
    "validate": {"place": "measured.csv"},
    "write_chakra": {"graph": _layer(), "folder": "chakra"},
    "write_graph": {"graph": _layer(), "path": "graph.out"},
}
"""Arguments with which every public function answers, by its name."""
PLAN = (
    "tp",
    "pp",
    "dp",
    "cp",
    "ep",
    "sp",
    "batch",
    "micro_batch",
    "sequence",
    "schedule",
    "recompute",
    "zero",
    "dtype",
    "overlap",
)
"""Fields of a plan, which several functions take as keywords."""
SLOW = (
    "advise",
    "tune",
    "balance_loops",
    "tiles",
    "plan",
    "simulate",
    "compare",
    "scale",
    "rewrite",
    "recompute",
    "validate",
    "calibrate",
    "roofline",
)
"""Functions of which one in five draws is kept."""


def a_call(draw: Any, folder: Path) -> Try:
    """A public function with one or two wrong arguments."""
    name = draw.choice(sorted(CALLS))
    if name in SLOW and draw.random() < 0.8:
        name = draw.choice(sorted(set(CALLS) - set(SLOW)))
    function, arguments = getattr(weft, name), dict(CALLS[name])
    known = [
        one.name
        for one in inspect.signature(function).parameters.values()
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    if "stated" in inspect.signature(function).parameters or name == "rewrite":
        known += PLAN
    known += [key for key in arguments if key not in known]
    for _ in range(draw.choice((1, 1, 2))):
        arguments[draw.choice(known)] = draw.choice(VALUES)
    shown = ", ".join(f"{key}={str(value)[:60]!r}" for key, value in arguments.items())
    longest = SIMULATED_S if name in SIMULATED else LONGEST_S
    return Try(f"call {name}", lambda: function(**arguments), f"weft.{name}({shown})", longest)


# Command lines

COMMANDS = (
    "step llama-3-8b --system 8xh100 --tp 8 --fidelity estimate",
    "step graph.jsonl --system h100-sxm",
    "plan mega-gpt-2 --system 8xh100 --batch 8 --refine 0",
    "memory llama-3-8b --system 8xh100 --tp 8",
    "schedule find --stages 2 --micro-batches 2 --forward 2ms --backward 2ms --weight 1ms",
    "schedule check schedule.json --forward 2ms --backward 2ms --weight 1ms",
    "sample log.csv",
    "prefill llama-3-8b --system 8xh100 --tp 8",
    "decode llama-3-8b --system 8xh100 --tp 8",
    "serve llama-3-8b --system 8xh100 --tp 8 --rate 4 --requests 8",
    "predict collective all_reduce:1MiB --ranks 8 --system dgx-h100",
    "predict gemm 512,512,512",
    "predict layer --model gpt-3 --system dgx-h100",
    "predict op softmax --shape rows=64,columns=64",
    "predict ops",
    "advise fuse --form ag_gemm --gemm 512,512,512 --tp 8 --system dgx-h100",
    "simulate sublayer --gemm 512,512,512 --tp 2",
    "simulate moe 64x256x128,top2/8 --ep 4 --gpu h100-sxm",
    "simulate corun --gemm 512,512,512 --corun all_gather:1MiB --gpu mi300x",
    "simulate op gemv --shape rows=64,columns=64",
    "advise corun --gemm 512,512,512 --corun all_gather:1MiB --gpu mi300x --quick",
    "tune gemms.csv --gpu mi100",
    "tiles 128,512,512 --gpu h100-sxm",
    "rewrite mega-gpt-2 --system h100-sxm --sequence 64 --most 5",
    "roofline llama-3-8b --system 8xh100 --tp 8",
    "overlaps list",
    "study list",
    "sweep run sweep.toml",
    "sweep merge shard --out merged.csv",
    "scale llama-3-8b --system 8xh100 --tp 8 --compute 1,2",
    "replay t3 --tp 2 --gemm 256,256,64",
    "import trace.json",
    "export graph.jsonl --chakra out",
    "calibrate --data measured.csv --gpu h100-sxm",
    "validate --data measured.csv",
    "hardware list",
    "hardware show h100-sxm",
    "models list",
    "models show t-nlg",
    "cache show",
    "study t3 --models t-nlg --tp 8",
    "study jit-q --models gpt-3 --tokens 1024",
    "study c3 --scenarios scenarios.toml --no-cache",
)
"""Command lines that answer, one or several for every command that needs neither a GPU nor PyTorch."""
HEAVY = (
    "advise",
    "tune",
    "study t3",
    "study c",
    "study jit-q",
    "calibrate",
    "validate",
    "plan",
    "sweep run",
    "scale",
    "tiles",
    "simulate",
)
"""Beginnings of commands of which one in five draws is kept."""


@cache
def options_of(beginning: str) -> tuple[click.Option, ...]:
    """The options of the command that a line begins with."""
    command: Any = cli.weft
    context = click.Context(command, info_name="weft")
    for word in beginning.split():
        if not isinstance(command, click.Group):
            break
        command = command.get_command(context, word)
    return tuple(one for one in command.params if isinstance(one, click.Option))


def a_command(draw: Any, folder: Path) -> Try:
    """A command line with one to three options of random values, or with a word replaced."""
    beginning = draw.choice(COMMANDS)
    if beginning.startswith(HEAVY) and draw.random() < 0.8:
        beginning = draw.choice([one for one in COMMANDS if not one.startswith(HEAVY)])
    words = beginning.split()
    if draw.random() < 0.3:
        words[draw.randint(1, len(words) - 1)] = draw.choice(WORDS)
    options = options_of(beginning)
    for _ in range(draw.choice((0, 1, 1, 2, 3)) if options else 0):
        option = draw.choice(options)
        words.append(draw.choice([*option.opts, *option.secondary_opts]))
        if not (option.is_flag or option.count):
            words.append(_value(draw, option))
    flags = {flag for option in options for flag in option.opts}
    for flag, name in (("--json", "answer.json"), ("--csv", "answer.csv")):
        if flag in flags and flag not in words and draw.random() < 0.3:
            words += [flag, name]
    kind = " ".join(beginning.split()[:2])
    longest = SIMULATED_S if words[0] in SIMULATED else LONGEST_S

    def run() -> str:
        for name in ("answer.json", "answer.csv"):
            (folder / name).unlink(missing_ok=True)
        shown = command(words)
        check_answers(folder)
        return shown

    return Try(f"command {kind}", run, f"weft {shlex.join(words)}", longest)


def check_answers(folder: Path) -> None:
    """Raise SilentError for JSON that others cannot read, a cell that a spreadsheet computes, and files left behind."""

    def refuse(word: str) -> None:
        raise SilentError(f"the answer's JSON holds {word}")

    if (folder / "answer.json").is_file():
        json.loads((folder / "answer.json").read_text(), parse_constant=refuse)
    if (folder / "answer.csv").is_file():
        for row in csv.reader(io.StringIO((folder / "answer.csv").read_text(), newline="")):
            for cell in row:
                if cell.startswith(("=", "+", "-", "@", "\t")) and not _is_number(cell):
                    raise SilentError(f"the cell {cell[:60]!r} is computed by a spreadsheet")
    left = [path.name for path in folder.glob(".*.part")]
    if left:
        raise SilentError(f"files are left behind: {left}")
    if (folder / "made-by-a-script").exists():
        raise SilentError("a launch script was executed")


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _value(draw: Any, option: click.Option) -> str:
    """A value of an option: one that its type knows, a file, or any word."""
    known = getattr(option.type, "choices", ()) or (
        getattr(option.type, "known", tuple)() if draw.random() < 0.3 else ()
    )
    if known and draw.random() < 0.5:
        return str(draw.choice(list(known)))
    if draw.random() < 0.2:
        return draw.choice([*sorted(seeds()), "missing.toml", "made", "made/x.json"])
    return draw.choice(WORDS)


def command(words: list[str]) -> str:
    """What a command line prints; an AssertionError for a status or a message that is not as promised."""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    status: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(words)
        except SystemExit as left:
            status = left.code
    out.flush()
    err.flush()
    shown, told = (stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err))
    assert status in (0, 1, 2, None), f"exit status {status}: {told}"
    if status in (1, 2):
        assert told.strip(), f"exit status {status} without a message"
        assert "Traceback" not in told, told[-1500:]
        assert not UGLY.search(told.splitlines()[-1]), told[-1500:]
        return ""
    return "\n".join(line for line in shown.splitlines() if not re.match(r"(figures|table|report|trace): ", line))


# Signals


def a_signal(draw: Any, folder: Path) -> Try:
    """A command that writes files, ended by Ctrl-C or SIGTERM at any moment."""
    number, after_s = draw.choice((signal.SIGINT, signal.SIGTERM)), draw.random() * 3
    words = draw.choice(
        ("memory llama-3-8b --system 8xh100 --tp 8 --out out", "simulate sublayer --gemm 512,512,512 --tp 2")
    )

    def run() -> None:
        place = Path(tempfile.mkdtemp(dir=folder))
        heard = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has it ignored
        process = subprocess.Popen(
            [sys.executable, "-m", "weft", *words.split(), "--json", "answer.json"],
            cwd=place,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": ":".join(filter(None, map(os.path.abspath, sys.path)))},
            text=True,
        )
        signal.signal(signal.SIGINT, heard)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(after_s)
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
        # Python's own handler of Ctrl-C prints a traceback until the first line of `main` in weft/__main__.py replaces
        # it: while the interpreter starts, and while it imports the package and that module. No function of Weft's has
        # run by then, so that a traceback may name the top level of these two files alone, and none after SIGTERM.
        named = set(re.findall(r'File ".*/weft/([^"]+)", line \d+, in (.+)', told))
        early = number is signal.SIGINT and named <= {(name, "<module>") for name in ("__init__.py", "__main__.py")}
        assert "Traceback" not in told or early, told
        assert process.returncode in (0, 1, 128 + number, -number), process.returncode
        left = [path.name for path in place.rglob("*.part")]
        if left:
            raise SilentError(f"files are left behind: {left}")
        shutil.rmtree(place)

    return Try(f"signal {number.name}", run, f"weft {words}, {number.name} after {after_s:.2f} s", SIMULATED_S)


MAKERS: dict[str, Callable[[Any, Path], Try]] = {
    "file": a_file,
    "special": a_special_file,
    "object": an_object,
    "call": a_call,
    "command": a_command,
    "shard": a_shard,
    "signal": a_signal,
}
"""What draws a try of each family of hostile inputs."""
WEIGHTS = {"file": 30, "special": 10, "object": 30, "call": 12, "command": 12, "shard": 5, "signal": 1}
"""How often a family is drawn among a hundred tries: a signal takes a process of its own."""


def restore(folder: Path) -> None:
    """Put right files into a folder."""
    for name, content in seeds().items():
        (folder / name).write_bytes(content)
    (folder / "folder").mkdir(exist_ok=True)
    shutil.rmtree(folder / "shard", ignore_errors=True)
    for name, content in shard_files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@contextlib.contextmanager
def work_folder(folder: Path) -> Iterator[Path]:
    """Work in a folder that holds a right file of every kind, an empty folder and a file that no reader can take."""
    before = Path.cwd()
    os.chdir(folder)
    restore(folder)
    try:
        yield folder
    finally:
        os.chdir(before)
