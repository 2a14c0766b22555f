"""The egress link beside a SimPy process that serves senders in turn: when messages leave and when they arrive."""

from __future__ import annotations

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import PLAIN
from machines import GATHER_WRITE, NS, bare, gpu, steps

from weft.engine import layout as y

Message = tuple[int, int, int]
"""When a message is ready [fs], its bytes, and which DMA engine sends it."""
messages = st.lists(
    st.tuples(st.integers(0, 100_000), st.sampled_from([64, 512, 2048, 4096]), st.integers(0, 3)),
    min_size=1,
    max_size=30,
)


def by_engine(sent: list[Message], machine) -> tuple[list[int], list[int]]:
    m = bare(machine, gpus=2)
    m.engine[:, y.DMA_UNSENT] = 1 << 60  # a DMA engine that never finishes owns the messages
    m.region[:, :, y.REGION_COUNTER] = y.NONE
    numbers = {}
    for n, (at, bytes_, sender) in enumerate(sent):
        i = PLAIN.new_message(m, 0, 1, 0, 0, bytes_, False, GATHER_WRITE, y.OWNER_ENGINE, sender, y.NONE, y.NONE)
        PLAIN.send(m, 0, i, at)
        numbers[int(i)] = n
    left, arrived = [0] * len(sent), [0] * len(sent)
    for time, kind, index in steps(m):
        if kind == y.EV_LINK:
            i = int(m.link_run[0, y.LINK_SENT])
            left[numbers[i]] = time
            if m.request[i, y.REQ_TICKET] == 1:  # it is entered at its receiver now, for when it arrives
                arrived[numbers[i]] = int(m.request[i, y.REQ_ARRIVE])
        elif kind == y.EV_ARRIVE:
            arrived[numbers[index]] = time
    assert m.link_run[0, y.LINK_BYTES] == sum(bytes_ for _, bytes_, _ in sent)
    return left, arrived


def by_oracle(sent: list[Message], per_unit: int, latency: int) -> tuple[list[int], list[int]]:
    env = simpy.Environment()
    left, arrived = [0] * len(sent), [0] * len(sent)
    served: list[tuple[int, int]] = []  # the sender and bytes of each message of the present turn
    waiting: dict[int, list[int]] = {}  # the messages of each sender, senders in the order of their turns
    for n, (_, _, sender) in enumerate(sent):
        waiting.setdefault(sender, []).append(n)
    first = waiting[sent[0][2]].pop(0)  # the link is free when the first message is queued
    turns: list[int] = []

    def queue(sender: int) -> None:
        turns.insert(0 if sender == served[0][0] and sum(b for _, b in served) < y.LINK_TURN else len(turns), sender)

    def serve(n: int) -> int:
        if served and (served[0][0] != sent[n][2] or sum(b for _, b in served) >= y.LINK_TURN):
            served.clear()
        served.append((sent[n][2], sent[n][1]))
        return n

    def next_message() -> int:
        soonest = min(turns, key=lambda sender: sent[waiting[sender][0]][0])
        chosen = next((sender for sender in turns if sent[waiting[sender][0]][0] <= env.now), soonest)
        turns.remove(chosen)
        n = serve(waiting[chosen].pop(0))
        if waiting[chosen]:
            queue(chosen)
        return n

    serve(first)
    for sender in dict.fromkeys(sender for _, _, sender in sent[1:]):
        queue(sender)

    def link():
        n = first
        while True:
            at, bytes_, _ = sent[n]
            yield env.timeout(max(at - env.now, 0) + bytes_ * per_unit // 64)
            left[n], arrived[n] = env.now, env.now + latency
            if not turns:
                return
            n = next_message()

    env.process(link())
    env.run()
    return left, arrived


@settings(max_examples=40, deadline=None)
@given(messages=messages, rate=st.sampled_from([10, 150, 900]), latency=st.integers(1, 2000))
def test_every_message_leaves_and_arrives_when_the_oracle_says(messages, rate, latency):
    sent = sorted(((at * 1000, bytes_, sender) for at, bytes_, sender in messages), key=lambda message: message[0])
    machine = gpu(link__bandwidth=f"{rate} GB/s", link__latency=f"{latency} ns")
    per_unit = int(bare(machine).link[0, y.LINK_STORE64])
    assert by_engine(sent, machine) == by_oracle(sent, per_unit, latency * NS)


def test_a_lone_message_takes_its_bytes_over_the_bandwidth_and_the_latency():
    left, arrived = by_engine([(5 * NS, 512, 0)], gpu(link__bandwidth="64 GB/s", link__latency="500 ns"))
    assert left == [5 * NS + 8 * NS]
    assert arrived == [left[0] + 500 * NS]


@pytest.mark.parametrize("messages_a_turn", [1, 2, 8])
def test_senders_leave_in_turns_of_as_many_bytes_however_many_messages_these_are(messages_a_turn):
    sender = [0] * 4 * messages_a_turn + [1] * 2 * messages_a_turn
    left, _ = by_engine([(0, y.LINK_TURN // messages_a_turn, one) for one in sender], gpu())
    turns = np.array(sender)[np.argsort(left)].reshape(-1, messages_a_turn)
    assert (turns == turns[:, :1]).all()
    if messages_a_turn > 1:
        assert turns[:, 0].tolist() == [0, 1, 0, 1, 0, 0]
    else:  # the link is free when the first message comes, and the second queues before any of the other sender
        assert turns[:, 0].tolist() == [0, 0, 1, 0, 1, 0]


def test_messages_that_wait_keep_their_order():
    left, _ = by_engine([(0, 512, 0)] * 5, gpu())
    assert left == sorted(left)
    assert len(set(np.diff(left))) == 1
