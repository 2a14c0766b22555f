"""Traces of all ranks of a run, of several tools: exposed communication, who is late, and what is no whole run."""

import csv
import gzip
import json
import random
import sqlite3
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kineto import Recorded

import weft
from weft.cli.main import main
from weft.core.errors import ConfigError, InputError, WeftError
from weft.torch.traces import DistributedTrace, Trace

US = 1e-6
RING = {"Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "Float"}


def rank(number, world=2, ends=(200,), starts=(100,), compute=90, group=None, steps=(), **head):
    """A rank that computes from 10 us on, and reduces from each start to each end, in a group of all ranks."""
    info = {"backend": "nccl", "rank": number, "world_size": world} if world else {}
    made = Recorded(distributedInfo=info, deviceProperties=[{"name": "NVIDIA A100"}], **head)
    made.call("aten::mm", 0, 5, [[1024, 256], [256, 512]])
    made.kernel("ampere_sgemm_128x64_nn", 1, 10, compute)
    for start, end in zip(starts, ends, strict=True):
        args = {**RING, "Process Group Ranks": group or str([*range(world or 2)])}
        made.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 6, start, end - start, stream=20, **args)
    for step in steps:
        made.event("user_annotation", f"ProfilerStep#{step}", step * 100, 100)
    return made


def folder(tmp_path, *made, name="rank{}.json"):
    tmp_path.mkdir(exist_ok=True)
    for number, one in enumerate(made):
        one.write(tmp_path / name.format(number))
    return tmp_path


def rows(answer, *names):
    return [tuple(round(getattr(one, name) / US, 6) for name in names) for one in answer.ranks]


def test_time_of_a_rank_is_compute_exposed_communication_copies_and_idle_by_intervals(tmp_path):
    late = rank(0, starts=(120,), compute=100)  # computes 10 to 110, idle to 120, reduces to 200
    early = rank(1, starts=(60,))  # computes 10 to 100, reduces from 60 on: 40 us hidden
    early.kernel("Memcpy DtoH (Device -> Pageable)", 7, 190, 30, stream=9, cat="gpu_memcpy")
    answer = weft.read_traces(folder(tmp_path, late, early))
    assert isinstance(answer, DistributedTrace)
    assert rows(answer, "seconds", "compute", "hidden", "exposed", "copies", "idle") == [
        (190, 100, 0, 80, 0, 10),
        (210, 90, 40, 100, 20, 0),
    ]


def test_a_wait_is_charged_to_the_rank_that_comes_last_and_its_exposed_part_is_told_apart(tmp_path):
    answer = weft.read_traces(folder(tmp_path, rank(0, starts=(180,), compute=170), rank(1, starts=(60,))))
    assert [one.late for one in answer.ranks] == [1, 0]
    assert rows(answer, "wait", "exposed_wait", "caused") == [(0, 0, 120), (120, 80, 0)]
    assert answer.straggler.rank == 0
    assert "Rank 0 is the straggler: last into 1 of 1 collectives" in str(answer)
    assert "computes 80 us longer than the median of the others" in str(answer)


def test_clocks_of_ranks_need_not_agree(tmp_path):
    shifted = rank(1, starts=(60,))
    for event in shifted.events:
        event["ts"] += 5_000_000
    answer = weft.read_traces(folder(tmp_path, rank(0, starts=(180,)), shifted))
    assert rows(answer, "wait", "caused") == [(0, 120), (120, 0)]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(st.integers(0, 80), min_size=3, max_size=3), min_size=1, max_size=6))
def test_what_ranks_wait_is_what_late_ranks_cause(tmp_path_factory, late):
    made = [
        rank(
            number,
            world=3,
            starts=[at * 200 + 100 + lateness[number] for at, lateness in enumerate(late)],
            ends=[at * 200 + 200 for at in range(len(late))],
        )
        for number in range(3)
    ]
    answer = weft.read_traces(folder(tmp_path_factory.mktemp("run"), *made))
    waits, caused = (sum(getattr(one, name) for one in answer.ranks) for name in ("wait", "caused"))
    assert waits == pytest.approx(2 * caused, abs=1e-9)  # each of two others waits
    assert answer.matched == 3 * len(late)
    for one in answer.ranks:
        assert one.compute + one.exposed + one.copies + one.idle == pytest.approx(one.seconds)
        assert 0 <= one.exposed_wait <= one.exposed + 1e-12


def test_ranks_of_one_group_wait_for_each_other_and_for_no_other_group(tmp_path):
    starts = (100, 150, 100, 110)
    made = [
        rank(number, world=4, starts=(start,), group="[0, 1]" if number < 2 else "[2, 3]")
        for number, start in enumerate(starts)
    ]
    answer = weft.read_traces(folder(tmp_path, *made))
    assert rows(answer, "wait", "caused") == [(50, 0), (0, 50), (10, 0), (0, 10)]


def test_ranks_without_a_straggler_say_that_none_stands_out(tmp_path):
    answer = weft.read_traces(folder(tmp_path, rank(0), rank(1)))
    assert answer.straggler is None
    assert "No rank stands out as late" in str(answer)


def test_collectives_that_some_ranks_lack_count_in_no_wait_and_are_counted(tmp_path):
    answer = weft.read_traces(folder(tmp_path, rank(0, starts=(100, 300), ends=(200, 400)), rank(1)))
    assert answer.matched == 0
    assert any("3 of 3 kernels of collectives differ in number" in note for note in answer.notes)
    assert "no collective was found on all ranks" in str(answer)


def test_broadcasts_end_earlier_at_their_root_and_charge_nobody(tmp_path):
    made = [rank(0, starts=(), ends=()), rank(1, starts=(), ends=())]
    for one, seconds in zip(made, (10, 90), strict=True):
        args = {**RING, "Collective name": "broadcast", "Process Group Ranks": "[0, 1]"}
        one.kernel("ncclDevKernel_Broadcast_RING_LL", 6, 100, seconds, stream=20, **args)
    assert weft.read_traces(folder(tmp_path, *made)).matched == 0


@pytest.mark.parametrize("name", ["rank{}.json.gz", "rank-{}_trace.json", "worker{}.pt.trace.json", "t{}.json"])
def test_a_rank_is_what_the_profiler_wrote_down_or_what_the_name_says(tmp_path, name):
    world = 2 if name == "t{}.json" else 0
    answer = weft.read_traces(folder(tmp_path, rank(0, world), rank(1, world, starts=(150,)), name=name))
    assert [one.rank for one in answer.ranks] == [0, 1]
    assert answer.ranks[1].late == 1


def damaged(path, made):
    made.write(path)
    path.write_bytes(path.read_bytes()[:-30])


def test_a_damaged_file_of_a_folder_is_named(tmp_path):
    folder(tmp_path, rank(0), name="rank{}.json.gz")
    damaged(tmp_path / "rank1.json.gz", rank(1))
    with pytest.raises(ConfigError, match=r"rank1\.json\.gz"):
        weft.read_traces(tmp_path)
    (tmp_path / "rank1.json.gz").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"empty or damaged.*rank1|rank1.*empty or damaged"):
        weft.read_traces(tmp_path)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ([partial(rank, 0, 4), partial(rank, 1, 4), partial(rank, 3, 4)], r"lacks rank 2 of 4; .*--ranks 0,1,3"),
        ([partial(rank, 0), partial(rank, 0)], r"of rank 0, and so is 't0.json'"),
        ([partial(rank, 0), partial(rank, 1, 3)], "its run has 3 ranks, that of another file has 2"),
        ([partial(rank, 0, 0), partial(rank, 1, 0)], "states no rank, neither in distributedInfo nor in its name"),
        (
            [partial(rank, 0, steps=(3, 4)), partial(rank, 1, steps=(4, 5))],
            r"holds steps 4, 5, and 't0.json' holds steps 3, 4",
        ),
    ],
)
def test_what_is_no_whole_run_is_refused_with_the_file_and_the_rule(tmp_path, made, words):
    with pytest.raises((ConfigError, InputError), match=words):
        weft.read_traces(folder(tmp_path, *(one() for one in made), name="t{}.json"))


def test_some_ranks_are_read_when_they_are_named(tmp_path):
    there = folder(tmp_path, *(rank(number, 4) for number in range(3)))
    answer = weft.read_traces(there, ranks=[0, 2])
    assert [one.rank for one in answer.ranks] == [0, 2]
    assert any("2 of 4 ranks are read" in note for note in answer.notes)
    with pytest.raises(InputError, match="lacks rank 3"):
        weft.read_traces(there, ranks=[0, 3])


def test_a_folder_without_a_trace_names_its_folders_and_other_files_are_told(tmp_path):
    with pytest.raises(InputError, match="holds no trace of"):
        weft.read_traces(tmp_path)
    folder(tmp_path / "iteration_10", rank(0), rank(1))
    with pytest.raises(InputError, match=r"name one of its folders \(iteration_10\)"):
        weft.read_traces(tmp_path)
    (tmp_path / "iteration_10" / "train.log").write_text("step 10\n")
    assert "left out, as no trace: train.log" in weft.read_traces(tmp_path / "iteration_10").notes


def test_steps_that_all_ranks_recorded_are_told(tmp_path):
    answer = weft.read_traces(folder(tmp_path, rank(0, steps=(3, 4)), rank(1, steps=(3, 4))))
    assert answer.steps == (3, 4)
    assert "2 steps" in str(answer)


def test_a_comparison_times_the_operators_of_every_rank(tmp_path):
    there = folder(tmp_path, rank(0, starts=(180,), compute=170), rank(1))
    answer = weft.read_traces(there, compare=partial(weft.compare_trace, on="a100-sxm-80gb"))
    alone = weft.compare_trace(weft.read_trace(there / "rank0.json"), "a100-sxm-80gb")
    assert answer.ranks[0].predicted == alone.seconds
    assert answer.ranks[0].ahead == alone.ahead
    assert "With the predicted times of dgx-a100" in str(answer)


# --- Nsight Systems


def nsight(path, gpus=2, late=100, nvtx=("step 3", "step 4"), graphs=0, process=7):
    """An export of `gpus` GPUs, the last of which reduces `late` us later than the others."""
    names = ["ampere_gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "cudaLaunchKernel", *nvtx]
    with sqlite3.connect(path) as base:
        base.executescript(
            """
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
            CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
              streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
              streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER,
              contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphId INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER,
              correlationId INTEGER, nameId INTEGER);
            CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER,
              globalTid INTEGER);
            """
        )
        base.executemany("INSERT INTO StringIds VALUES (?, ?)", list(enumerate(names)))
        for gpu in range(gpus):
            owner = (process + gpu) << 24
            base.execute("INSERT INTO TARGET_INFO_GPU VALUES (?, 'NVIDIA H100 80GB HBM3')", (gpu,))
            start = 100 + (late if gpu == gpus - 1 else 0)
            kernels = [(10, 100, 7, 1, 0), *((at + start, at + 300, 20, 2, 1) for at in (0, 500, 1000))]
            base.executemany(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 1, ?, ?, ?, ?, 0)",
                [(a * 1000, b * 1000, gpu, stream, call, owner, name) for a, b, stream, call, name in kernels],
            )
            base.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1300000, 1400000, ?, 1, 9, 3, ?, 64, 2)", (gpu, owner)
            )
            base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (5000, 6000, ?, 1, 2)", (owner + 1,))
            base.executemany(
                "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, NULL, ?, ?)",
                [(at * 1000, at * 1000 + 900, 3 + at, owner + 1) for at in range(len(nvtx))],
            )
            base.executemany(
                "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1500000, 1600000, ?, 1, 7, 9, ?, ?)",
                [(gpu, owner, number) for number in range(graphs)],
            )
    return path


def test_every_gpu_of_an_nsight_export_is_a_rank(tmp_path):
    answer = weft.read_traces(nsight(tmp_path / "run.sqlite"))
    assert answer.tool == "Nsight Systems"
    assert answer.device == "NVIDIA H100 80GB HBM3"
    assert answer.steps == (3, 4)
    assert rows(answer, "seconds", "compute", "exposed", "copies", "wait", "caused") == [
        (1390, 90, 600, 100, 300, 0),
        (1390, 90, 300, 100, 0, 300),
    ]
    assert any("numbered in the order" in note for note in answer.notes)


def test_exports_of_one_rank_each_are_numbered_by_their_names(tmp_path):
    for number in (1, 0):
        nsight(tmp_path / f"report_rank{number}.sqlite", gpus=1, late=150 * number)
    answer = weft.read_traces(tmp_path)
    assert [one.file for one in answer.ranks] == ["report_rank0.sqlite", "report_rank1.sqlite"]
    assert [one.late for one in answer.ranks] == [0, 3]


def test_an_export_of_one_gpu_is_a_trace_and_launches_are_those_of_its_process(tmp_path):
    trace = weft.read_traces(nsight(tmp_path / "one.sqlite", gpus=1))
    assert isinstance(trace, Trace)
    assert trace.found.launches == 1
    assert trace.exposed == pytest.approx(300 * US)
    assert weft.read_trace(tmp_path / "one.sqlite").exposed == trace.exposed
    with pytest.raises(InputError, match="holds 2 GPUs"):
        weft.read_trace(nsight(tmp_path / "two.sqlite"))


def test_graphs_that_were_recorded_as_a_whole_are_told(tmp_path):
    answer = weft.read_traces(nsight(tmp_path / "run.sqlite", graphs=1))
    assert any("--cuda-graph-trace=node" in note for note in answer.notes)


def test_other_databases_and_columns_are_named(tmp_path):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE people (name TEXT)")
    with pytest.raises(InputError, match="without the table CUPTI_ACTIVITY_KIND_KERNEL"):
        weft.read_traces(path)
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE rocpd_string_1 (id INTEGER)")
    with pytest.raises(ConfigError, match="rocpd convert"):
        weft.read_traces(path)
    old = tmp_path / "old.sqlite"
    with sqlite3.connect(old) as base:
        base.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, deviceId INTEGER, streamId INTEGER)")
        base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 0, 7)")
    with pytest.raises(ConfigError, match="CUPTI_ACTIVITY_KIND_KERNEL has no column end"):
        weft.read_traces(old)
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(nsight(tmp_path / "whole.sqlite").read_bytes()[:5000])
    with pytest.raises(ConfigError, match="cannot be read as Nsight Systems writes it"):
        weft.read_traces(cut)


def test_a_comparison_needs_shapes_that_nsight_does_not_record(tmp_path):
    with pytest.raises(InputError, match=r"no kernel of .* has an operator .*record_shapes=True"):
        weft.read_traces(nsight(tmp_path / "run.sqlite"), compare=partial(weft.compare_trace, on="h100-sxm"))


# --- rocprofv3


KERNELS = [
    "Kind", "Agent_Id", "Queue_Id", "Stream_Id", "Thread_Id", "Dispatch_Id", "Kernel_Id", "Kernel_Name",
    "Correlation_Id",
]  # fmt: skip
COPIES = ["Kind", "Direction", "Source_Agent_Id", "Destination_Agent_Id", "Correlation_Id"]
TIMES = ["Start_Timestamp", "End_Timestamp"]


def table(path, names, made):
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_NONNUMERIC).writerows([[*names, *TIMES], *made])
    return path


def rocprof(there, copies=True):
    there.mkdir(exist_ok=True)
    kernels = []
    for agent, late in ((4, 0), (10, 100)):
        work = [
            ("Cijk_Ailk", 10, 100, 1),
            *(("ncclDevKernel_Generic_1(SendRecv)", at + 100 + late, at + 300, 2) for at in (0, 500)),
        ]
        kernels += [
            ["KERNEL_DISPATCH", f"Agent {agent}", queue, 0, 1, 1, 1, name, 5, start * 1000, end * 1000]
            for name, start, end, queue in work
        ]
    table(there / "31_kernel_trace.csv", KERNELS, kernels)
    if copies:
        made = [
            ["MEMORY_COPY", "MEMORY_COPY_DEVICE_TO_HOST", "Agent 4", "Agent 0", 6, 900_000, 950_000],
            ["MEMORY_COPY", "MEMORY_COPY_DEVICE_TO_DEVICE", "Agent 10", "Agent 4", 6, 900_000, 960_000],
        ]
        table(there / "31_memory_copy_trace.csv", COPIES, made)
    return there


def test_every_agent_of_a_kernel_trace_is_a_rank_and_copies_belong_to_it(tmp_path):
    answer = weft.read_traces(rocprof(tmp_path / "host"))
    assert answer.tool == "rocprofv3"
    assert rows(answer, "seconds", "compute", "exposed", "copies", "caused") == [
        (940, 90, 400, 50, 0),
        (950, 90, 260, 0, 200),
    ]
    assert weft.read_traces(tmp_path / "host" / "31_kernel_trace.csv").to_dict()["ranks"] == answer.to_dict()["ranks"]


def test_the_json_of_rocprofv3_says_what_its_tables_say(tmp_path):
    expected = weft.read_traces(rocprof(tmp_path / "host"))
    agents = [{"id": {"handle": 100 + node}, "type": 1 if node == 0 else 2, "node_id": node,
               "product_name": "AMD Instinct MI300X" if node else "EPYC"} for node in (0, 4, 10)]  # fmt: skip
    names = ["Cijk_Ailk", "ncclDevKernel_Generic_1(SendRecv)"]

    def records(path):
        with path.open(newline="") as file:
            return list(csv.DictReader(file))

    def handle(agent):
        return {"handle": 100 + int(agent.split()[-1])}

    def times(one):
        return {
            "correlation_id": {"internal": int(one["Correlation_Id"]), "external": 0},
            "start_timestamp": int(one["Start_Timestamp"]),
            "end_timestamp": int(one["End_Timestamp"]),
        }

    dispatches = [
        {**times(one), "dispatch_info": {
            "agent_id": handle(one["Agent_Id"]), "kernel_id": names.index(one["Kernel_Name"]),
            "queue_id": {"handle": int(one["Queue_Id"])}}}
        for one in records(tmp_path / "host" / "31_kernel_trace.csv")
    ]  # fmt: skip
    copies = [
        {
            **times(one),
            "src_agent_id": handle(one["Source_Agent_Id"]),
            "dst_agent_id": handle(one["Destination_Agent_Id"]),
        }
        for one in records(tmp_path / "host" / "31_memory_copy_trace.csv")
    ]
    tool = {
        "agents": agents,
        "kernel_symbols": [{"kernel_id": number, "formatted_kernel_name": name} for number, name in enumerate(names)],
        "buffer_records": {"kernel_dispatch": dispatches, "memory_copy": copies},
    }
    path = tmp_path / "31_results.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [tool]}))
    answer = weft.read_traces(path)
    assert answer.device == "AMD Instinct MI300X"
    for one, other in zip(answer.ranks, expected.ranks, strict=True):
        assert {**one.to_dict(), "file": ""} == {**other.to_dict(), "file": ""}
    del tool["buffer_records"]["kernel_dispatch"][0]["dispatch_info"]
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [tool]}))
    with pytest.raises(ConfigError, match="a record is not as rocprofv3 writes it"):
        weft.read_traces(path)


def test_a_table_that_is_cut_off_or_of_another_schema_is_named(tmp_path):
    path = rocprof(tmp_path / "host", copies=False) / "31_kernel_trace.csv"
    whole = path.read_text()
    path.write_text(whole[: whole.rindex(",")])
    with pytest.raises(ConfigError, match=r"line 7 has 10 cells, .*cut off"):
        weft.read_traces(path)
    path.write_text(whole.replace("Agent_Id", "Where"))
    with pytest.raises(ConfigError, match="a record is not as rocprofv3 writes it"):
        weft.read_traces(path)
    path.write_text(whole.splitlines()[0] + "\n")
    with pytest.raises(InputError, match="has no kernel on a GPU"):
        weft.read_traces(path)


def test_traces_of_two_tools_in_one_folder_are_told_apart(tmp_path):
    rocprof(tmp_path / "host")
    nsight(tmp_path / "host" / "run.sqlite")
    with pytest.raises(InputError, match=r"Nsight Systems \(run.sqlite\)|rocprofv3 \(31_kernel_trace.csv\)"):
        weft.read_traces(tmp_path / "host")


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files_of_every_tool_are_refused_in_a_sentence_or_read(tmp_path, seed):
    random_bytes = random.Random(seed)
    whole = nsight(tmp_path / "run.sqlite"), rocprof(tmp_path / "host", copies=False) / "31_kernel_trace.csv"
    for path in whole:
        content = bytearray(path.read_bytes())
        for _ in range(random_bytes.choice([1, 3, 20])):
            place = random_bytes.randrange(len(content))
            content[place : place + random_bytes.randrange(2) * 9] = random_bytes.randbytes(3)
        path.write_bytes(content)
        with suppress(WeftError):
            assert str(weft.read_traces(path))


# --- the command


def run(capsys, *arguments):
    try:
        code = main(list(map(str, arguments)))
    except SystemExit as left:
        code = left.code
    return code or 0, capsys.readouterr()


def test_import_of_a_folder_writes_the_ranks_and_their_picture(tmp_path, capsys):
    there = folder(tmp_path / "run", rank(0, starts=(180,), compute=170), rank(1), name="rank{}.json.gz")
    code, said = run(capsys, "import", there, "--out", tmp_path / "out", "--csv", tmp_path / "ranks.csv")
    assert code == 0
    assert "Exposed communication: " in said.out
    assert "Rank 0 is the straggler" in said.out
    assert "Where does the time of each rank go?" in (tmp_path / "out" / "report.html").read_text()
    assert json.loads((tmp_path / "out" / "trace.json").read_text())["straggler"] == 0
    with (tmp_path / "ranks.csv").open() as file:
        assert [row["rank"] for row in csv.DictReader(file)] == ["0", "1"]


def test_import_says_what_ranks_and_a_graph_need(tmp_path, capsys):
    there = folder(tmp_path / "run", rank(0), rank(1))
    assert run(capsys, "import", there, "--ranks", "0-")[0] == 2
    code, said = run(capsys, "import", there, "--graph", tmp_path / "g.jsonl")
    assert (code, "--graph writes one" in said.err) == (2, True)
    code, said = run(capsys, "import", there / "rank0.json", "--ranks", "0")
    assert (code, "no ranks can be chosen" in said.err) == (2, True)
    code, said = run(capsys, "import", there, "--ranks", "0-1", "--compare", "h100-sxm")
    assert (code, "With the predicted times of dgx-h100" in said.out) == (0, True)


def test_a_packed_trace_of_nsight_is_refused_with_its_tool(tmp_path):
    packed = tmp_path / "run.sqlite.gz"
    packed.write_bytes(gzip.compress(nsight(tmp_path / "run.sqlite").read_bytes()))
    with pytest.raises(ConfigError, match="unpack it"):
        weft.read_traces(packed)
