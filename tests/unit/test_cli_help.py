"""What a command tells about itself: examples that run, and the names that a shell completes."""

import importlib.util
import shlex
import tomllib
from pathlib import Path

import click
import pytest
from click.shell_completion import get_completion_class
from kineto import Recorded

from weft.cli.commands import GROUPS
from weft.cli.main import weft
from weft.core.errors import InputError
from weft.graph import Gemm, Graph, Node
from weft.graph.file import write_graph

OWN = {
    "gemms.csv": "m,n,k,dtype,count\n64,64,64,fp16,2\n",
    "shapes.csv": "m,n,k\n64,64,64\n",
    "gemm.csv": "gpu,dtype,m,n,k,time_us\nh100-sxm,bf16,64,64,64,9\n",
    "mine.toml": "",
    "step.toml": 'run = "estimate"\ngemm = "512,512,512"\nsystem = "h100-sxm"\n',
    "my.json": '{"devices": ["F0 F1 B0 W0 B1 W1", "F0 B0 F1 B1 W0 W1"]}',
    "log.csv": "length,v100_ms,a100_ms\n" + "".join(f"{50 + at},{9 + at},{5 + at}\n" for at in range(60)),
    "lengths.csv": "iteration,length\n" + "".join(f"{at},{50 + at}\n" for at in range(60)),
}
"""Files of the user's that examples name."""
LONG = {
    "capture": [],
    "study": ["list"],
    "simulate": [],
    "advise": ["fuse"],
    "sweep": [],
    "tune": [],
    "validate": [],
    "calibrate": [],
    "schedule": ["check"],
    "measure": [],
    "ui": [],
}
"""Commands of which only these run within a second."""


def commands(group=weft, path=("weft",)):
    """Every command with its path, groups included."""
    yield path, group
    for name in group.list_commands(click.Context(group)):
        try:
            command = group.get_command(click.Context(group), name)
        except InputError:
            continue  # of a distribution that is not installed
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands())


def examples_of(command):
    lines = (command.epilog or "").removeprefix("Example: ").splitlines()
    return [line.strip() for line in lines if line.strip().startswith("weft ")]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    for name, content in OWN.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "pretrain.sh").write_text(
        "torchrun --nproc-per-node 8 --nnodes 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --swiglu --bf16 "
        "--num-attention-heads 32 --vocab-size 32000 --seq-length 2048 --micro-batch-size 1 --global-batch-size 64\n"
    )
    write_graph(Graph((Node(Gemm(512, 512, 512, "bf16"), "product"),)), tmp_path / "llama.graph.jsonl.gz")
    recorded = Recorded()
    recorded.gemm(0)
    recorded.write(tmp_path / "trace.json.gz")
    (tmp_path / "profiles" / "iteration_10").mkdir(parents=True)
    for rank in range(2):
        recorded.write(tmp_path / "profiles" / "iteration_10" / f"rank{rank}_trace.json")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_help_ends_with_an_example_that_is_parsed(path):
    found = examples_of(COMMANDS[path])
    assert found
    assert any(shlex.split(example)[: len(path)] == list(path) for example in found)
    for example in found:
        _, *arguments = shlex.split(example)
        context = weft.make_context("weft", arguments)
        while isinstance(context.command, click.Group):
            name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
            context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_example_is_whole_on_one_line_of_its_help(path):
    shown = COMMANDS[path].get_help(click.Context(COMMANDS[path], max_content_width=200, terminal_width=80))
    assert [example for example in examples_of(COMMANDS[path]) if example not in shown] == []


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_short_examples_run(path, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    if path[-1] == "export":
        pytest.importorskip("google.protobuf", reason="Chakra's .et files need protobuf: pip install 'weft[traces]'")
    for example in examples_of(COMMANDS[path]):
        _, *arguments = shlex.split(example)
        if arguments[0] in LONG and arguments[1] not in LONG[arguments[0]]:
            continue
        weft.main(arguments, prog_name="weft", standalone_mode=False)
        assert capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("arguments", "typed", "wanted"),
    [
        ([], "stu", ["study"]),
        (["study"], "go", ["goldyloc"]),
        (["simulate", "sublayer", "--gpu"], "h80", ["h800"]),
        (["simulate", "sublayer", "--model"], "mt", ["mt-nlg"]),
        (["simulate", "corun", "--overlap"], "ideal-o", ["ideal-overlap"]),
        (["simulate", "moe", "1x1x1,top1/1", "--compare"], "t3,seq", ["t3,sequential"]),
        (["predict", "gemm", "8,8,8", "--gpu"], "h100-sxm,mi300", ["h100-sxm,mi300x"]),
        (["predict", "collective", "all_reduce:1MiB", "--system"], "dgx-h1", ["dgx-h100"]),
        (["hardware", "show"], "hgx-a100-4", ["hgx-a100-4"]),
        (["study", "t3", "--json", "-", "--gpu"], "mi100", ["mi100"]),
        (["measure", "--nothing", "''"], "zzz", []),
    ],
)
def test_a_shell_completes_commands_and_names(shell, arguments, typed, wanted):
    complete = get_completion_class(shell)(weft, {}, "weft", "_WEFT_COMPLETE")
    assert [item.value for item in complete.get_completions(arguments, typed)] == wanted
    assert "_WEFT_COMPLETE" in complete.source_template % complete.source_vars()


def test_a_shell_offers_files_where_a_file_can_be_given():
    complete = get_completion_class("bash")(weft, {}, "weft", "_WEFT_COMPLETE")
    (item,) = complete.get_completions(["simulate", "op", "gemv", "--gpu"], "my-gpu")
    assert item.type == "file"


def questions():
    """The module that writes the tables of questions of README.md and docs/index.md."""
    home = Path(__file__).parents[2] / "docs" / "questions.py"
    spec = importlib.util.spec_from_file_location("questions", home)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_questions_are_made_from_one_list():
    made = questions()
    for page in made.PAGES:
        assert page.read_text() == made.written(page), "run make questions"


def test_every_command_answers_a_question_of_its_group():
    listed = tomllib.loads((questions().DOCS / "questions.toml").read_text())
    assert list(listed) == list(GROUPS)
    asked = " ".join(row["command"] for rows in listed.values() for row in rows)
    assert {name for name in weft.lazy if f"weft {name}" not in asked} <= {"overlaps", "models", "frameworks", "cache"}


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_names_that_a_shell_completes_can_be_listed(path):
    context = click.Context(COMMANDS[path])
    for parameter in COMMANDS[path].params:
        parameter.shell_complete(context, "")
