"""Frameworks of the catalogue: what they inherit, and what a wrong file is told."""

import pytest

from weft.core.errors import ConfigError, UnknownNameError
from weft.models.parallel.framework import _read, framework, frameworks


def test_every_framework_names_its_source():
    assert all(one.title and one.source for one in frameworks().values())


def test_a_framework_inherits_what_it_does_not_state():
    newer, older = framework("megatron-2022"), framework("megatron-2021")
    assert newer.style == older.style
    assert newer.scales_loss
    assert newer.gradients == "fp32" != older.gradients


def test_a_style_is_inherited_key_by_key():
    assert framework("megatron-bridge").style.flash
    assert framework("megatron-bridge").style.loss == "fused_cross_entropy"


def test_replicas_add_gradients_in_the_kept_format_unless_another_is_stated():
    assert framework("megatron-core").reduce_dtype == "fp32"
    assert framework("composer-fsdp").reduce_dtype == "bf16"


def test_a_bucket_grows_with_the_replicas_where_the_framework_says_so():
    assert framework("megatron-core").bucket_of(8) == 40_000_000
    assert framework("megatron-core").bucket_of(512) == 512_000_000
    assert framework("megatron-2022").bucket_of(8) == 0


def test_an_unknown_framework_lists_the_known_ones():
    with pytest.raises(UnknownNameError, match="megatron-core"):
        framework("megatron-cores")


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(ConfigError, match="gradients"):
        _read("mine", {"mine": {"gradient": "fp32", "source": "here"}})


def test_a_framework_without_a_source_is_refused():
    with pytest.raises(ConfigError, match="source"):
        _read("mine", {"mine": {"gradients": "fp32"}})
