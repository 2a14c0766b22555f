"""Roles of operators in a model: what code asks for instead of the name of a node."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """What an operator of a model, and the nodes of a rank that carry it out, are for; NONE where nobody asks.

    Nodes also say their `phase`, their `module` (a layer that predicts further tokens has the module "prediction") and
    the `operator` of the model to whose work they belong.
    """

    NONE = ""
    ATTENTION_NORM = "attention_norm"
    MLP_NORM = "mlp_norm"
    MLP_POST_NORM = "mlp_post_norm"
    QKV = "qkv"
    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    QUERY_DOWN = "query_down"
    QUERY_NORM = "query_norm"
    QUERY_UP = "query_up"
    KV_DOWN = "kv_down"
    KV_NORM = "kv_norm"
    KV_UP = "kv_up"
    KEY_COPY = "key_copy"
    ROTARY = "rotary"
    SPLIT_HEADS = "split_heads"
    ATTENTION_CORE = "attention_core"
    JOIN_HEADS = "join_heads"
    OUT_PROJECTION = "out_projection"
    CROSS_QUERY = "cross_query"
    QKV_MLP_UP = "qkv_mlp_up"
    OUT_MLP_DOWN = "out_mlp_down"
    MLP_UP = "mlp_up"
    ACTIVATION_BIAS = "activation_bias"
    ACTIVATION = "activation"
    MLP_DOWN = "mlp_down"
    ROUTER = "router"
    TOP_K = "top_k"
    EXPERT_UP = "expert_up"
    EXPERT_INNER = "expert_inner"
    EXPERT_DOWN = "expert_down"
    SHARED_EXPERT = "shared_expert"
    RESIDUAL = "residual"
    LOGITS = "logits"
    LOSS = "loss"
    KEPT_CAST = "kept_cast"
    """A cast whose result is only kept for the backward pass."""
