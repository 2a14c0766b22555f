"""Files of execution plans: both layouts of MSCCL++'s JSON, read and checked.

That of microsoft/mscclpp since August 2025 has `src_buff` and `remote_buffers`, that before `i_cids` and `o_cids`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from weft.core.errors import ConfigError, is_whole, join_or, reason, show_value
from weft.core.files import read_json
from weft.graph import COLLECTIVES
from weft.graph.execution_plan import (
    LEAST_ALIGNMENT,
    BufferName,
    BufferPart,
    Channel,
    Chunks,
    ExecutionPlan,
    PlanMove,
    PlanStep,
    step_words,
)

_BUFFERS: Mapping[str, BufferName] = {"i": "input", "o": "output", "s": "scratch"}
_COLLECTIVES = {name.replace("_", ""): name for name in COLLECTIVES}
_KINDS = {"memory": "memory", "sm": "memory", "port": "port", "proxy": "port", "switch": "switch", "nvls": "switch"}

_WHOLE = frozenset(
    [
        "id",
        "index",
        "size",
        "rank",
        "cnt",
        "off",
        "srcoff",
        "dstoff",
        "tb_id",
        "tbg_size",
        "barrier_id",
        "num_threadblocks",
        "nthread_blocks",
        "unit_size",
        "num_chunks",
        "init_value",
        "buffer_id",
        "switch_channel_id",
        "num_threads_per_block",
        "buffer_alignment",
        "min_message_size",
        "max_message_size",
        "input_chunks",
        "output_chunks",
        "scratch_chunks",
        "inputChunks",
        "outputChunks",
        "scratchChunks",
        "chunkGroups",
    ]
)
"""Keys of both layouts whose values are whole numbers."""
_WHOLES = frozenset(
    ["channel_ids", "cids", "connected_to", "connectedTo", "semaphore_ids", "remote_buffer_ids", "ranks"]
)
"""Keys whose values are lists of them."""
_POSITIVE = frozenset(("tbg_size", "num_threadblocks", "nthread_blocks", "num_threads_per_block", "buffer_alignment"))
_FLAGS = frozenset(("inplace", "reuse_resources", "use_double_scratch_buffer"))


def read_collective(path: str | Path, trusted: bool = False) -> ExecutionPlan:
    """Read an execution plan of MSCCL++, in its present or its former layout.

    A `trusted` plan may touch bytes in an order that no signal, barrier or packet enforces.

    Raises ConfigError that names the step for an unknown operation, a chunk outside its buffer, a channel that does
    not exist, or a file of something else; InputError for a missing file.
    """
    data = read_json(path, "execution plan", "give one of MSCCL++")
    if not isinstance(data.get("gpus"), list) or not data["gpus"]:
        raise ConfigError("this is no execution plan: it has no list 'gpus'; give one of MSCCL++", str(path))
    try:
        return replace(_plan(data), trusted=trusted)
    except _BrokenPlan as error:
        raise ConfigError(str(error), str(path)) from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        told = f"lacks the key {error}" if isinstance(error, KeyError) else f"cannot be understood ({reason(error)})"
        raise ConfigError(f"the plan {told}; give one as MSCCL++'s tools write them", str(path)) from None


class _BrokenPlan(Exception):
    """What is wrong with a plan, in a sentence."""


def _check_types(data: Any, where: str = "") -> None:
    """Raise _BrokenPlan for a number that is not whole, a flag that is none, and so on: 256.9 threads are a mistake."""
    if isinstance(data, list):
        for at, inner in enumerate(data):
            _check_types(inner, f"{where}[{at}]")
    if not isinstance(data, Mapping):
        return
    for key, value in data.items():
        place = f"{where}.{key}".lstrip(".")
        if key in _WHOLE and not (is_whole(value) and abs(value) <= _LARGEST):
            raise _BrokenPlan(f"{place} is {show_value(value)}; it must be a whole number")
        if key in _POSITIVE and value < 1:
            raise _BrokenPlan(f"{place} is {show_value(value)}; it must be at least 1")
        if key in _WHOLES and not (isinstance(value, list) and all(map(is_whole, value))):
            raise _BrokenPlan(f"{place} is {show_value(value)}; it must be a list of whole numbers")
        if key in _FLAGS and not isinstance(value, bool):
            raise _BrokenPlan(f"{place} is {show_value(value)}; it must be true or false")
        _check_types(value, place)


_LARGEST = 1 << 62
_MOST_THREADS = 1024
_PROTOCOLS = ("Simple", "LL")


def _plan(data: Mapping[str, Any]) -> ExecutionPlan:
    _check_types(data)
    if data["protocol"] not in _PROTOCOLS:
        raise _BrokenPlan(f"the protocol is {show_value(data['protocol'])}; it must be {join_or(_PROTOCOLS)}")
    name = str(data["collective"]).lower().replace("_", "").replace("-", "")
    if name not in _COLLECTIVES:
        raise _BrokenPlan(f"the plan's collective is '{data['collective']}'; it must be {join_or(tuple(_COLLECTIVES))}")
    gpus = sorted(data["gpus"], key=lambda gpu: gpu["id"])
    if [gpu["id"] for gpu in gpus] != list(range(len(gpus))) or len(gpus) < 2:
        raise _BrokenPlan(
            f"the ids of 'gpus' are {[gpu['id'] for gpu in gpus]}; they must count up from 0, two at least"
        )
    reader = _Newer if "input_chunks" in gpus[0] else _OlderReader
    chunks = tuple(map(reader.chunks, gpus))
    for rank, each in enumerate(chunks):
        if each.input < 1 and each.output < 1:
            raise _BrokenPlan(f"rank {rank} has neither input nor output chunks; give one of them at least one")
    ranks = [reader(rank, gpu, chunks) for rank, gpu in enumerate(gpus)]
    plan = ExecutionPlan(
        name=str(data["name"]),
        collective=_COLLECTIVES[name],
        chunks=chunks,
        steps=tuple(tuple(one.workgroups()) for one in ranks),
        semaphores=tuple(tuple(each["init_value"] for each in gpu.get("semaphores", ())) for gpu in gpus),
        packets=data["protocol"] == "LL",
        in_place=data["inplace"],
        reuse=data.get("reuse_resources", False),
        double=data.get("use_double_scratch_buffer", False),
        threads=data.get("num_threads_per_block", 1024),
        alignment=data.get("buffer_alignment", LEAST_ALIGNMENT),
        sizes=(data.get("min_message_size", 0), data.get("max_message_size", 1 << 62)),
    )
    if plan.threads > _MOST_THREADS:
        raise _BrokenPlan(f"num_threads_per_block is {plan.threads}; take 1 to {_MOST_THREADS} threads")
    if not plan.workgroups:
        raise _BrokenPlan("no rank has a threadblock; give every rank its steps")
    return plan


class _Rank:
    """Reads the steps of one rank."""

    operations: ClassVar[Mapping[str, Callable[[Any, Mapping[str, Any]], PlanStep]]]

    def __init__(self, rank: int, gpu: Mapping[str, Any], chunks: tuple[Chunks, ...]) -> None:
        self.rank, self.gpu, self.every, self.ranks = rank, gpu, chunks, len(chunks)
        self.block: Mapping[str, Any] = {}
        self.doing = f"rank {rank}"

    @staticmethod
    def chunks(gpu: Mapping[str, Any]) -> Chunks:
        """Return the chunks of a rank's buffers."""
        raise NotImplementedError

    def workgroups(self) -> Iterator[tuple[PlanStep, ...]]:
        """Yield the steps of every workgroup of the rank."""
        blocks = sorted(self.gpu["threadblocks"], key=lambda block: block["id"])
        if [block["id"] for block in blocks] != list(range(len(blocks))):
            raise _BrokenPlan(f"the ids of rank {self.rank}'s threadblocks do not count up from 0; number them")
        for self.block in blocks:
            yield tuple(self._step(op, str(index)) for index, op in enumerate(self.block["ops"]))

    def _step(self, op: Mapping[str, Any], index: str) -> PlanStep:
        self.doing = step_words(self.rank, self.block["id"], index, op["name"])
        if op["name"] not in self.operations:
            raise _BrokenPlan(f"{self.doing} is unknown; the operations are {join_or(sorted(self.operations))}")
        step = replace(self.operations[op["name"]](self, op), name=op["name"])
        if "tbg_info" in op:
            step = replace(step, share=(op["tbg_info"]["tb_id"], op["tbg_info"]["tbg_size"]))
        for move in step.moves:
            for part in (*move.sources, *move.targets):
                self._check(part)
        if step.name == "pipeline":
            inner = tuple(self._step(one, f"{index}.{at}") for at, one in enumerate(op["ops"]))
            step = replace(step, inner=inner)
        return step

    def _check(self, part: BufferPart) -> None:
        rank = self.rank if part.rank is None else part.rank
        held = self.every[rank].of(part.buffer)
        if part.index < 0 or part.size < 1 or part.index + part.size > held:
            last = part.index + part.size - 1
            raise _BrokenPlan(
                f"{self.doing} takes chunks {part.index} to {last} of rank {rank}'s {part.buffer}, which has {held}; "
                f"keep it below {held}, or give the buffer more chunks"
            )

    def _peer(self, rank: int) -> int:
        if not 0 <= rank < self.ranks or rank == self.rank:
            raise _BrokenPlan(f"{self.doing} has rank {rank} as its peer; choose another of the {self.ranks} ranks")
        return rank

    def _pick(self, what: str, all_: Sequence[Any], number: int) -> Any:
        if not 0 <= number < len(all_):
            raise _BrokenPlan(f"{self.doing} uses {what} {number}, but there are {len(all_)}, counted from 0")
        return all_[number]

    def _flat(self, kind: str, type_: str, peers: str) -> list[Channel]:
        """Return all channels of a kind, in the order of connection; the j-th ones between two ranks are a pair."""
        so_far = Counter[int]()
        found = []
        for one in self.gpu["channels"]:
            for peer in one.get(peers, ()) if _KINDS.get(one[type_]) == kind else ():
                found.append(Channel(kind, self._peer(peer), so_far[peer]))
                so_far[peer] += 1
        return found

    def _nothing(self, op: Mapping[str, Any]) -> PlanStep:
        return PlanStep("")

    def _pairs(self, sources: Sequence[BufferPart], targets: Sequence[BufferPart]) -> tuple[PlanMove, ...]:
        """Copies, one source each, or one for all."""
        if not sources or not targets or len(sources) not in (1, len(targets)):
            raise _BrokenPlan(f"{self.doing} has {len(sources)} sources for {len(targets)} targets; give each its own")
        each = [*sources] * len(targets) if len(sources) == 1 else sources
        return tuple(PlanMove((source,), (target,)) for source, target in zip(each, targets, strict=True))

    def _sum(self, sources: Sequence[BufferPart], targets: Sequence[BufferPart]) -> tuple[PlanMove, ...]:
        if not sources or not targets:
            raise _BrokenPlan(
                f"{self.doing} has {len(sources)} sources and {len(targets)} targets; give it some of each"
            )
        return (PlanMove(tuple(sources), tuple(targets)),)


def _kind(op: Mapping[str, Any], key: str) -> str:
    return _KINDS.get(op.get(key, "none"), "none")


def _packets(parts: Sequence[BufferPart], first: int = 0) -> list[BufferPart]:
    """Parts; those from number `first` on hold packets."""
    return [replace(part, packets=at >= first) for at, part in enumerate(parts)]


class _Newer(_Rank):
    """Reads the layout since August 2025."""

    @staticmethod
    def chunks(gpu: Mapping[str, Any]) -> Chunks:
        return Chunks(gpu["input_chunks"], gpu["output_chunks"], gpu["scratch_chunks"])

    def _channels(self, op: Mapping[str, Any]) -> tuple[Channel, ...]:
        kind = _kind(op, "channel_type")
        ids = [
            i for one in self.block["channels"] if _KINDS.get(one["channel_type"]) == kind for i in one["channel_ids"]
        ]
        flat = self._flat(kind, "channel_type", "connected_to")
        return tuple(
            self._pick(f"{kind} channel", flat, self._pick(f"{kind} channel of its threadblock", ids, one))
            for one in op.get("channel_ids", ())
        )

    def _parts(self, op: Mapping[str, Any], key: str) -> list[BufferPart]:
        return [self._part(one, _kind(op, "channel_type")) for one in op.get(key, ())]

    def _part(self, one: Mapping[str, Any], kind: str) -> BufferPart:
        where = one["index"], one["size"]
        if "switch_channel_id" in one:
            return BufferPart(None, self._switch_buffer(one["switch_channel_id"]), *where)
        if "buffer_id" in one:
            refs = self.block.get("remote_buffer_refs", ())
            ids = [
                i for ref in refs if _KINDS.get(ref["access_channel_type"]) == kind for i in ref["remote_buffer_ids"]
            ]
            number = self._pick("remote buffer of its threadblock", ids, one["buffer_id"])
            buffer = self._pick("remote buffer", self.gpu["remote_buffers"], number)
            return BufferPart(self._peer(buffer["rank"]), _BUFFERS[buffer["type"]], *where)
        return BufferPart(self.rank, _BUFFERS[one["type"]], *where)

    def _switch_buffer(self, number: int) -> BufferName:
        """Return the buffer behind a channel through the switch, which must join all ranks."""
        of_block = [one for one in self.block["channels"] if _KINDS.get(one["channel_type"]) == "switch"]
        ids = [i for one in of_block for i in one["channel_ids"]]
        groups = [
            (one.get("buffer_type") or one["buff"], group["ranks"])
            for one in self.gpu["channels"]
            if _KINDS.get(one["channel_type"]) == "switch"
            for group in one["rank_groups"]
        ]
        buffer, ranks = self._pick(
            "switch channel", groups, self._pick("switch channel of its threadblock", ids, number)
        )
        if len(set(ranks)) != self.ranks:
            raise _BrokenPlan(f"{self.doing} joins ranks {ranks} through the switch; only all ranks together can be")
        return _BUFFERS[buffer]

    def _copy(self, op: Mapping[str, Any]) -> PlanStep:
        return PlanStep("", moves=self._pairs(self._parts(op, "src_buff"), self._parts(op, "dst_buff")))

    def _put(self, op: Mapping[str, Any], signals: bool = False, flushes: bool = False) -> PlanStep:
        channels = self._channels(op)
        return replace(
            self._copy(op),
            port=_kind(op, "channel_type") == "port",
            signals=channels if signals else (),
            flushes=channels if flushes else (),
        )

    def _reduce(self, op: Mapping[str, Any]) -> PlanStep:
        return PlanStep("", moves=self._sum(self._parts(op, "src_buff"), self._parts(op, "dst_buff")))

    def _reduce_packets(self, op: Mapping[str, Any]) -> PlanStep:
        sources, targets = self._parts(op, "src_buff"), self._parts(op, "dst_buff")
        return PlanStep("", moves=self._sum(_packets(sources, 1), _packets(targets, 1)))

    def _put_packets(self, op: Mapping[str, Any]) -> PlanStep:
        port = _kind(op, "channel_type") == "port"
        sources, targets = self._parts(op, "src_buff"), _packets(self._parts(op, "dst_buff"))
        return PlanStep("", moves=self._pairs(_packets(sources) if port else sources, targets), port=port)

    def _pass_packets(self, op: Mapping[str, Any]) -> PlanStep:
        moves = self._pairs(_packets(self._parts(op, "src_buff")), _packets(self._parts(op, "dst_buff")))
        return PlanStep("", moves=moves, port=_kind(op, "channel_type") == "port")

    def _pack(self, op: Mapping[str, Any]) -> PlanStep:
        return PlanStep("", moves=self._pairs(self._parts(op, "src_buff"), _packets(self._parts(op, "dst_buff"))))

    def _unpack(self, op: Mapping[str, Any]) -> PlanStep:
        return PlanStep("", moves=self._pairs(_packets(self._parts(op, "src_buff")), self._parts(op, "dst_buff")))

    def _pipeline(self, op: Mapping[str, Any]) -> PlanStep:
        context = op["iter_context"]
        if context["unit_size"] < 1:
            raise _BrokenPlan(f"{self.doing} has a unit_size of {context['unit_size']}; it must be at least 1 B")
        return PlanStep("", unit=context["unit_size"], chunks=context["num_chunks"])

    operations: ClassVar = {
        "nop": _Rank._nothing,
        "barrier": lambda self, op: PlanStep("", barrier=(op["barrier_id"], op["num_threadblocks"])),
        "put": _put,
        "pws": lambda self, op: self._put(op, signals=True),
        "pwsf": lambda self, op: self._put(op, signals=True, flushes=True),
        "get": _copy,
        "copy": _copy,
        "signal": lambda self, op: PlanStep("", signals=self._channels(op)),
        "rlxsignal": lambda self, op: PlanStep("", signals=self._channels(op)),
        "wait": lambda self, op: PlanStep("", waits=self._channels(op)),
        "rlxwait": lambda self, op: PlanStep("", waits=self._channels(op)),
        "flush": lambda self, op: PlanStep("", flushes=self._channels(op)),
        "re": _reduce,
        "res": _reduce,
        "rre": _reduce,
        "rres": _reduce,
        "ppkt": _put_packets,
        "rppkt": _pass_packets,
        "respkt": _reduce_packets,
        "repkt": _reduce_packets,
        "recpkt": _reduce_packets,
        "recspkt": _reduce_packets,
        "cpkt": _pack,
        "upkt": _unpack,
        "glres": _reduce,
        "gstore": _copy,
        "gstorepkt": _pass_packets,
        "pipeline": _pipeline,
        "sem_acquire": lambda self, op: PlanStep("", acquires=tuple(op["semaphore_ids"])),
        "sem_release": lambda self, op: PlanStep("", releases=tuple(op["semaphore_ids"])),
    }


class _OlderReader(_Rank):
    """Reads the layout before August 2025."""

    @staticmethod
    def chunks(gpu: Mapping[str, Any]) -> Chunks:
        groups = gpu.get("chunkGroups", 1)
        return Chunks(gpu["inputChunks"], gpu["outputChunks"], gpu["scratchChunks"], max(groups, 1))

    def _channels(self, op: Mapping[str, Any], ids: str, buffers: str) -> tuple[Channel, ...]:
        """The channels of a step, which are counted among those of its threadblock between the same two buffers."""
        kind, ends = _kind(op, "ctype"), (op[buffers]["src"], op[buffers]["dst"])
        flat, keys = self._flat(kind, "type", "connectedTo"), []
        for one in self.gpu["channels"]:
            if _KINDS.get(one["type"]) == kind:
                keys += [(one["srcbuff"], one["dstbuff"])] * len(one["connectedTo"])
        alike = [channel for channel, key in zip(flat, keys, strict=True) if key == ends]
        mine = [
            number
            for one in self.block["channels"]
            if _KINDS.get(one["ctype"]) == kind and (one["src"], one["dst"]) == ends
            for number in one["cids"]
        ]
        return tuple(
            self._pick(f"{kind} channel", alike, self._pick(f"{kind} channel of its threadblock", mine, one["id"]))
            for one in op[ids]
        )

    def _far(self, op: Mapping[str, Any], ids: str, buffers: str) -> list[BufferPart]:
        """Return the parts at other ranks, or through the switch at all ranks."""
        size = op["cnt"]
        if _kind(op, "ctype") == "switch":
            near = "src" if ids == "i_cids" else "dst"
            return [BufferPart(None, _BUFFERS[op[f"{near}buff"]], op[f"{near}off"], size)]
        far = _BUFFERS[op[buffers]["dst"]]
        channels = self._channels(op, ids, buffers)
        return [BufferPart(c.peer, far, one["off"], size) for c, one in zip(channels, op[ids], strict=True)]

    def _near(self, op: Mapping[str, Any], key: str) -> list[BufferPart]:
        """Return the parts of the rank itself that a step lists as `srcs` or `dsts`."""
        size = op["cnt"]
        return [BufferPart(self.rank, _BUFFERS[one["buff"]], one["off"], size) for one in op.get(key, ())]

    def _own(self, op: Mapping[str, Any], end: str) -> BufferPart:
        return BufferPart(self.rank, _BUFFERS[op[f"{end}buff"]], op[f"{end}off"], op["cnt"])

    def _out(self, op: Mapping[str, Any]) -> list[BufferPart]:
        return self._far(op, "o_cids", "o_buff") if op.get("o_cids") else []

    def _put(self, op: Mapping[str, Any], signals: bool = False, flushes: bool = False) -> PlanStep:
        channels = self._channels(op, "o_cids", "o_buff")
        return PlanStep(
            "",
            moves=self._pairs(self._near(op, "srcs"), self._out(op)),
            port=_kind(op, "ctype") == "port",
            signals=channels if signals else (),
            flushes=channels if flushes else (),
        )

    def _get(self, op: Mapping[str, Any]) -> PlanStep:
        return PlanStep("", moves=self._pairs(self._far(op, "i_cids", "i_buff"), self._near(op, "dsts")))

    def _reduce(self, op: Mapping[str, Any]) -> PlanStep:
        far = self._far(op, "i_cids", "i_buff") if op.get("i_cids") else self._near(op, "srcs")
        return PlanStep("", moves=self._sum([self._own(op, "src"), *far], [self._own(op, "dst"), *self._out(op)]))

    def _reduce_packets(self, op: Mapping[str, Any]) -> PlanStep:
        sources = [self._own(op, "src"), *_packets(self._near(op, "srcs"))]
        return PlanStep("", moves=self._sum(sources, [self._own(op, "dst"), *_packets(self._out(op))]))

    def _put_packets(self, op: Mapping[str, Any], read: bool = False) -> PlanStep:
        port = _kind(op, "ctype") == "port"
        sources = self._near(op, "srcs")
        moves = self._pairs(_packets(sources) if port or read else sources, _packets(self._out(op)))
        return PlanStep("", moves=moves, port=port)

    def _local(self, op: Mapping[str, Any], packed: bool = False, unpacked: bool = False) -> PlanStep:
        source, target = self._own(op, "src"), self._own(op, "dst")
        move = PlanMove((replace(source, packets=unpacked),), (replace(target, packets=packed),))
        return PlanStep("", moves=(move,))

    def _multimem(self, op: Mapping[str, Any]) -> PlanStep:
        return PlanStep("", moves=self._sum(self._far(op, "i_cids", ""), self._far(op, "o_cids", "")))

    operations: ClassVar = {
        "nop": _Rank._nothing,
        "barrier": lambda self, op: PlanStep("", barrier=(op["barrier_id"], op["nthread_blocks"])),
        "put": _put,
        "pws": lambda self, op: self._put(op, signals=True),
        "pwsf": lambda self, op: self._put(op, signals=True, flushes=True),
        "get": _get,
        "copy": _local,
        "signal": lambda self, op: PlanStep("", signals=self._channels(op, "o_cids", "o_buff")),
        "wait": lambda self, op: PlanStep("", waits=self._channels(op, "i_cids", "i_buff")),
        "flush": lambda self, op: PlanStep("", flushes=self._channels(op, "o_cids", "o_buff")),
        "re": _reduce,
        "rs": _reduce,
        "rrc": _reduce,
        "rrcs": _reduce,
        "ppkt": _put_packets,
        "rppkt": lambda self, op: self._put_packets(op, read=True),
        "rspkt": _reduce_packets,
        "rpkt": _reduce_packets,
        "tpkt": lambda self, op: self._local(op, packed=True),
        "cpkt": lambda self, op: self._local(op, unpacked=True),
        "glres": _multimem,
    }
