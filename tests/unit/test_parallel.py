import pytest

from weft.core.errors import InputError, UnknownNameError
from weft.models import SubLayer, load_model, model_names
from weft.models import sublayer as unsplit
from weft.models.parallel import legal_degrees, split, sublayer


def test_splitting_cuts_only_k_and_leaves_the_payload_whole():
    whole = unsplit("t-nlg", "fc2")
    share = split(whole, 8)
    assert (share["gemm"].op.m, share["gemm"].op.n, share["gemm"].op.k) == (8192, 4256, 4 * 4256 // 8)
    assert share["all_reduce"].op.bytes == 8192 * 4256 * 2
    assert (share.labels["model"], share.labels["sublayer"], share.ranks) == ("t-nlg", "fc2", 8)
    assert share["gemm"].op.flops * 8 == whole.gemm.flops


def test_a_share_is_made_from_names_in_one_call():
    assert sublayer("t-nlg", "fc2", tp=8) == split(unsplit("t-nlg", "fc2"), 8)


@pytest.mark.parametrize("name", model_names())
def test_every_studied_degree_splits_every_sublayer(name):
    model = load_model(name)
    for tp in model.tensor_parallel:
        for kind in ("op", "fc2", "fc1", "ip"):
            assert sublayer(model, kind, tp)["gemm"].op.k * tp == unsplit(model, kind).gemm.k


@pytest.mark.parametrize("tp", [9, 1, 0, -8, 8.0, True, "8"])
def test_a_degree_that_does_not_fit_names_itself_the_rule_and_the_nearest(tp):
    with pytest.raises(InputError) as caught:
        sublayer("t-nlg", "fc2", tp)
    sentence = str(caught.value)
    assert f"TP {tp!r} cannot split t-nlg fc2" in sentence
    assert "at least 2" in sentence
    assert "4256" in sentence
    assert "nearest that do: " in sentence


def test_the_nearest_degrees_are_the_ones_on_both_sides():
    with pytest.raises(InputError, match="nearest that do: 7, 8, 14"):
        sublayer("t-nlg", "fc2", 9)


def test_a_layer_that_nothing_can_split_says_so():
    with pytest.raises(InputError, match=r"TP 2 cannot split custom: .* none does"):
        split(SubLayer.custom(5, 7, 11), 2)


def test_legal_degrees_divide_both_n_and_k():
    assert legal_degrees(SubLayer.custom(1, 12, 18)) == [2, 3, 6]


def test_unknown_names_are_refused_before_the_degree():
    with pytest.raises(UnknownNameError, match="unknown model"):
        sublayer("nothing", "fc2", 9)
