"""Seconds and memory of capturing large models, and the peak of a captured step beside PyTorch's MemTracker.

Run one case in a process of its own: python benchmarks/capture.py llama-3-8b | llama-3-70b | llama-3-70b-tp8 | peak.
Needs PyTorch and transformers; says so in a line and ends without them.
"""

from __future__ import annotations

import resource
import sys
import time

SIZES = {
    "llama-3-8b": {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 14336},
    "llama-3-70b": {
        "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "intermediate_size": 28672,
    },
}  # fmt: skip
SPLIT = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
SUMMED = ("self_attn.o_proj", "mlp.down_proj")


def llama(name):
    """A Llama in bf16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {**SIZES[name], "num_key_value_heads": 8, "vocab_size": 128256, "use_cache": False}
    return LlamaForCausalLM._from_config(LlamaConfig(**sizes), dtype=torch.bfloat16)


def whole(name):
    """A step of a model on one GPU, with its optimizer."""
    with torch.device("meta"):
        model = llama(name)
    tokens = torch.zeros(1, 4096, dtype=torch.int64)
    return weft.capture(model, keywords={"input_ids": tokens, "labels": tokens}, optimizer=torch.optim.AdamW)


def in_parallel(name):
    """Forward and backward pass of a rank of eight with tensor parallelism."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    with weft.capturing(world=8) as found:
        with found.setup():
            model, mesh = llama(name), init_device_mesh("cpu", (8,))
            for layer in model.model.layers:
                plan = {one: ColwiseParallel() for one in SPLIT} | {one: RowwiseParallel() for one in SUMMED}
                parallelize_module(layer, mesh, plan)
        tokens = torch.zeros(1, 4096, dtype=torch.int64)
        model(input_ids=tokens, labels=tokens).loss.backward()
    return found.graph


def peak():
    """The peak of a GPT-2 with attention in single operators, by Weft and by MemTracker [bytes]."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker
    from transformers import AutoModelForCausalLM, GPT2Config

    config = GPT2Config(use_cache=False, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    tokens = torch.zeros(8, 1024, dtype=torch.int64)
    graph = weft.capture(model, keywords={"input_ids": tokens, "labels": tokens})
    with FakeTensorMode():
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        tokens = torch.zeros(8, 1024, dtype=torch.int64)
        tracker = MemTracker()
        tracker.track_external(model, tokens)
        with tracker:
            model(input_ids=tokens, labels=tokens).loss.backward()
    (found,) = (one["Total"] for one in tracker.get_tracker_snapshot("peak").values())
    return int(graph.labels["peak_bytes"]), found


def main():
    """Run the case that the command line names."""
    case = sys.argv[1] if len(sys.argv) > 1 else ""
    torch.set_num_threads(1)
    if case == "peak":
        mine, theirs = peak()
        print(f"peak: {mine / 1e9:.3f} GB, MemTracker {theirs / 1e9:.3f} GB, {mine / theirs - 1:+.2%}")
        return
    name = case.removesuffix("-tp8")
    if name not in SIZES:
        sys.exit(f"'{case}' is no case; name one of {', '.join(SIZES)}, llama-3-70b-tp8, peak")
    import transformers.models.llama.modeling_llama  # noqa: F401 - not part of the capture

    start, busy = time.perf_counter(), time.process_time()
    graph = in_parallel(name) if case.endswith("-tp8") else whole(name)
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"{case}: {seconds:.1f} s ({busy:.1f} s of a core), {len(graph):,} operators, {resident:.0f} MB resident")


if __name__ == "__main__":
    try:
        import torch
        import transformers  # noqa: F401 - whether it is there

        import weft
    except ImportError as error:
        sys.exit(f"skipped: {error.name} is not installed; make test-capture sets up an environment that has it")
    main()
