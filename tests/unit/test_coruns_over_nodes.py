"""GEMMs beside collectives over several nodes: rings by compute units, and gathers by adapters and DMA engines."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import weft
from weft import hardware
from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.estimate import BenchmarkProtocol, estimate
from weft.graph import Collective, Driver, Gemm, concurrent
from weft.kernels.copies import DmaGather
from weft.overlaps import STRATEGIES
from weft.simulate import compare
from weft.simulate.result.corun import CoRun

TWO = hardware.system("mi355x", gpus=8, nodes=2)
GATHER = Collective("all_gather", 1 << 30, 8)
COPIES = BenchmarkProtocol(driver=Driver.DMA)


def corun(strategy: str, system: hardware.System = TWO, moved: Collective = GATHER, gemms: int = 4) -> CoRun:
    graph = concurrent(Gemm(4096, 4096, 4096, "bf16"), moved, gemms, 1)
    return compare(graph, system, [STRATEGIES[strategy]]).corun()


def test_engines_push_own_and_received_shares_of_which_the_last_waits_for_its_adapter() -> None:
    share = GATHER.bytes / 8
    link, adapter = TWO.gpu.dma.bandwidth, TWO.value("network.bandwidth") * 0.92
    parts = estimate(GATHER, TWO, harness=COPIES).parts
    assert float(parts["link"] + parts["network"]) == pytest.approx(share / adapter + share / link, rel=0.01)


def test_with_fast_adapters_engines_push_as_much_as_there_are_nodes() -> None:
    fast = TWO.replace({"network.bandwidth": "10 TB/s"})
    parts = estimate(GATHER, fast, harness=COPIES).parts
    assert float(parts["link"]) == pytest.approx(2 * GATHER.bytes / 8 / TWO.gpu.dma.bandwidth, rel=0.01)
    assert float(parts["network"]) < 0.01 * float(parts["link"])


@pytest.mark.parametrize(("gpu", "gpus", "nodes"), [("mi355x", 8, 2), ("mi300x", 16, 2), ("mi300x", 16, 4)])
def test_gathers_by_engines_over_nodes_take_as_long_as_their_closed_form(gpu: str, gpus: int, nodes: int) -> None:
    system = hardware.system(gpu, gpus=gpus, nodes=nodes)
    moved = replace(GATHER, ranks=gpus)
    simulated = corun("dma", system, moved, gemms=1).collective.alone
    assert simulated == pytest.approx(float(estimate(moved, system, harness=COPIES).seconds), rel=0.05)


def test_a_ring_over_nodes_takes_as_long_as_its_closed_form_and_slows_the_gemm_that_engines_leave() -> None:
    ring, copies = corun("streams", gemms=20), corun("dma", gemms=20)
    assert ring.collective.alone == pytest.approx(float(estimate(GATHER, TWO).seconds), rel=0.2)
    assert ring.gemm.slowdown > 1.2 > 1.05 > copies.gemm.slowdown


def test_received_shares_are_sent_no_earlier_than_they_arrive() -> None:
    kernel = DmaGather("all_gather", 1 << 28, 4, nodes=2, arriving=1e-3).kernel(TWO.gpu)
    delays = sorted({command.after_fs // 10**12 for command in kernel.copies})
    assert [delays[0], delays[-1]] == [0, 1]
    assert sum(len(command.chunks) for command in kernel.copies) == 3 * 2


@pytest.mark.parametrize(
    ("strategy", "name", "options", "says"),
    [
        ("streams", "all_to_all", {}, "runs rings over several nodes, but no all_to_all"),
        ("dma", "all_to_all", {}, "DMA engines reach no further than a node, but the all_to_all runs over 2"),
        ("dma", "all_gather", {"mode": "explicit"}, "over several nodes are simulated on one GPU"),
    ],
)
def test_what_the_engine_does_not_run_over_nodes_is_told(
    strategy: str, name: str, options: dict[str, Any], says: str
) -> None:
    graph = concurrent(Gemm(4096, 4096, 4096, "bf16"), replace(GATHER, name=name), 1, 1)
    with pytest.raises(InputError, match=says):
        weft.compare(graph, TWO, [STRATEGIES[strategy]], RunOptions(**options))


def test_measured_gathers_over_nodes_are_compared_alone_and_beside_their_gemms(tmp_path: Path) -> None:
    columns = "system,nodes,ranks,dtype,size_mb,transport,alone_gbps,alone_ms,gemm_loop_total_ms,gemm_iters,source"
    rows = [
        "8xMI300X,2,8,fp32,64,sdma+rdma,180,,,,a",
        "unknown,2,8,fp32,4,rccl,,0.5,4,4,sweep_gemm_overlap.csv",
        "8xMI300X,2,8,fp32,64,pigeons,180,,,,a",
        "MI3000,2,8,fp32,64,rccl,180,,,,a",
    ]
    (tmp_path / "gathers.csv").write_text("\n".join([columns, *rows]))
    found = weft.validate(tmp_path)
    frame = pd.concat([part.frame() for part in found.predictions])
    assert sorted(frame["quantity"]) == ["all-gather alone", "all-gather alone", "makespan"]
    assert frame.loc[frame["transport"] == "sdma", "measured"].item() == pytest.approx(64 * 2**20 * 8 / 180e9)
    assert {problem.column for problem in found.problems} == {"transport", "system"}
