"""A layer of experts on real numbers: every token ends with the mixture of its experts, or the replay says why not."""

from dataclasses import replace

import numpy as np
import pytest

import weft
from weft.cli import main
from weft.core.errors import InputError, SimulationError
from weft.core.options import RunOptions
from weft.engine.program import Wait
from weft.overlaps.deepep import PerRankLayer
from weft.overlaps.t3_all_to_all import TrackedExperts

RANKS, HIDDEN, FFN = 4, 256, 128
ROUTINGS = {
    "even": weft.Routing(256, 2, 8, RANKS),
    "uneven": weft.Routing.by_power_law(200, 2, 8, RANKS, 1.1),
    "limited": weft.Routing(256, 4, 16, RANKS, reach=2),
}
OPTIONS = RunOptions(request_bytes=4096)
NUMBERS = {"bf16": 2**-8, "fp16": 2**-11}


def done(name, overlap, dtype="bf16"):
    graph = weft.experts(ROUTINGS[name], HIDDEN, FFN, dtype)
    return weft.replay(graph, "h100-sxm", overlap, OPTIONS, dtype=dtype)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("overlap", ["t3-all-to-all", "deepep"])
@pytest.mark.parametrize("name", ROUTINGS)
def test_every_token_ends_with_the_mixture_of_its_experts(name, overlap, dtype):
    found, routing = done(name, overlap, dtype), ROUTINGS[name]
    assert found.answers == RANKS * routing.tokens * routing.top_k
    # Each of the top_k additions rounds to half a unit of the last place of its sum.
    unit = NUMBERS[dtype] * np.abs(found.reference).max() * routing.top_k
    assert np.abs(found.result - found.reference).max() <= unit
    assert found.error < routing.top_k * NUMBERS[dtype]
    assert 0 < found.fp32 <= found.error


@pytest.mark.parametrize("name", ["even", "uneven"])
def test_a_tile_that_starts_before_its_tokens_are_counted_is_caught(name, monkeypatch):
    kept = TrackedExperts._after_arrival

    def early(self, g, kernel):
        scripts = kept(self, g, kernel)
        return {
            line: tuple(replace(p, wait=p.wait and Wait("arriving", p.wait.position, bytes=128)) for p in script)
            for line, script in scripts.items()
        }

    monkeypatch.setattr(TrackedExperts, "_after_arrival", early)
    with pytest.raises(SimulationError, match="GEMM began before its numbers were there"):
        done(name, "t3-all-to-all")


def test_answers_that_are_added_at_another_token_are_caught(monkeypatch):
    kept = TrackedExperts._to_owners

    def short(self, g, kernel):
        scripts = kept(self, g, kernel)
        line = min(scripts)
        main, store = scripts[line]
        return {**scripts, line: (main, replace(store, stores=store.stores[1:]))}

    monkeypatch.setattr(TrackedExperts, "_to_owners", short)
    with pytest.raises(SimulationError, match=r"the answers to piece .* never came to GPU"):
        done("even", "t3-all-to-all")


def test_a_channel_that_does_not_wait_for_answers_is_caught(monkeypatch):
    kept = PerRankLayer._receiver

    def hasty(self, g, channel, operator, target, tiling, back):
        found = kept(self, g, channel, operator, target, tiling, back)
        return tuple(replace(phase, wait=None) for phase in found) if back else found

    monkeypatch.setattr(PerRankLayer, "_receiver", hasty)
    with pytest.raises(SimulationError, match=r"added up block .* before its numbers were there"):
        done("limited", "deepep")


def test_what_no_log_holds_is_refused():
    with pytest.raises(InputError, match="those of the vendor's library, whose sums no log holds; replay"):
        done("even", "sequential")
    with pytest.raises(InputError, match=r"more than the .* of a replay; give a smaller layer"):
        weft.replay(weft.experts(weft.Routing(4096, 8, 256, 8), 7168, 2048), "h100-sxm", "t3-all-to-all")


def test_the_command_says_that_every_token_has_its_answers(capsys):
    asked = ["replay", "t3-all-to-all", "--experts", "64x256x128,top2/8", "--tp", "4", "--expert-load", "power:1.1"]
    with pytest.raises(SystemExit) as left:
        main.main(asked)
    assert left.value.code == 0
    assert "512 answers of experts to 256 tokens on 4 GPUs under t3-all-to-all" in " ".join(
        capsys.readouterr().out.split()
    )
    with pytest.raises(SystemExit) as left:
        main.main([*asked, "--gemm", "64,64,64"])
    assert left.value.code != 0
    assert "--gemm" in capsys.readouterr().err
