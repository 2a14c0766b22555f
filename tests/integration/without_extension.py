"""Weft without one of its extensions: import all the rest, run commands of the rest, say what the others answer."""

import importlib
import json
import pkgutil
import sys
from importlib.abc import MetaPathFinder

HIDDEN = f"weft.{sys.argv[1]}"


class _Hidden(MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname == HIDDEN or fullname.startswith(f"{HIDDEN}."):
            raise ModuleNotFoundError(f"No module named '{fullname}'", name=fullname)


sys.meta_path.insert(0, _Hidden())

from click.testing import CliRunner  # noqa: E402

import weft  # noqa: E402
from weft.cli.main import weft as command  # noqa: E402
from weft.core.errors import WeftError  # noqa: E402

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
    "capture --help",
    "rewrite --help",
    "sample --help",
    "study --help",
    "validate --help",
)
EXTENSIONS = ("weft.lab", "weft.papers", "weft.rewrite", "weft.torch")
modules = [
    found.name
    for found in pkgutil.walk_packages(weft.__path__, "weft.", onerror=lambda name: None)
    if not found.name.startswith((*EXTENSIONS, "weft.__main__"))
]
for name in modules:
    importlib.import_module(name)
for lazy in command.lazy.values():
    try:
        lazy.load()
    except WeftError:  # a command of another distribution
        continue
answers = {}
for line in COMMANDS:
    found = CliRunner().invoke(command, line.split(), standalone_mode=False)
    error = found.exception
    answers[line] = f"{type(error).__name__}: {error}" if error is not None else ""
sys.stdout.write(json.dumps({"modules": len(modules), "names": weft.__all__, "answers": answers}) + "\n")
