"""What a capture on fake tensors says is what PyTorch does when it really runs."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; make test-capture runs this")
pytest.importorskip("transformers", reason="transformers is not installed; make test-capture runs this")
import small_models as models
import torch
from torch.distributed._tools.mem_tracker import MemTracker

import weft
from weft.graph import live_bytes
from weft.torch.capture.module import recording

FOUR = {"lenet": models.lenet, "llama": models.llama, "gpt2": models.gpt2, "bert": models.bert}
four = pytest.mark.parametrize("make", FOUR.values(), ids=FOUR)


def step(model, given, loss):
    loss(model(**given)).backward()


def without_memory(graph):
    """Operators, modules, phases and dependencies, by place."""
    place = {node.id: number for number, node in enumerate(graph)}
    return [(node.op, node.module, node.phase, sorted(place[edge.node] for edge in node.edges)) for node in graph]


@four
def test_the_fake_step_has_the_operators_modules_shapes_flops_and_dependencies_of_the_real_one(make):
    torch.manual_seed(0)
    model, given, loss = make()
    fake = weft.capture(model, keywords=given, loss=loss)
    with weft.capturing(fake=False) as real:
        step(model, given, loss)
    assert without_memory(fake) == without_memory(real.graph)


@four
def test_a_block_of_a_program_is_captured_like_the_module(make):
    model, given, loss = make()
    kept = {name: one.clone() for name, one in model.state_dict().items()}
    with weft.capturing() as found:
        step(model, given, loss)
    assert without_memory(found.graph) == without_memory(weft.capture(model, keywords=given, loss=loss))
    assert all(torch.equal(one, kept[name]) for name, one in model.state_dict().items())
    assert all(one.grad is None for one in model.parameters())


@pytest.mark.parametrize("make", [models.lenet, models.llama, models.bert, models.mixtral])
def test_recorded_calls_give_the_same_weights_bit_for_bit_in_any_order_of_their_dependencies(make):
    torch.manual_seed(0)
    model, given, loss = make()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    step(model, given, loss)
    optimizer.step()
    begun = [one.detach().clone() for one in stored(model, optimizer)]
    calls = []
    with recording(fake=False, routing="balanced", ops={}) as recorder:
        watch_calls(recorder, calls)
        for one in model.parameters():
            one.grad = None
        step(model, given, loss)
        optimizer.step()
    expected = [one.detach().clone() for one in stored(model, optimizer)]
    assert any(not torch.equal(a, b) for a, b in zip(begun, expected, strict=True))
    for seed in range(3):
        restore(stored(model, optimizer), begun)
        moved = replayed(calls, any_order([after for *_, after in calls], seed))
        assert moved > len(calls) / 2
        assert all(torch.equal(a, b) for a, b in zip(stored(model, optimizer), expected, strict=True))


def stored(model, optimizer):
    states = (one for state in optimizer.state.values() for one in state.values() if isinstance(one, torch.Tensor))
    return [*(one.data for one in model.parameters()), *states]


def restore(tensors, kept):
    for tensor, one in zip(tensors, kept, strict=True):
        tensor.copy_(one)


def watch_calls(recorder, calls):
    """Keep every call with a copy of the random generator's state before it."""
    states = [torch.get_rng_state()]
    recorder.watch = lambda func, args, kwargs, out, after: (
        calls.append((func, args, kwargs, out, states[-1], after)),
        states.append(torch.get_rng_state()),
    )


def any_order(after, seed):
    """A random order of numbers in which each comes behind those that it waits for."""
    chance, left = random.Random(seed), {number: set(before) for number, before in enumerate(after)}
    readers = {number: [] for number in left}
    for number, before in left.items():
        for one in before:
            readers[one].append(number)
    ready, order = [number for number, before in left.items() if not before], []
    while ready:
        order.append(ready.pop(chance.randrange(len(ready))))
        for reader in readers[order[-1]]:
            left[reader].discard(order[-1])
            if not left[reader]:
                ready.append(reader)
    return order


def replayed(calls, order):
    """Run the calls in an order, each into the memory of its first results; how many have another place than before."""
    with torch.no_grad():
        for number in order:
            func, args, kwargs, out, state, _ = calls[number]
            torch.set_rng_state(state)
            again = func(*args, **kwargs)
            for old, new in zip(listed(out), listed(again), strict=True):
                if old is not new:
                    old.copy_(new)
    return sum(place != number for place, number in enumerate(order))


def listed(out):
    if isinstance(out, torch.Tensor):
        return [out]
    return [one for part in out for one in listed(part)] if isinstance(out, list | tuple) else []


EAGER = {"lenet": models.lenet, "gpt2": lambda: models.gpt2("eager")}
"""Without fused attention, which the tracker sees in parts."""


@pytest.mark.parametrize("make", EAGER.values(), ids=EAGER)
def test_the_peak_of_memory_is_within_a_hundredth_of_what_pytorchs_tracker_sees(make):
    model, given, loss = make()
    captured = weft.capture(model, keywords=given, loss=loss, optimizer=torch.optim.AdamW)
    assert max(live_bytes(captured)) == int(captured.labels["peak_bytes"])
    assert max(live_bytes(captured)) == pytest.approx(tracked_peak(model, given, loss), rel=0.01)


def tracked_peak(model, given, loss):
    """The peak of the second step, when the optimizer has its states [bytes]."""
    optimizer, tracker = torch.optim.AdamW(model.parameters(), foreach=True), MemTracker()
    tracker.track_external(model, optimizer, *given.values())
    for _ in range(2):
        tracker.reset_mod_stats()
        with tracker:
            step(model, given, loss)
            optimizer.step()
            optimizer.zero_grad()
    return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
