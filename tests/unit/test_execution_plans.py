"""Execution plans of MSCCL++: read in both layouts, proven by replay, run as engine kernels."""

import copy
import json

import pytest
from execution_plans import (
    Rank,
    local,
    pairs_by_reading,
    pairs_in_one_round,
    pairs_with_packets,
    plan_data,
    read,
)

import weft
from weft.cli import main
from weft.core.errors import ConfigError, InputError
from weft.graph import ExecutionPlanKernel
from weft.kernels.execution_kernel import FLAG
from weft.kernels.execution_replay import replay_plan

NODE = "h100-sxm"


def by_puts(ranks=4, blocks=1, **head):
    """All-reduce of puts: everyone's chunk goes to its owner, is added up there, and comes back."""
    made = []
    for r in range(ranks):
        rank = Rank(r, ranks, blocks, (ranks, ranks, ranks))
        for b in range(blocks):
            share = {"tbg_info": {"tb_id": b, "tbg_size": blocks}}
            rank.add(b, "put", [local("i", p) for p in rank.peers], [rank.far("s", p, r) for p in rank.peers], **share)
            rank.sync(b)
            sources = [local("i", r), *(local("s", p) for p in rank.peers)]
            rank.add(b, "res", sources, [local("o", r), *(rank.far("o", p, r) for p in rank.peers)], **share)
            rank.sync(b)
        made.append(rank)
    return plan_data(made, **head)


def older(name="pwsf", kind="proxy"):
    """A send and receive between two ranks in the older layout."""
    gpus = []
    for r in range(2):
        put = {
            "name": name, "o_buff": {"src": "i", "dst": "s"}, "o_cids": [{"id": 0, "off": r}],
            "srcs": [{"buff": "i", "off": 0}], "ctype": kind, "cnt": 1,
        }  # fmt: skip
        wait = {"name": "wait", "i_buff": {"src": "i", "dst": "s"}, "i_cids": [{"id": 0, "off": 1 - r}], "ctype": kind}
        copied = {
            "name": "copy", "srcbuff": "s", "srcoff": 1 - r, "dstbuff": "o", "dstoff": 0, "ctype": "none", "cnt": 1,
        }  # fmt: skip
        gpus.append(
            {
                "id": r, "inputChunks": 1, "outputChunks": 1, "scratchChunks": 2, "chunkGroups": 1,
                "channels": [{"srcbuff": "i", "dstbuff": "s", "type": kind, "connectedTo": [1 - r]}],
                "threadblocks": [
                    {
                        "id": 0, "ops": [put, wait, {"name": "nop"}, copied],
                        "channels": [{"src": "i", "dst": "s", "ctype": kind, "cids": [0]}],
                    }
                ],
            }
        )  # fmt: skip
    return {"name": "swap", "collective": "sendrecv", "protocol": "Simple", "inplace": False, "gpus": gpus}


def changed(data, rank, block, at, **op):
    """A plan with one step changed; `at` None adds one at the end."""
    data = copy.deepcopy(data)
    ops = data["gpus"][rank]["threadblocks"][block]["ops"]
    if at is None:
        ops.append(op)
    elif op:
        ops[at] = ops[at] | op
    else:
        del ops[at]
    return data


@pytest.mark.parametrize(
    "data",
    [by_puts(), by_puts(2, 3), pairs_with_packets(4, 2), pairs_in_one_round(4, 2), pairs_by_reading(4, 3), older()],
    ids=["puts", "shared", "packets", "one round", "loads", "older"],
)
def test_the_result_of_a_right_plan_is_proven(data, tmp_path):
    assert replay_plan(read(data, tmp_path), 1 << 20)


def test_a_chunk_that_is_not_added_up_is_named_with_the_step_that_left_it(tmp_path):
    data = by_puts()
    sources = data["gpus"][1]["threadblocks"][0]["ops"][3]["src_buff"][:-1]
    with pytest.raises(
        InputError, match=r"chunk 1 of rank 0's output lacks the data of rank 0, as step 3 \('res'\) of "
    ):
        replay_plan(read(changed(data, 1, 0, 3, src_buff=sources), tmp_path), 1 << 20)


def test_data_that_is_added_twice_is_named(tmp_path):
    data = by_puts()
    sources = data["gpus"][2]["threadblocks"][0]["ops"][3]["src_buff"]
    with pytest.raises(InputError, match="has the data of rank 3 more than once"):
        replay_plan(read(changed(data, 2, 0, 3, src_buff=[*sources, local("s", 3)]), tmp_path), 1 << 20)


def test_a_wait_that_no_step_signals_names_the_step(tmp_path):
    data = changed(by_puts(), 3, 0, 1, channel_ids=[0, 1])
    with pytest.raises(InputError, match=r"ends: step 5 \('wait'\) .* rank 2 waits for signal 2 of rank 3 .*no step"):
        replay_plan(read(data, tmp_path), 1 << 20)


def test_ranks_that_wait_for_each_other_are_a_deadlock(tmp_path):
    data = by_puts(2)
    for rank in data["gpus"]:
        ops = rank["threadblocks"][0]["ops"]
        ops[1], ops[2] = ops[2], ops[1]
    with pytest.raises(InputError, match=r"the step that would send it waits, too .2 threadblocks wait in all"):
        replay_plan(read(data, tmp_path), 1 << 20)


def test_accesses_that_nothing_orders_are_named(tmp_path):
    data = by_puts(2)
    for rank in data["gpus"]:
        del rank["threadblocks"][0]["ops"][1:3]
    with pytest.raises(InputError, match=r"it writes bytes of rank 0's scratch that step 1 \('res'\) .* rank 0 read"):
        replay_plan(read(data, tmp_path), 1 << 20)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ({"name": "teleport"}, r"step 0 \('teleport'\) of threadblock 0 on rank 1 is unknown; the operations are"),
        ({"src_buff": [local("i", 4)]}, "takes chunks 4 to 4 of rank 1's input, which has 4"),
        ({"dst_buff": [{"buffer_id": 99, "index": 0, "size": 1}]}, "uses remote buffer of its threadblock 99, but"),
        ({"src_buff": [local("i", 0)] * 2}, "has 2 sources for 3 targets"),
        ({"src_buff": [{"index": 0, "size": 1}]}, "the plan lacks the key 'type'"),
    ],
)  # fmt: skip
def test_a_broken_step_is_named(op, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        read(changed(by_puts(), 1, 0, 0, **op), tmp_path)


def test_files_of_something_else_are_refused(tmp_path):
    file = tmp_path / "plan.json"
    file.write_text("[1]")
    with pytest.raises(ConfigError, match="no execution plan; give one"):
        weft.read_collective(file)
    file.write_text(json.dumps({"a": 1}))
    with pytest.raises(ConfigError, match="it has no list 'gpus'"):
        weft.read_collective(file)
    with pytest.raises(ConfigError, match="the plan's collective is 'gossip'; it must be 'allreduce'"):
        read(by_puts() | {"collective": "gossip"}, tmp_path)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("protocol",), "ll", "the protocol is 'll'; it must be 'Simple' or 'LL'"),
        (("protocol",), 5, "the protocol is 5"),
        (("inplace",), "false", "inplace is 'false'; it must be true or false"),
        (("reuse_resources",), "false", "reuse_resources is 'false'"),
        (("use_double_scratch_buffer",), "no", "use_double_scratch_buffer is 'no'"),
        (("num_threads_per_block",), 256.9, "num_threads_per_block is 256.9; it must be a whole number"),
        (("num_threads_per_block",), True, "num_threads_per_block is True"),
        (("num_threads_per_block",), 2048, "take 1 to 1024 threads"),
        (("gpus", 0, "threadblocks", 0, "ops", 0, "src_buff", 0, "size"), 1.9, r"src_buff\[0\].size is 1.9"),
        (("gpus", 0, "threadblocks", 0, "ops", 0, "src_buff", 0, "index"), float("inf"), "the number inf"),
        (
            ("gpus", 0, "threadblocks", 0, "ops", 0, "tbg_info"),
            {"tb_id": 0, "tbg_size": 0},
            "tbg_size is 0; .* least 1",
        ),
        (("gpus", 0, "threadblocks", 0, "ops", 0, "channel_ids"), 3, "must be a list of whole numbers"),
    ],
)
def test_a_value_of_a_wrong_form_is_named(place, value, message, tmp_path):
    data = by_puts()
    *way, last = place
    holder = data
    for step in way:
        holder = holder[step]
    holder[last] = value
    with pytest.raises(ConfigError, match=message):
        read(data, tmp_path)


def test_a_step_that_waits_twice_for_one_signal_never_ends(tmp_path):
    data = by_puts()
    wait = next(op for op in data["gpus"][0]["threadblocks"][0]["ops"] if op["name"] == "wait")
    wait["channel_ids"] = [wait["channel_ids"][0]] * 2
    with pytest.raises(InputError, match=r"never ends: .* waits for signal 3 of rank 1"):
        replay_plan(read(data, tmp_path), 1 << 20)


def test_sizes_and_ranks_must_suit_the_plan(tmp_path):
    plan = read(by_puts(min_message_size=4096), tmp_path)
    with pytest.raises(InputError, match=r"is for 4 KiB to .*not 2 KiB"):
        weft.simulate(plan.graph("2 KiB"), NODE)
    with pytest.raises(InputError, match=r"cannot be cut into the chunks of rank 0 .* try 4 KiB"):
        weft.simulate(plan.graph(4100), NODE)
    other = weft.simulate.alone(weft.Collective("all_reduce", 1 << 20, 8), 8, ExecutionPlanKernel(plan))
    with pytest.raises(InputError, match="over 4 GPUs, but is to run an all_reduce over 8; take 4 GPUs"):
        weft.simulate(other, NODE)


def test_threadblocks_that_wait_for_each_other_must_fit_at_once(tmp_path):
    plan = read(by_puts(2, 300), tmp_path)
    with pytest.raises(InputError, match="has 300 threadblocks, which wait for each other, but 132 compute units"):
        weft.simulate(plan.graph("16 MiB"), NODE)


def test_puts_move_each_chunk_once_each_way(tmp_path):
    run = weft.simulate(read(by_puts(), tmp_path).graph("1 MiB"), NODE)
    assert run.counters["link_bytes"] == 2 * 3 * (1 << 18) + 2 * 3 * FLAG


def test_loads_from_peers_move_as_many_bytes_as_stores_to_them(tmp_path):
    run = weft.simulate(read(pairs_by_reading(4, 3), tmp_path).graph("1 MiB"), NODE)
    assert run.counters["link_bytes"] == 2 * 3 * (1 << 18) + 2 * 3 * FLAG


def test_packets_take_twice_their_data_on_links(tmp_path):
    run = weft.simulate(read(pairs_with_packets(4, 2), tmp_path).graph("1 MiB"), NODE)
    assert run.counters["link_bytes"] == 2 * 2 * 3 * (1 << 18)


def test_a_load_from_a_peer_waits_for_both_ways(tmp_path):
    near, far = (weft.system(NODE, gpus=2).replace({"link.latency": one}) for one in ("0.5 us", "10.5 us"))
    ranks = [Rank(r, 2, 1, (1, 2, 0)) for r in range(2)]
    for rank in ranks:
        rank.add(0, "copy", [local("i", 0)], [local("o", rank.rank)])
        rank.add(0, "get", [rank.far("i", 1 - rank.rank, 0)], [local("o", 1 - rank.rank)])
    graph = read(plan_data(ranks, "allgather"), tmp_path).graph("1 KiB")
    added = weft.simulate(graph, far).seconds - weft.simulate(graph, near).seconds
    assert added == pytest.approx(2 * 10e-6, rel=5e-3)


def test_a_signal_waits_for_one_way(tmp_path):
    near, far = (weft.system(NODE, gpus=2).replace({"link.latency": one}) for one in ("0.5 us", "10.5 us"))
    graph = read(by_puts(2), tmp_path).graph("1 KiB")
    added = weft.simulate(graph, far).seconds - weft.simulate(graph, near).seconds
    assert added == pytest.approx(2 * 10e-6, rel=1e-3)


def test_the_switch_adds_up_where_a_plan_says_so(tmp_path):
    ranks = [Rank(r, 4, 1, (4, 4, 0)) for r in range(4)]
    data = plan_data(ranks, inplace=True)
    for rank, gpu in zip(ranks, data["gpus"], strict=True):
        gpu["channels"].append(
            {"channel_type": "switch", "buffer_type": "i", "rank_groups": [{"size": 4, "ranks": [0, 1, 2, 3]}]}
        )
        (block,) = gpu["threadblocks"]
        block["channels"].append({"channel_type": "switch", "channel_ids": [0]})
        rank.sync(0)
        part = {"switch_channel_id": 0, "index": rank.rank, "size": 1}
        rank.add(0, "glres", [part], [part], channel_type="switch")
    plan = read(data, tmp_path)
    run = weft.simulate(plan.graph("1 MiB"), "dgx-h100")
    assert run.counters["link_bytes"] > 0
    with pytest.raises(InputError, match=r"adds up or copies in the switch, but .* has none that does"):
        weft.simulate(plan.graph("1 MiB"), "a100-sxm-80gb")


def test_one_gpu_stands_for_all_where_the_ranks_do_the_same(tmp_path):
    plan = read(pairs_with_packets(4, 2), tmp_path)
    one = weft.simulate(plan.graph("256 KiB"), NODE)
    each = weft.simulate(plan.graph("256 KiB"), NODE, options=weft.RunOptions(mode="explicit"))
    assert one.options.mode == "mirrored"
    assert one.seconds == pytest.approx(each.seconds, rel=0.02)


def test_ranks_that_differ_are_simulated_each(tmp_path):
    data = changed(by_puts(), 0, 0, None, name="nop")
    late = changed(data, 0, 0, None, name="copy", src_buff=[local("o", 0)], dst_buff=[local("s", 0)])
    plan = read(late, tmp_path)
    assert weft.simulate(plan.graph("1 MiB"), NODE).options.mode == "explicit"
    with pytest.raises(InputError, match="because the steps of the plan's ranks differ; choose mode 'explicit'"):
        weft.simulate(plan.graph("1 MiB"), NODE, options=weft.RunOptions(mode="mirrored"))


def test_a_loop_of_plans_takes_as_many_times_as_long(tmp_path):
    plan = read(pairs_by_reading(4, 3), tmp_path)
    loop = weft.concurrent(weft.gemm(256, 256, 256), plan.op("1 MiB"), 1, 3, plan.choice())
    once = weft.simulate(plan.graph("1 MiB"), NODE).seconds
    run = weft.simulate(loop, NODE)
    assert run.seconds == pytest.approx(3 * once, rel=0.1)


def test_a_port_copies_by_dma_engines_and_flushes(tmp_path):
    run = weft.simulate(read(older(), tmp_path).graph("16 MiB"), NODE)
    assert [copy.bytes for copy in run.dmas] == [(16 << 20) + FLAG]
    assert run.counters["link_bytes"] == (16 << 20) + FLAG


def test_both_layouts_of_a_step_are_the_same(tmp_path):
    plan = read(older("put", "sm"), tmp_path)
    (put, *_), *_ = plan.steps[0]
    (newer, *_), *_ = read(by_puts(2), tmp_path).steps[0]
    assert put.moves[0].targets[0].rank == newer.moves[0].targets[0].rank == 1
    assert (put.port, newer.port) == (False, False)


def test_a_plan_is_kept_and_read_back(tmp_path):
    from weft.simulate.result.stored import as_record, from_record

    run = weft.simulate(read(by_puts(), tmp_path).graph("1 MiB"), NODE)
    assert from_record(json.loads(json.dumps(as_record(run)))).graph == run.graph


@pytest.fixture
def cli(capsys):
    """Runs `weft ARGUMENTS`: exit status, output and error output."""

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            main.main(list(map(str, arguments)))
        return left.value.code, *capsys.readouterr()

    return run


def test_a_plan_runs_alone_and_beside_a_gemm_from_the_command_line(cli, tmp_path):
    read(by_puts(), tmp_path)
    plan = f"{tmp_path / 'plan.json'}:1MiB"
    status, out, _ = cli("simulate", "collective", plan, "--gpu", NODE)
    assert (status, "all_reduce of 1 MiB over 4 GPUs" in out) == (0, True)
    pair = ("--gemm", "1024,1024,1024", "--corun", plan)
    status, out, _ = cli("simulate", "corun", *pair, "--gpu", NODE, "--loops", "2,1")
    assert (status, "simulated as plan" in out) == (0, True)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--ranks", 8), "--ranks is 8, but the plan in"),
        (("--overlap", "dma"), "runs on compute units"),
        (("--channels", 8), "states channels, but the choice of"),
        (("--algorithm", "ring", "--overlap", "all"), "states algorithm, but the choice of"),
        (("--copies", "engines=1", "--overlap", "all"), "takes no options of DMA engines"),
    ],
)
def test_options_that_do_not_suit_a_plan_are_refused(cli, more, message, tmp_path):
    read(by_puts(), tmp_path)
    pair = ("--gemm", "512,512,512", "--corun", f"{tmp_path / 'plan.json'}:1MiB")
    status, _, error = cli("simulate", "corun", *pair, "--gpu", NODE, *more)
    assert (status, message in error) == (2, True), error


@pytest.mark.parametrize("given", ["plan.json", ":1MiB", "plan.json:"])
def test_a_plan_needs_a_file_and_a_size(cli, given):
    status, _, error = cli("simulate", "collective", given)
    assert (status, "needs a file and a size, like plan.json:16MiB" in error) == (2, True)
