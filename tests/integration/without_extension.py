"""Import all modules of a Weft without one extension, run commands, and write what they answer as JSON to stdout."""

import importlib
import json
import pkgutil
import sys
from pathlib import Path

from click.testing import CliRunner

import weft
from weft.cli.main import weft as command
from weft.core.errors import WeftError

COMMANDS = (
    "--help",
    "hardware list",
    "models list",
    "overlaps list",
    "predict gemm 4096,4096,4096 --gpu h100-sxm",
    "predict collective all_reduce:64MiB --system 8xh100 --ranks 8",
    "step llama-3-8b --system 8xh100 --zero 3 --batch 32 --fidelity estimate",
    "memory llama-3-8b --system 8xh100 --zero 3 --batch 32",
    "decode llama-3-8b --system h100-sxm --batch 8 --context 2048",
    "simulate sublayer --gemm 1024,512,256 --tp 4 --overlap t3 --no-cache",
    "study list",
    "study jit-q --models gpt-3 --tokens 1024",
    "capture --help",
    "import --help",
    "export --help",
    "rewrite --help",
    "sample --help",
    "study --help",
    "validate --help",
    "calibrate --help",
    "ui --help",
)
EXTENSIONS = ("weft.lab", "weft.papers", "weft.rewrite", "weft.torch", "weft.ui")
NEED_OTHERS = ("weft.papers.memo", "weft.papers.pytorch_on_simulator")
"""Studies that import other extensions: `weft study` says so."""

modules = [
    found.name
    for found in pkgutil.walk_packages(weft.__path__, "weft.", onerror=lambda name: None)
    if not found.name.startswith(("weft.__main__", "weft.torch.capture."))  # the latter needs PyTorch
]
missing = [name for name in EXTENSIONS if name not in modules]
for name in modules:
    if not name.startswith(NEED_OTHERS):
        importlib.import_module(name)
helps = [f"{name} --help" for name in command.lazy if name != "measure"]  # a command of another distribution
answers = {}
for line in dict.fromkeys((*COMMANDS, *helps)):
    done = CliRunner().invoke(command, line.split(), standalone_mode=False)
    error = done.exception
    answers[line] = f"{type(error).__name__}: {error}" if error is not None else ""
studies = {}
if "weft.papers" in modules:
    from weft.papers import STUDIES, study

    for name in STUDIES:
        try:
            study(name)
        except WeftError as error:
            studies[name] = str(error)
json.dump(
    {"home": str(Path(weft.__file__).parent), "missing": missing, "names": weft.__all__, "answers": answers,
     "studies": studies},
    sys.stdout,
)  # fmt: skip
