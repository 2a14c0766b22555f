"""One toy in SimPy and in Weft's engine: pieces read from memory channels, sent round a ring, written at the neighbour.

A chunk makes `steps` hops. At each hop a workgroup reads the chunk piece by piece (`slots` pieces in flight), every
piece spread over the channels, and sends it on; the next hop begins when the whole chunk has arrived. A channel serves
one request after another, each in the same time; the link carries one message after another and delivers it a
latency later.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from weft import hardware
from weft.core.options import RunOptions
from weft.engine import layout as y
from weft.engine.program import Buffer, ChunkRule, PlacedKernel, Plan, Program, RemoteMap, build
from weft.engine.run import execute
from weft.hardware import System
from weft.kernels import RingTiling, gather_kernel
from weft.overlaps.arbiters import COMMUNICATION_FIRST
from weft.overlaps.lower.machine import machine_tables

REQUEST = 512


@dataclass(frozen=True)
class Toy:
    """The toy's sizes; times in femtoseconds."""

    channels: int = 16
    steps: int = 15
    chunk_bytes: int = 1 << 20
    piece_bytes: int = 8192
    slots: int = 4
    service: int = 16_000_000
    message: int = 3_413_376
    latency: int = 500_000_000

    @property
    def requests(self) -> int:
        """Requests that the channels serve: each byte is read once and written once per hop."""
        return 2 * self.steps * self.chunk_bytes // REQUEST

    @property
    def events(self) -> int:
        """What happens, however it is simulated: requests enter and are served, messages leave and arrive."""
        return 2 * self.requests + self.requests


@dataclass(frozen=True)
class Outcome:
    """When the toy ended [fs], and what its simulation cost [s]."""

    end: int
    wall_s: float
    own_events: int


def in_simpy(toy: Toy) -> Outcome:
    """The toy as a SimPy user writes it: a process per server, a process per piece."""
    begin = time.perf_counter()
    env = simpy.Environment()
    channels = [simpy.Resource(env, capacity=1) for _ in range(toy.channels)]
    link = simpy.Resource(env, capacity=1)
    arrived = [0] * (toy.steps + 1)
    complete = [env.event() for _ in range(toy.steps + 1)]

    def serve(channel: int) -> Generator[Any, Any, None]:
        with channels[channel].request() as turn:
            yield turn
            yield env.timeout(toy.service)

    def deliver(step: int, address: int) -> Generator[Any, Any, None]:
        yield env.timeout(toy.latency)
        with channels[channel_of(toy, address)].request() as turn:
            yield turn
            arrived[step + 1] += REQUEST  # a write is done when the memory takes it
            if arrived[step + 1] == toy.chunk_bytes:
                complete[step + 1].succeed()
            yield env.timeout(toy.service)

    def send(step: int, address: int) -> Generator[Any, Any, None]:
        with link.request() as turn:
            yield turn
            yield env.timeout(toy.message)
        env.process(deliver(step, address))

    def piece(step: int, start: int, slot: simpy.Resource, turn: Any) -> Generator[Any, Any, None]:
        addresses = range(start, start + toy.piece_bytes, REQUEST)
        base = step * toy.chunk_bytes
        yield env.all_of([env.process(serve(channel_of(toy, base + a))) for a in addresses])
        yield env.all_of([env.process(send(step, base + toy.chunk_bytes + a)) for a in addresses])
        slot.release(turn)

    def workgroup() -> Generator[Any, Any, None]:
        for step in range(toy.steps):
            slot = simpy.Resource(env, capacity=toy.slots)
            pieces = []
            for start in range(0, toy.chunk_bytes, toy.piece_bytes):
                turn = slot.request()
                yield turn
                pieces.append(env.process(piece(step, start, slot, turn)))
            yield env.all_of(pieces)
            yield complete[step + 1]

    env.run(until=env.process(workgroup()))
    return Outcome(int(env.now), time.perf_counter() - begin, next(env._eid))


def channel_of(toy: Toy, address: int) -> int:
    """The channel of an address, as the engine's address map says."""
    stripe = address // REQUEST
    lap = stripe // toy.channels
    return (stripe + lap * 5 + (lap >> 5) * 3) % toy.channels


def toy_program(toy: Toy) -> Program:
    """The toy as a program of Weft's engine: an all-gather kernel on a GPU whose every other delay is zero."""
    gpu = hardware.gpu("t3-paper").replace(
        {
            "memory.channels": toy.channels,
            "memory.bandwidth": f"{32 * toy.channels} GB/s",
            "memory.interleave": "512 B",
        }
    )
    chunks = toy.steps + 1
    tiling = RingTiling(workgroups=1, piece=toy.piece_bytes, slots=toy.slots)
    rules = tuple(ChunkRule(remote=RemoteMap("gathered", p, False, "all_gather")) for p in range(1, chunks))
    plan = Plan(
        kernels=(PlacedKernel(gather_kernel(chunks, gpu, tiling, own=("gathered", 0))),),
        buffers=(Buffer("gathered", ((toy.chunk_bytes,) * chunks,), (*rules, ChunkRule())),),
        work=(),
    )
    program = build(plan, machine_tables(System(gpu=gpu, gpus=2), 1, RunOptions(request_bytes=REQUEST), 1))
    shape = program.tables.shape
    row = program.tables.gpu[0]
    row[[*range(y.GPU_T_BURST, y.GPU_T_READ_TO_PRECHARGE + 1)]] = 0
    row[[y.GPU_PORT64, y.GPU_SLICE64, y.GPU_CACHE_OUT, y.GPU_CACHE_BACK, y.GPU_MEMORY_LATENCY]] = 0
    row[[y.GPU_T_BURST, y.GPU_T_LONG]] = toy.service * int(shape[y.SIZE_BURST]) // REQUEST
    program.tables.shape[y.SIZE_ROW] = (
        1 << 40
    )  # one row that holds everything: no activations, first come, first served
    program.tables.link[:, y.LINK_STORE64] = toy.message * 64 // REQUEST
    program.tables.route[:-1, y.ROUTE_LATENCY] = toy.latency
    program.tables.kernel[:, :, y.KERNEL_LAUNCH] = 0
    return program


def in_weft(toy: Toy) -> Outcome:
    """The toy in Weft's engine."""
    program = toy_program(toy)
    begin = time.perf_counter()
    status, machine = execute(program.tables, COMMUNICATION_FIRST.compiled, 10**9)
    wall = time.perf_counter() - begin
    if status != y.FINISHED:
        raise RuntimeError(f"the toy did not finish: status {status}")
    return Outcome(int(np.max(machine.kernel_run[:, :, y.RUN_END])), wall, int(machine.clock[y.CLOCK_EVENTS]))
