"""The study of PyTorch on a simulator: its shipped programs, and what it says without measurements."""

from __future__ import annotations

import pytest

import weft
from weft.core.errors import InputError, UnknownNameError
from weft.papers.pytorch_on_simulator import PyTorchOnSimulatorStudy
from weft.papers.pytorch_on_simulator.kernels import measure_traffic
from weft.papers.pytorch_on_simulator.study import DECLARED, program

HEAD = "gpu,dtype,op,batch,m,n,k,time_us,cycles,dram_read_sectors,dram_write_sectors,kernel\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("rows")
    sectors = "qv100,,walsh,,,,,,120000,1048582,945003,fwtBatch2Kernel\n"
    times = "v100-pcie-32gb,fp32,add,,4096,1024,,84.0,,,,add\nv100-pcie-32gb,fp32,linear,,512,512,512,80.0,,,,gemm\n"
    (place / "v100_kernels.csv").write_text(HEAD + times + sectors, encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def found(folder):
    return PyTorchOnSimulatorStudy.run(programs=["lenet"], data=folder, jobs=1)


@pytest.mark.parametrize("name", DECLARED.cases["programs"])
def test_a_shipped_program_is_a_whole_training_step(name):
    phases = {node.phase for node in program(name)}
    assert {"forward", "backward"} <= phases
    assert name == "layer" or "optimizer" in phases


def test_lenet_takes_about_as_long_as_its_closed_form_says(found):
    (one,) = found.programs
    assert float(one.closed.seconds) / one.run.seconds == pytest.approx(1, abs=0.15)
    assert one.run.heat.moved_bytes.sum() == one.run.total_bytes


def test_rows_of_a_folder_stand_beside_the_engine(found):
    ids = {row.id: row for row in found.headline()}
    assert "2 kernels" in ids["kernels.time.error"].what
    assert {one.op for one in found.timed} == {"add", "linear"}
    assert abs(found.sectors[0].error) < 0.1


def test_a_hash_spreads_what_plain_addresses_leave_to_one_channel(found):
    ids = {row.id: row.weft for row in found.headline()}
    assert ids["camping.hashed"] <= 1.1
    assert ids["camping.plain"] >= 2


def test_sectors_of_unknown_kernels_are_left_out(tmp_path):
    (tmp_path / "v100_kernels.csv").write_text(HEAD + "qv100,,x,,,,,,1,2,3,unheardOf\n", encoding="utf-8")
    assert measure_traffic(tmp_path, weft.gpu("v100-sxm2-32gb")) == ()


def test_an_unknown_program_or_folder_is_refused(tmp_path):
    with pytest.raises(UnknownNameError, match="vgg"):
        PyTorchOnSimulatorStudy.run(programs=["vgg"], jobs=1)
    with pytest.raises(InputError, match="does not exist"):
        PyTorchOnSimulatorStudy.run(programs=["lenet"], data=tmp_path / "missing", jobs=1)
