"""The sensitivity study moves what is assumed, and only that."""

import json

import pytest

from weft import hardware
from weft.errors import UnknownNameError
from weft.studies import sensitivity

SMALL = (("t-nlg", 16, "op"),)


def test_every_assumed_value_is_moved_or_left_out_with_a_reason():
    gpu = hardware.gpu("t3-paper")
    all_assumed = {path for path, found in gpu.provenance.items() if found.kind == "assumed"}
    assert set(sensitivity.assumed(gpu)) == all_assumed - set(sensitivity.LEFT_OUT)
    assert set(sensitivity.LEFT_OUT) <= all_assumed


def test_both_ends_of_every_range_are_machines_that_can_exist():
    system = hardware.system("t3-paper", gpus=2)
    moved = list(sensitivity._moves(system))
    assert len({(move.what, move.setting) for move in moved}) == len(moved)
    expected = 2 * len(sensitivity.TILINGS)
    for path in sensitivity.assumed(system.gpu):
        found = system.gpu.provenance[path]
        expected += sum(found.text != end for end in (found.low, found.high))
    assert len(moved) == expected


def test_a_faster_dma_engine_count_moves_t3_and_not_the_ideal(tmp_path):
    done = sensitivity.run(["dma.engines"], 1, gpu="t3-paper", cases=SMALL)
    chosen, low, high = (row.figures for row in done.rows)
    assert low["t3"] < chosen["t3"] < high["t3"]
    assert low["ideal_overlap"] == chosen["ideal_overlap"] == high["ideal_overlap"]
    saved = json.loads(done.save(tmp_path / "s.json").read_text())
    assert [row["what"] for row in saved["rows"]] == ["as chosen", "dma.engines", "dma.engines"]
    heads, (first, moved) = done.table()
    assert heads == ["value", "low / high", *sensitivity.FORMATS]
    assert first[:2] == ["as chosen", ""]
    assert moved[:2] == ["dma.engines", "2 / 16"]
    assert moved[2] == f"{low['t3']:.3f} / {high['t3']:.3f}"


def test_a_published_value_is_not_moved():
    with pytest.raises(UnknownNameError, match=r"memory\.bandwidth"):
        sensitivity.run(["memory.bandwidth"], 1)
