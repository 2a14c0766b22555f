import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

import weft.__main__ as entry
from weft.cli import main as cli
from weft.cli.lazy import LazyCommand, Plugin
from weft.cli.output import Outputs, file_option, folder_option, pass_outputs
from weft.core.errors import SimulationError
from weft.core.files import write_json


@click.command()
@click.option("--how", default="well")
@file_option("--json", "Write JSON.")
@folder_option("Write a page.")
@pass_outputs
def probe(outputs, how: str) -> None:
    if how == "badly":
        raise SimulationError("tile 3 waits for rank 1")
    if how == "interrupted":
        raise KeyboardInterrupt
    click.echo("done")


def run(capsys, monkeypatch, *arguments):
    """Exit status, output and error output of `weft ARGUMENTS`, with `probe` among the commands."""
    monkeypatch.setitem(cli.GROUPS["Trust and tools"], "probe", LazyCommand(f"{__name__}:probe", "Try something."))
    with pytest.raises(SystemExit) as left:
        cli.main(list(arguments))
    return left.value.code, *capsys.readouterr()


def test_success_exits_with_0(capsys, monkeypatch):
    assert run(capsys, monkeypatch, "probe") == (0, "done\n", "")


@pytest.mark.parametrize("flag", ["--help", "-h", "--version"])
def test_help_and_version_exit_with_0(capsys, monkeypatch, flag):
    status, out, err = run(capsys, monkeypatch, flag)
    assert (status, err) == (0, "")
    assert out


def test_help_lists_every_command_without_importing_it(capsys, monkeypatch):
    monkeypatch.setitem(
        cli.GROUPS["Trust and tools"], "broken", LazyCommand("weft.no_such_module:nothing", "Never imported.")
    )
    _, out, _ = run(capsys, monkeypatch, "--help")
    for name, command in cli.weft.lazy.items():
        assert name in out
        assert command.short_help in out


def test_a_command_of_a_distribution_that_is_not_installed_says_how_to_install_it(capsys, monkeypatch):
    monkeypatch.setitem(cli.GROUPS["Trust and tools"], "weave", Plugin("weft-weave", "weave", "Weave."))
    status, out, err = run(capsys, monkeypatch, "weave", "--help")
    assert (status, out) == (2, "")
    assert "'weft weave' is in the distribution weft-weave, which is not installed" in err
    assert "pip install ./weave" in err


def test_no_command_shows_the_help_and_exits_with_2(capsys, monkeypatch):
    status, out, err = run(capsys, monkeypatch)
    assert status == 2
    assert "Train a model:" in out + err


def test_an_error_is_one_sentence_without_a_traceback(capsys, monkeypatch):
    assert run(capsys, monkeypatch, "probe", "--how", "badly") == (2, "", "weft: tile 3 waits for rank 1\n")


def test_an_interrupt_says_that_nothing_is_half_written(capsys, monkeypatch):
    status, _, err = run(capsys, monkeypatch, "probe", "--how", "interrupted")
    assert status == 130
    assert err.strip() == "weft: interrupted; nothing was left half-written"


def test_an_unknown_command_lists_the_known_and_the_nearest(capsys, monkeypatch):
    status, _, err = run(capsys, monkeypatch, "simulat")
    assert status == 2
    assert err.startswith("weft: unknown command 'simulat'; ")
    assert "'step'" in err
    assert "did you mean 'simulate'" in err


def test_an_unknown_option_points_to_the_help_of_its_command(capsys, monkeypatch):
    status, _, err = run(capsys, monkeypatch, "probe", "--hwo", "x")
    assert status == 2
    assert err.startswith("weft: no such option '--hwo'; known: --")
    assert err.endswith("see 'weft probe --help'\n")
    assert err.count("\n") == 1


def test_an_option_of_another_command_is_no_hint_to_one_that_only_looks_alike(capsys, monkeypatch):
    _, _, err = run(capsys, monkeypatch, "predict", "collective", "all_reduce:1MiB", "--request-bytes", "64")
    assert "known: --ranks, --system" in err
    assert "did you mean" not in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("serve m --kv-cache-dtype fp8", "no such option '--kv-cache-dtype'; did you mean '--kv-dtype'?"),
        ("serve m --enable-expert-parallel", "no such option '--enable-expert-parallel'; did you mean '--ep'?"),
        ("serve m --goodput ttft:9", "no such option '--goodput'; did you mean '--ttft' or '--tpot'?"),
        ("prefill m --input-len 9", "did you mean '--sequence'?"),
        ("step m --use-distributed-optimizer", "did you mean '--zero'?"),
        ("step m --num-layers-per-virtual-pipeline-stage 2", "did you mean '--schedule'?"),
        ("step m --fp8-format hybrid", "did you mean '--precision'?"),
        ("plan m --gpus 512", "did you mean '--system'?"),
        ("serve -tp 8", "no such option '-t'; options begin with two dashes, like --tp"),
        ("predict -1 all_reduce:1MiB", "no such option '-1'; 'predict' has none, its subcommands do"),
        ("serve --model m", "no such option '--model'; write the model without --model"),
        ("bench serve", "did you mean 'serve'?; see 'weft --help'"),
    ],
)
def test_a_name_of_another_tool_gets_the_name_here_and_no_long_list(capsys, monkeypatch, arguments, sentence):
    status, _, err = run(capsys, monkeypatch, *arguments.split())
    assert (status, err.count("known: --system, --rate")) == (2, 0)
    assert sentence in err


def test_an_unknown_system_says_where_they_are_listed(capsys, monkeypatch):
    _, _, err = run(capsys, monkeypatch, "hardware", "show", "nowhere")
    assert err.endswith("see 'weft hardware list'\n")


def test_an_unwritable_output_is_refused_before_the_work(capsys, monkeypatch, tmp_path):
    status, out, err = run(capsys, monkeypatch, "probe", "--json", str(tmp_path))
    assert (status, out) == (2, "")
    assert err == f"weft: cannot write the file '{tmp_path}': it is a folder; add a file name\n"
    (tmp_path / "file").write_text("")
    status, out, err = run(capsys, monkeypatch, "probe", "--out", str(tmp_path / "file"))
    assert (status, out) == (2, "")
    assert "name a folder" in err


@pytest.mark.parametrize("name", [*cli.weft.lazy])
def test_every_command_exists_and_helps(capsys, monkeypatch, name):
    status, out, _ = run(capsys, monkeypatch, name, "--help")
    assert status == 0
    assert out.startswith(f"Usage: weft {name}")


def test_files_are_written_even_where_the_reader_of_the_tables_has_left(tmp_path):
    def tables():
        raise BrokenPipeError
        yield

    with pytest.raises(BrokenPipeError):
        Outputs(json=tmp_path / "a.json").show(tables(), lambda file: write_json(file, {}))
    assert (tmp_path / "a.json").exists()


@pytest.mark.parametrize(
    ("command", "most", "left_out"),
    [
        (
            "predict gemm 8192,8192,8192",
            83,
            ("weft.overlaps.lower", "weft.simulate", "weft.plan.tune", "numba", "scipy"),
        ),
        (
            "step gpt-3 --system 64xa100 --tp 8 --pp 8 --batch 64 --fidelity estimate",
            210,
            ("weft.overlaps.t3", "weft.plan.tune", "numba"),
        ),
        ("hardware list", 75, ("weft.estimate", "weft.simulate", "numba")),
    ],
)
def test_a_command_imports_what_it_needs_alone(command, most, left_out):
    code = """if True:
        import sys
        from weft.cli.main import main
        try:
            main(sys.argv[1:])
        except SystemExit:
            print(*sys.modules)"""
    done = subprocess.run([sys.executable, "-c", code, *command.split()], capture_output=True, text=True, check=True)
    modules = done.stdout.splitlines()[-1].split()
    assert [name for name in left_out if name in modules] == []
    assert len([name for name in modules if name.partition(".")[0] == "weft"]) <= most


def test_ctrl_c_is_handled_before_the_packages_modules_are_loaded():
    code = "import sys, weft.__main__; print(*sorted(one for one in sys.modules if one.startswith('weft.')))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["weft.__main__"]


def test_ctrl_c_before_it_is_handled_ends_the_command_without_a_traceback(tmp_path):
    heard = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # which a background job has ignored
    code = f"import signal; {heard}; from weft.__main__ import main; main()"
    place = tmp_path / "weft" / "cli"  # a package of which only the module that handles signals is there, and is slow
    place.mkdir(parents=True)
    (place.parent / "__init__.py").touch()
    (place / "__init__.py").touch()
    (place.parent / "__main__.py").write_text(Path(entry.__file__).read_text())
    (place / "interrupt.py").write_text("import time\n\nprint('loading', flush=True)\ntime.sleep(60)\n")
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == -signal.SIGINT
