"""The sensitivity study moves what is assumed, and only that."""

import json

import pytest

from weft import hardware
from weft.core.errors import UnknownNameError
from weft.papers import sensitivity

SMALL = (("t-nlg", 16, "op"),)


def test_every_assumed_value_is_moved_or_left_out_with_a_reason():
    gpu = hardware.gpu("t3-paper")
    all_assumed = {path for path, found in gpu.provenance.items() if found.kind == "assumed"}
    assert set(sensitivity.assumed_paths(gpu)) == all_assumed - set(sensitivity.LEFT_OUT)
    assert set(sensitivity.LEFT_OUT) <= all_assumed


def test_both_ends_of_every_range_are_machines_that_can_exist():
    system = hardware.system("t3-paper", gpus=2)
    moved = list(sensitivity._moves(system))
    assert len({(move.what, move.setting) for move in moved}) == len(moved)
    expected = 2 * len(sensitivity.TILINGS)
    for path in sensitivity.assumed_paths(system.gpu):
        found = system.gpu.provenance[path]
        expected += sum(found.text != end for end in (found.low, found.high))
    assert len(moved) == expected


def test_fewer_dma_engines_slow_t3_and_not_the_ideal(tmp_path):
    done = sensitivity.run(["dma.engines"], 1, gpu="t3-paper", cases=SMALL)
    chosen, fewer = (row.figures for row in done.rows)
    assert fewer["t3"] < 0.98 * chosen["t3"]
    assert fewer["ideal_overlap"] == chosen["ideal_overlap"]
    saved = json.loads(done.save(tmp_path / "s.json").read_text())
    assert [row["what"] for row in saved["rows"]] == ["as chosen", "dma.engines"]
    heads, (first, moved) = done.table()
    assert heads == ["value", "low / high", *sensitivity.FORMATS]
    assert first[:2] == ["as chosen", ""]
    assert moved[:3] == ["dma.engines", "4", f"{fewer['t3']:.3f}"]


def test_both_ends_of_a_range_share_a_row_of_the_table():
    moved = sensitivity.run(["arbiter.starvation_limit"], 1, gpu="t3-paper", cases=SMALL)
    low, high = moved.rows[1:]
    row = moved.table()[1][1]
    assert row[:2] == ["arbiter.starvation_limit", "0.5 us / 10 us"]
    assert row[3] == f"{low.figures['t3_mca']:.3f} / {high.figures['t3_mca']:.3f}"


def test_a_flag_of_the_machine_is_moved_to_its_other_end_and_decides_what_t3_gains():
    flag = "compute.stages_in_step"
    chosen, other = sensitivity.run([flag], 1, gpu="t3-paper", cases=SMALL).rows
    assert other.setting == str(1 - int(hardware.gpu("t3-paper").value(flag)))
    assert abs(other.figures["t3"] / chosen.figures["t3"] - 1) > 0.01


def test_a_published_value_is_not_moved():
    with pytest.raises(UnknownNameError, match=r"memory\.bandwidth"):
        sensitivity.run(["memory.bandwidth"], 1)
