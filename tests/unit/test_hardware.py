import pickle
import re
from pathlib import Path

import pytest

from weft import hardware
from weft.core.errors import ConfigError, InputError, UnknownNameError
from weft.core.options import SUSTAINED
from weft.estimate import estimate
from weft.graph import Gemm
from weft.hardware import Gpu, System
from weft.hardware.fabric import ring


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    return hardware.gpu("t3-paper")


@pytest.fixture
def write(tmp_path: Path):
    def write_file(text: str, name: str = "mine.toml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


EXTENDS = 'extends = "t3-paper"\n'


# The catalogue


def test_the_paper_machine_has_the_published_values(gpu):
    assert gpu.compute.compute_units == 80
    assert gpu.compute.clock == 1.4e9
    assert gpu.cache.capacity == 16 * 2**20
    assert gpu.memory.bandwidth == 1.024e12
    assert gpu.memory.bank_groups == 4
    assert gpu.memory.ccd_update == 2 * gpu.memory.ccd_long
    assert gpu.link.bandwidth == 150e9
    assert gpu.link.latency == 500e-9
    assert gpu.tracker.sets == 256


def test_derived_figures_follow_from_the_values(gpu):
    assert gpu.matrix_rate("fp16") == pytest.approx(114.7e12, rel=1e-3)
    assert gpu.cache.bandwidth == pytest.approx(64 * 64 * 1.4e9)
    assert gpu.memory.copy_rate == gpu.memory.bandwidth * gpu.memory.copy_efficiency / 2


def test_the_memory_clock_follows_the_bandwidth_and_the_timings_do_not(gpu):
    assert gpu.memory.clock == pytest.approx(1e9)
    faster = gpu.replace({"memory.bandwidth": "2.048 TB/s"})
    assert faster.memory.clock == pytest.approx(2e9)
    assert faster.memory.timing == gpu.memory.timing


@pytest.mark.parametrize("name", hardware.gpu_names())
def test_every_value_of_the_catalogue_says_where_it_comes_from(name):
    gpu = hardware.gpu(name)
    assert gpu.name == name
    assert set(gpu.provenance) == set(gpu.rules())
    for path, provenance in gpu.provenance.items():
        assert provenance.kind != "set by user"
        assert provenance.source, path


@pytest.mark.parametrize("name", hardware.gpu_names())
def test_both_ends_of_every_plausible_range_make_a_machine_of_their_own(name):
    gpu = hardware.gpu(name)
    # Values that a rule ties to another one cannot go to the end of their range alone.
    tied = {"memory.timing.ras", "memory.timing.rp", "memory.timing.rc"}
    for path, provenance in gpu.provenance.items():
        for end in (provenance.low, provenance.high):
            if end is not None and path not in tied:
                changed = gpu.replace({path: end})
                assert changed.value(path) == Gpu.rules()[path].parse(end)


def test_an_unknown_machine_counts_the_known_ones_and_names_the_nearest():
    with pytest.raises(UnknownNameError, match=r"unknown GPU 't3-papr'; \d+ are known.*did you mean 't3-paper'"):
        hardware.gpu("t3-papr")


# Values by path


def test_paths_values_and_texts_belong_together(gpu):
    assert "memory.timing.rcd" in gpu.rules()
    assert gpu.value("memory.timing.rcd") == 14e-9
    assert gpu.text("memory.timing.rcd") == "14 ns"
    assert gpu.text("cache.capacity") == "16 MiB"
    assert isinstance(gpu.value("memory.banks"), int)


def test_the_text_of_every_value_sets_it_again(gpu):
    assert gpu.replace({path: gpu.text(path) for path in gpu.rules()}).model_dump(
        exclude={"provenance"}
    ) == gpu.model_dump(exclude={"provenance"})


def test_a_changed_copy_says_that_the_user_set_the_value(gpu):
    changed = gpu.replace({"memory.bandwidth": "2 TB/s", "memory.queue_entries": 32})
    assert changed.memory.bandwidth == 2e12
    assert changed.provenance["memory.bandwidth"].kind == "set by user"
    assert changed.provenance["memory.bandwidth"].text == "2 TB/s"
    assert changed.memory.queue_entries == 32
    assert gpu.memory.bandwidth == 1.024e12
    assert gpu.provenance["memory.bandwidth"].kind == "derived"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("memory.bandwith", "2 TB/s", ["unknown key", "'memory.bandwidth'"]),
        ("bandwidth", "2 TB/s", ["unknown key", "'memory.bandwidth'", "or 'host.bandwidth'"]),
        ("memory", "2 TB/s", ["is a table", "'memory.bandwidth'"]),
        ("memory.bandwidth", "2", ["no unit", "450 GB/s"]),
        ("memory.bandwidth", 2e12, ["no unit", "450 GB/s"]),
        ("memory.bandwidth", "-2 TB/s", ["greater than zero"]),
        ("memory.bandwidth", "0 B/s", ["greater than zero"]),
        ("memory.bandwidth", "2 us", ["seconds", "bytes/s"]),
        ("memory.banks", "18", ["banks (18)", "multiple of bank_groups (4)"]),
        ("memory.banks", "16.5", ["whole number"]),
        ("memory.banks", True, ["not a quantity"]),
        ("memory.interleave", "96 B", ["interleave (96 B)", "64 B"]),
        ("memory.interleave", "768 B", ["row_bytes (2 KiB)", "interleave (768 B)"]),
        ("memory.burst_bytes", "64 B", ["burst_clocks x bytes_per_clock"]),
        ("memory.ccd", "3", ["ccd (3) must be at most ccd_long (2)"]),
        ("memory.ccd_update", "0", ["greater than zero"]),
        ("memory.timing.ras", "3 ns", ["rcd (14 ns)", "ras (3 ns)"]),
        ("memory.timing.rc", "40 ns", ["rc (40 ns) must be at least ras (33 ns) + rp (14 ns)"]),
        ("memory.timing.refi", "4 us", ["refi (4 us) and rfc (0 s)", "give both"]),
        ("memory.timing.rfc", "200 ns", ["refi (0 s) and rfc (200 ns)", "give both"]),
        ("memory.refresh_banks", 3, ["banks (16) must be a multiple of refresh_banks (3)"]),
        ("memory.queue_entries", 1, ["queue_entries (1) of 32 B cannot hold one request of 64 B"]),
        ("cache.capacity", "1000 B", ["capacity (1 kB)", "1 KiB"]),
        ("arbiter.threshold_low", 3, ["threshold_medium (10) must be at most threshold_low (3)"]),
        ("arbiter.intensity_high", 1.5, ["at most 1"]),
        ("arbiter.intensity_high", 0.1, ["intensity_medium (", "must be at most intensity_high (0.1)"]),
        ("compute.threads_per_cu", 100, ["threads_per_cu (100)", "wavefront_size (64)"]),
        ("dma.window", "100 B", ["window (100 B)"]),
    ],
)
def test_a_value_that_breaks_a_rule_names_itself_and_the_rule(gpu, path, value, words):
    with pytest.raises(ConfigError) as caught:
        gpu.replace({path: value})
    sentence = str(caught.value)
    assert sentence.startswith(path.split(".", maxsplit=1)[0])
    assert "\n" not in sentence
    for word in words:
        assert word in sentence


def test_a_burst_must_divide_one_access(gpu):
    with pytest.raises(ConfigError, match=r"burst_bytes \(96 B\) must divide one access of 64 B"):
        gpu.replace({"memory.burst_bytes": "96 B", "memory.bytes_per_clock": 96})


def test_a_value_asked_by_an_unknown_path_names_the_nearest(gpu):
    with pytest.raises(ConfigError, match=r"did you mean 'link.latency'"):
        gpu.value("link.latnecy")


def test_a_description_cannot_be_changed_in_place(gpu):
    with pytest.raises(ValueError, match="frozen"):
        gpu.memory.banks = 8


def test_machines_are_equal_and_hashable_by_value_and_cross_process_borders(gpu):
    again = hardware.gpu("t3-paper")
    assert again == gpu
    assert hash(again) == hash(gpu)
    assert pickle.loads(pickle.dumps(gpu)) == gpu
    assert gpu.replace({"memory.banks": 32}) != gpu


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ('memory.bandwidth="2 TB/s"', ("memory.bandwidth", "2 TB/s")),
        ("memory.bandwidth=2 TB/s", ("memory.bandwidth", "2 TB/s")),
        (" cache.ways = 8 ", ("cache.ways", "8")),
    ],
)
def test_an_assignment_on_the_command_line_is_a_path_and_a_text(text, pair):
    assert hardware.parse_assignment(text) == pair


@pytest.mark.parametrize("text", ["memory.bandwidth", "=2 TB/s", "memory.bandwidth=", 'memory.bandwidth=""'])
def test_a_malformed_assignment_shows_a_good_one(text):
    with pytest.raises(InputError, match=r"does not assign.*memory\.bandwidth=\"2 TB/s\""):
        hardware.parse_assignment(text)


# Files


def test_a_file_that_extends_another_states_only_what_differs(gpu, write):
    mine = hardware.gpu(
        write(
            EXTENDS + '[memory]\nbandwidth = { value = "2 TB/s", kind = "published", source = "data sheet" }\n'
            "[memory.timing]\nrcd = '13 ns'\n"
        )
    )
    assert mine.name == "mine"
    assert mine.memory.bandwidth == 2e12
    assert mine.provenance["memory.bandwidth"].source == "data sheet"
    assert mine.memory.timing.rcd == 13e-9
    assert mine.provenance["memory.timing.rcd"].kind == "set by user"
    assert mine.cache == gpu.cache
    assert mine.provenance["cache.capacity"] == gpu.provenance["cache.capacity"]


def test_a_file_may_extend_another_file_beside_it(write):
    write(EXTENDS + "name = 'base'\n[cache]\nways = 8\n", "base.toml")
    mine = hardware.gpu(write('extends = "base.toml"\n[memory]\nqueue_entries = 32\n'))
    assert (mine.cache.ways, mine.memory.queue_entries) == (8, 32)


def test_a_path_is_found_with_or_without_quotes_of_pathlib(write):
    path = write(EXTENDS)
    assert hardware.gpu(str(path)) == hardware.gpu(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (EXTENDS + "[memory]\nbandwith = '2 TB/s'", ["memory.bandwith", "did you mean 'memory.bandwidth'"]),
        (EXTENDS + "memory = 3", ["memory", "must be a table"]),
        (EXTENDS + "[memory]\nbandwidth = 2", ["memory.bandwidth", "no unit"]),
        (EXTENDS + "[memory]\nbandwidth = '-2 TB/s'", ["memory.bandwidth", "greater than zero"]),
        (EXTENDS + "[memory]\nbanks = 18", ["banks (18) must be a multiple of bank_groups"]),
        (EXTENDS + "[memory]\nbanks = { value = 8 }", ["memory.banks", "'kind' is missing", "source ="]),
        (
            EXTENDS + "[memory]\nbanks = { value = 8, kind = 'known', source = 'x' }",
            ["kind 'known'", "measured"],
        ),
        (
            EXTENDS + "[memory]\nbanks = { value = 8, kinds = 'peak', source = 'x' }",
            ["kinds", "did you mean 'kind'"],
        ),
        (EXTENDS + "[memory]\nbanks = { value = 8, kind = 'assumed', source = 'x' }", ["plausible range"]),
        (
            EXTENDS + "[memory]\nbanks = { value = 8, kind = 'assumed', source = 'x', low = 16, high = 32 }",
            ["outside its own range", "16 to 32"],
        ),
        (EXTENDS + "title = 3", ["title", "text in quotes"]),
        ("extends = 3", ["extends", "no name or path"]),
        ("extends = 'mine.toml'", ["extends itself"]),
        ("extends = 'nothing'", ["unknown GPU 'nothing'", "are known, from 'a10'"]),
        ("extends = 'absent.toml'", ["absent.toml", "does not exist"]),
        ("title = 'x'", ["description", "missing"]),
        ("title = 'x'\ndescription = 'y'", ["vendor", "missing"]),
        (
            "title = 'x'\ndescription = 'y'\nvendor = 'none'\narchitecture = 't3'",
            ["115 values are missing: all of [compute], [rates]", "weft hardware new --like"],
        ),
        ("title = ", ["no valid TOML"]),
    ],
)
def test_a_file_that_breaks_a_rule_is_named_with_the_rule(write, text, words):
    with pytest.raises(InputError) as caught:
        hardware.gpu(write(text))
    sentence = str(caught.value)
    assert "\n" not in sentence
    for word in words:
        assert word in sentence


@pytest.mark.parametrize(
    ("stated", "per_clock"),
    [
        ({"rates.bf16": "989 TFLOP/s"}, 4096),
        ({"rates.bf16": "1.979 PFLOPS"}, 8192),
        ({"rates.bf16": "989 TFLOP/s", "compute.compute_units": 264}, 2048),
        ({"rates.bf16": "989 TFLOP/s", "clocks.matrix_peak": "0.915 GHz"}, 8192),
        ({"rates.bf16": "700 TFLOP/s"}, 2898),
        ({"rates.bf16": "0 FLOP/s"}, 0),
    ],
)
def test_a_peak_of_the_data_sheet_is_divided_by_units_and_clock(stated, per_clock):
    changed = hardware.gpu("h100-sxm").replace(stated)
    assert changed.rates.bf16 == per_clock
    known = changed.provenance["rates.bf16"]
    assert (known.text, known.kind) == (stated["rates.bf16"], "set by user")
    assert f"{per_clock} FLOP per clock and unit of {changed.compute.compute_units} at" in known.source


def test_a_peak_in_a_file_is_divided_by_the_units_of_that_file(write):
    mine = hardware.gpu(write('extends = "h100-sxm"\n[compute]\ncompute_units = 66\n[rates]\nfp32 = "66.9 TFLOP/s"\n'))
    assert mine.rates.fp32 == 512
    assert mine.matrix_rate("fp32") == pytest.approx(66.9e12, rel=0.01)


def test_all_that_a_file_lacks_is_said_at_once(write):
    with pytest.raises(InputError) as caught:
        hardware.gpu(write('title = "x"\nvendor = "amd"\narchitecture = "cdna3"\n[host]\nbandwidth = "1 GB/s"\n'))
    said = str(caught.value)
    assert "115 values are missing: description, all of [compute], [rates], [clocks]" in said
    assert "[host]" not in said


@pytest.mark.parametrize("name", hardware.gpu_names())
def test_no_gpu_of_the_catalogue_is_doubtful_and_its_form_gives_it_again(name, tmp_path):
    like = hardware.gpu(name)
    (tmp_path / "mine.toml").write_text(hardware.form(like))
    mine = hardware.gpu(tmp_path / "mine.toml")
    assert {path: mine.value(path) for path in mine.rules()} == {path: like.value(path) for path in like.rules()}
    assert (like.doubts, mine.doubts) == ((), ())


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        (
            {"memory.bandwidth": "22 TB/s"},
            r"over memory.channels \(240\) is 91.7 GB/s a channel, 5.73 GHz; .* 64 of HBM4",
        ),
        (
            {"rates.bf16": 4500},
            r"4500 FLOP per clock and unit, no multiple of 64; for 4500 TFLOP/s .* write '4500 TFLOP/s'",
        ),
        (
            {"rates.bf16": "3 PFLOP/s"},
            r"\(3 PFLOP/s\) is \d+ FLOP per clock .* check compute.compute_units and the clock",
        ),
        ({"rates.bf16": 32768}, r"rates.fp16 \(8192\) is below rates.bf16 \(32768\)"),
        ({"memory.bandwidth": "22 TB/s"}, r"the cache's rate \(24.1 TB/s\) hardly exceeds the memory's \(22 TB/s\)"),
        (
            {"rates.bf16": 16384},
            r"TFLOP/s of 16-bit products are 186 for each byte of the cache's rate",
        ),
    ],
)
def test_values_that_hardly_fit_are_questioned(stated, said):
    assert any(re.search(said, doubt) for doubt in hardware.gpu("b200").replace(stated).doubts)


def extended(tmp_path, content, parent="h100-sxm"):
    """The GPU of a file that extends a known one."""
    file = tmp_path / "mine.toml"
    file.write_text(f'extends = "{parent}"\n{content}')
    return hardware.gpu(file)


def test_a_gpu_with_fewer_matrix_operations_than_its_parent_does_not_inherit_its_throttling(tmp_path):
    parent = hardware.gpu("h100-sxm").clocks
    slow = '[compute]\ncompute_units = 78\n[rates]\nbf16 = "148 TFLOP/s"\nfp16 = "148 TFLOP/s"\nfp8 = "296 TFLOP/s"\n'
    gpu = extended(tmp_path, slow)
    assert gpu.clocks.sustained == gpu.clocks.sustained_fp8 == parent.matrix_peak
    held = gpu.provenance["clocks.sustained"]
    assert held.kind == "assumed"
    assert "6.68 times the matrix operations per clock at the same power" in held.source
    assert float(held.low.split()[0]) * 1e9 == pytest.approx(parent.sustained)
    took = estimate(Gemm(8192, 24576, 7168, "bf16"), gpu, SUSTAINED).seconds
    assert 2 * 8192 * 24576 * 7168 / took > 0.9 * gpu.matrix_rate("bf16")


def test_a_gpu_with_more_matrix_operations_holds_its_parents_share_of_its_own_peak_clock(tmp_path):
    gpu, parent = (
        extended(tmp_path, '[rates]\nbf16 = 8192\n[clocks]\nmatrix_peak = "1.5 GHz"\n'),
        hardware.gpu("h100-sxm"),
    )
    assert gpu.clocks.sustained == pytest.approx(1.5e9 * parent.clocks.sustained / parent.clocks.matrix_peak)
    stated = extended(tmp_path, '[rates]\nbf16 = 8192\n[clocks]\nsustained = "1.2 GHz"\n')
    assert stated.clocks.sustained == 1.2e9


def test_formats_that_a_file_does_not_state_keep_their_ratio_to_one_that_it_states(tmp_path):
    gpu = extended(tmp_path, '[rates]\nbf16 = "8 PFLOP/s"\n', "b200")
    assert gpu.rates.fp16 == gpu.rates.bf16
    assert (gpu.rates.fp8, gpu.rates.fp4) == (2 * gpu.rates.bf16, 4 * gpu.rates.bf16)
    assert gpu.rates.fp32 == hardware.gpu("b200").rates.fp32
    assert gpu.provenance["rates.fp16"].kind == "derived"
    assert "ratio to bf16" in gpu.provenance["rates.fp16"].source
    assert any("each byte of the cache" in doubt for doubt in gpu.doubts)


def test_a_file_that_states_nothing_new_is_its_parent(tmp_path):
    gpu, parent = extended(tmp_path, "[rates]\nbf16 = 4096\n"), hardware.gpu("h100-sxm")
    assert {path: gpu.value(path) for path in gpu.rules()} == {path: parent.value(path) for path in parent.rules()}


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.toml' does not exist"):
        hardware.gpu(tmp_path / "none.toml")
    with pytest.raises(InputError, match="is a folder, not a file"):
        hardware.gpu(tmp_path)


# Systems


def test_a_system_is_uniform_unless_a_rank_differs_or_starts_late(gpu):
    slow = gpu.replace({"compute.clock": "1 GHz"})
    assert System(gpu=gpu, gpus=8).uniform
    assert System(gpu=gpu, gpus=8, variants={1: gpu}, start={2: 0.0}).uniform
    assert not System(gpu=gpu, gpus=8, variants={1: slow}).uniform
    assert not System(gpu=gpu, gpus=8, start={3: "10 us"}).uniform


def test_ranks_have_their_own_gpu_and_start_if_given(gpu):
    slow = gpu.replace({"compute.clock": "1 GHz"})
    system = System(gpu=gpu, gpus=4, variants={1: slow}, start={3: "10 us"})
    assert (system.gpu_of(0), system.gpu_of(1)) == (gpu, slow)
    assert (system.start_of(0), system.start_of(3)) == (0.0, 10e-6)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gpus": 0}, ["gpus", "greater than zero"]),
        ({"gpus": "many"}, ["gpus", "'many'"]),
        ({"gpus": 4, "fabric": ring(8, 1e11, 1e-6)}, ["'ring'", "8", "4"]),
        ({"gpus": 4, "nodes": 3}, ["spread evenly over 3 nodes"]),
        ({"gpus": 4, "start": {4: 0.1}}, ["start names rank 4", "0 to 3"]),
        ({"gpus": 4, "start": {1: "-1 us"}}, ["start.1", "zero or more"]),
        ({"gpus": 4, "variant": {}}, ["unknown key", "'variants'"]),
    ],
)
def test_an_impossible_system_is_refused_in_one_sentence(gpu, values, words):
    with pytest.raises(ConfigError) as caught:
        System(gpu=gpu, **values)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("link.bandwidth", "1 B/s"),
        ("memory.bandwidth", "1e-300 B/s"),
        ("memory.latency", "1e9 s"),
        ("compute.clock", "1 Hz"),
        ("cache.capacity", "1e40 GiB"),
    ],
)
def test_values_that_no_run_could_hold_are_refused(path, value):
    with pytest.raises(ConfigError, match=f"{path}.*cannot be simulated; it must lie between"):
        hardware.gpu("t3-paper").replace({path: value})


def test_refreshes_must_leave_time_for_something_else(gpu):
    with pytest.raises(ConfigError, match=r"rfc \(5 us\) must be below refi \(4 us\)"):
        gpu.replace({"memory.timing.refi": "4 us", "memory.timing.rfc": "5 us"})


@pytest.mark.parametrize("value", ["0.5", "2", "-1"])
def test_a_flag_that_is_neither_0_nor_1_is_refused_with_a_value_that_works(gpu, value):
    with pytest.raises(ConfigError, match=f"compute.stages_in_step: '{value}' must be .*; write it like '1'"):
        gpu.replace({"compute.stages_in_step": value})


def test_a_chain_of_files_that_extend_one_another_ends(tmp_path):
    for number in range(40):
        (tmp_path / f"{number}.toml").write_text(f'extends = "./{number + 1}.toml"\n')
    (tmp_path / "40.toml").write_text('extends = "h100-sxm"\n')
    assert hardware.gpu(tmp_path / "30.toml").memory == hardware.gpu("h100-sxm").memory
    with pytest.raises(ConfigError, match="more than 16 files extend one another; merge some"):
        hardware.gpu(tmp_path / "0.toml")


@pytest.mark.parametrize("rate", ["9" * 5000 + " GB/s", "1e400 GB/s"])
def test_a_rate_of_thousands_of_digits_is_too_large(rate):
    with pytest.raises(InputError, match="too large for a quantity in bytes/s"):
        hardware.gpu("h100-sxm").replace({"memory.bandwidth": rate})
