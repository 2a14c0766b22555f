"""Layers of models as operators, and one rank's share of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import InputError, UnknownNameError
from weft.graph import Attention, Collective, Gemm, GroupedGemm
from weft.models import Transformer, load_model, model_names
from weft.models.block import LAYERS, FusionStyle, Routing, Tokens, embedding, head, layer, sources
from weft.models.parallel.cut import copies, exchange, hops
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.rank import part

MIXTURE = load_model("deepseek-v3")


PLAIN = FusionStyle()


def pieces(name, kind="dense", sequence=2048, style=PLAIN, batch=1, context=1, source=0):
    tokens = Tokens(batch, sequence, context, source)
    return list(layer(load_model(name), kind, tokens, style, "bf16"))


def share(name, kind="dense", sequence=2048, style=PLAIN, source=0, **plan):
    plan = TrainingPlan(sequence=sequence, **plan)
    found = pieces(name, kind, sequence, style, plan.micro_batch, plan.cp, source)
    return part(kind, found, plan, Framework())


def collectives(graph, stream):
    return [(node.name, node.op) for node in graph if node.stream == stream]


def names(graph):
    return [node.name for node in graph]


def rank_flops(graph, kinds=(Gemm, GroupedGemm)):
    return sum(node.op.flops for node in graph if isinstance(node.op, kinds))


# Operators


@pytest.mark.parametrize("style", [PLAIN, FusionStyle(flash=False, dropout=True, fused=False, eager=True, apart=True)])
@pytest.mark.parametrize("name", model_names())
def test_every_output_of_a_layer_is_read_by_an_operator_that_follows(name, style):
    model = load_model(name)
    for kind in dict.fromkeys(model.layer_kinds):
        found = pieces(name, kind, 128, style, source=128 if model.encoder_layers else 0)
        reads = sources(found)
        assert all(place < at for at, places in enumerate(reads) for place in places)
        unread = set(range(len(found) - 1)) - {place for places in reads for place in places}
        assert not unread, [found[at].name for at in unread]


def test_a_mixture_routes_every_token_to_its_experts():
    ops = {piece.name: piece.op for piece in pieces("deepseek-v3", "moe")}
    assert (ops["router"].n, ops["top_k"].columns) == (256, 256)
    assert ops["experts_fc1"] == GroupedGemm(256, 8 * 2048, 2 * 2048, 7168)
    assert ops["experts_fc2"] == GroupedGemm(256, 8 * 2048, 7168, 2048)
    assert ops["permute"].outputs == ops["unpermute"].inputs == 8
    assert ops["shared_fc1"] == Gemm(2048, 2 * 2048, 7168, "bf16")


def test_the_first_layers_of_a_mixture_may_be_dense_and_each_kind_is_its_own():
    assert MIXTURE.layer_kinds == ("dense",) * 3 + ("moe",) * 58
    assert load_model("gpt-oss-20b").layer_kinds[:3] == ("moe-window", "moe", "moe-window")
    assert load_model("t5-11b").layer_kinds == ("encoder",) * 24 + ("decoder",) * 24
    assert {kind for name in ("gpt-3", "deepseek-v3") for kind in load_model(name).layer_kinds} <= set(LAYERS)
    with pytest.raises(UnknownNameError, match="unknown kind of layer 'sparse'; known: dense"):
        pieces("gpt-3", "sparse")


def test_latent_attention_passes_low_ranks_and_has_values_of_its_own_size():
    ops = {piece.name: piece.op for piece in pieces("deepseek-v3")}
    assert (ops["q_down"].n, ops["q_up"].n) == (1536, 128 * 192)
    assert (ops["kv_down"].n, ops["kv_up"].n) == (512 + 64, 128 * (128 + 128))
    assert (ops["attention"].head, ops["attention"].value_head) == (192, 128)
    assert ops["projection"].k == 128 * 128


def test_an_encoder_decoder_attends_to_its_source_and_needs_to_know_its_length():
    ops = {piece.name: piece.op for piece in pieces("t5-11b", "decoder", 128, source=512)}
    assert (ops["cross_attention"].query, ops["cross_attention"].keys) == (128, 512)
    assert (ops["cross_attention"].causal, ops["attention"].causal) == (0, 1)
    assert ops["cross_kv"].m == 512
    assert {piece.op.m for piece in pieces("t5-11b", "encoder", 128, source=512) if piece.name == "qkv"} == {512}
    with pytest.raises(InputError, match="give source"):
        pieces("t5-11b", "decoder", 128)


def test_bert_predicts_its_masked_tokens_only():
    """NVIDIA DeepLearningExamples: 20 of 128 tokens, 80 of 512."""
    bert = load_model("bert-large")
    for length, masked in ((128, 20), (512, 80)):
        ops = {piece.name: piece.op for piece in head(bert, Tokens(8, length), FusionStyle(), "fp16")}
        assert ops["logits"].m == ops["loss"].rows == ops["transform"].m == 8 * masked
        assert ops["pooler"].m == 8
    order = [piece.name for piece in pieces("bert-large")]
    assert order.index("norm1") == order.index("residual1") + 1
    assert not {"norm"} & {piece.name for piece in head(bert, Tokens(1, 128), FusionStyle(), "fp16")}


def test_windows_limit_the_keys_of_their_layers_alone():
    windowed, whole = (
        next(piece.op for piece in pieces("gpt-oss-20b", kind, 8192) if piece.name == "attention")
        for kind in ("moe-window", "moe")
    )
    assert (windowed.window, whole.window) == (128, 0)
    assert windowed.flops < 0.05 * whole.flops


def test_a_parallel_block_has_one_norm_one_sum_and_two_gemms():
    """PaLM (arXiv:2204.02311, section 2)."""
    model = load_model("megascale-175b")
    found = pieces("megascale-175b")
    assert [piece.name for piece in found if isinstance(piece.op, Gemm)] == ["qkv_fc1", "projection_fc2"]
    assert sum(piece.name.startswith("norm") for piece in found) == 1
    gemms = sum(piece.op.flops for piece in found if isinstance(piece.op, Gemm))
    assert gemms == sum(piece.op.flops for piece in pieces("gpt-3") if isinstance(piece.op, Gemm))
    reduced = collectives(share("megascale-175b", tp=8).forward, "tp")
    assert [name for name, _ in reduced] == ["projection_fc2.reduce"]
    assert model.parameters == pytest.approx(load_model("gpt-3").parameters, rel=2e-3)


def test_norms_may_stand_at_both_places():
    model = Transformer(name="m", title="M", hidden=512, layers=2, sequence_length=128, norms="both")
    names = [piece.name for piece in layer(model, "dense", Tokens(1, 128), FusionStyle(), "bf16")]
    assert [name for name in names if "norm" in name] == ["norm1", "norm1_after", "norm2", "norm2_after"]


def test_a_layer_that_predicts_a_further_token_is_a_layer_with_a_head():
    found = [piece for piece in head(MIXTURE, Tokens(1, 4096), FusionStyle(), "bf16") if piece.module == "prediction"]
    assert {"predict1_join", "predict1_experts_fc1", "predict1_logits", "predict1_loss"} <= {one.name for one in found}
    assert found[0].name == "predict1_embedding"


# Tensor parallelism


def test_a_layer_of_gpt_3_moves_the_published_bytes():
    """50.3 MB an all-reduce at T = 2048, four of them a layer (arXiv:2104.04473)."""
    found = share("gpt-3", tp=8)
    moved = [op for graph in (found.forward, found.backward) for _, op in collectives(graph, "tp")]
    assert [op.name for op in moved] == ["all_reduce"] * 4
    assert {op.bytes for op in moved} == {2 * 2048 * 12288}


def test_sequence_parallelism_gathers_and_scatters_the_same_tokens():
    """arXiv:2205.05198, section 4.2.2, and Megatron-LM, which gathers the input of a weight's gradient again."""
    found = share("gpt-3", tp=8, sp=True)
    kinds = [[op.name for _, op in collectives(graph, "tp")] for graph in (found.forward, found.backward)]
    assert (kinds[0].count("all_gather"), kinds[0].count("reduce_scatter")) == (2, 2)
    assert (kinds[1].count("all_gather"), kinds[1].count("reduce_scatter")) == (4, 2)


@pytest.mark.parametrize("name", ["gpt-3", "llama-3-70b", "bert-large", "megascale-175b", "qwen3-30b-a3b"])
def test_the_ranks_of_a_group_share_a_layers_gemms(name):
    kind = load_model(name).layer_kinds[0]
    whole, shared = share(name, kind), share(name, kind, tp=4, sp=True)
    for graph in ("forward", "backward"):
        assert 4 * rank_flops(getattr(shared, graph)) == pytest.approx(rank_flops(getattr(whole, graph)), rel=1e-3)


def test_ranks_that_share_a_vocabulary_reduce_three_numbers_a_token():
    """Megatron-LM's vocabulary-parallel cross entropy: maximum, the token's own logit, sum of exponentials."""
    plan = TrainingPlan(tp=8, sequence=2048)
    found = part("head", list(head(load_model("gpt-3"), Tokens(1, 2048), FusionStyle(), "bf16")), plan, Framework())
    small = [op for name, op in collectives(found.forward, "tp") if name.startswith("loss")]
    assert [(op.name, op.bytes) for op in small] == [("all_reduce", 4 * 2048)] * 3
    assert found.forward["loss"].op.columns == 51200 // 8
    assert not collectives(part("head", list(head(load_model("gpt-3"), Tokens(1, 2048), FusionStyle(), "bf16")),
                                TrainingPlan(), Framework()).forward, "tp")  # fmt: skip


def test_the_gradient_of_a_shared_embedding_is_gathered_with_sequence_parallelism():
    found = list(embedding(load_model("gpt-3"), Tokens(1, 2048), FusionStyle(), "bf16"))
    moved = collectives(part("embedding", found, TrainingPlan(tp=8, sp=True), Framework()).backward, "tp")
    assert [op.name for _, op in moved] == ["all_gather"]


# Expert parallelism


@pytest.mark.parametrize(("ep", "experts"), [(1, 256), (8, 32), (64, 4)])
def test_ranks_share_the_experts_and_keep_their_tokens(ep, experts):
    found = share("deepseek-v3", "moe", ep=ep, dp=64, batch=64)
    grouped = found.forward["experts_fc1"].op
    assert (grouped.groups, grouped.rows) == (experts, 8 * 2048)
    whole = share("deepseek-v3", "moe")
    assert found.experts == whole.experts // ep
    assert found.parameters - found.experts == whole.parameters - whole.experts


def test_tokens_are_exchanged_four_times_a_layer():
    """Dispatch and combine, forward and backward: T e h x 2 bytes each."""
    found = share("deepseek-v3", "moe", ep=8, dp=8, batch=8)
    for graph in (found.forward, found.backward):
        moved = collectives(graph, "ep")
        assert [(op.name, op.bytes, op.ranks) for _, op in moved] == [("all_to_all", 2048 * 8 * 7168 * 2, 8)] * 2
    assert not collectives(share("deepseek-v3", "moe").forward, "ep")


def test_with_sequence_parallelism_each_rank_routes_its_own_tokens():
    found = share("deepseek-v3", "moe", tp=2, sp=True, ep=8, dp=4, batch=4)
    assert {op.bytes for _, op in collectives(found.forward, "ep")} == {1024 * 8 * 7168 * 2}
    assert found.forward["experts_fc1"].op.rows == 1024 * 8


def test_without_sequence_parallelism_ranks_share_each_expert_and_add_up_its_results():
    """Expert tensor parallelism of Megatron-LM, and of inference engines: an all-reduce after the experts."""
    whole, found = share("mixtral-8x7b", "moe"), share("mixtral-8x7b", "moe", tp=4)
    first, last = found.forward["experts_fc1"].op, found.forward["experts_fc2"].op
    assert (first.groups, first.rows, first.n) == (8, 2 * 2048, 2 * 14336 // 4)
    assert (last.n, last.k) == (4096, 14336 // 4)
    assert 4 * found.experts == whole.experts
    reduced = [(name, op.bytes) for name, op in collectives(found.forward, "tp")]
    assert reduced == [("projection.reduce", 2048 * 4096 * 2), ("unpermute.reduce", 2048 * 4096 * 2)]
    assert ("permute.reduce", 2048 * 4096 * 2) in [(name, op.bytes) for name, op in collectives(found.backward, "tp")]
    shared = 8 * 2 * 3 * 2048 * 4096  # the router is computed by every rank
    assert 4 * rank_flops(found.backward) == pytest.approx(rank_flops(whole.backward) + shared, rel=1e-3)


def test_a_shared_expert_runs_beside_the_exchange_of_tokens_if_the_framework_lets_it():
    beside = share("deepseek-v3", "moe", style=FusionStyle(beside=True), ep=8, dp=8, batch=8)
    after = share("deepseek-v3", "moe", ep=8, dp=8, batch=8)
    seconds = dict.fromkeys(names(beside.forward), 1.0)
    times = beside.forward.critical_path(seconds)
    assert times["shared_fc1"][0] == times["permute.exchange"][0]
    later = after.forward.critical_path(seconds)
    assert later["shared_fc1"][0] == later["unpermute"][1]
    back = beside.backward.critical_path(dict.fromkeys(names(beside.backward), 1.0))
    assert back["shared_fc2.input"][0] == back["unpermute.exchange"][0]
    assert back["permute"][0] >= max(back["permute.exchange"][1], back["shared_fc1.join"][1])
    assert sorted(names(beside.forward)) == sorted(names(after.forward))


def test_a_token_is_sent_once_to_a_rank_if_duplicates_are_left_out():
    routing = Routing(256, 8, 7168, "bf16")
    assert copies(routing, 256, "rank") == pytest.approx(8)
    assert copies(routing, 1, "rank") == 1
    assert copies(routing, 8, "rank") == pytest.approx(8 * (1 - (7 / 8) ** 8), rel=0.02)
    once, each = (exchange(routing, 4096, 8, "dispatch", library) for library in ("deepep", "nccl"))
    assert once.bytes < 0.7 * each.bytes


@given(st.sampled_from([2, 4, 8, 16, 32, 64]), st.integers(1, 8))
def test_deduplication_sends_at_least_one_and_at_most_every_copy(ranks, each):
    found = copies(Routing(64, each, 512, "bf16"), ranks, "rank")
    assert found >= 1 - 1e-9
    assert found <= min(each, ranks) + 1e-9


# Context parallelism


@given(st.sampled_from([2, 4, 8]), st.sampled_from([0, 1]), st.sampled_from([1024, 4096]))
def test_the_ranks_of_a_ring_see_every_pair_of_tokens_once(ranks, causal, length):
    whole = Attention(1, 8, length, length, 64, causal=causal, dtype="bf16")
    flops = ranks * sum(op.flops for op in hops(whole, ranks))
    assert flops == pytest.approx(whole.flops, rel=2 * ranks / length)


def test_a_ring_passes_keys_and_values_on_while_it_computes():
    """2 x 2 x (T / c) k d bytes forward in each of c - 1 hops; backward also their gradients."""
    found = share("llama-3-8b", sequence=8192, cp=4)
    moved = collectives(found.forward, "cp")
    assert [(op.name, op.ranks, op.bytes) for _, op in moved] == [("send_recv", 2, 2 * 2 * 2048 * 8 * 128)] * 3
    back = collectives(found.backward, "cp")
    assert [op.bytes for _, op in back] == [2 * 2 * 2 * 2048 * 8 * 128] * 3
    times = found.forward.critical_path(dict.fromkeys(names(found.forward), 1.0))
    assert times["attention.1.send"][0] == times["attention"][0]
    assert times["attention.2.send"][0] == times["attention.1.send"][1]


@pytest.mark.parametrize(
    ("method", "forward", "backward"),
    [
        ("all_gather", ["all_gather"], ["all_gather", "reduce_scatter"]),
        ("all_to_all", ["all_to_all"] * 4, ["all_to_all"] * 4),
    ],
)
def test_other_context_parallelism_exchanges_as_published(method, forward, backward):
    """All-gather of keys (arXiv:2407.21783, section 3.3.2); Ulysses (arXiv:2309.14509)."""
    found = share("llama-3-8b", sequence=8192, cp=4, context=method)
    assert [op.name for _, op in collectives(found.forward, "cp")] == forward
    assert [op.name for _, op in collectives(found.backward, "cp")] == backward
    assert rank_flops(found.forward) * 4 == rank_flops(share("llama-3-8b", sequence=8192).forward)


@pytest.mark.parametrize("method", ["ring", "all_gather", "all_to_all"])
def test_context_parallelism_divides_attention_evenly(method):
    whole, shared = share("llama-3-8b", sequence=8192), share("llama-3-8b", sequence=8192, cp=4, context=method)
    for graph in ("forward", "backward"):
        flops = [rank_flops(getattr(one, graph), Attention) for one in (whole, shared)]
        assert 4 * flops[1] == pytest.approx(flops[0], rel=1e-3)


def test_ulysses_exchanges_a_part_of_the_tokens_of_every_tensor():
    found = share("mpt-7b", sequence=8192, cp=4, context="all_to_all")
    assert {op.bytes for _, op in collectives(found.forward, "cp")} == {2 * 8192 * 4096 // 4}


def test_an_unknown_way_of_context_parallelism_lists_the_known():
    with pytest.raises(UnknownNameError, match="unknown context parallelism 'star'; known: ring"):
        TrainingPlan(context="star")


@pytest.mark.parametrize("name", ["gpt-3", "deepseek-v3", "gpt-oss-20b", "bert-large", "megascale-175b"])
def test_every_weight_has_one_gradient(name):
    for kind in dict.fromkeys(load_model(name).layer_kinds):
        found = share(name, kind)
        products = [node for node in found.forward if isinstance(node.op, Gemm | GroupedGemm)]
        gradients = [node for node in found.backward if isinstance(node.op, Gemm | GroupedGemm)]
        assert [node.phase for node in gradients].count("weight") == len(products)
        assert sum(node.op.flops for node in gradients) == 2 * sum(node.op.flops for node in products)


def test_the_same_collectives_are_one_operator():
    assert isinstance(share("gpt-3", tp=8).forward["fc2.reduce"].op, Collective)
