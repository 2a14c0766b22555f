"""How the engine becomes machine code: what of numba and LLVM it leans on, and what the code of a policy depends on."""

import ctypes
import inspect
import subprocess
import sys

import numba
import pytest
from llvmlite import binding as llvm
from numba.core import codegen, compiler

from weft.engine.code import load
from weft.overlaps.arbiters import POLICIES, ArbiterView, digest_of

PRIVATE = {
    codegen.JITCodeLibrary: {"_final_module", "_linking_libraries", "_finalized", "_get_module_for_linking"},
    compiler.Compiler: {"compile_extra"},
}
"""What the compiler uses of numba that numba does not document; a release without it needs a change of the compiler."""


@pytest.mark.parametrize("kind", PRIVATE, ids=lambda kind: kind.__name__)
def test_numba_has_the_parts_that_the_compiler_uses(kind):
    source = inspect.getsource(inspect.getmodule(kind))
    assert [name for name in PRIVATE[kind] if name not in source] == []


@pytest.mark.parametrize(
    "name", ["create_pass_builder", "create_pipeline_tuning_options", "create_lljit_compiler", "JITLibraryBuilder"]
)
def test_llvmlite_has_the_passes_and_the_loader(name):
    assert callable(getattr(llvm, name))


def test_machine_code_takes_the_addresses_of_result_and_reason_and_returns_a_status():
    from weft.engine.compiler import Session

    def ratio(a, b):
        return 100 + a // b

    session = Session()
    code = load("ratio", lambda: session.module(session.function(ratio), [numba.int64] * 2, "ratio"), keep=False)
    call = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)(code.address)
    result, reason = ctypes.c_int64(), ctypes.c_void_p()
    assert call(ctypes.addressof(result), ctypes.addressof(reason), 14, 2) == 0
    assert result.value == 107
    assert call(ctypes.addressof(result), ctypes.addressof(reason), 14, 0) != 0


LIMIT = 3


def below(value):
    return value < LIMIT


def rule(view):
    return 1 if below(view.communication) else 0


def recursive(view):
    return recursive(view) if view.compute > 1 else 0


def test_the_digest_of_a_rule_follows_what_it_refers_to(monkeypatch):
    before = digest_of(rule)
    assert before
    monkeypatch.setitem(globals(), "LIMIT", 4)
    after = digest_of(rule)
    assert after != before
    monkeypatch.setitem(globals(), "below", lambda value: value > LIMIT)
    assert digest_of(rule) not in (before, after)
    monkeypatch.undo()
    assert digest_of(rule) == before


def test_the_digest_of_a_rule_follows_its_closure_and_its_defaults():
    def made(limit):
        return lambda view: int(view.compute > limit)

    assert len({digest_of(made(1)), digest_of(made(2)), digest_of(lambda view, limit=1: limit)}) == 3
    assert digest_of(made(1)) == digest_of(made(1))


def test_a_rule_that_calls_itself_has_a_digest():
    assert digest_of(recursive)


def test_a_rule_that_refers_to_what_a_hash_may_miss_has_no_digest():
    table = [1, 2]
    assert digest_of(lambda view: table[view.last]) == ""


def test_every_built_in_policy_has_a_digest_of_its_own():
    assert len({digest_of(policy.rule) for policy in POLICIES.values()}) == len(POLICIES)


def test_a_kept_policy_needs_no_numba(tmp_path):
    script = (
        "import sys\nfrom weft.overlaps.arbiters import POLICIES\n"
        "POLICIES['round-robin'].compiled\nprint('numba' in sys.modules)"
    )
    environment = {"WEFT_CACHE": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    shown = [
        subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert [done.stdout for done in shown] == ["True\n", "False\n"]


def test_machine_code_of_a_policy_selects_as_its_rule_does():
    view = ArbiterView(0, 1, 1, 512, 512, 0, 0, 64, 0, 1, 5, 10, 1, 0, 2, 1, 0)
    for policy in POLICIES.values():
        call = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * len(view))
        result, reason = ctypes.c_int64(), ctypes.c_void_p()
        assert call(policy.compiled.address)(ctypes.addressof(result), ctypes.addressof(reason), *view) == 0
        assert result.value == policy.rule(view)
