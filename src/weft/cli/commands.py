"""The commands of `weft` by what a user is about, in the order of the help page; extensions add theirs."""

from __future__ import annotations

from collections.abc import Mapping

from weft.cli.lazy import LazyCommand, Plugin

GROUPS: Mapping[str, Mapping[str, LazyCommand | Plugin]] = {
    "Train a model": {
        "step": LazyCommand("weft.cli.train:step", "Time a training step: step time, MFU, exposed communication."),
        "plan": LazyCommand("weft.cli.plan:plan", "Find the best TP, PP, CP, EP and DP to train on a machine."),
        "memory": LazyCommand("weft.cli.train:memory", "Compute the peak memory of a training step: does it fit?"),
        "schedule": LazyCommand("weft.cli.schedule:schedule", "Find or check the schedule of a pipeline."),
    },
    "Serve a model": {
        "prefill": LazyCommand("weft.cli.inference:prefill", "Time a prefill: TTFT without queueing."),
        "decode": LazyCommand("weft.cli.inference:decode", "Time a decode iteration: ITL, throughput, KV cache."),
        "serve": LazyCommand("weft.cli.serve:serve", "Simulate a server under load: TTFT, TPOT, goodput."),
    },
    "Kernels, and sharing a GPU": {
        "predict": LazyCommand("weft.cli.predict:predict", "Predict GEMMs, collectives, operators and layers."),
        "simulate": LazyCommand("weft.cli.simulate:simulate", "Simulate kernels that share GPUs, request by request."),
        "advise": LazyCommand("weft.cli.kernels:advise", "Say how a GEMM and a collective share a GPU, or fuse."),
        "tune": LazyCommand("weft.cli.kernels:tune", "Tune independent GEMMs that share a GPU."),
        "tiles": LazyCommand("weft.cli.kernels:tiles", "Search the tiles of a GEMM's kernel."),
        "roofline": LazyCommand("weft.cli.train:roofline", "Show a model's operators on a GPU's roofline."),
        "overlaps": LazyCommand("weft.cli.catalogues:overlaps", "List the ways to overlap compute and communication."),
    },
    "Hardware studies": {
        "sweep": LazyCommand("weft.cli.sweep:sweep", "Run a command for every combination of values."),
        "scale": LazyCommand("weft.cli.train:scale", "Scale a model's training into the future."),
        "replay": LazyCommand("weft.cli.replay:replay", "Perform T3's collectives on real numbers."),
    },
    "Your own programs, traces and machines": {
        "measure": Plugin("weft-measure", "measure", "Time the GPU at hand and write tables of it."),
    },
    "Trust and tools": {
        "hardware": LazyCommand("weft.cli.catalogues:hardware", "List and show machines, each value with its source."),
        "models": LazyCommand("weft.cli.catalogues:models", "List and show models and their sub-layers."),
        "frameworks": LazyCommand("weft.cli.catalogues:frameworks", "List and show training frameworks."),
        "cache": LazyCommand("weft.cli.cache:cache", "Show and clear what Weft keeps for later."),
    },
}
