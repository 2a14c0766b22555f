"""Execution plans of MSCCL++ for tests, made as its tools would write them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from weft.graph.execution_plan import ExecutionPlan
from weft.kernels.execution_file import read_collective

Op = dict[str, Any]


def local(buffer: str, index: int, size: int = 1) -> Op:
    return {"type": buffer, "index": index, "size": size}


class Rank:
    """One rank of a plan in the newer layout: every threadblock has a channel and the buffers of every other rank."""

    def __init__(self, rank: int, ranks: int, blocks: int, chunks: tuple[int, int, int], rounds: int = 1) -> None:
        self.rank, self.peers, self.rounds = rank, [(rank + d) % ranks for d in range(1, ranks)], rounds
        self.blocks: list[list[Op]] = [[] for _ in range(blocks)]
        self.chunks = chunks

    def far(self, buffer: str, peer: int, index: int, size: int = 1) -> Op:
        """A part of another rank's buffer."""
        number = "ios".index(buffer) * len(self.peers) + self.peers.index(peer)
        return {"buffer_id": number, "index": index, "size": size}

    def add(self, block: int, name: str, sources: Iterable[Op] = (), targets: Iterable[Op] = (), **more: Any) -> None:
        """A step."""
        op: Op = (
            {"name": name}
            | ({"src_buff": [*sources]} if sources else {})
            | ({"dst_buff": [*targets]} if targets else {})
        )
        self.blocks[block].append(op | {"channel_type": "memory"} | more)

    def sync(self, block: int, first: int = 0) -> None:
        """Signal all peers over channels from `first` on, and wait for them."""
        ids = [first * len(self.peers) + i for i in range(len(self.peers))]
        self.add(block, "signal", channel_ids=ids)
        self.add(block, "wait", channel_ids=ids)

    def data(self) -> Op:
        """The rank as in the file."""
        many = len(self.peers) * self.rounds
        each = len(self.peers) * 3
        return {
            "id": self.rank,
            "input_chunks": self.chunks[0],
            "output_chunks": self.chunks[1],
            "scratch_chunks": self.chunks[2],
            "channels": [{"channel_type": "memory", "connected_to": self.peers * self.rounds * len(self.blocks)}],
            "remote_buffers": [
                {"rank": peer, "type": kind, "access_channel_types": ["memory"]}
                for kind in "ios"
                for peer in self.peers
            ],
            "threadblocks": [
                {
                    "id": number,
                    "ops": ops,
                    "channels": [{"channel_type": "memory", "channel_ids": [number * many + i for i in range(many)]}],
                    "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [*range(each)]}],
                }
                for number, ops in enumerate(self.blocks)
            ],
        }


def plan_data(ranks: list[Rank], collective: str = "allreduce", protocol: str = "Simple", **more: Any) -> Op:
    """A plan as in the file."""
    head = {"name": f"{collective}_{protocol}", "collective": collective, "protocol": protocol, "inplace": False}
    return head | more | {"gpus": [rank.data() for rank in ranks]}


def read(data: Op, folder: Path, **options: Any) -> ExecutionPlan:
    """The plan of some data, by way of a file."""
    path = folder / "plan.json"
    path.write_text(json.dumps(data))
    return read_collective(path, **options)


def pairs_with_packets(ranks: int, blocks_per_peer: int = 3, threads: int = 512) -> Op:
    """All-reduce by packets: each rank adds up its chunk of all, and sends the sum (kernel 6 of mscclpp-test)."""
    made, blocks = [], blocks_per_peer * (ranks - 1)
    for r in range(ranks):
        rank = Rank(r, ranks, blocks, (ranks, ranks, 2 * ranks))
        for b in range(blocks):
            peer, third = rank.peers[b // blocks_per_peer], {"tb_id": b % blocks_per_peer, "tbg_size": blocks_per_peer}
            whole = {"tb_id": b, "tbg_size": blocks}
            rank.add(b, "ppkt", [local("i", peer)], [rank.far("s", peer, r)], tbg_info=third)
            rank.add(
                b,
                "respkt",
                [local("i", r), *(local("s", p) for p in rank.peers)],
                [local("o", r), *(rank.far("s", p, ranks + r) for p in rank.peers)],
                tbg_info=whole,
            )
            rank.add(b, "upkt", [local("s", ranks + peer)], [local("o", peer)], tbg_info=third)
        made.append(rank)
    return plan_data(made, protocol="LL", num_threads_per_block=threads)


def pairs_in_one_round(ranks: int, blocks_per_peer: int = 4, threads: int = 512) -> Op:
    """All-reduce by packets: each rank sends all that it has to all others, and adds up (allreduceAllPairs)."""
    made, blocks = [], blocks_per_peer * (ranks - 1)
    for r in range(ranks):
        rank = Rank(r, ranks, blocks, (1, 1, ranks))
        for b in range(blocks):
            share = {"tb_id": b % blocks_per_peer, "tbg_size": blocks_per_peer}
            rank.add(b, "ppkt", [local("i", 0)], [rank.far("s", rank.peers[b // blocks_per_peer], r)], tbg_info=share)
            sources, share = [local("i", 0), *(local("s", p) for p in rank.peers)], {"tb_id": b, "tbg_size": blocks}
            rank.add(b, "repkt", sources, [local("o", 0)], tbg_info=share)
        made.append(rank)
    return plan_data(made, protocol="LL", num_threads_per_block=threads)


def pairs_by_reading(ranks: int, blocks: int = 24, threads: int = 1024) -> Op:
    """All-reduce by loads from all ranks, in place, then an all-gather by loads (kernel 5 of mscclpp-test)."""
    made = []
    for r in range(ranks):
        rank = Rank(r, ranks, blocks, (ranks, ranks, 0), rounds=2)
        for b in range(blocks):
            share = {"tb_id": b, "tbg_size": blocks}
            for turn in range(2):
                if b == 0:
                    rank.sync(0, turn)
                rank.add(b, "barrier", barrier_id=turn, num_threadblocks=blocks)
                for p in rank.peers:
                    if turn == 0:
                        rank.add(b, "rre", [local("i", r), rank.far("i", p, r)], [local("i", r)], tbg_info=share)
                    else:
                        rank.add(b, "get", [rank.far("i", p, p)], [local("i", p)], tbg_info=share)
                if turn == 0:
                    rank.add(b, "barrier", barrier_id=2, num_threadblocks=blocks)
        made.append(rank)
    return plan_data(made, inplace=True, num_threads_per_block=threads)


def pairs_by_one_loop(ranks: int, blocks: int = 45, threads: int = 512) -> Op:
    """All-reduce, in place: a loop adds up all ranks' chunks, then a share of blocks loads from each (kernel 4)."""
    made = []
    for r in range(ranks):
        rank = Rank(r, ranks, blocks, (ranks, ranks, 0), rounds=2)
        for b in range(blocks):
            for turn in range(2):
                if b == 0:
                    rank.sync(0, turn)
                rank.add(b, "barrier", barrier_id=turn, num_threadblocks=blocks)
                if turn == 0:
                    sources = [local("i", r), *(rank.far("i", p, r) for p in rank.peers)]
                    rank.add(b, "rre", sources, [local("i", r)], tbg_info={"tb_id": b, "tbg_size": blocks})
                    rank.add(b, "barrier", barrier_id=2, num_threadblocks=blocks)
                    continue
                peer, count = rank.peers[b % (ranks - 1)], len(range(b % (ranks - 1), blocks, ranks - 1))
                share = {"tb_id": b // (ranks - 1), "tbg_size": count}
                rank.add(b, "get", [rank.far("i", peer, peer)], [local("i", peer)], tbg_info=share)
        made.append(rank)
    return plan_data(made, inplace=True, num_threads_per_block=threads)


def ring_by_ports(ranks: int, blocks: int = 24, threads: int = 1024) -> Op:
    """All-reduce around a ring, in place, half chunks copied by DMA engines (kernel 1 of mscclpp-test)."""
    gpus = []
    for r in range(ranks):
        ops, after, before = _ring_steps(r, ranks, blocks), (r + 1) % ranks, (r - 1) % ranks
        gpus.append(
            {
                "id": r,
                "input_chunks": 2 * ranks,
                "output_chunks": 2 * ranks,
                "scratch_chunks": 2 * ranks,
                "channels": [{"channel_type": "port", "connected_to": [after, before, after, before]}],
                "remote_buffers": [
                    {"rank": after, "type": kind, "access_channel_types": ["port"]} for kind in ("s", "i")
                ],
                "threadblocks": [
                    {
                        "id": b,
                        "ops": ops[b],
                        "channels": [{"channel_type": "port", "channel_ids": [0, 1, 2, 3]}],
                        "remote_buffer_refs": [{"access_channel_type": "port", "remote_buffer_ids": [0, 1]}],
                    }
                    for b in range(blocks)
                ],
            }
        )
    head = {"name": "ring", "collective": "allreduce", "protocol": "Simple", "inplace": True}
    return head | {"num_threads_per_block": threads, "gpus": gpus}


def _ring_steps(r: int, ranks: int, blocks: int) -> list[list[Op]]:
    """The steps of one rank: one half of a chunk is sent while the other half is added up."""
    ops: list[list[Op]] = [[] for _ in range(blocks)]

    def put(chunk: int, half: int, back: bool, size: int = 1) -> None:
        part = {"index": 2 * (chunk % ranks) + half, "size": size}
        parts = {"src_buff": [{"type": "i", **part}], "dst_buff": [{"buffer_id": int(back), **part}]}
        ops[0].append({"name": "pws", **parts, "channel_ids": [2 * back], "channel_type": "port"})

    def come(back: bool, sent: bool) -> None:
        ops[0].append({"name": "wait", "channel_ids": [2 * back + 1], "channel_type": "port"})
        ops[0].append({"name": "flush", "channel_ids": [2 * sent], "channel_type": "port"})

    def add(chunk: int, half: int) -> None:
        index = 2 * (chunk % ranks) + half
        for b in range(blocks):
            barrier = {"name": "barrier", "barrier_id": 0, "num_threadblocks": blocks}
            parts = {"src_buff": [local("i", index), local("s", index)], "dst_buff": [local("i", index)]}
            ops[b] += [barrier, {"name": "re", **parts, "tbg_info": {"tb_id": b, "tbg_size": blocks}}, barrier]

    put(r - 1, 0, False)
    for turn in range(2, ranks + 1):
        come(False, False)
        put(r - turn + 1, 1, False)
        add(r - turn, 0)
        come(False, False)
        put(r - turn, 0, turn == ranks)
        add(r - turn, 1)
    come(True, True)
    put(r, 1, True)
    for turn in range(1, ranks - 1):
        come(True, True)
        put(r - turn, 0, True, 2)
    ops[0].append({"name": "wait", "channel_ids": [3], "channel_type": "port"})
    return ops
