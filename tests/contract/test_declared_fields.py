"""Contract of plans, loads and limits: functions that serve take declared objects, not lists of parameters."""

import ast
import inspect
from pathlib import Path

import pytest

import weft
from weft.core.fields import describe_fields
from weft.serving.serve import ready
from weft.step.forward import Forward

SOURCES = sorted(Path(weft.__file__).parent.rglob("*.py"))
MOST = 8
CARRIED = {"torch/traces/records.py": "classes of a schema, made at run time"}
"""Files that may make a SimpleNamespace, and why."""


@pytest.mark.parametrize("function", [weft.serve, weft.prefill, weft.decode, weft.plan_serving, Forward, ready])
def test_functions_that_serve_take_few_parameters(function):
    assert len(inspect.signature(function).parameters) <= MOST


def calls():
    for path in SOURCES:
        name = path.relative_to(Path(weft.__file__).parent).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield name, node, getattr(node.func, "attr", getattr(node.func, "id", ""))


def test_no_arguments_travel_as_a_mapping_of_local_names():
    assert not [(name, node.lineno) for name, node, called in calls() if called in ("locals", "vars") and not node.args]
    assert {name for name, _, called in calls() if called == "SimpleNamespace"} <= {*CARRIED}


def test_serving_calls_nothing_by_long_lists_of_positions():
    for name, node, _ in calls():
        if name.startswith("serving/") or name in ("step/inference.py", "step/forward.py"):
            assert len(node.args) <= MOST, f"{name}:{node.lineno}"


@pytest.mark.parametrize("owner", [weft.ServingPlan, weft.Load, weft.Limits])
def test_every_field_is_an_option_of_the_command_and_a_key_of_a_sweep(owner):
    from weft.cli.serve import serve
    from weft.sweep.questions import ServeQuestion

    flags = {flag for one in serve.params for flag in one.opts}
    for one in describe_fields(owner).values():
        assert f"--{one.name.replace('_', '-')}" in flags
        assert one.name in ServeQuestion.model_fields
