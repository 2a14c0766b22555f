"""Measuring, on a device that is made of numbers: what is timed, kept, skipped and refused."""

import csv
import json

import pytest

import weft
from weft.cli.main import main
from weft.core.errors import InputError, UnknownNameError
from weft.graph import Gemm
from weft_measure import KINDS, Work, measure, plan, time_work
from weft_measure.device import Unsupported
from weft_measure.probes import PROBES
from weft_measure.state import parse_sample
from weft_measure.table import RowFile
from weft_measure.timing import MOST_REPEATS, SAMPLES


class FakeDevice:
    """Runs nothing: every work takes the seconds that its note says, beside another it takes half as long again."""

    name, about = "fake", "a device of numbers"

    def __init__(self, seconds=1e-4, refuses=()):
        self.each, self.refuses, self.asked = seconds, refuses, []

    def _work(self, *what):
        if what[0] in self.refuses:
            raise Unsupported(f"no {what[0]} here")
        self.asked.append(what)
        return Work(lambda: None, note=what[0])

    def gemm(self, m, n, k, dtype, inputs="random"):
        return self._work(dtype, m, n, k, inputs)

    def operator(self, name, dtype, shape):
        return self._work(name, dtype, tuple(shape.items()))

    def copy(self, kind, size):
        return self._work(kind, size)

    def stream(self, reads, writes, size):
        return self._work("stream", reads, writes, size)

    def chase(self, size, steps):
        return self._work("chase", size, steps)

    def seconds(self, work, repeats, *, graph=True):
        return repeats * self.each

    def seconds_beside(self, first, runs, second, others):
        return 1.5 * runs * self.each, 1.5 * others * self.each

    def round_trip(self, work):
        return self.each

    def state(self):
        return {"sm_mhz": 1400.0}

    def kernels(self, work):
        return ["a_kernel_128x128"]


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("seconds", [1e-7, 1e-4, 3.0])
def test_samples_are_long_enough_and_their_median_is_the_time(seconds):
    device = FakeDevice(seconds)
    timing = time_work(device, Work(lambda: None))
    assert timing.seconds == pytest.approx(seconds)
    assert timing.spread == pytest.approx(0, abs=1e-9)
    assert timing.repeats * seconds >= 0.02 or timing.repeats == MOST_REPEATS
    assert f"{SAMPLES} samples of {timing.repeats} runs" in timing.note


def test_a_noisy_device_shows_its_spread():
    class Noisy(FakeDevice):
        times = iter([1, 5, 1, 7, 0.9, 1.0, 1.1, 1.0, 1.0])  # a warm-up, guesses with hiccups, samples

        def seconds(self, work, repeats, *, graph=True):
            return repeats * next(self.times, 1.0)

    timing = time_work(Noisy(), Work(lambda: None))
    assert timing.seconds == 1.0
    assert timing.spread == pytest.approx(0.2)


def test_every_kind_writes_its_table_with_source_method_and_state(tmp_path):
    done = measure(FakeDevice(), tmp_path, source="a test", quick=True)
    assert set(done.added) == set(KINDS)
    assert not done.refused
    for name, kind in KINDS.items():
        rows = rows_of(tmp_path / kind.file)
        assert len(rows) == done.added[name] > 0
        assert tuple(rows[0]) == kind.columns
        assert {row["source"] for row in rows} == {"a test"}
        assert len({tuple(row[key] for key in kind.case) for row in rows}) == len(rows)
    gemm = rows_of(tmp_path / "gemm.csv")[0]
    assert gemm["gpu"] == "fake"
    assert float(gemm["time_us"]) == pytest.approx(100)
    for part in ("sm_mhz=1400", "median of 5", "a device of numbers"):
        assert part in gemm["notes"]


def test_rows_that_are_there_are_not_measured_again(tmp_path):
    first = measure(FakeDevice(), tmp_path, ["gemm", "copy"], source="first", quick=True)
    device = FakeDevice(seconds=1.0)
    again = measure(device, tmp_path, ["gemm", "copy"], source="second", quick=True)
    assert again.present == sum(first.added.values())
    assert sum(again.added.values()) == 0
    assert device.asked == []
    assert {row["source"] for row in rows_of(tmp_path / "gemm.csv")} == {"first"}


def test_an_interrupted_run_keeps_what_it_had_and_goes_on(tmp_path):
    class Interrupted(FakeDevice):
        def gemm(self, m, n, k, dtype, inputs="random"):
            if len(self.asked) == 3:
                raise KeyboardInterrupt
            return super().gemm(m, n, k, dtype, inputs)

    with pytest.raises(KeyboardInterrupt):
        measure(Interrupted(), tmp_path, ["gemm"], source="first", quick=True)
    assert len(rows_of(tmp_path / "gemm.csv")) == 3
    rest = measure(FakeDevice(), tmp_path, ["gemm"], source="second", quick=True)
    assert rest.present == 3
    assert rest.added["gemm"] + 3 == len(list(plan.gemms(quick=True)))


def test_what_the_device_refuses_is_counted_by_reason_and_left_out(tmp_path):
    device = FakeDevice(refuses=("fp8", "chase"))
    done = measure(device, tmp_path, ["gemm", "probe"], source="a test", quick=True)
    assert done.refused["no fp8 here"] > 1
    assert done.refused["no chase here"] == 1
    assert not any(row["dtype"] == "fp8" for row in rows_of(tmp_path / "gemm.csv"))


def test_a_pair_gives_times_alone_and_together_in_the_schema_of_contention(tmp_path):
    measure(FakeDevice(), tmp_path, ["beside"], source="a test", quick=True)
    row = rows_of(tmp_path / "contention.csv")[0]
    assert (row["system"], row["collective"]) == ("1xfake", "copy_kernel")
    alone, together = float(row["gemm_alone_us"]), float(row["gemm_concurrent_us"])
    assert together == pytest.approx(1.5 * alone)
    runs = int(row["gemms"]) + int(row["collectives"])
    assert float(row["serial_us"]) == pytest.approx(runs * alone)
    assert float(row["makespan_us"]) == pytest.approx(1.5 * int(row["gemms"]) * alone)


def test_probes_answer_each_question_with_a_unit(tmp_path):
    measure(FakeDevice(), tmp_path, ["probe"], source="a test", quick=True)
    rows = rows_of(tmp_path / "probes.csv")
    assert {row["probe"] for row in rows} == set(PROBES)
    named = {row["parameter"]: row for row in rows}
    assert float(named["graph_period"]["value"]) == pytest.approx(100)
    assert named["gemm_1024x1024x1024_bf16"]["value"] == "a_kernel_128x128"
    assert "sm_mhz=1400" in named["gemm_bf16_random"]["notes"]
    assert all(row["unit"] for row in rows)


def test_own_shapes_replace_the_planned_ones(tmp_path):
    device = FakeDevice()
    measure(device, tmp_path, ["gemm"], source="a test", gemms=(Gemm(5, 6, 7, "bf16"),))
    assert device.asked == [("bf16", 5, 6, 7, "random")]


def test_progress_tells_kind_number_and_count(tmp_path):
    seen = []
    measure(FakeDevice(), tmp_path, ["copy"], source="", quick=True, watch=lambda *what: seen.append(what))
    assert seen[0] == ("copy", 1, len(seen))
    assert seen[-1] == ("copy", len(seen), len(seen))


def test_a_table_of_other_columns_is_not_overwritten(tmp_path):
    (tmp_path / "gemm.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="cannot be continued: its columns are a, b, not gpu, dtype"):
        measure(FakeDevice(), tmp_path, ["gemm"], source="")
    assert (tmp_path / "gemm.csv").read_text() == "a,b\n1,2\n"


def test_an_unknown_kind_names_the_known(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'gemm'"):
        measure(FakeDevice(), tmp_path, ["gem"], source="")


def test_a_table_is_written_whole_when_flushed(tmp_path):
    table = RowFile(tmp_path / "t.csv", ("a", "b"), ("a",))
    table.add({"a": 1, "b": "x, y"})
    assert {"a": "1"} in table
    assert {"a": 2} not in table
    assert not table.path.exists()
    table.flush()
    assert rows_of(table.path) == [{"a": "1", "b": "x, y"}]
    assert len(RowFile(table.path, ("a", "b"), ("a",))) == 1


def test_the_plan_covers_what_validation_needs():
    shapes = list(plan.gemms(("bf16",)))
    assert len(shapes) == len({(s.m, s.n, s.k) for s in shapes}) > 150
    assert all(shape.least_bytes <= 2**35 for shape in shapes)
    assert len({case.name for case in plan.operators()}) >= 9


@pytest.mark.parametrize(
    ("line", "sample"),
    [("1755, 612.31\n", {"sm_mhz": 1755, "power_w": 612.31}), ("1755, [N/A]\n", {}), ("", {})],
)
def test_samples_of_clock_and_power_are_numbers_or_nothing(line, sample):
    assert parse_sample(line) == sample


def test_the_device_of_pytorch_runs_the_quick_plan(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed; `pip install torch` lets this test run")
    from weft_measure.torch_device import open_device

    device = open_device("cpu", "this-cpu")
    done = measure(device, tmp_path, ["copy"], source="a test", quick=True, gemms=(Gemm(64, 64, 64),))
    assert done.added == {"copy": 12}
    assert done.refused == {"a copy to a peer needs a second GPU": 3}
    shape = {"rows": 8, "columns": 64}
    for name in ("softmax", "layernorm", "rmsnorm"):
        assert time_work(device, device.operator(name, "fp32", shape), least=1e-4).seconds > 0
    with pytest.raises(Unsupported, match="no single function for 'lamb'"):
        device.operator("lamb", "fp32", {"parameters": 4})
    assert device.kernels(device.gemm(8, 8, 8, "fp32"))


def test_without_triton_a_pointer_chase_is_refused(monkeypatch):
    from weft_measure import torch_chase

    monkeypatch.setattr(torch_chase, "triton", None)
    with pytest.raises(Unsupported, match="needs Triton"):
        torch_chase.chase_kernel(None, 2**20, 10)


def test_without_pytorch_the_message_says_what_to_do(monkeypatch):
    from weft_measure import torch_device

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(torch_device.importlib, "import_module", missing)
    with pytest.raises(InputError, match=r"needs PyTorch.*pip install torch"):
        torch_device.open_device()


def test_the_name_in_the_tables_is_the_catalogues():
    assert weft.gpu("NVIDIA H200").name == "h200-sxm"
    assert json.dumps(sorted(KINDS)) == '["beside", "copy", "gemm", "operator", "probe"]'


def test_weft_finds_the_command(capsys):
    with pytest.raises(SystemExit) as left:
        main(["measure", "--help"])
    assert left.value.code == 0
    assert "Example: weft measure" in capsys.readouterr().out


@pytest.mark.parametrize("shape", ["1,2", "a,b,c", "1,2,3,4", ""])
def test_half_a_gemm_is_refused_before_there_is_a_look_for_a_gpu(capsys, tmp_path, shape):
    with pytest.raises(SystemExit) as left:
        main(["measure", "--gemm", shape, "--out", str(tmp_path / "out")])
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("weft: ")
    assert not (tmp_path / "out").exists()
