"""How far ratios of two measured times are off: pairs of rows that differ in one thing, and what intervals call."""

import numpy as np
import pandas as pd
import pytest

import weft
from weft.core.contrast import UNRESOLVED, Contrast
from weft.estimate.load_ratios import ServedLoad, load_ratio_error
from weft.lab.ratios import by_change, calls, half_width, pairs, upper

ROWS = pd.DataFrame(
    [
        ("a", "x", "1", "p"),
        ("b", "x", "1", "p"),
        ("a", "y", "1", "p"),
        ("b", "y", "2", "p"),
        ("a", "x", "1", "q"),
    ],
    columns=["gpu", "model", "version", "plan"],
)


def test_pairs_differ_in_one_thing_and_agree_in_all_else():
    assert sorted(pairs(ROWS, ("gpu", "model", "plan"), ("version",), {})) == [
        ("gpu", 0, 1),
        ("model", 0, 2),
        ("plan", 0, 4),
    ]


def test_columns_that_differ_along_with_a_change_may_differ():
    found = set(pairs(ROWS, ("gpu", "model"), ("version", "plan"), {"gpu": ("version",)}))
    assert ("gpu", 2, 3) in found
    assert ("model", 1, 3) not in found


def test_the_half_width_is_that_which_the_next_pair_exceeds_once_in_five():
    assert upper(np.arange(1.0, 100.0), 0.2) == 80.0
    residual = np.array([0.0, *np.arange(1, 10) / 10])
    found = by_change(residual, (("gpu", 0, at) for at in range(1, 10)))
    assert half_width(found["gpu"]) == [0.8, 9, 10]
    assert half_width(found["gpu"], np.full(9, 2.0)) == [0.4, 9, 10]


def test_a_change_of_few_pairs_has_no_interval():
    assert by_change(np.zeros(3), iter([("gpu", 0, 1), ("gpu", 0, 2)])) == {}


def test_a_pair_is_called_where_its_predicted_ratio_exceeds_the_width_of_other_work():
    predicted = np.array([1.0, 2.0, 1.0, 1.05])
    of = np.array([0, 2]), np.array([1, 3]), np.array([0.1, 0.2])
    work = np.array(["m", "m", "n", "n"])
    assert calls(predicted, work, of) == [2, 1, 1, 1]


LOAD = ServedLoad("h100", "vllm", "llama", "bf16", "tp 8", 32, "1024/256", "as sold")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"gpu": "h200", "machine": "h200"}, "pairs that differ in GPU"),
        ({"plan": "tp 4"}, "pairs that differ in plan"),
        ({"machine": "faster links"}, "of what changes"),
        ({"framework": "sglang", "clients": 64}, "pairs that differ in framework and "),
    ],
)
def test_the_ratio_of_two_loads_says_which_measured_pairs_it_rests_on(changed, says):
    error = load_ratio_error(LOAD, LOAD._replace(**changed), 0.1)
    assert says in error.why
    assert error.low == pytest.approx(1 / error.high)
    assert error.high > 1.01


def test_a_gpu_of_another_vendor_widens_the_ratio_of_loads():
    same, other = (
        load_ratio_error(LOAD, LOAD._replace(gpu="mi300x", machine="mi300x", vendor=vendor), 0.1)
        for vendor in ("nvidia", "amd")
    )
    assert other.high > same.high
    assert "two vendors" in other.why


def served(system="8xh100", plan=None, **load):
    asked = {"concurrency": 8, "input_len": 512, "output_len": 64, **load}
    return weft.serve("llama-3-70b", system, plan or weft.ServingPlan(tp=8), weft.Load(**asked))


def test_servers_beside_each_other_are_called_as_pairs_of_measured_ones_allow():
    system = weft.system("8xh100")
    slower = system.replace({"link.bandwidth": "200 GB/s"})
    servers = {
        "as asked": served(),
        "tp=2": served(plan=weft.ServingPlan(tp=2, replicas=1)),
        "h200": served("8xh200"),
        "links": served(slower),
    }
    found = Contrast(servers)
    assert found.verdict("tp=2") == "slower"
    assert found.verdict("h200") == UNRESOLVED
    assert found.verdict("links") == "slower"


def test_loads_at_a_rate_have_no_interval_of_their_ratio():
    servers = {"as asked": served(), "rate": served(concurrency=None, rate=2, requests=64)}
    assert Contrast(servers).speedup_interval("rate") is None
