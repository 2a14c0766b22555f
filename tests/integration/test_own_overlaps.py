"""An overlap method in one file outside the package: every command that takes a method's name takes it."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
from click.testing import CliRunner

import weft
from weft.cli.main import weft as cli
from weft.core.errors import InputError, UnknownNameError
from weft.graph import KernelChoice, LibraryCollective
from weft.overlaps import OVERLAPS, STRATEGIES, find_overlap
from weft.overlaps.sequential import Sequential
from weft.testing import ContractError, check_overlap

FILE = '''
from dataclasses import dataclass
from typing import ClassVar

from weft.overlaps.flux import Flux


@dataclass(frozen=True)
class Twice(Flux):
    """Flux whose formula takes twice as long."""

    name: str = "twice"
    title: str = "Twice"
    summary: str = "Flux, whose formula takes twice as long"

    def estimate(self, pair, costs):
        return 2 * super().estimate(pair, costs)
'''
GEMM = "1024,512,1024"


@pytest.fixture
def named(tmp_path, monkeypatch):
    """The name of a method in a file, and nothing of it in the registry afterwards."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FILE)
    monkeypatch.setattr(OVERLAPS, "_methods", dict(OVERLAPS._methods))
    monkeypatch.setattr(OVERLAPS, "_imported", {})
    return "mine.py:Twice"


def command(tmp_path, *arguments):
    file = tmp_path / "answer.json"
    result = CliRunner().invoke(cli, [*arguments, "--json", str(file)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(file.read_text())


def test_simulate_and_compare_take_it(named, tmp_path):
    layer = ("simulate", "sublayer", "--gemm", GEMM, "--tp", "4", "--no-cache")
    (alone,) = command(tmp_path, *layer, "--overlap", named)["runs"]
    compared = command(tmp_path, *layer, "--compare", f"flux,{named}")["runs"]
    by_name = {run["overlap"]: run["total_us"] for run in compared}
    assert alone["overlap"] == "twice"
    assert by_name["twice"] == by_name["flux"] == alone["total_us"]


def test_advice_to_fuse_takes_it_and_its_formula(named, tmp_path):
    asked = ("advise", "fuse", "--form", "gemm_rs", "--gemm", "8192,4096,8192", "--system", "dgx-h100")
    options = command(tmp_path, *asked, "--compare", f"flux,{named}")["options"]
    times = {one["method"]: one["seconds"] for one in options}
    assert times["twice"] == pytest.approx(2 * times["flux"], rel=1e-12)


def test_an_axis_of_a_step_takes_it(named, tmp_path):
    asked = ("step", "llama-3-8b", "--system", "8xh100", "--tp", "8", "--sp", "--batch", "8", "--fidelity", "estimate")
    flux, mine = (command(tmp_path, *asked, "--overlap", f"tp={name}")["step_time_s"] for name in ("flux", named))
    assert mine > flux


def test_a_decode_iteration_takes_it(named, tmp_path):
    (tmp_path / "other.py").write_text(FILE.replace("flux", "in_network").replace("Flux", "InNetwork"))
    asked = ("decode", "llama-3-8b", "--system", "8xh100", "--tp", "8", "--batch", "8")
    sequence, mine = (command(tmp_path, *asked, "--overlap", f"tp={name}") for name in ("in-network", "other.py:Twice"))
    assert mine["step_s"] > sequence["step_s"]


def test_a_list_shows_it_alone_and_once_named_with_all(named):
    listed = json.loads(CliRunner().invoke(cli, ["overlaps", "list", named, "--json"]).output)
    assert [entry["name"] for entry in listed] == ["twice"]
    assert weft.overlaps()[-1] == "twice"
    assert "twice" in weft.overlaps("tp")


def test_python_takes_its_file_its_name_and_the_object(named):
    work = weft.models.parallel.dependent("gemm_rs", weft.Gemm(1024, 512, 256, "bf16"), 4)
    by_file = weft.simulate(work, "t3-paper", named)
    mine = OVERLAPS["twice"]
    assert by_file.seconds == weft.simulate(work, "t3-paper", "twice").seconds
    assert by_file.seconds == weft.simulate(work, "t3-paper", mine).seconds
    assert list(weft.compare(work, "t3-paper", [mine]).timelines) == ["sequential", "twice"]
    advised = weft.advise_fuse("gemm_rs", weft.Gemm(8192, 4096, 8192), 8, "8xh100", methods=["twice"])
    assert advised.options[1].method == "twice"


def test_advice_and_a_co_run_take_a_strategy_in_a_file(named, tmp_path):
    (tmp_path / "last.py").write_text(
        "from dataclasses import replace\n\nfrom weft.overlaps import STRATEGIES\n\n"
        'MINE = replace(STRATEGIES["streams"], name="comes-first", title="First", summary="s", first="collective")\n'
    )
    pair = ("--gemm", "1024,1024,512", "--corun", "all_gather:4MiB", "--ranks", "4")
    (run,) = command(tmp_path, "simulate", "corun", *pair, "--no-cache", "--overlap", "last.py:MINE")["runs"]
    assert run["strategy"] == "comes-first"


def test_a_registered_method_goes_by_its_name(named):
    registered = weft.register_overlap(replace(OVERLAPS["t3"], name="t3-own"))
    assert OVERLAPS["t3-own"] is registered
    with pytest.raises(InputError, match="an overlap of Weft is called 't3'"):
        weft.register_overlap(replace(OVERLAPS["t3"], title="another"))


def test_an_installed_package_adds_its_methods_by_an_entry_point(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    about = tmp_path / "mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[weft.overlaps]\ntwice = mine:Twice\n")
    ask = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import weft; print(weft.overlaps('tp'))"
    said = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout
    assert "'twice'" in said


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("mine.py:Thrice", InputError, "mine.py has no 'Thrice'"),
        ("yours.py:Twice", InputError, "cannot be imported"),
        ("no_such_module:Twice", InputError, "cannot be imported"),
        ("mine.py:dataclass", InputError, "not an overlap"),
        ("twicee", UnknownNameError, "unknown overlap"),
    ],
)
def test_a_name_that_leads_to_no_method_is_refused(named, name, error, words):
    with pytest.raises(error, match=words):
        weft.simulate(weft.sublayer("t-nlg", "op", tp=8), "t3-paper", name)


def test_a_changed_file_is_another_run(named, tmp_path, monkeypatch):
    from weft.simulate.kept import method_identity

    first = method_identity(OVERLAPS[named])
    (tmp_path / "mine.py").write_text(FILE.replace("2 *", "3 *"))
    monkeypatch.setattr(OVERLAPS, "_imported", {})
    assert method_identity(OVERLAPS[named]) != first


@dataclass(frozen=True)
class LeavesOut(Sequential):
    """A baseline whose GEMM is not waited for."""

    name: str = "leaves-out"

    def apply(self, graph, gpu):
        first, *others = super().apply(graph, gpu).nodes
        return replace(graph, nodes=(first, *(replace(node, after=(), stream="other") for node in others[:1])))


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (lambda: replace(OVERLAPS["t3"], name="T3 mine"), "its name is 'T3 mine'"),
        (lambda: replace(OVERLAPS["t3"], name="mine", summary=""), "it has no summary"),
        (LeavesOut, "leaves-out.*ag_gemm.*wait for none of all_gather"),
        (lambda: replace(STRATEGIES["partition"], name="mine", units=10**6), "corun.*cannot be set apart"),
    ],
)
def test_the_contract_suite_catches_a_method_that_breaks_a_law(method, words):
    with pytest.raises(ContractError, match=words):
        check_overlap(method())


@dataclass(frozen=True)
class Halves(Sequential):
    """The first half of the reduction beside the second half of the GEMM, which leaves it compute units."""

    name: str = "halves"
    units: int = 32
    late: int = 32
    rows: int | None = None

    patterns = ("gemm_rs", "gemm_ar")

    def apply(self, graph, gpu):
        gemm, moved = graph.nodes
        gemm = replace(gemm, op=replace(gemm.op, m=gemm.op.m // 2))
        rest = KernelChoice(compute_units=tuple(range(self.units, gpu.compute.compute_units)))
        second = replace(gemm, iteration=1, op=replace(gemm.op, m=self.rows or gemm.op.m), choice=rest)
        choice = KernelChoice(LibraryCollective(channels=self.units), tuple(range(self.units)))
        moved = replace(moved, op=replace(moved.op, bytes=moved.op.bytes // 2), stream="own", choice=choice)
        late = KernelChoice(LibraryCollective(channels=self.late))
        return replace(graph, nodes=(gemm, second, moved, replace(moved, iteration=1, after=("gemm.1",), choice=late)))


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (Halves(late=8), "'reduce_scatter' and 'reduce_scatter.1'.* two kernels; give the nodes two names"),
        (Halves(rows=512), r"'gemm' and 'gemm.1'.* two operators; give the nodes two names, or one operator"),
    ],
)
def test_iterations_of_one_name_have_one_operator_and_one_kernel(method, words):
    graph = weft.dependent("gemm_rs", weft.gemm(2048, 1024, 256), 8)
    with pytest.raises(InputError, match=words):
        weft.simulate(graph, "h100-sxm", method)


def test_closed_forms_refuse_iterations_with_two_operators():
    nodes = weft.Node(weft.gemm(2048, 1024, 256), "gemm"), weft.Node(weft.gemm(512, 1024, 256), "gemm", 1)
    with pytest.raises(InputError, match=r"'gemm' and 'gemm.1'.* two operators; give the nodes two names"):
        weft.estimate(weft.Graph(nodes, 1), "h100-sxm")


def test_an_iteration_without_a_first_one_is_refused():
    nodes = (replace(node, iteration=1, after=()) for node in weft.dependent("gemm_rs", weft.gemm(2048, 1024, 256), 8))
    with pytest.raises(InputError, match=r"'gemm.1' is iteration 1 of a node that has no iteration 0"):
        weft.simulate(weft.Graph(tuple(nodes), 8), "h100-sxm", "streams")


def test_iterations_with_compute_units_of_their_own_run_beside_another_and_what_is_hidden_is_said():
    graph = weft.dependent("gemm_ar", weft.gemm(4096, 4096, 4096), 8)
    compared = weft.compare(graph, "h100-sxm", ["sequential", Halves()])
    run = compared["halves"]
    assert run.seconds < sum(run.durations.values())
    share = int(re.search(r"(\d+)% of the all-reduce is hidden behind the GEMM", str(compared))[1])
    spans = {(span.operator, span.iteration): span for span in run.spans}
    first, second = spans["all_reduce", 0], spans["all_reduce", 1]
    beside = spans["gemm", 1].end_fs - first.start_fs
    assert share == pytest.approx(100 * beside / (second.end_fs - first.start_fs), abs=1)


UNDECORATED = """
from weft.overlaps import OverlapMethod


class Plain(OverlapMethod):
    name = "plain"
    patterns = ("gemm_rs",)

    def apply(self, graph, gpu):
        return graph
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine.py", r"names a file, not a class; name its class: 'mine\.py:Twice'"),
        ("mine.py:Twic", r"mine\.py has no 'Twic'; name its class: 'mine\.py:Twice'"),
        ("weft.core.units:Twice", r"weft\.core\.units has no class of OverlapMethod, either"),
        ("plain.py:Plain", r"Plain states name, but is no dataclass.*@dataclass\(frozen=True\)"),
        ("thawed.py:Twice", r"thawed\.py.*does not run: cannot inherit non-frozen.*@dataclass\(frozen=True\)"),
        ("broken.py:Twice", r"broken\.py.*does not run: .*; correct it"),
    ],
)
def test_a_name_that_a_file_does_not_hold_is_refused_with_what_to_write(named, tmp_path, name, words):
    (tmp_path / "plain.py").write_text(UNDECORATED)
    (tmp_path / "thawed.py").write_text(FILE.replace("(frozen=True)", ""))
    (tmp_path / "broken.py").write_text("class")
    with pytest.raises(InputError, match=words):
        OVERLAPS[name]


def test_a_comparison_of_overlaps_lists_a_method_by_its_file_once(named, tmp_path):
    asked = ("step", "llama-3-8b", "--system", "8xh100", "--tp", "8", "--sp", "--batch", "8", "--compare-overlaps")
    output = CliRunner().invoke(cli, [*asked, "--overlap", f"tp={named}"], catch_exceptions=False).output
    assert named in output
    assert "tp=twice" not in output


def test_a_method_without_a_formula_is_refused_with_the_pattern_and_what_to_write():
    words = r"has no closed form for 'gemm_rs'; the engine times it \(write its estimate, and list 'gemm_rs' in"
    with OVERLAPS.using(OnlyRuns()), pytest.raises(InputError, match=words):
        find_overlap("only-runs", "sub-layer", "closed form")


def test_an_object_in_a_step_is_refused_with_how_to_name_it():
    with pytest.raises(InputError, match=r"overlap of tp is .*'my_file\.py:MyMethod'.*register_overlap"):
        weft.step("llama-3-8b", "8xh100", tp=8, batch=8, overlap={"tp": OnlyRuns()})


@dataclass(frozen=True)
class OnlyRuns(Sequential):
    """A method that only the engine times."""

    name: str = "only-runs"

    patterns = ("gemm_rs",)
    closed_forms = ()
