"""What of PyTorch's own inside captures use: a release that takes one away fails here, by its name."""

from __future__ import annotations

from importlib import import_module

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; make test-capture runs this")

PRIVATE = {
    "torch": [
        "_C._current_graph_task_id",
        "UntypedStorage._cdata",
        "UntypedStorage.resize_",
        "library.Library._destroy",
    ],
    "torch._subclasses.fake_tensor": ["FakeTensor", "FakeTensorMode", "unset_fake_temporarily"],
    "torch.distributed._functional_collectives": ["AsyncCollectiveTensor", "_are_we_tracing"],
    "torch.distributed.distributed_c10d": ["_resolve_process_group"],
    "torch.distributed.tensor._sharding_prop": ["ShardingPropagator._propagate_tensor_meta_non_cached"],
    "torch.nn.utils.stateless": ["_reparametrize_module"],
    "torch.testing._internal.distributed.fake_pg": ["FakeStore"],
    "torch.utils._python_dispatch": ["TorchDispatchMode"],
    "torch.utils._pytree": ["tree_map_only"],
    "torch.utils.module_tracker": ["ModuleTracker"],
    "torch.utils.weak": ["WeakIdKeyDictionary"],
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in PRIVATE.items() for name in names])
def test_torch_has_what_a_capture_uses(module, name):
    found = import_module(module)
    for part in name.split("."):
        assert hasattr(found, part), f"PyTorch has no {module}.{name} any more"
        found = getattr(found, part)
