"""Operators projected from a baseline: what is anchored stays exact, what is near is corrected, what is far is not."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from weft.core.errors import InputError
from weft.lab.machines import Machines
from weft.lab.operators import KERNELS
from weft.lab.projection import flops_of, of_bert, projection, sparse_sizes
from weft.lab.subjects import Subject
from weft.lab.tables import read_file


def gemms(sizes, measured):
    """Rows whose closed form is one microsecond for each billion of FLOPs."""
    rows = pd.DataFrame(sizes, columns=list("mnk"), dtype=float)
    labels = pd.DataFrame({"ranks": 8}, rows.index)
    return Subject("gemm", "here", rows, np.array(measured), labels, lambda some, values: flops_of(some) * 1e-15)


SHAPES = [(tokens, wide, 1024) for tokens in (512, 1024, 2048, 4096) for wide in (1024, 3072, 4096)]
OTHERS = [(2048, 1280, 1024), (2048, 4096, 1280), (2**22, 2**18, 2**18)]


def projected(off):
    sizes = [*SHAPES, *OTHERS]
    subject = gemms(sizes, [2e-15 * m * n * k * off for m, n, k in sizes])
    own = np.arange(len(sizes)) < len(SHAPES)
    return projection(subject, own, flops_of(subject.rows))


def test_a_closed_form_that_is_exact_stays_exact():
    assert projected(1.0).errors.max_abs_err < 1e-12


def test_rows_near_the_baseline_are_corrected_by_what_it_is_off():
    near, also, far = projected(1.2).seconds / projected(1.2).unseen.measured
    assert near == pytest.approx(1, abs=0.08)
    assert also == pytest.approx(1, abs=0.08)
    assert far == pytest.approx(1 / 1.2, rel=1e-3)


def test_scaling_by_work_takes_the_baselines_mean_rate():
    assert projected(1.2).scaling.max_abs_err < 1e-12


def test_a_baseline_without_rows_is_refused():
    subject = gemms(OTHERS, [1.0, 1.0, 1.0])
    with pytest.raises(InputError, match="needs some of them"):
        projection(subject, np.zeros(3, dtype=bool), flops_of(subject.rows))


def test_gemms_of_bert_have_two_sizes_of_a_weight():
    sizes = [(512, 1024, 4096), (4096, 65536, 1024), (3072, 512, 1024), (1024, 1280, 512), (512, 4096, 4096)]
    assert of_bert(gemms(sizes, [1.0] * 5).rows).tolist() == [True, True, True, False, False]


def test_a_baseline_of_collectives_has_every_fourth_power_of_two_at_the_most_ranks():
    rows = pd.DataFrame({"bytes": [256.0, 512.0, 1024.0, 1000.0, 1024.0]})
    labels = pd.DataFrame({"ranks": [8, 8, 8, 8, 2]})
    found = Subject("collective", "here", rows, np.ones(5), labels, lambda some, values: np.ones(len(some)))
    assert sparse_sizes(found).tolist() == [True, False, True, False, False]


def kernels(tmp_path: Path, *lines: str):
    file = tmp_path / "kernels.csv"
    file.write_text("\n".join(("gpu,dtype,op,m,n,time_us,kernel", *lines)))
    found = read_file(file)
    assert not found.problems
    return found


def test_kernels_are_predicted_by_their_operator(tmp_path):
    lines = ("V100-PCIe-32GB,fp32,layernorm,16384,4096,1015,k", "v100-pcie-32gb,fp32,add,16384,4096,965,k")
    (found,) = KERNELS.subjects(kernels(tmp_path, *lines), Machines())
    assert found.labels["op"].tolist() == ["layernorm", "add"]
    assert found.predict(found.rows, found.start) / found.measured == pytest.approx(1, abs=0.15)


def test_kernels_without_a_model_are_named(tmp_path):
    lines = ("bmm,,,10,k", "histogram,8,8,10,k", "gelu,16384,4096,660,k")
    checked = kernels(tmp_path, *(f"v100-pcie-32gb,fp32,{line}" for line in lines))
    (found,) = KERNELS.subjects(checked, Machines())
    assert len(found) == 1
    assert [str(one).split(": ", 1)[1] for one in checked.problems] == [
        "op 'histogram': kernels of this operator are not compared here; the row is left out",
        "op 'bmm': a product needs its m, n and k; the row is left out",
    ]
