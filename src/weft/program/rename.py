"""The same kernel or buffer under other names, so that one plan can hold several of a kind."""

from __future__ import annotations

from dataclasses import replace

from weft.program.plan import Buffer
from weft.program.rules import ChunkRule
from weft.program.script import Command, Kernel, Phase


def renamed(kernel: Kernel, prefix: str) -> Kernel:
    """A kernel with `prefix` before the name of every buffer that it works on."""
    return replace(
        kernel,
        phases=tuple(_phase(phase, prefix) for phase in kernel.phases),
        copies=tuple(_command(command, prefix) for command in kernel.copies),
    )


def renamed_buffer(buffer: Buffer, prefix: str) -> Buffer:
    """A buffer with `prefix` before its name, and before those that its address map leads to."""
    within = buffer.within and (prefix + buffer.within[0], buffer.within[1])
    rules = tuple(_rule(rule, prefix) for rule in buffer.rules)
    return replace(buffer, name=prefix + buffer.name, within=within, rules=rules)


def _phase(phase: Phase, prefix: str) -> Phase:
    return replace(
        phase,
        loads=tuple(replace(load, buffer=prefix + load.buffer) for load in phase.loads),
        store=phase.store and replace(phase.store, buffer=prefix + phase.store.buffer),
        also=phase.also and replace(phase.also, buffer=prefix + phase.also.buffer),
        wait=phase.wait and replace(phase.wait, buffer=prefix + phase.wait.buffer),
    )


def _command(command: Command, prefix: str) -> Command:
    return replace(command, chunks=tuple((prefix + buffer, position) for buffer, position in command.chunks))


def _rule(rule: ChunkRule, prefix: str) -> ChunkRule:
    remote = rule.remote and replace(rule.remote, buffer=prefix + rule.remote.buffer)
    return replace(rule, remote=remote, dma=rule.dma and replace(rule.dma, buffer=prefix + rule.dma.buffer))
